//! A look at files from outside: whether they are the same ones, not what they say.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use super::folder::is_named_like_one;

/// A number that changes whenever a file that is read changes, comes or goes, wherever links lead.
pub(super) fn look(path: &Path) -> u64 {
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
    match fs::metadata(path) {
        Ok(file) => (file.dev(), file.ino(), file.mode(), file.size(), file.ctime(), file.ctime_nsec()).hash(hasher),
        Err(error) => error.raw_os_error().hash(hasher),
    }
}
