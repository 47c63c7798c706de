//! `Endpoints.Next`: a long poll. It waits for a state that the caller does not have, and then sends this state.
//!
//! The feed stores every item serialized, so the codec only copies bytes. An answer is an iterator over one state, which
//! is the newest state when the answer starts.

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

/// The handler of `Next`.
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

    /// Waits for a state whose revision differs from that of `request`.
    async fn answer(self, request: NextFilter) -> Result<Paced, Status> {
        let reader = self.feed.metrics().reader();
        let held = Revision { instance: request.instance_id, rev: request.rev };
        let state = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(ending()),
            state = self.feed.differing(held) => state,
        };
        let items = state.answer(held, request.delta).items;
        Ok(self.stalls.pace(Box::new(items.inspect(move |item| reader.sent(item.len())))))
    }
}

/// The status of a call that ends because of a shutdown.
pub(super) fn ending() -> Status {
    Status::unavailable("the brain is shutting down; retry the call")
}

impl ServerStreamingService<NextFilter> for Next {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn futures::Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Self::ResponseStream>, Status>> + Send>>;

    /// Sends the headers immediately. The caller can then distinguish a brain that waits from a brain that is
    /// unavailable.
    fn call(&mut self, request: Request<NextFilter>) -> Self::Future {
        let answer = self.clone().answer(request.into_inner());
        let items: Self::ResponseStream = Box::pin(futures::TryFutureExt::try_flatten_stream(answer));
        Box::pin(std::future::ready(Ok(Response::new(items))))
    }
}
