//! The state of the node as KPNG's clients read it: objects at paths, set and deleted. Pure.
//!
//! ```text
//! State before ─┐
//! State now    ─┴► ChangeSet ─► serialized OpItems, one by one, in KPNG's order, and Sync
//! ```
//!
//! Everything is derived from what the feed has encoded for `Next`, so that both say the same. Only services that differ are
//! looked at. What KPNG's clients would misread (endpoints that get no new connections) stands in sets that they leave out.

mod changes;
#[cfg(test)]
mod tests;
mod view;

pub use changes::{ChangeSet, reset};
