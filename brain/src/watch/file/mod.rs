//! `file:PATH`: ordinary Kubernetes YAML or JSON, a file or a folder of them, served without any cluster.
//!
//! The path is watched; on a change the documents that have changed are read again, and all of it is swapped in at once. If
//! anything cannot be read, all of it is refused and reported, and the last good state stays.

mod checks;
mod document;
mod folder;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hostile;
mod known;
mod limits;
mod look;
mod open;
mod problem;
mod reading;
#[cfg(test)]
mod tests;
mod thread;
mod tree;
mod watcher;
mod words;

pub use folder::{Loaded, load};
pub use problem::Problem;
pub(crate) use tree::Tree;
pub use watcher::run;
