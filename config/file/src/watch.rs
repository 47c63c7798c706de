//! Tells when a file may have changed.
//!
//! Folders are watched, never files: a file that is replaced, as editors and ConfigMaps do it, is another file under the
//! same name. Changes that no folder tells of, such as those of a folder above, are found by looking now and then.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::{sync::Notify, time};
use tracing::warn;

/// Events that come closer together than this belong together.
const SETTLE: Duration = Duration::from_millis(50);
/// But changes are never held back for longer than this.
const SETTLE_AT_MOST: Duration = Duration::from_millis(500);
/// How often the file is looked at without being told of a change.
const LOOK: Duration = Duration::from_secs(10);

/// Watches the folders that a path leads through.
pub(crate) struct Watch {
    file: PathBuf,
    changed: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
    armed: Vec<PathBuf>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("file", &self.file).field("armed", &self.armed).finish_non_exhaustive()
    }
}

impl Watch {
    /// Begins to watch.
    pub(crate) fn new(file: &Path) -> Self {
        let changed = Arc::new(Notify::new());
        let tell = Arc::clone(&changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // A watch that fails has missed something. That somebody has read something is no change.
            if event.map_or(true, |event| !is_only_read(event.kind)) {
                tell.notify_one();
            }
        });
        let seconds = LOOK.as_secs();
        let watcher = watcher
            .inspect_err(
                |error| warn!(%error, "the configuration file is not watched: it is looked at every {seconds} s"),
            )
            .ok();
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let mut watch = Self { file, changed, watcher, armed: Vec::new() };
        watch.arm();
        watch
    }

    /// Resolves when it is time to look at the file.
    pub(crate) async fn looked_at(&mut self) {
        if time::timeout(LOOK, self.changed.notified()).await.is_ok() {
            let quiet = async { while time::timeout(SETTLE, self.changed.notified()).await.is_ok() {} };
            let _ = time::timeout(SETTLE_AT_MOST, quiet).await;
        }
        self.arm();
    }

    /// Watches what the path is now: a link may lead elsewhere, a folder may be another one.
    fn arm(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        for old in std::mem::take(&mut self.armed) {
            // The watch of a folder that is gone is gone too.
            let _ = watcher.unwatch(&old);
        }
        // A ConfigMap is two links: file → ..data/file, and ..data → ..2026_…, in the same folder as the first.
        let real = fs::canonicalize(&self.file).ok();
        for folder in [Some(self.file.as_path()), real.as_deref()].into_iter().flatten().filter_map(Path::parent) {
            if !self.armed.iter().any(|armed| armed == folder)
                && watcher.watch(folder, RecursiveMode::NonRecursive).is_ok()
            {
                self.armed.push(folder.to_owned());
            }
        }
    }
}

fn is_only_read(kind: EventKind) -> bool {
    use notify::event::{AccessKind, AccessMode};
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}
