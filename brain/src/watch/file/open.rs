//! Opens regular files only, so that reading never blocks, whatever the path resolves to.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read as _},
    path::Path,
};

use crate::{platform, stamp::Stamp};

/// Maximum size of a file in MiB. It bounds the memory that reading needs (docs/operations/brain.md).
const LARGEST_MIB: u64 = 32;

/// Why a file is not read.
pub(super) enum Refused {
    /// Opening or reading failed. A retry may succeed.
    Failed(io::Error),
    /// The file has an unsuitable type or size. The values are the problem and its remedy.
    Odd(String, &'static str),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// The content of a regular file, and the stamp that it had before it was read.
pub(super) fn read(path: &Path) -> Result<(Vec<u8>, Stamp), Refused> {
    // Opening a device may already have an effect, so check the file first.
    check(&fs::metadata(path)?)?;
    let file = platform::to_read().open(path)?;
    // Another file may have replaced the checked one since the check.
    let metadata = file.metadata()?;
    check(&metadata)?;
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    File::take(file, limit() + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit() { Err(too_large()) } else { Ok((bytes, Stamp::from(&metadata))) }
}

fn limit() -> u64 {
    LARGEST_MIB << 20
}

fn check(metadata: &Metadata) -> Result<(), Refused> {
    if !metadata.is_file() {
        return Err(Refused::Odd(format!("is a {}", platform::kind(metadata.file_type())), "use a regular file"));
    }
    if metadata.len() > limit() { Err(too_large()) } else { Ok(()) }
}

fn too_large() -> Refused {
    Refused::Odd(format!("is larger than {LARGEST_MIB} MiB"), "split it into several files")
}

/// What a directory entry is.
pub(super) enum Entry {
    /// A file to read.
    File,
    /// A folder, or an entry that no longer exists.
    Nothing,
}

/// Decides whether a directory entry is a file to read.
pub(super) fn entry(path: &Path) -> Result<Entry, Refused> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(Entry::Nothing),
        Ok(_) => Ok(Entry::File),
        Err(error) => {
            let link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
            let remedy = "correct the link or remove it";
            match error.kind() {
                io::ErrorKind::NotFound if link => Err(Refused::Odd("is a link to a missing file".to_owned(), remedy)),
                io::ErrorKind::NotFound => Ok(Entry::Nothing),
                _ if link && platform::is_loop(&error) => {
                    Err(Refused::Odd("is a link that leads back to itself".to_owned(), remedy))
                }
                _ => Err(error.into()),
            }
        }
    }
}
