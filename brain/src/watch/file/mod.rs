//! `file:PATH`: Kubernetes objects in YAML or JSON, from a file or a folder, without a cluster.
//!
//! The source watches the path. After a change, it reads the changed documents again and applies all changes at once. If any
//! document is invalid, the source reports this and keeps the previous state.

mod checks;
mod contents;
mod fingerprint;
mod folder;
mod limits;
mod load;
mod open;
mod problems;
mod reading;
#[cfg(test)]
mod tests;
mod thread;
mod watcher;

pub(crate) use checks::{is_label_key, is_label_value};
pub use load::{Loaded, load};
pub use watcher::{Files, run};
