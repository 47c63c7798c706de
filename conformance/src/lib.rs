//! Tests any backend, in any language: `localnet-conformance --backend 'COMMAND'`.
//!
//! ```text
//!            states of the Cases, and of each check
//!                     │
//!  kit ──► Brain (answers Next correctly, or with a fault) ──unix or TCP──► COMMAND ──► dump, or Report
//!   │                                                                          │
//!   └──────────── packets between namespaces, signals, flushes ────────────────┘
//! ```
//!
//! | level | what it verifies |
//! |---|---|
//! | `wire` | the backend reads the stream correctly: it resumes, and handles cut streams, restarts, unknown content and large states |
//! | `state` | the backend holds the state of each Case |
//! | `packets` | real packets of each Case reach their expected destination (needs root) |
//! | `life` | the backend recovers after it was killed or stalled, after it had no brain, and after its rules were flushed |
//!
//! | file | content |
//! |---|---|
//! | [`claims`] | what a backend claims to support; pure |
//! | [`dump`] | the text in which a backend describes its state; pure |
//! | [`brain`] | a brain that answers correctly, or with a fault |
//! | `connections` | the brain's listener, which counts or refuses connections |
//! | [`backend`] | the running COMMAND, and its state |
//! | [`level`] | the levels of checks; pure |
//! | [`levels`] | the checks |
//! | [`outcome`] | the results of the checks, as a table and as JUnit XML; pure |

pub mod backend;
pub mod brain;
pub mod claims;
mod connections;
pub mod dump;
pub mod level;
pub mod levels;
pub mod outcome;

pub use level::Level;
pub use levels::{Options, run};
pub use outcome::{Outcome, Outcomes};
