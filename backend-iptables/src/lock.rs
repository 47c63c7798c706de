//! Watches the lock file of the ip_tables tools. A tool that changes a table opens and closes this file, which inotify reports.
//! ip_tables itself reports no changes.

use std::{
    env, fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchMask};
use tracing::debug;

/// Notices when a process takes the lock.
#[derive(Debug)]
pub(crate) struct LockWatch {
    path: PathBuf,
    /// Counts the events; it can be read without waiting.
    counts: Inotify,
    /// Wakes the waiting task.
    wakes: EventStream<Vec<u8>>,
}

/// The number of events for each table that a tool writes: the tool opens and closes the lock file.
pub(crate) const EVENTS_PER_LOCK: usize = 2;

/// The size of the buffer for events, in bytes.
const ROOM: usize = 4096;

impl LockWatch {
    /// Watches the file that the tools use. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the file does not exist and cannot be created, or if the process gets no inotify instance or watch.
    pub(crate) fn open() -> io::Result<Self> {
        let path = env::var_os("XTABLES_LOCKFILE").map_or_else(|| "/run/xtables.lock".into(), PathBuf::from);
        Self::at(&path)
    }

    fn at(path: &Path) -> io::Result<Self> {
        let wakes = Inotify::init()?.into_event_stream(vec![0; ROOM])?;
        let watch = Self { path: path.to_owned(), counts: Inotify::init()?, wakes };
        watch.add()?;
        Ok(watch)
    }

    fn add(&self) -> io::Result<()> {
        // The tools create the file with the same mode.
        fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        for mut watches in [self.wakes.watches(), self.counts.watches()] {
            watches.add(&self.path, WatchMask::OPEN | WatchMask::CLOSE)?;
        }
        Ok(())
    }

    /// Waits for an event that was not counted yet. Cancel-safe.
    pub(crate) async fn touched(&mut self) {
        loop {
            match self.wakes.next().await {
                Some(Ok(_)) if self.drain() > 0 => return,
                Some(Ok(_)) => {}
                // The watch has failed. The caller still checks the tables periodically.
                Some(Err(_)) | None => std::future::pending().await,
            }
        }
    }

    /// Counts the events since the last call. If several processes use the file at the same time, inotify may merge their events.
    pub(crate) fn drain(&mut self) -> usize {
        let (mut room, mut count, mut gone) = ([0; ROOM], 0, false);
        // If no event is left, `read_events` returns an error, which ends the loop.
        while let Ok(events) = self.counts.read_events(&mut room) {
            for event in events {
                gone |= event.mask.contains(EventMask::IGNORED);
                count += 1;
            }
        }
        // The file was removed, which ends the watches. Create and watch it again, as the tools would.
        if gone && let Err(error) = self.add() {
            debug!(%error, path = %self.path.display(), "failed to create the deleted lock file again");
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// Tokio's clock is paused and advances only when no task can run. So a timeout means that no event will come.
    #[tokio::test(start_paused = true)]
    async fn lock_users_are_noticed_even_after_the_file_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let mut watch = LockWatch::at(&path).unwrap();
        assert_eq!(watch.drain(), 0, "watching the lock does not take it");
        drop(File::open(&path).unwrap());
        timeout(SOON, watch.touched()).await.unwrap();
        drop(File::open(&path).unwrap());
        assert_eq!(watch.drain(), EVENTS_PER_LOCK);
        assert!(timeout(SOON, watch.touched()).await.is_err(), "counted events wake no waiter");
        fs::remove_file(&path).unwrap();
        timeout(SOON, watch.touched()).await.unwrap();
        drop(File::open(&path).unwrap());
        timeout(SOON, watch.touched()).await.unwrap();
    }
}
