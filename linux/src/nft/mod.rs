//! nf_tables without the `nft` program.
//!
//! ```text
//!  planner ──▶ ruleset, statement, element (plain values) ──▶ transaction ──┬─▶ text    (dry run, golden files, `nft -f`)
//!                                                                           └─▶ encode ─▶ socket ─▶ kernel
//! ```
//!
//! The plain values are the only form in which rules exist in this project. Both renderers read the same
//! transaction, and a test loads each into a kernel and compares the listings.

mod element;
mod ruleset;
mod statement;
mod transaction;

pub use element::{Element, ElementData, ElementKey, Tuple};
pub use ruleset::{
    Chain, ChainKind, Family, FieldType, Hook, HookPoint, Name, Set, SetData, SetFlags, Table, TableContent,
};
pub use statement::{AddressField, Field, Generator, InterfacePattern, Op, Protocol, Rule, Statement, Verdict};
pub use transaction::{Change, Transaction};
