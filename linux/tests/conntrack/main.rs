//! Connection tracking of the running kernel, each test in a temporary network namespace.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod contract;
mod flows;
mod kernel;
mod reconcile;
mod scale;

#[path = "../namespace/mod.rs"]
mod namespace;
