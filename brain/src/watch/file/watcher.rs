//! Watches the path and sends what it says, each time that it changes.
//!
//! Folders are watched, never files: a file that is replaced, as editors and ConfigMaps do it, is another file under the
//! same name. After an event there is a short wait for the others that belong to it.

use std::{
    collections::BTreeSet,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use notify::{
    EventKind, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, CreateKind, ModifyKind},
};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    folder,
    known::{Known, News},
    look,
    problem::Problem,
    thread,
};
use crate::{
    cluster::Event,
    metrics::Troubles,
    pump::{Batch, Origin},
};

/// Events that come closer together than this belong together.
const SETTLE: Duration = Duration::from_millis(5);
/// But changes are never held back for longer than this.
const SETTLE_AT_MOST: Duration = Duration::from_millis(50);
/// What cannot be read, as [`Troubles`] name it.
const OF: &str = "files";
/// So many problems are reported one by one.
const REPORTED: usize = 10;

/// How often the files are looked at without being told of a change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// So often.
    pub(super) look: Duration,
    /// What changed is read when it has not changed further for so long.
    pub(super) quiet: Duration,
}

/// A watch sees no change behind a link, nor above the path; there is time for those.
const PACE: Pace = Pace { look: Duration::from_secs(10), quiet: Duration::from_secs(1) };
/// What could not be read is tried again after this, then after twice as long, and so on.
const RETRY: Duration = Duration::from_millis(100);

/// Sends what the path says, then again after each change, until `shutdown`. What cannot be read is an error at first; later
/// it is a trouble, said in the log too, and the last good state stays.
pub async fn run(
    path: PathBuf,
    node_name: &str,
    told: (mpsc::Sender<Batch>, Troubles),
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    run_at(PACE, path, node_name, told, shutdown).await
}

pub(super) async fn run_at(
    pace: Pace,
    path: PathBuf,
    node_name: &str,
    told: (mpsc::Sender<Batch>, Troubles),
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    // Whatever it waits for, the end is not held up.
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        ended = follow(pace, path, node_name, told) => ended,
    }
}

async fn follow(
    pace: Pace,
    path: PathBuf,
    node_name: &str,
    (sender, troubles): (mpsc::Sender<Batch>, Troubles),
) -> anyhow::Result<()> {
    let path = std::path::absolute(&path).with_context(|| format!("{}: cannot be found", path.display()))?;
    let changed = Arc::new(Notify::new());
    // Watching begins before reading, so that no change falls between the two.
    let mut watch = Watch::new(&path, Arc::clone(&changed))?;
    watch.arm();
    let mut known = Arc::new(Known::default());
    let (mut seen, read) = read(&path, &known).await;
    let mut said = Said::default();
    let events = match read {
        Ok(news) => said.take(Arc::make_mut(&mut known), news, node_name),
        Err(problems) => bail!("{}", first_of(&problems)),
    };
    if sender.send(reread(events)).await.is_err() {
        return Ok(());
    }
    tracing::info!(path = %path.display(), "watching files");
    troubles.is_over(OF);
    troubles.heard(OF);
    let mut trouble = Trouble { told: troubles, problems: Vec::new(), retry: None };
    loop {
        let told = tokio::select! {
            () = changed.notified() => true,
            () = tokio::time::sleep(trouble.retry.unwrap_or(pace.look).min(pace.look)) => false,
        };
        if told {
            settle(&changed).await;
        } else if trouble.retry.is_none() && !has_changed(&path, seen, pace.quiet).await {
            if trouble.problems.is_empty() {
                trouble.told.heard(OF);
            }
            continue;
        }
        watch.arm();
        let (look, read) = self::read(&path, &known).await;
        seen = look;
        match read {
            Ok(news) => {
                trouble.is_over();
                let events = said.take(Arc::make_mut(&mut known), news, node_name);
                if !events.is_empty() && sender.send(reread(events)).await.is_err() {
                    return Ok(());
                }
            }
            Err(problems) => trouble.is(problems, told),
        }
    }
}

fn reread(events: Vec<Event>) -> Batch {
    Batch { events, since: Instant::now(), origin: Origin::Reread }
}

