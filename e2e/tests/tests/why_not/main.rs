//! Runs `localnet` on nodes with problems: the faults of `e2e/faults` and the problems of `docs/debugging.md`, each in separate
//! network namespaces with the programs as shipped.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod commands;
mod debugging;
mod faults;
mod hns;
