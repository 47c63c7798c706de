//! nf_tables over netlink, without the `nft` program.
//!
//! ```text
//!  planner ──▶ ruleset, statement, element (plain values) ──▶ transaction ──┬─▶ text    (dry run, golden files, `nft -f`)
//!                                                                           └─▶ encode ─▶ socket ─▶ kernel
//! ```
//!
//! The plain values are the only representation of rules in this project. `text` and `encode` render the same transaction. A test
//! loads the output of each into a kernel and compares the listings.
//!
//! A rule is a list of statements, a statement looks up fields, and the kernel runs both as expressions. `statement`, `field`,
//! `verdict` and `expression` each contain everything about one of these: what it is, its text and its bytes.

mod answer;
pub mod chain_names;
mod comment;
mod dump;
mod element;
mod encode;
mod expression;
mod field;
pub mod foreign;
mod kernel;
mod monitor;
mod parse;
mod ruleset;
mod socket;
pub mod spread;
mod statement;
mod subscription;
mod tape;
#[cfg(feature = "testing")]
pub mod testing;
mod text;
mod text_value;
mod transaction;
mod types;
mod uapi;
mod userdata;
mod verdict;

use crate::netlink as wire;

pub use answer::Error;
pub use dump::{SetDump, TableDump};
pub use element::{Element, ElementData, ElementKey, Expiry, Tuple};
pub use field::{AddressField, Field, Generator};
pub use kernel::{ChainMatch, Kernel, LiveTable, Netlink};
pub use monitor::{Commit, Event, Monitor};
pub use parse::{ChainDump, RuleDump};
pub use ruleset::{Chain, ChainKind, Hook, HookPoint, Set, SetData, SetFlags, Table, TableContent};
pub use socket::{Socket, TransactionSize};
pub use statement::{InterfacePattern, Rule, Statement};
pub use subscription::Subscription;
pub use tape::{Answer as RecordedAnswer, Answers};
pub use text::{element_line, listing, script};
pub use transaction::{Change, Transaction};
pub use types::{FieldType, Name, Op, family_name};
pub use verdict::Verdict;
