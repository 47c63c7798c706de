//! The views. A view is the sequence of states of one node: the node that the brain runs for, or another node that
//! `--serve-node` allows.
//!
//! The view of another node is a separate brain in this process, with its own watch of the source. This brain starts with
//! the first stream that requests the view, and stops with the last one. Views therefore cannot affect one another, and a
//! view without readers takes no resources.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use futures::future::BoxFuture;
use localnet_proto::Revision;
use tokio::{sync::Mutex, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::feed::Feed;
use localnet_cluster::objects::node_name;

/// Maximum number of open views of other nodes. Each takes as many resources as a brain.
const MAX_OTHERS: usize = 64;

/// A brain of another node.
pub struct Started {
    /// The feed of the node.
    pub feed: Feed,
    /// Resolves when the brain has failed. Dropping this future stops the brain.
    pub failed: BoxFuture<'static, anyhow::Error>,
}

/// A function that starts a brain for a node.
type Open = Box<dyn Fn(String) -> BoxFuture<'static, anyhow::Result<Started>> + Send + Sync>;

/// The views. Clones share them.
#[derive(Clone)]
pub struct Views(Arc<Inner>);

struct Inner {
    own: Feed,
    /// The other nodes whose views may be requested. `*` stands for every node.
    allowed: Vec<String>,
    open: Option<Open>,
    opened: Mutex<HashMap<String, Weak<Opened>>>,
}

/// Why a view was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// `--serve-node` does not allow the node.
    #[error(
        "this brain does not serve the view of node {0:?}; call the brain of that node, or start this one with --serve-node {0}"
    )]
    NotAllowed(String),
    /// Too many views are open.
    #[error(
        "this brain already serves the views of {MAX_OTHERS} other nodes, its maximum; request the view of node {0:?} from another brain"
    )]
    TooMany(String),
    /// The brain of the view could not be started.
    #[error("failed to open the view of the requested node: {0:#}")]
    Failed(anyhow::Error),
}

/// The view of this node only.
impl From<Feed> for Views {
    fn from(own: Feed) -> Self {
        Self(Arc::new(Inner { own, allowed: Vec::new(), open: None, opened: Mutex::default() }))
    }
}

impl Views {
    /// The view of this node, and the views of the `allowed` nodes. If `allowed` contains `*`, all nodes are allowed.
    /// `open` starts the brains of the other nodes.
    pub fn with_others(
        own: Feed,
        allowed: Vec<String>,
        open: impl Fn(String) -> BoxFuture<'static, anyhow::Result<Started>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner { own, allowed, open: Some(Box::new(open)), opened: Mutex::default() }))
    }

    /// The view of the node that the brain runs for.
    pub fn own(&self) -> View {
        View { name: String::new(), feed: self.0.own.clone(), opened: None }
    }

    /// The view of a node. An empty name means this node. For any other name, waits for the first state, which contains the
    /// name of this node.
    ///
    /// # Errors
    /// Returns [`Refused`] if the node is not allowed, too many views are open, or the brain of the view cannot be started.
    pub async fn of(&self, name: &str) -> Result<View, Refused> {
        if name.is_empty() {
            return Ok(self.own());
        }
        let refused = || Refused::NotAllowed(name.to_owned());
        let canonical = node_name(name).map_err(|_| refused())?;
        if self.0.own.differing(Revision::default()).await.node().name == canonical {
            return Ok(View { name: name.to_owned(), ..self.own() });
        }
        let is_allowed = self.0.allowed.iter().any(|allowed| allowed == "*" || *allowed == canonical);
        let open = self.0.open.as_ref().filter(|_| is_allowed).ok_or_else(refused)?;
        let mut all = self.0.opened.lock().await;
        all.retain(|_, opened| opened.strong_count() > 0);
        let opened = match all.get(&canonical).and_then(Weak::upgrade).filter(|opened| !opened.failed.is_cancelled()) {
            Some(opened) => opened,
            None if all.len() >= MAX_OTHERS => return Err(Refused::TooMany(canonical)),
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

/// The brain of a view.
struct Opened {
    feed: Feed,
    failed: CancellationToken,
    /// The task that owns the brain.
    _task: JoinSet<()>,
}

impl Opened {
    fn of(brain: Started, node: String) -> Self {
        let (Started { feed, failed: failing }, failed) = (brain, CancellationToken::new());
        let ended = failed.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let error = failing.await;
            warn!(node, error = format!("{error:#}"), "the view of this node has failed");
            ended.cancel();
        });
        Self { feed, failed, _task: task }
    }
}

/// The states of one node. If the node is not this node, its brain stops when its last `View` is dropped.
#[derive(Clone)]
pub struct View {
    /// The name in the request.
    name: String,
    feed: Feed,
    opened: Option<Arc<Opened>>,
}

impl View {
    /// The feed of the node.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Whether `name` is the name under which the view was requested.
    pub fn is_of(&self, name: &str) -> bool {
        self.name == name
    }

    /// Resolves when the brain of the view has failed, so that no further state will follow.
    pub async fn failed(&self) {
        match &self.opened {
            Some(opened) => opened.failed.cancelled().await,
            None => std::future::pending().await,
        }
    }
}
