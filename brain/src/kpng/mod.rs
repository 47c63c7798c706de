//! The state of the node for KPNG's clients: items that set or delete the object at a path. Pure.
//!
//! ```text
//! State before ─┐
//! State now    ─┴► changes ─► serialized OpItems, one by one, in KPNG's order, and Sync
//! ```
//!
//! All items are derived from the items that the feed has encoded for `Next`, so `Watch` serves the same state. Only
//! Services that differ are read. KPNG's clients would misunderstand endpoints that get no new connections, so these
//! endpoints are in sets that the clients ignore.

mod changes;
#[cfg(test)]
mod tests;
mod view;

pub use changes::{changes, reset};
