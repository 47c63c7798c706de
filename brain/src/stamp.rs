//! The part of a file's metadata that changes whenever the file's content changes.

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use crate::platform;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    identity: (u64, u64, u32),
    size: u64,
    /// When the file last changed, in seconds and nanoseconds since 1970.
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of the file that the path resolves to.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|file| Self::from(&file))
    }

    /// Whether the last change was at least `age` before `now`. This is false if the last change is in the future.
    pub(crate) fn is_older_than(&self, now: SystemTime, age: Duration) -> bool {
        let Ok(since_1970) = now.duration_since(SystemTime::UNIX_EPOCH) else { return false };
        let Some(before) = since_1970.checked_sub(age) else { return false };
        i64::try_from(before.as_secs()).is_ok_and(|before| self.changed.0 < before)
    }
}

impl From<&fs::Metadata> for Stamp {
    fn from(file: &fs::Metadata) -> Self {
        Self { identity: platform::identity(file), size: file.len(), changed: platform::changed(file) }
    }
}
