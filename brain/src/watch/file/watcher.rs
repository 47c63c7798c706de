//! Watches the path. Sends its content at the start, and its changes later.
//!
//! The source watches folders and never files, because an editor or the kubelet replaces a file with a new one of the
//! same name. After an event, it waits a short time for further events of the same change.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use localnet_core::{Code, Diagnostic, Object, Subject};
use notify::{
    EventKind, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, CreateKind, ModifyKind},
};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    contents::{Contents, News},
    fingerprint, folder, problems, thread,
};
use crate::{
    batch::{Batch, Origin},
    metrics::Troubles,
    platform,
};
use localnet_cluster::objects::{Event, Publish};

/// Events that follow each other within this time belong to the same change.
const SETTLE: Duration = Duration::from_millis(5);
/// Maximum time for which a change waits for further events.
const SETTLE_AT_MOST: Duration = Duration::from_millis(50);
/// The label of files in [`Troubles`].
const OF: &str = "files";
/// Maximum number of problems that are reported one by one.
const REPORTED: usize = 10;

/// The timing of the periodic checks, which do not need an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The interval of the checks.
    pub(super) check: Duration,
    /// How long a file must be unchanged before it is read.
    pub(super) quiet: Duration,
}

/// Events do not report changes behind a link or above the path, so only these checks find them.
const PACE: Pace = Pace { check: Duration::from_secs(10), quiet: Duration::from_secs(1) };
/// The first delay before a failed read is retried. It doubles with each failure.
const RETRY: Duration = Duration::from_millis(100);

/// What to read.
#[derive(Clone, Debug)]
pub struct Files {
    /// The file or folder.
    pub path: PathBuf,
    /// The Node whose absence is logged; `None` if another source may have the Node.
    pub node_name: Option<String>,
    /// What readers of the draft `localnet.v1` may select; `None` if the brain does not serve the draft.
    pub publish: Option<Arc<Publish>>,
}

/// Sends the content of the path, and then each change to it, until `shutdown`. If a read fails after the first one, the failure
/// is logged and recorded as a trouble, and the previous state remains.
///
/// # Errors
/// Returns an error if the path cannot be watched, or if the first read fails.
pub async fn run(
    files: Files,
    output: (mpsc::Sender<Batch>, Troubles),
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    run_at(PACE, files, output, shutdown).await
}

pub(super) async fn run_at(
    pace: Pace,
    files: Files,
    output: (mpsc::Sender<Batch>, Troubles),
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    // Shutdown must not wait for a read.
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        ended = follow(pace, files, output) => ended,
    }
}

async fn follow(
    pace: Pace,
    Files { path, node_name, publish }: Files,
    (sender, troubles): (mpsc::Sender<Batch>, Troubles),
) -> anyhow::Result<()> {
    let node_name = node_name.as_deref();
    let path = std::path::absolute(&path).with_context(|| format!("{}: cannot be found", path.display()))?;
    let changed = Arc::new(Notify::new());
    // Watching starts before reading. Otherwise a change between the two would be missed.
    let mut watch = Watch::new(&path, Arc::clone(&changed))?;
    watch.arm();
    let mut contents = Arc::new(Contents::new(publish));
    let (mut seen, read) = read(&path, &contents).await;
    let mut warnings = LoggedWarnings::default();
    let events = match read {
        Ok(news) => warnings.take(Arc::make_mut(&mut contents), news, node_name),
        Err(problems) => bail!("{}", first_of(&problems).map(|first| first.to_string()).unwrap_or_default()),
    };
    if sender.send(reread(events)).await.is_err() {
        return Ok(());
    }
    tracing::info!(path = %path.display(), "watching files");
    troubles.is_over(OF);
    troubles.heard(OF);
    let mut trouble = Trouble { troubles, problems: Vec::new(), retry: None };
    loop {
        let is_notified = tokio::select! {
            () = changed.notified() => true,
            () = tokio::time::sleep(trouble.retry.unwrap_or(pace.check).min(pace.check)) => false,
        };
        if is_notified {
            settle(&changed).await;
        } else if trouble.retry.is_none() && !has_changed(&path, seen, pace.quiet).await {
            if trouble.problems.is_empty() {
                trouble.troubles.heard(OF);
            }
            continue;
        }
        watch.arm();
        let (fingerprint, read) = self::read(&path, &contents).await;
        seen = fingerprint;
        match read {
            Ok(news) => {
                trouble.is_over();
                let events = warnings.take(Arc::make_mut(&mut contents), news, node_name);
                if !events.is_empty() && sender.send(reread(events)).await.is_err() {
                    return Ok(());
                }
            }
            Err(problems) => trouble.is(problems, is_notified),
        }
    }
}

