//! `Endpoints.Next`: waits for a state that the caller does not have, and sends it.
//!
//! The feed keeps every item serialized, so the codec copies bytes. An answer is an iterator over one state; the state that
//! is newest when the answer starts is the one that is sent.

use std::{future::Future, pin::Pin};

use bytes::{BufMut as _, Bytes};
use localnet_proto::{Revision, wire::NextFilter};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
    server::{Grpc, ServerStreamingService},
};
use tonic_prost::ProstDecoder;

use super::stall::{Paced, Stalls};
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
        Grpc::new(Verbatim).server_streaming(self, request).await
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

fn ending() -> Status {
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

/// Sends what is serialized already, and reads requests.
#[derive(Clone, Copy, Debug)]
struct Verbatim;

impl Codec for Verbatim {
    type Encode = Bytes;
    type Decode = NextFilter;
    type Encoder = Self;
    type Decoder = ProstDecoder<NextFilter>;

    fn encoder(&mut self) -> Self::Encoder {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::default())
    }
}

impl Encoder for Verbatim {
    type Item = Bytes;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        // A reader that waits holds the first; the other is how much is joined before it is sent.
        BufferSettings::new(512, 16 << 10)
    }

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.len());
        buffer.put(item);
        Ok(())
    }
}
