//! Services that other programs push (docs/decisions/0030-pushed-services.md).
//!
//! ```text
//! grants.yaml ──► grants ─┐
//! stream ──► changes ──► pushers ──► bounds ──Event──► pump
//! time ───────────────────┘
//! ```
//!
//! This module does the I/O: it follows the file, waits, sends the batches and reports problems. The modules inside it are pure.

mod bounds;
mod changes;
mod grants;
mod pushers;

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use localnet_config_file::Watch;
use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::{
    ServiceKey,
    source::{self as wire, Committed, Hello, Problem},
};
use tokio::{
    sync::{Mutex, Notify, mpsc, oneshot},
    task::{self, JoinSet},
    time::{self, Instant},
};

pub(crate) use self::{
    changes::Changes,
    pushers::{End, Stream},
};
use self::{
    grants::{Grants, Keep, LARGEST},
    pushers::{Pushes, State},
};
use crate::{
    batch::{Batch, Origin, PROBLEMS, Published, Pushed},
    metrics::Troubles,
    peer::Peer,
};

/// The label of disconnected pushers in [`Troubles`].
const OF: &str = "pushers";
/// The label of the file in [`Troubles`].
const OF_FILE: &str = "push-grants";
/// Maximum number of problems that are logged for one commit.
const LOGGED: usize = 10;

/// A valid file of grants.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    text: String,
    grants: Grants,
}

impl File {
    /// Reads the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if a grant is invalid.
    pub fn read(path: PathBuf) -> anyhow::Result<Self> {
        let of_flag = || "failed to read the file of --push-grants";
        let text = text(&path).map_err(|problem| anyhow::anyhow!("{problem}")).with_context(of_flag)?;
        let grants = parse(&path, &text).map_err(|problem| anyhow::anyhow!("{problem}")).with_context(of_flag)?;
        Ok(Self { path, text, grants })
    }

    /// The names of the sources.
    pub fn sources(&self) -> impl Iterator<Item = Arc<str>> {
        self.grants.grants.iter().map(|grant| grant.source())
    }
}

fn text(path: &Path) -> Result<String, Diagnostic> {
    let problem = |code, problem: String, remedy: &str| {
        Diagnostic::new(code, Subject::text(0).in_file(path), problem).remedy(remedy)
    };
    let unreadable = |error| {
        problem(
            Code::FileUnreadable,
            format!("cannot be read: {error}"),
            "check the path, and that the brain may read it",
        )
    };
    // Opening a FIFO blocks until another process opens its other end.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(problem(
            Code::FileUnsuitable,
            "is not a regular file".to_owned(),
            "give the path of a file of grants",
        ));
    }
    let mut bytes = Vec::new();
    let most = LARGEST as u64 + 1;
    fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|_| problem(Code::FileNotText, "is not UTF-8 text".to_owned(), "save it as UTF-8"))
}

fn parse(path: &Path, text: &str) -> Result<Grants, Diagnostic> {
    Grants::parse(text).map_err(|problem| problem.in_file(path))
}

/// The programs that may push Services. Clones share them.
#[derive(Clone, Debug)]
pub struct Pushers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when the next action of the state may be due earlier.
    changed: Notify,
    batches: mpsc::Sender<Batch>,
    troubles: Troubles,
}

/// Starts to follow the file and the time, in tasks of `work`. `proxy_name` is the name of this proxy, if it has one.
pub(crate) fn start(
    file: File,
    proxy_name: Option<Arc<str>>,
    (batches, troubles): (mpsc::Sender<Batch>, Troubles),
    work: &mut JoinSet<anyhow::Result<()>>,
) -> Pushers {
    let state = Mutex::new(State::new(&file.grants, proxy_name, Instant::now()));
    let pushers = Pushers(Arc::new(Shared { state, changed: Notify::new(), batches, troubles }));
    work.spawn(pushers.clone().follow(file));
    work.spawn(pushers.clone().act());
    pushers
}

impl Pushers {
    /// Begins a stream. Returns `None` if the peer has no grant.
    pub(crate) async fn connect(&self, peer: &Peer) -> Option<Stream> {
        let stream = self.0.state.lock().await.connect(peer, Instant::now())?;
        tracing::info!(source = %stream.grant.source(), %peer, "a program has connected to push Services");
        Some(stream)
    }

    /// Ends a stream.
    pub(crate) async fn disconnect(&self, stream: &Stream) {
        let mut state = self.0.state.lock().await;
        state.disconnect(stream, Instant::now());
        tracing::info!(source = %stream.grant.source(), "a stream of pushed Services has ended");
        self.report(&state);
    }

