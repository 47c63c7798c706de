//! IPVS of a real kernel, each test in a temporary network namespace: on this machine if its kernel has IPVS, otherwise in a guest.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod changes;
mod connections;
mod lists;
mod refusals;
mod servers;
mod settings;

#[path = "../namespace/mod.rs"]
mod namespace;