fn reread(events: Vec<Event>) -> Batch {
    Batch { origin: Origin::Reread, ..events.into() }
}

/// The warnings that have been logged.
#[derive(Default)]
struct LoggedWarnings {
    /// The ignored objects and kinds, with the reasons.
    ignored: BTreeSet<(Option<Object>, Code)>,
    lacks_node: bool,
}

impl LoggedWarnings {
    /// Applies the news to the contents, and logs new warnings.
    fn take(&mut self, contents: &mut Contents, news: News, node_name: Option<&str>) -> Vec<Event> {
        tracing::debug!(documents = news.parsed, "files were read");
        let events = contents.take(news);
        let mut ignored = BTreeSet::new();
        for problem in contents.ignored() {
            let about = (problem.subject.object().cloned(), problem.code);
            if !self.ignored.contains(&about) && !ignored.contains(&about) {
                tracing::warn!("{problem}");
            }
            ignored.insert(about);
        }
        self.ignored = ignored;
        let lacks_node = node_name.is_some_and(|name| contents.lacks_node(name));
        if lacks_node && !self.lacks_node {
            tracing::warn!(
                node_name,
                "the files have no Node of this name, so the addresses of NodePorts are unknown; add the Node, or correct --node-name"
            );
        }
        self.lacks_node = lacks_node;
        events
    }
}

/// Why the files currently cannot be read.
struct Trouble {
    troubles: Troubles,
    problems: Vec<Diagnostic>,
    /// When to retry. `None` for invalid content, which stays invalid until the file changes.
    retry: Option<Duration>,
}

impl Trouble {
    /// Reports the problems after each change of the files. After a retry, reports them only if they differ from the previous
    /// ones.
    fn is(&mut self, problems: Vec<Diagnostic>, is_notified: bool) {
        if is_notified || problems != self.problems {
            report(&problems);
        }
        if let Some(first) = first_of(&problems) {
            self.troubles.is(OF, first);
        }
        let may_recover = problems.iter().any(|of| matches!(of.subject, Subject::Text { line: 0, .. }));
        self.retry = may_recover.then(|| self.retry.map_or(RETRY, |before| (before * 2).min(PACE.check)));
        self.problems = problems;
    }

    fn is_over(&mut self) {
        self.troubles.heard(OF);
        self.retry = None;
        if !std::mem::take(&mut self.problems).is_empty() {
            self.troubles.is_over(OF);
            tracing::info!("the files are readable again");
        }
    }
}

/// Whether the files have changed. Waits until they no longer change, so that a file is not read while it is being
/// written.
async fn has_changed(path: &Path, seen: u64, quiet: Duration) -> bool {
    let mut now = fingerprint_of(path).await;
    if now == seen {
        return false;
    }
    loop {
        tokio::time::sleep(quiet).await;
        let then = std::mem::replace(&mut now, fingerprint_of(path).await);
        if then == now {
            return now != seen;
        }
    }
}

async fn fingerprint_of(path: &Path) -> u64 {
    let of = path.to_owned();
    // If the fingerprint cannot be computed, the files are read in any case, and reading them reports the reason.
    on_thread(move || fingerprint::of_path(&of)).await.ok().flatten().unwrap_or_default()
}

