//! Simulates a whole node in one thread: the real brain, the real loop of the client library, and a real backend on a fake
//! kernel. Time is simulated, and everything follows from a seed, so that a run can be repeated exactly.
//!
//! ```text
//! world ──goals──► run ──writes──► api ──lists, watches──► brain ──unix socket──► client ──► backend ──► kernel
//!                   │               ▲                                                                      ▲
//!                   ├──► faults ────┴──────────────────────────────────────────────────────────────────────┤
//!                   └──► ledger ◄───────────────── states, reports, commits ───────────────────────────────┘
//! ```
//!
//! `docs/simulation.md` lists the invariants and the faults.

pub mod api;
pub mod backends;
pub mod faults;
pub mod flows;
pub mod kernel;
pub mod ledger;
pub mod link;
pub mod node;
pub mod owners;
pub mod replay;
pub mod run;
pub mod subsystem;
pub mod trace;
pub mod truth;
pub mod world;