/// What was said of what is known.
#[derive(Default)]
struct Said {
    /// Each object or kind that is ignored, and why.
    ignored: BTreeSet<(String, String)>,
    lacks_node: bool,
}

impl Said {
    /// Makes the news what is known, and says what is new about that.
    fn take(&mut self, known: &mut Known, news: News, node_name: &str) -> Vec<Event> {
        tracing::debug!(documents = news.parsed, "files were read");
        let events = known.take(news);
        let mut ignored = BTreeSet::new();
        for problem in known.ignored() {
            let about = (problem.object.clone(), problem.problem.clone());
            if !self.ignored.contains(&about) && !ignored.contains(&about) {
                tracing::warn!("{problem}");
            }
            ignored.insert(about);
        }
        self.ignored = ignored;
        let lacks_node = known.lacks_node(node_name);
        if lacks_node && !self.lacks_node {
            tracing::warn!(
                node_name,
                "no Node of this name is in the files: addresses for node ports are not known; add the Node, or correct --node-name"
            );
        }
        self.lacks_node = lacks_node;
        events
    }
}

/// Why the files cannot be read at the moment.
struct Trouble {
    told: Troubles,
    problems: Vec<Problem>,
    /// When to try again; what is wrong with a text waits until it is another one.
    retry: Option<Duration>,
}

impl Trouble {
    /// Says what is wrong: after each change, but not after each attempt.
    fn is(&mut self, problems: Vec<Problem>, told: bool) {
        if told || problems != self.problems {
            report(&problems);
        }
        self.told.is(OF, first_of(&problems));
        let may_mend_itself = problems.iter().any(|problem| problem.line == 0);
        self.retry = may_mend_itself.then(|| self.retry.map_or(RETRY, |before| (before * 2).min(PACE.look)));
        self.problems = problems;
    }

    fn is_over(&mut self) {
        self.told.heard(OF);
        self.retry = None;
        if !std::mem::take(&mut self.problems).is_empty() {
            self.told.is_over(OF);
            tracing::info!("files can be read again");
        }
    }
}

/// Looks at the files, and again: one that is being written is not read.
async fn has_changed(path: &Path, seen: u64, quiet: Duration) -> bool {
    let mut now = look(path).await;
    if now == seen {
        return false;
    }
    loop {
        tokio::time::sleep(quiet).await;
        let then = std::mem::replace(&mut now, look(path).await);
        if then == now {
            return now != seen;
        }
    }
}

async fn look(path: &Path) -> u64 {
    let of = path.to_owned();
    // What cannot be looked at is read, and that says why.
    on_thread(move || look::look(&of)).await.ok().flatten().unwrap_or_default()
}

/// How the files look, and what is new in them from then on.
async fn read(path: &Path, known: &Arc<Known>) -> (u64, Result<News, Vec<Problem>>) {
    let (of, known) = (path.to_owned(), Arc::clone(known));
    let work = move || {
        let read = (look::look(&of), known.read(&of, SystemTime::now()));
        // Before anybody changes it.
        drop(known);
        read
    };
    match on_thread(work).await {
        Ok(Some(read)) => read,
        Ok(None) => (0, Err(vec![folder::crashed(path)])),
        Err(error) => (0, Err(vec![folder::unreadable(path, &error)])),
    }
}

/// `None` when the work has crashed.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Option<T>> {
    let (done, result) = oneshot::channel();
    let work = move || {
        // Nobody may be waiting any more.
        _ = done.send(work());
    };
    thread::start(work)?;
    Ok(result.await.ok())
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

/// What is watched: the folder (when the path is one), the folder that the path is in, and that which it really is in.
struct Watch {
    path: PathBuf,
    watcher: notify::RecommendedWatcher,
    armed: Vec<PathBuf>,
    /// Those of which it was said that they cannot be watched.
    unwatched: BTreeSet<PathBuf>,
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
        Ok(Self { path: path.to_owned(), watcher, armed: Vec::new(), unwatched: BTreeSet::new() })
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
                Ok(()) => {
                    self.unwatched.remove(folder);
                    self.armed.push(folder.to_owned());
                }
                Err(error) if self.unwatched.insert(folder.to_owned()) => {
                    tracing::warn!(folder = %folder.display(), %error, "cannot be watched: it is looked at every 10 s");
                }
                Err(_) => {}
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
