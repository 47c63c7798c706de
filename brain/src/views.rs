//! Whose state is served: that of the node that the brain runs for, and, if that is allowed, of others.
//!
//! The view of another node is a brain of its own in this process, with its own watch of the source, from the first stream
//! that asks for it to the end of the last one. So one view cannot disturb another, and a node that nobody asks for costs
//! nothing.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use futures::future::BoxFuture;
use localnet_proto::Revision;
use tokio::{sync::Mutex, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{args::node_name, feed::Feed, run::Brain};

/// Views of other nodes at a time: each costs as much as a brain.
const MOST: usize = 64;

/// Starts a brain for a node.
type Open = Box<dyn Fn(String) -> BoxFuture<'static, anyhow::Result<Brain>> + Send + Sync>;

/// The views. Clones share them.
#[derive(Clone)]
pub struct Views(Arc<Inner>);

struct Inner {
    own: Feed,
    allowed: Allowed,
    open: Option<Open>,
    opened: Mutex<HashMap<String, Weak<Opened>>>,
}

/// Which nodes' views may be asked for beside the own one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Every node's.
    pub all: bool,
    /// These nodes'.
    pub names: Vec<String>,
}

impl Allowed {
    /// Reads names; `*` stands for every node.
    pub fn new(names: &[String]) -> Self {
        let (all, names): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| name == "*");
        Self { all: !all.is_empty(), names }
    }

    fn has(&self, name: &str) -> bool {
        self.all || self.names.iter().any(|allowed| allowed == name)
    }
}

/// Why there is no view.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Nobody has allowed it.
    #[error(
        "the view of node {0:?} is not served here; ask the brain of that node, or start this one with --serve-node {0}"
    )]
    NotAllowed(String),
    /// There are too many.
    #[error("the views of {MOST} other nodes are served already; ask another brain for that of node {0:?}")]
    TooMany(String),
    /// It cannot be had.
    #[error("failed to open the view of another node: {0:#}")]
    Failed(anyhow::Error),
}

/// Only the own view.
impl From<Feed> for Views {
    fn from(own: Feed) -> Self {
        Self(Arc::new(Inner { own, allowed: Allowed::default(), open: None, opened: Mutex::default() }))
    }
}

impl Views {
    /// The own view, and those of nodes that are allowed, for which `open` starts brains.
    pub fn with_others(
        own: Feed,
        allowed: Allowed,
        open: impl Fn(String) -> BoxFuture<'static, anyhow::Result<Brain>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner { own, allowed, open: Some(Box::new(open)), opened: Mutex::default() }))
    }

    /// The view of the node that the brain runs for.
    pub fn own(&self) -> View {
        View { name: String::new(), feed: self.0.own.clone(), opened: None }
    }

    /// The view of a node; an empty name is that of the own one. Waits until the own node's name is known.
    ///
    /// # Errors
    /// It is not to be served, or cannot be.
    pub async fn of(&self, name: &str) -> Result<View, Refused> {
        if name.is_empty() {
            return Ok(self.own());
        }
        let refused = || Refused::NotAllowed(name.to_owned());
        let canonical = node_name(name).map_err(|_| refused())?;
        if self.0.own.differing(Revision::default()).await.node().name == canonical {
            return Ok(View { name: name.to_owned(), ..self.own() });
        }
        let open = self.0.open.as_ref().filter(|_| self.0.allowed.has(&canonical)).ok_or_else(refused)?;
        let mut all = self.0.opened.lock().await;
        all.retain(|_, opened| opened.strong_count() > 0);
        let opened = match all.get(&canonical).and_then(Weak::upgrade).filter(|opened| !opened.failed.is_cancelled()) {
            Some(opened) => opened,
            None if all.len() >= MOST => return Err(Refused::TooMany(canonical)),
            None => {
                let brain = open(canonical.clone()).await.map_err(Refused::Failed)?;
                info!(node = canonical, "serving the view of another node");
                let opened = Arc::new(Opened::of(brain, canonical.clone()));
                all.insert(canonical, Arc::downgrade(&opened));
                opened
            }
        };
        Ok(View { name: name.to_owned(), feed: opened.feed.clone(), opened: Some(opened) })
    }
}

impl fmt::Debug for Views {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Views").field("allowed", &self.0.allowed).finish_non_exhaustive()
    }
}

/// A brain that was started for a view.
struct Opened {
    feed: Feed,
    failed: CancellationToken,
    /// Owns the brain.
    task: JoinHandle<()>,
}

impl Opened {
    fn of(mut brain: Brain, node: String) -> Self {
        let (feed, failed) = (brain.feed().clone(), CancellationToken::new());
        let ended = failed.clone();
        let task = tokio::spawn(async move {
            let error = brain.failed().await;
            warn!(node, error = format!("{error:#}"), "the view of another node has failed");
            ended.cancel();
        });
        Self { feed, failed, task }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The states of one node, for as long as somebody has the view.
#[derive(Clone)]
pub struct View {
    /// As it was asked for.
    name: String,
    feed: Feed,
    opened: Option<Arc<Opened>>,
}

impl View {
    /// The states.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Whether it was asked for by this name.
    pub fn is_of(&self, name: &str) -> bool {
        self.name == name
    }

    /// Resolves when there will be no further state.
    pub async fn failed(&self) {
        match &self.opened {
            Some(opened) => opened.failed.cancelled().await,
            None => std::future::pending().await,
        }
    }
}
