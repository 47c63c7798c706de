//! Batches: what a source sends to the pump.

use std::sync::Arc;

use localnet_proto::ServiceKey;
use tokio::{sync::Notify, time::Instant};

use localnet_cluster::objects::Event;

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

/// How a source learned of the events of a batch.
#[derive(Clone, Debug)]
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
}

impl From<Vec<Event>> for Batch {
    fn from(events: Vec<Event>) -> Self {
        Self { source: 0, events, since: Instant::now(), origin: Origin::Changes }
    }
}
