//! KPNG's `Watch`: for each request, what has changed since the one before it.
//!
//! ```text
//! WatchReq ─► Reset ─► (a state, another than was sent last) ─► ChangeSet … Sync ─► the next WatchReq
//! ```
//!
//! A client that asks for nothing costs the state that it holds: that is let go after a while, and the stream then ends.

use std::{
    future::{Future, ready},
    iter,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{TryStreamExt as _, stream};
use localnet_proto::wire::WatchReq;
use tokio::{task::JoinHandle, time};
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
    kpng::{self, ChangeSet},
    metrics::Reader,
    views::{Refused, View, Views},
};

/// How long a client may take from one request to the next.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long the log stays silent about refused clients after it has named one.
const SILENCE: Duration = Duration::from_secs(60);

/// Answers `Watch`.
#[derive(Clone)]
pub(super) struct Watch {
    views: Views,
    stalls: Stalls,
    stop: CancellationToken,
    /// When the log last named a refused client.
    refused: Arc<Mutex<Option<Instant>>>,
}

impl Watch {
    pub(super) fn new(views: Views, stalls: Stalls, stop: CancellationToken) -> Self {
        Self { views, stalls, stop, refused: Arc::default() }
    }

    /// Names a refused client in the log. Such a client calls again every second or so, and shows its operator only that it
    /// reconnects: one line a minute is enough.
    fn log(&self, asked: &str, refused: &Refused) {
        let now = Instant::now();
        let mut last = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| now.duration_since(last) < SILENCE) {
            debug!(asked, error = %refused, "refused a KPNG client");
            return;
        }
        *last = Some(now);
        drop(last);
        match refused {
            Refused::NotAllowed(_) => warn!(
                asked,
                own = self.views.own().feed().state().node().name,
                "refused a KPNG client: the node it asks for is not this brain's; start the client with the own name in --node-name, \
                 or this brain with --serve-node and the name that the client asks for"
            ),
            _ => warn!(asked, error = %refused, "refused a KPNG client"),
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
        let follower = Follower { watch, requests, reader, asked: None, view: None, held: None };
        let sets = stream::try_unfold(follower, Follower::next);
        let items: Self::ResponseStream = Box::pin(sets.try_flatten());
        Box::pin(ready(Ok(Response::new(items))))
    }
}

/// One stream.
struct Follower {
    watch: Watch,
    requests: Streaming<WatchReq>,
    /// Counts it.
    reader: Arc<Reader>,
    /// The first request, while it is answered with Reset.
    asked: Option<WatchReq>,
    /// Whose state is sent.
    view: Option<View>,
    /// What was sent last.
    held: Option<Held>,
}

impl Follower {
    /// The items of the next answer; `None` when the client is done.
    async fn next(mut self) -> Result<Option<(Paced, Self)>, Status> {
        let request = match self.asked.take() {
            Some(first) => first,
            None => {
                let Some(request) = self.request().await? else { return Ok(None) };
                if self.view.is_none() {
                    self.asked = Some(request);
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
            found = self.differing(&request.node_name, before.as_ref()) => found?,
        };
        let reader = Arc::clone(&self.reader);
        let items = ChangeSet::new(before.as_ref(), &state).inspect(move |item| reader.sent(item.len()));
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

    /// Waits for a state of that node other than `before`.
    async fn differing(&self, node: &str, before: Option<&State>) -> Result<(View, State), Status> {
        let view = match &self.view {
            Some(view) if view.is_of(node) => view.clone(),
            _ => self.watch.views.of(node).await.map_err(|refused| {
                self.watch.log(node, &refused);
                refused_status(&refused)
            })?,
        };
        // States of another node have another instance: they differ.
        let held = before.map(State::revision).unwrap_or_default();
        let state = tokio::select! {
            state = view.feed().differing(held) => state,
            () = view.failed() => return Err(Status::unavailable("the view of this node has failed; call again")),
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

/// A state that is held until the client asks for what differs from it, or for as long as there is patience.
struct Held {
    state: Arc<Mutex<Option<State>>>,
    patience: JoinHandle<()>,
}

impl Held {
    fn new(state: State) -> Self {
        let state = Arc::new(Mutex::new(Some(state)));
        let held = Arc::clone(&state);
        let patience = tokio::spawn(async move {
            time::sleep(PATIENCE).await;
            *held.lock().unwrap_or_else(PoisonError::into_inner) = None;
        });
        Self { state, patience }
    }

    fn take(self) -> Result<State, Status> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        state.ok_or_else(|| Status::aborted("nothing was asked for too long; call again"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.patience.abort();
    }
}
