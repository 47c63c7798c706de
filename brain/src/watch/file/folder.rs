//! Finds the files to read.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use localnet_core::Diagnostic;

use super::{
    open::{self, Entry},
    problems,
};

/// Extensions of the files that are read from a folder.
pub(super) const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The files to read, sorted. Entries that cannot be read are added to `problems`.
pub(super) fn files(path: &Path, problems: &mut Vec<Diagnostic>) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        if !is_named_like_one(&file) {
            continue;
        }
        match open::entry(&file) {
            Ok(Entry::File) => files.push(file),
            Ok(Entry::Nothing) => {}
            Err(refused) => problems.push(problems::refused(&file, &refused)),
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Whether a file in a folder is to be read, according to its name. Editors and ConfigMaps give their internal files names
/// that begin with a dot.
pub(super) fn is_named_like_one(file: &Path) -> bool {
    let hidden = file.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = file.extension().and_then(|extension| extension.to_str());
    !hidden && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}
