//! IPVS of a real kernel, each test in a network namespace of its own: this machine's if its kernel has IPVS, else a guest's.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod changes;
mod connections;
mod lists;
mod refusals;
mod settings;
mod world;
