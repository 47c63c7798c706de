//! nf_tables of the running kernel, each test in a temporary network namespace.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod dump;
mod foreign;
mod monitor;
mod namespace;
mod ruleset;
mod transaction;
