//! Connection tracking against the running kernel, each test in a network namespace of its own.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod kernel;
mod reconcile;
mod scale;
mod world;
