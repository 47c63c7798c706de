//! Checks any backend, in any language: `localnet-conformance --backend 'COMMAND'`.
//!
//! ```text
//!            states of the Cases, and of each check
//!                     │
//!  kit ──► Brain (it answers Next truly, or as a check wants it) ──unix or TCP──► COMMAND ──► dump, or Report
//!   │                                                                               │
//!   └──────────── packets between namespaces, signals, flushes ─────────────────────┘
//! ```
//!
//! | level | what it asks |
//! |---|---|
//! | `wire` | does it read the stream as it is meant: resume, cut streams, restarts, what is new to it, much at once |
//! | `state` | does it hold the state of each Case |
//! | `packets` | do real packets of each Case go where they should (needs root) |
//! | `life` | killed, stalled, alone, flushed: does it end right |
//!
//! | file | step |
//! |---|---|
//! | [`claims`] | what a backend says that it can; pure |
//! | [`dump`] | the text in which a backend tells what it holds; pure |
//! | [`brain`] | the other end of the stream |
//! | `connections` | what it listens on: connections are counted, or turned away |
//! | [`backend`] | COMMAND at work, and what it holds |
//! | [`levels`] | the checks |
//! | [`outcome`] | what came of them: a table, JUnit; pure |

pub mod backend;
pub mod brain;
pub mod claims;
mod connections;
pub mod dump;
pub mod levels;
pub mod outcome;

pub use levels::{Level, Options, run};
pub use outcome::{Outcome, Outcomes};