/// A fingerprint of the files, and the changes since the previous read.
async fn read(path: &Path, contents: &Arc<Contents>) -> (u64, Result<News, Vec<Diagnostic>>) {
    let (of, contents) = (path.to_owned(), Arc::clone(contents));
    let work = move || {
        let read = (fingerprint::of_path(&of), contents.read(&of, SystemTime::now()));
        // Drop this reference now, because the caller changes the value.
        drop(contents);
        read
    };
    match on_thread(work).await {
        Ok(Some(read)) => read,
        Ok(None) => (0, Err(vec![problems::crashed(path)])),
        Err(error) => (0, Err(vec![problems::unreadable(path, &error)])),
    }
}

/// Returns `None` if the work has panicked.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Option<T>> {
    let (done, result) = oneshot::channel();
    let work = move || {
        // This fails if the caller has stopped waiting.
        _ = done.send(work());
    };
    thread::start(work)?;
    Ok(result.await.ok())
}

async fn settle(changed: &Notify) {
    let quiet = async { while tokio::time::timeout(SETTLE, changed.notified()).await.is_ok() {} };
    let _ = tokio::time::timeout(SETTLE_AT_MOST, quiet).await;
}

/// The first problem, with the number of further problems.
fn first_of(problems: &[Diagnostic]) -> Option<Diagnostic> {
    let mut first = problems.first()?.clone();
    if problems.len() > 1 {
        first.problem += &format!(" (and {} more)", problems.len() - 1);
    }
    Some(first)
}

fn report(problems: &[Diagnostic]) {
    for problem in problems.iter().take(REPORTED) {
        tracing::error!("{problem}; keeping the last valid state");
    }
    if problems.len() > REPORTED {
        tracing::error!("{} more problems", problems.len() - REPORTED);
    }
}

/// The watched folders: the path if it is a folder, its parent folder, and the folder that it resolves to.
struct Watch {
    path: PathBuf,
    watcher: notify::RecommendedWatcher,
    armed: Vec<PathBuf>,
    /// Folders for which a failed watch has been logged.
    unwatched: BTreeSet<PathBuf>,
}

impl Watch {
    fn new(path: &Path, changed: Arc<Notify>) -> anyhow::Result<Self> {
        let of = path.to_owned();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // A watch that reports an error may have missed a change, so read again.
            if event.map_or(true, |event| is_change(&event, &of)) {
                changed.notify_one();
            }
        });
        let watcher = watcher.context(platform::UNWATCHED)?;
        Ok(Self { path: path.to_owned(), watcher, armed: Vec::new(), unwatched: BTreeSet::new() })
    }

    /// Watches the current target of the path. A folder may have been replaced, or a link may have changed.
    fn arm(&mut self) {
        for old in std::mem::take(&mut self.armed) {
            // If the folder was deleted, its watch has already ended.
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
                Ok(()) => {
                    self.unwatched.remove(folder);
                    self.armed.push(folder.to_owned());
                }
                Err(error) if self.unwatched.insert(folder.to_owned()) => {
                    tracing::warn!(folder = %folder.display(), %error, "cannot watch this folder; reading it every 10 s");
                }
                Err(_) => {}
            }
        }
    }
}

/// Whether an event may mean that the content of the path has changed.
fn is_change(event: &notify::Event, path: &Path) -> bool {
    let was_created_complete =
        |file: &PathBuf| fs::symlink_metadata(file).is_ok_and(|metadata| platform::was_created_complete(&metadata));
    let matters = match event.kind {
        // A file is read after its writer has closed it, not while it is being written.
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Data(_)) => false,
        EventKind::Create(CreateKind::File) => event.paths.iter().any(was_created_complete),
        _ => true,
    };
    // The kubelet replaces a ConfigMap by renaming a link whose name begins with two dots.
    let swap = |file: &Path| file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
    let named = |file: &Path| {
        let same_name = file.file_name() == path.file_name();
        let target = || fs::canonicalize(path).is_ok_and(|target| target == file);
        same_name || swap(file) || (file.parent() == Some(path) && folder::is_named_like_one(file)) || target()
    };
    event.need_rescan() || (matters && event.paths.iter().any(|file| named(file)))
}
