//! `Endpoints.Next`: waits for a state that the caller does not have, and sends it.
//!
//! The feed keeps every item serialized, so the codec copies bytes. An answer is an iterator over one state; the state that
//! is newest when the answer starts is the one that is sent.

use std::{future::Future, pin::Pin};

use bytes::Bytes;
use localnet_proto::{Revision, wire::NextFilter};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, body::Body, server::ServerStreamingService};

use super::{
    stall::{Paced, Stalls},
    verbatim,
};
use crate::feed::Feed;

/// Answers `Next`.
#[derive(Clone)]
pub(super) struct Next {
    feed: Feed,
    stalls: Stalls,
    stop: CancellationToken,
}

impl Next {
    pub(super) fn new(feed: Feed, stalls: Stalls, stop: CancellationToken) -> Self {
        Self { feed, stalls, stop }
    }

    pub(super) async fn handle(self, request: http::Request<Body>) -> http::Response<Body> {
        verbatim::grpc().server_streaming(self, request).await
    }

    /// Waits until there is a state other than the one that `request` names.
    async fn answer(self, request: NextFilter) -> Result<Paced, Status> {
        let reader = self.feed.metrics().reader();
        let known = Revision { instance: request.instance_id, rev: request.rev };
        let state = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(ending()),
            state = self.feed.differing(known) => state,
        };
        let items = state.answer(known, request.delta).items;
        Ok(self.stalls.pace(Box::new(items.inspect(move |item| reader.sent(item.len())))))
    }
}

pub(super) fn ending() -> Status {
    Status::unavailable("the brain is shutting down; call again")
}

impl ServerStreamingService<NextFilter> for Next {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn futures::Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    /// Accepts the call at once, so that the caller can tell a brain that waits from one that is not there.
    fn call(&mut self, request: Request<NextFilter>) -> Self::Future {
        let answer = self.clone().answer(request.into_inner());
        let items: Self::ResponseStream = Box::pin(futures::TryFutureExt::try_flatten_stream(answer));
        Box::pin(std::future::ready(Ok(Response::new(items))))
    }
}
