//! nf_tables against the running kernel, each test in a network namespace of its own.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod dump;
mod monitor;
mod namespace;
mod others;
mod ruleset;
mod transaction;
