//! KPNG's `Watch`: answers each request with the changes since the previous one.
//!
//! ```text
//! WatchReq ─► Reset ─► (wait for a state other than the one sent last) ─► changes … Sync ─► the next WatchReq
//! ```
//!
//! Between two requests, the stream keeps the last state in memory. If a client sends no request for [`PATIENCE`], the
//! state is dropped, and the client's next request ends the stream.

use std::{
    future::{Future, ready},
    iter,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{TryStreamExt as _, stream};
use localnet_proto::wire::WatchReq;
use tokio::{task::JoinSet, time};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, body::Body, server::StreamingService};
use tracing::{debug, warn};

use super::{
    next::ending,
    stall::{Paced, Stalls},
    verbatim,
};
use crate::{
    feed::State,
    kpng,
    metrics::Reader,
    throttle::Throttle,
    views::{Refused, View, Views},
};

/// How long a client may wait between two requests.
const PATIENCE: Duration = Duration::from_secs(600);

/// Minimum time between two warnings about refused clients.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The handler of `Watch`.
#[derive(Clone)]
pub(super) struct Watch {
    views: Views,
    stalls: Stalls,
    stop: CancellationToken,
    refusals: Throttle,
}

impl Watch {
    pub(super) fn new(views: Views, stalls: Stalls, stop: CancellationToken) -> Self {
        Self { views, stalls, stop, refusals: Throttle::every(LOG_INTERVAL) }
    }

    /// Logs a refused client. KPNG clients retry about every second and do not show the error to their operator.
    /// Therefore the log has a warning, but at most once a minute.
    fn log(&self, node: &str, refused: &Refused) {
        match refused {
            _ if self.refusals.pass().is_none() => debug!(node, error = %refused, "a KPNG client was refused"),
            Refused::NotAllowed(_) => warn!(
                node,
                own = self.views.own().feed().state().node().name,
                "a KPNG client was refused: it requests the state of another node; start the client with this node's name in --node-name, \
                or this brain with --serve-node and the name that the client requests"
            ),
            _ => warn!(node, error = %refused, "a KPNG client was refused"),
        }
    }

    pub(super) async fn handle(self, request: http::Request<Body>) -> http::Response<Body> {
        verbatim::grpc().streaming(self, request).await
    }
}

impl StreamingService<WatchReq> for Watch {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn futures::Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<WatchReq>>) -> Self::Future {
        let reader = Arc::new(self.views.own().feed().metrics().reader());
        let (watch, requests) = (self.clone(), request.into_inner());
        let session = Session { watch, requests, reader, first: None, view: None, held: None };
        let sets = stream::try_unfold(session, Session::next);
        let items: Self::ResponseStream = Box::pin(sets.try_flatten());
        Box::pin(ready(Ok(Response::new(items))))
    }
}

/// One call of `Watch`.
struct Session {
    watch: Watch,
    requests: Streaming<WatchReq>,
    /// Counts this reader in the metrics.
    reader: Arc<Reader>,
    /// The first request, while its `Reset` is being sent. The changes for this request follow later.
    first: Option<WatchReq>,
    /// The node whose state the client receives.
    view: Option<View>,
    /// The state that was sent last.
    held: Option<Held>,
}

impl Session {
    /// The items of the next answer. `None` if the client has closed its side of the stream.
    async fn next(mut self) -> Result<Option<(Paced, Self)>, Status> {
        let request = match self.first.take() {
            Some(first) => first,
            None => {
                let Some(request) = self.request().await? else { return Ok(None) };
                if self.view.is_none() {
                    self.first = Some(request);
                    self.view = Some(self.watch.views.own());
                    let items = self.watch.stalls.pace(Box::new(iter::once(kpng::reset())));
                    return Ok(Some((items, self)));
                }
                request
            }
        };
        let before = self.held.take().map(Held::take).transpose()?;
        let stop = self.watch.stop.clone();
        let (view, state) = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(ending()),
            differing = self.differing(&request.node_name, before.as_ref()) => differing?,
        };
        let reader = Arc::clone(&self.reader);
        let items = kpng::changes(before.as_ref(), &state).inspect(move |item| reader.sent(item.len()));
        let items = self.watch.stalls.pace(Box::new(items));
        self.view = Some(view);
        self.held = Some(Held::new(state));
        Ok(Some((items, self)))
    }

    async fn request(&mut self) -> Result<Option<WatchReq>, Status> {
        tokio::select! {
            biased;
            () = self.watch.stop.cancelled() => Err(ending()),
            request = self.requests.message() => request,
        }
    }

    /// Waits for a state of `node` other than `before`.
    async fn differing(&self, node: &str, before: Option<&State>) -> Result<(View, State), Status> {
        let view = match &self.view {
            Some(view) if view.is_of(node) => view.clone(),
            _ => self.watch.views.of(node).await.map_err(|refused| {
                self.watch.log(node, &refused);
                refused_status(&refused)
            })?,
        };
        // The views of two nodes have different instance IDs, so a state of one view always differs from a state of the
        // other.
        let held = before.map(State::revision).unwrap_or_default();
        let state = tokio::select! {
            state = view.feed().differing(held) => state,
            () = view.failed() => return Err(Status::unavailable("the view of this node has failed; retry the call")),
        };
        Ok((view, state))
    }
}

fn refused_status(refused: &Refused) -> Status {
    match refused {
        Refused::NotAllowed(_) => Status::permission_denied(refused.to_string()),
        Refused::TooMany(_) => Status::resource_exhausted(refused.to_string()),
        Refused::Failed(_) => Status::unavailable(refused.to_string()),
    }
}

/// A state that is kept until the client's next request, but at most for [`PATIENCE`].
struct Held {
    state: Arc<Mutex<Option<State>>>,
    _patience: JoinSet<()>,
}

impl Held {
    fn new(state: State) -> Self {
        let state = Arc::new(Mutex::new(Some(state)));
        let held = Arc::clone(&state);
        let mut patience = JoinSet::new();
        patience.spawn(async move {
            time::sleep(PATIENCE).await;
            *held.lock().unwrap_or_else(PoisonError::into_inner) = None;
        });
        Self { state, _patience: patience }
    }

    fn take(self) -> Result<State, Status> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        state.ok_or_else(|| Status::aborted("the client has sent no request for too long; retry the call"))
    }
}
