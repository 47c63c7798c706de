//! Batches: what a source sends to the pump.

use std::sync::Arc;

use localnet_proto::ServiceKey;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use localnet_cluster::objects::Event;
use localnet_core::Diagnostic;

/// Events that take effect together.
#[derive(Debug)]
pub struct Batch {
    /// The number of the source, from 0, in the order of precedence.
    pub source: usize,
    /// The events, in the order in which they are applied.
    pub events: Vec<Event>,
    /// When the source received the events. Latency metrics count from this time.
    pub since: Instant,
    /// How the source learned of the events.
    pub origin: Origin,
}

/// The state that contains a pushed batch.
#[derive(Debug)]
pub struct Published {
    /// The revision of the state.
    pub rev: u64,
    /// The problems of the source's Services, at most [`PROBLEMS`].
    pub problems: Vec<Diagnostic>,
}

/// Maximum number of problems that the answer to a pushed batch contains.
pub const PROBLEMS: usize = 1000;

/// Another program has pushed the events.
#[derive(Debug)]
pub struct Pushed {
    /// The name of the source. The number of the source is unknown, because sources of this kind come and go.
    pub source: Arc<str>,
    /// Whether the events are the differences from a new list. If not, the program has sent each change.
    pub is_list: bool,
    /// Receives the result. `None` if the sender does not wait for it.
    pub published: Option<oneshot::Sender<Published>>,
}

/// How a source learned of the events of a batch.
#[derive(Debug)]
pub enum Origin {
    /// The source received each change individually.
    Changes,
    /// The source has read files again. A deletion means that the files no longer contain the object.
    Reread,
    /// The source lists and watches the objects of an API server.
    ApiServer {
        /// Requests another list of the objects of this batch's kind.
        relist: Arc<Notify>,
        /// Objects of the list that cannot be decoded. The cluster keeps their previous versions.
        unreadable: Vec<ServiceKey>,
    },
    /// Another program has pushed the events.
    Pushed(Pushed),
}

impl From<Vec<Event>> for Batch {
    fn from(events: Vec<Event>) -> Self {
        Self { source: 0, events, since: Instant::now(), origin: Origin::Changes }
    }
}
