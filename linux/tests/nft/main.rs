//! nf_tables against the running kernel, each test in a network namespace of its own.

mod namespace;
mod ruleset;
mod transaction;
