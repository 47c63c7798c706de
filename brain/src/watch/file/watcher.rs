//! Watches the path and sends what it says, each time that it changes.
//!
//! Folders are watched, never files: a file that is replaced, as editors and ConfigMaps do it, is another file under the
//! same name. After an event there is a short wait for the others that belong to it.

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use notify::{
    EventKind, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, CreateKind, ModifyKind},
};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    folder::{self, Loaded},
    problem::Problem,
    thread,
};
use crate::cluster::Event;

/// Events that come closer together than this belong together.
const SETTLE: Duration = Duration::from_millis(5);
/// But changes are never held back for longer than this.
const SETTLE_AT_MOST: Duration = Duration::from_millis(50);
/// So many problems are reported one by one.
const REPORTED: usize = 10;

/// Sends what the path says, then again after each change, until `shutdown`. What cannot be read is an error at first; later
/// it is reported, and the last good state stays.
pub async fn run(path: PathBuf, sender: mpsc::Sender<Vec<Event>>, shutdown: CancellationToken) -> anyhow::Result<()> {
    let path = std::path::absolute(&path).with_context(|| format!("{}: cannot be found", path.display()))?;
    let changed = Arc::new(Notify::new());
    // Watching begins before reading, so that no change falls between the two.
    let mut watch = Watch::new(&path, Arc::clone(&changed))?;
    watch.arm();
    let mut last = match read(&path).await? {
        Ok(loaded) => loaded,
        Err(problems) => bail!("{}", first_of(&problems)),
    };
    report_ignored(&last, &Loaded::default());
    // What was sent is not kept: the cluster holds it, and the fingerprint tells whether there is news.
    if sender.send(std::mem::take(&mut last.events)).await.is_err() {
        return Ok(());
    }
    tracing::info!(path = %path.display(), "watching files");
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = changed.notified() => settle(&changed).await,
        }
        watch.arm();
        match read(&path).await? {
            Ok(loaded) if loaded.fingerprint == last.fingerprint => {}
            Ok(mut loaded) => {
                report_ignored(&loaded, &last);
                if sender.send(std::mem::take(&mut loaded.events)).await.is_err() {
                    return Ok(());
                }
                last = loaded;
            }
            Err(problems) => report(&problems),
        }
    }
}

async fn read(path: &Path) -> anyhow::Result<Result<Loaded, Vec<Problem>>> {
    let (of, (done, read)) = (path.to_owned(), oneshot::channel());
    let work = move || {
        // Nobody may be waiting any more.
        _ = done.send(folder::read(&of));
    };
    thread::start(work).context("reading files")?;
    Ok(read.await.unwrap_or_else(|_| Err(vec![folder::crashed(path)])))
}

async fn settle(changed: &Notify) {
    let quiet = async { while tokio::time::timeout(SETTLE, changed.notified()).await.is_ok() {} };
    let _ = tokio::time::timeout(SETTLE_AT_MOST, quiet).await;
}

fn first_of(problems: &[Problem]) -> String {
    let first = problems.first().map(ToString::to_string).unwrap_or_default();
    match problems.len() {
        0 | 1 => first,
        many => format!("{first} (and {} more)", many - 1),
    }
}

fn report(problems: &[Problem]) {
    for problem in problems.iter().take(REPORTED) {
        tracing::error!("{problem}; the last good state stays");
    }
    if problems.len() > REPORTED {
        tracing::error!("{} more problems", problems.len() - REPORTED);
    }
}

/// Each kind is reported once.
fn report_ignored(loaded: &Loaded, before: &Loaded) {
    let known = |kind: &Problem| before.ignored.iter().any(|before| before.object == kind.object);
    for ignored in loaded.ignored.iter().filter(|ignored| !known(ignored)) {
        tracing::warn!("{ignored}");
    }
}

/// What is watched: the folder (when the path is one), the folder that the path is in, and that which it really is in.
struct Watch {
    path: PathBuf,
    watcher: notify::RecommendedWatcher,
    armed: Vec<PathBuf>,
}

impl Watch {
    fn new(path: &Path, changed: Arc<Notify>) -> anyhow::Result<Self> {
        let of = path.to_owned();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // A watch that fails has missed something: read again.
            if event.map_or(true, |event| is_change(&event, &of)) {
                changed.notify_one();
            }
        });
        let watcher = watcher.context("watching files (is fs.inotify.max_user_instances too small?)")?;
        Ok(Self { path: path.to_owned(), watcher, armed: Vec::new() })
    }

    /// Watches what the path is now: a folder may have been replaced by another one, a link may lead elsewhere.
    fn arm(&mut self) {
        for old in std::mem::take(&mut self.armed) {
            // The watch of a folder that is gone is gone too.
            let _ = self.watcher.unwatch(&old);
        }
        let real = fs::canonicalize(&self.path).ok();
        let parents = [Some(self.path.as_path()), real.as_deref()].map(|path| path.and_then(Path::parent));
        let folder = Some(self.path.as_path()).filter(|path| path.is_dir());
        for folder in parents.into_iter().chain([folder]).flatten() {
            if self.armed.iter().any(|armed| armed == folder) {
                continue;
            }
            match self.watcher.watch(folder, RecursiveMode::NonRecursive) {
                Ok(()) => self.armed.push(folder.to_owned()),
                Err(error) => tracing::warn!(folder = %folder.display(), %error, "cannot be watched"),
            }
        }
    }
}

/// Whether a file that is new under its name was made before: a link to one, symbolic or hard. Nobody will be done with
/// writing it. One that is being written has one name, and was changed when it was last written.
fn came_as_a_whole(file: &Path) -> bool {
    let changed = |metadata: &Metadata| (metadata.ctime(), metadata.ctime_nsec());
    let written = |metadata: &Metadata| (metadata.mtime(), metadata.mtime_nsec());
    fs::symlink_metadata(file).is_ok_and(|metadata| {
        metadata.is_symlink() || metadata.nlink() > 1 || (metadata.len() > 0 && changed(&metadata) > written(&metadata))
    })
}

/// Whether an event may change what the path says.
fn is_change(event: &notify::Event, path: &Path) -> bool {
    let matters = match event.kind {
        // A file is read when its writer is done with it, not while it is being written.
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Data(_)) => false,
        EventKind::Create(CreateKind::File) => event.paths.iter().any(|path| came_as_a_whole(path)),
        _ => true,
    };
    // ConfigMaps are swapped by renaming a link whose name begins with two dots.
    let swap = |file: &Path| file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
    let named = |file: &Path| {
        let same_name = file.file_name() == path.file_name();
        let target = || fs::canonicalize(path).is_ok_and(|target| target == file);
        same_name || swap(file) || (file.parent() == Some(path) && folder::is_named_like_one(file)) || target()
    };
    event.need_rescan() || (matters && event.paths.iter().any(|file| named(file)))
}
