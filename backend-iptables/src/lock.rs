//! The lock file of ip_tables' tools. Whoever changes a table opens it before and closes it afterwards, and inotify tells of both:
//! nothing else does, ip_tables itself tells nobody.

use std::{
    env, fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use futures::StreamExt as _;
use inotify::{EventMask, EventStream, Inotify, WatchMask};
use tracing::debug;

/// Notices who takes the lock.
#[derive(Debug)]
pub(crate) struct LockWatch {
    path: PathBuf,
    /// Says how often, at once when it is asked.
    counts: Inotify,
    /// Wakes who waits.
    wakes: EventStream<Vec<u8>>,
}

/// How often one tool is told for each table that it writes: it opens the lock, and closes it.
pub(crate) const TOLD: usize = 2;

/// Room for events of one reading; they have no names.
const ROOM: usize = 4096;

impl LockWatch {
    /// Watches the file that the tools use. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// It is not there and cannot be made, or the system has no inotify left to give.
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
        // As the tools make it.
        fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        for mut watches in [self.wakes.watches(), self.counts.watches()] {
            watches.add(&self.path, WatchMask::OPEN | WatchMask::CLOSE)?;
        }
        Ok(())
    }

    /// Until somebody takes the lock, or gives it back, that was not counted yet. Cancel-safe.
    pub(crate) async fn touched(&mut self) {
        loop {
            match self.wakes.next().await {
                Some(Ok(_)) if self.drain() > 0 => return,
                Some(Ok(_)) => {}
                // There is still the clock.
                Some(Err(_)) | None => std::future::pending().await,
            }
        }
    }

    /// How often it was opened or closed since somebody asked last. Those of several who do so at the same time may be told once.
    pub(crate) fn drain(&mut self) -> usize {
        let (mut room, mut count, mut gone) = ([0; ROOM], 0, false);
        // Until there are no more: that is an error, too.
        while let Ok(events) = self.counts.read_events(&mut room) {
            for event in events {
                gone |= event.mask.contains(EventMask::IGNORED);
                count += 1;
            }
        }
        // The file was removed, and with it what was watched. The tools make another one.
        if gone && let Err(error) = self.add() {
            debug!(%error, path = %self.path.display(), "the lock file is gone");
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

    /// Time stands still, and passes only when nothing is left to be told: what is not told by then never is.
    #[tokio::test(start_paused = true)]
    async fn whoever_takes_the_lock_is_noticed_also_after_the_file_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let mut watch = LockWatch::at(&path).unwrap();
        assert_eq!(watch.drain(), 0, "to watch it is no use of it");
        drop(File::open(&path).unwrap());
        timeout(SOON, watch.touched()).await.unwrap();
        drop(File::open(&path).unwrap());
        assert_eq!(watch.drain(), TOLD);
        assert!(timeout(SOON, watch.touched()).await.is_err(), "what was counted wakes nobody");
        fs::remove_file(&path).unwrap();
        timeout(SOON, watch.touched()).await.unwrap();
        drop(File::open(&path).unwrap());
        timeout(SOON, watch.touched()).await.unwrap();
    }
}
