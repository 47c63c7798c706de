//! Reports when a file may have changed.
//!
//! The watch covers folders and never files, because editors and ConfigMaps replace a file with another one of the same
//! name. Polling finds changes that cause no event, such as those in a parent folder.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::{sync::Notify, time};
use tracing::warn;

/// Events within this time of each other count as one change.
const SETTLE: Duration = Duration::from_millis(50);
/// The maximum time for which a change is delayed because of further events.
const SETTLE_AT_MOST: Duration = Duration::from_millis(500);
/// How often the file is checked without an event.
const CHECK: Duration = Duration::from_secs(10);

/// Watches the folders on the path to a file.
pub struct Watch {
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
    /// Watches the folders on the path to this file.
    pub fn new(file: &Path) -> Self {
        let changed = Arc::new(Notify::new());
        let notify = Arc::clone(&changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // A watch that reports an error may have missed a change. An event about reading is not a change.
            if event.map_or(true, |event| !is_only_read(event.kind)) {
                notify.notify_one();
            }
        });
        let seconds = CHECK.as_secs();
        let watcher =
            watcher.inspect_err(|error| warn!(%error, "cannot watch a file; reading it every {seconds} s")).ok();
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let mut watch = Self { file, changed, watcher, armed: Vec::new() };
        watch.arm();
        watch
    }

    /// Returns when the file should be checked.
    pub async fn check_due(&mut self) {
        if time::timeout(CHECK, self.changed.notified()).await.is_ok() {
            let quiet = async { while time::timeout(SETTLE, self.changed.notified()).await.is_ok() {} };
            let _ = time::timeout(SETTLE_AT_MOST, quiet).await;
        }
        self.arm();
    }

    /// Watches the folders of the current path: a link may have a new target, and a folder may have been replaced.
    fn arm(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        for old in std::mem::take(&mut self.armed) {
            // The watch of a deleted folder no longer exists.
            let _ = watcher.unwatch(&old);
        }
        // In the volume of a ConfigMap, file → ..data/file and ..data → ..2026_… are links in the same folder.
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
