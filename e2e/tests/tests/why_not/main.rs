//! `localnet` on nodes where something is wrong: the faults of `e2e/faults`, and the troubles of `docs/debugging.md`, each in a
//! network of namespaces with the programs as they are shipped.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod commands;
mod debugging;
mod faults;
mod scenario;
