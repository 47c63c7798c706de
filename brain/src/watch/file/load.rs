//! Reads all files once.

use std::{path::Path, thread::JoinHandle, time::SystemTime};

use localnet_core::Diagnostic;

use super::{contents::Contents, problems, thread};
use localnet_cluster::objects::Event;

/// The content of the files.
#[derive(Debug, Default, PartialEq)]
pub struct Loaded {
    /// One batch: a complete list of each kind.
    pub events: Vec<Event>,
    /// Objects without effect: objects of other kinds (the first one of each), slices without a Service, and Services without a
    /// ClusterIP.
    pub ignored: Vec<Diagnostic>,
}

/// Reads a file, or all `.yaml`, `.yml` and `.json` files in a folder, but not those in its subfolders.
///
/// # Errors
/// Returns the problems of all files if a file cannot be read or an object in it is invalid.
pub fn load(path: &Path) -> Result<Loaded, Vec<Diagnostic>> {
    let of = path.to_owned();
    match thread::start(move || Contents::default().read(&of, SystemTime::now())).map(JoinHandle::join) {
        Ok(Ok(read)) => read.map(|news| {
            let mut contents = Contents::default();
            let events = contents.take(news);
            Loaded { events, ignored: contents.ignored().into_iter().cloned().collect() }
        }),
        Ok(Err(_panic)) => Err(vec![problems::crashed(path)]),
        Err(error) => Err(vec![problems::unreadable(path, &error)]),
    }
}
