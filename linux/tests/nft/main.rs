//! nf_tables of the running kernel, each test in a temporary network namespace.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod dump;
mod foreign;
mod listing;
mod monitor;
mod ruleset;
mod transaction;

#[path = "../namespace/mod.rs"]
mod namespace;
