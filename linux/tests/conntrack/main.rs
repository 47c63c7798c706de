//! Connection tracking of the running kernel, each test in a temporary network namespace.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod kernel;
mod namespace;
mod reconcile;
mod scale;
