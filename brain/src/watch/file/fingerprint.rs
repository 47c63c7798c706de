//! Detects changes of files from their metadata, without reading them.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
};

use super::folder::is_named_like_one;
use crate::stamp::Stamp;

/// A fingerprint of the files to read. It covers the targets of links. It changes when one of these files changes,
/// appears or disappears.
pub(super) fn of_path(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    one(path, &mut hasher);
    if let Ok(entries) = fs::read_dir(path) {
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| is_named_like_one(file));
        files.sort_unstable();
        for file in files {
            one(&file, &mut hasher);
        }
    }
    hasher.finish()
}

fn one(path: &Path, hasher: &mut DefaultHasher) {
    path.hash(hasher);
    match Stamp::of(path) {
        Ok(stamp) => stamp.hash(hasher),
        Err(error) => error.raw_os_error().hash(hasher),
    }
}