    /// Applies the steps of a commit, and waits for the state that contains them. Returns `None` if the stream has to end.
    pub(crate) async fn commit(&self, stream: &mut Stream, changes: Changes, number: u64) -> Option<Committed> {
        let (sender, published) = oneshot::channel();
        let refused = {
            let mut state = self.0.state.lock().await;
            // Nothing waits between the change of the state and the batch. The stream may end while this waits for the pump.
            let room = self.0.batches.reserve().await.ok()?;
            let (pushes, refused) = state.commit(stream, changes)?;
            room.send(batch(pushes, Some(sender)));
            self.report(&state);
            refused
        };
        // The sender is dropped if the brain stops.
        let Published { rev, problems } = published.await.ok()?;
        let problems = refused.iter().chain(&problems).take(PROBLEMS).map(problem).collect();
        Some(Committed { number, revision: rev, problems })
    }

    /// Sends events to the pump. The caller holds the lock of the state, so that batches arrive in the order of the events.
    async fn send(&self, pushes: Pushes) {
        // This fails if the brain stops.
        _ = self.0.batches.send(batch(pushes, None)).await;
    }

    /// Reports the pushers that are not connected.
    fn report(&self, state: &State) {
        let before = self.0.troubles.all().remove(OF).map(|trouble| trouble.diagnostic);
        match state.trouble() {
            Some(trouble) => {
                if before.as_ref() != Some(&trouble) {
                    tracing::warn!("{trouble}");
                }
                self.0.troubles.is(OF, trouble);
            }
            None if before.is_some() => self.0.troubles.is_over(OF),
            None => {}
        }
        self.0.changed.notify_one();
    }

    /// Does what is due. Never returns.
    async fn act(self) -> anyhow::Result<()> {
        loop {
            let due = self.0.state.lock().await.due();
            let due = async {
                match due {
                    Some(due) => time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.changed.notified() => {}
                () = due => {
                    let mut state = self.0.state.lock().await;
                    for pushes in state.act(Instant::now()) {
                        self.send(pushes).await;
                    }
                    self.report(&state);
                }
            }
        }
    }

    /// Follows the file. Never returns.
    async fn follow(self, mut file: File) -> anyhow::Result<()> {
        let mut watch = Watch::new(&file.path);
        let mut failed = None;
        loop {
            // The file may have changed since it was read at the start.
            let path = file.path.clone();
            let read = task::spawn_blocking(move || text(&path)).await?;
            match read.and_then(|text| Ok((parse(&file.path, &text)?, text))) {
                Ok((grants, text)) => {
                    if failed.take().is_some() {
                        self.0.troubles.is_over(OF_FILE);
                    }
                    if text != file.text {
                        file.text = text;
                        self.load(&grants).await;
                    }
                }
                Err(problem) => {
                    if failed.as_ref() != Some(&problem) {
                        tracing::error!("{problem}; keeping the previous grants");
                        self.0.troubles.is(OF_FILE, problem.clone());
                        failed = Some(problem);
                    }
                }
            }
            watch.check_due().await;
        }
    }

    async fn load(&self, grants: &Grants) {
        let mut state = self.0.state.lock().await;
        for pushes in state.load(grants, Instant::now()) {
            self.send(pushes).await;
        }
        tracing::info!(grants = grants.grants.len(), "the grants have changed");
        self.report(&state);
    }
}

/// The batch with these events. Logs the problems.
fn batch(pushes: Pushes, published: Option<oneshot::Sender<Published>>) -> Batch {
    let Pushes { source, events, is_list, refused } = pushes;
    for Diagnostic { subject, field, problem, remedy, code, .. } in refused.iter().take(LOGGED) {
        tracing::warn!(%source, object = %subject, %field, %problem, %remedy, %code, "skipped");
    }
    if refused.len() > LOGGED {
        tracing::warn!(%source, services = refused.len() - LOGGED, "more Services were skipped");
    }
    Batch { origin: Origin::Pushed(Pushed { source, is_list, published }), ..events.into() }
}

impl Stream {
    /// The first answer.
    pub(crate) fn hello(&self) -> Hello {
        Hello {
            grant: self.grant.name.0.to_string(),
            keep_millis: match self.grant.keep {
                Keep::For(time) => Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
                Keep::Forever => None,
            },
            max_services: self.grant.max_services,
            max_endpoints: self.grant.max_endpoints,
        }
    }

    /// Resolves when the stream has to end.
    pub(crate) async fn ended(&mut self) -> End {
        match (&mut self.end).await {
            Ok(end) => end,
            // The state keeps the sender for as long as the stream may continue.
            Err(_) => End::Replaced,
        }
    }
}

/// The key on the wire.
pub(crate) fn key(key: &wire::ServiceKey) -> ServiceKey {
    bounds::key_of(Some(key))
}

fn problem(diagnostic: &Diagnostic) -> Problem {
    let key = diagnostic
        .subject
        .object()
        .map(|object| wire::ServiceKey { namespace: object.namespace.to_string(), name: object.name.to_string() });
    Problem {
        service: key,
        field: diagnostic.field.clone(),
        code: diagnostic.code.as_str().to_owned(),
        problem: format!("{}; {}", diagnostic.problem, diagnostic.remedy),
    }
}
