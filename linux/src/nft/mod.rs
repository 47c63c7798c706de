//! nf_tables without the `nft` program.
//!
//! ```text
//!  planner ──▶ ruleset, statement, element (plain values) ──▶ transaction ──┬─▶ text    (dry run, golden files, `nft -f`)
//!                                                                           └─▶ encode ─▶ socket ─▶ kernel
//! ```
//!
//! The plain values are the only form in which rules exist in this project. Both renderers read the same
//! transaction, and a test loads each into a kernel and compares the listings.

mod answer;
mod dump;
mod element;
mod encode;
mod expression;
mod follow;
mod kernel;
mod monitor;
pub mod others;
mod parse;
mod ruleset;
mod socket;
pub mod spread;
mod statement;
mod tables;
mod text;
mod text_value;
mod transaction;
mod userdata;

use crate::netlink as wire;

pub use answer::Error;
pub use dump::{SetDump, TableDump};
pub use element::{Element, ElementData, ElementKey, Expiry, Tuple};
pub use follow::Follow;
pub use monitor::{Commit, Event, Monitor};
pub use parse::{ChainDump, RuleDump};
pub use ruleset::{
    Chain, ChainKind, Family, FieldType, Hook, HookPoint, Name, Set, SetData, SetFlags, Table, TableContent,
};
pub use socket::{Sent, Socket};
pub use statement::{AddressField, Field, Generator, InterfacePattern, Op, Protocol, Rule, Statement, Verdict};
pub use tables::{Found, Kernel, Likeness, Netlink};
pub use text::{element_line, listing, rule_line, script};
pub use transaction::{Change, Transaction};
