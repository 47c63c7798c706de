//! The state of the node for KPNG's clients: objects at paths that are set and deleted. Pure.
//!
//! ```text
//! State before ─┐
//! State now    ─┴► changes ─► serialized OpItems, one by one, in KPNG's order, and Sync
//! ```
//!
//! Everything is derived from the items that the feed has encoded for `Next`, so that both contain the same state. Only Services
//! that differ are read. KPNG's clients would misunderstand endpoints that get no new connections. These are in sets that such
//! clients ignore.

mod changes;
#[cfg(test)]
mod tests;
mod view;

pub use changes::{changes, reset};
