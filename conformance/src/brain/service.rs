//! The brain's gRPC services `Endpoints` and `Backends`. Each answer comes from the feed, with the next fault that a
//! check has requested.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{BufMut as _, Bytes};
use futures::{Stream, StreamExt as _, stream};
use localnet_brain::feed::Feed;
use localnet_proto::{
    Revision,
    wire::{BackendReport, BackendReportReply, NextFilter, backends_server::Backends, endpoints_server},
};
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
    server::{Grpc, NamedService, ServerStreamingService},
};
use tonic_prost::ProstDecoder;

use super::log::{Fault, Shared, lock};

/// Records the backend's reports.
pub(super) struct Reports(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl Backends for Reports {
    async fn report(&self, request: Request<BackendReport>) -> Result<Response<BackendReportReply>, Status> {
        self.0.log(|log| log.reports.push(request.into_inner()));
        Ok(Response::new(BackendReportReply {}))
    }
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Answers `Next`.
#[derive(Clone)]
pub(super) struct Endpoints {
    pub(super) shared: Arc<Shared>,
    pub(super) feed: Feed,
}

impl NamedService for Endpoints {
    const NAME: &'static str = endpoints_server::SERVICE_NAME;
}

impl tower::Service<http::Request<Body>> for Endpoints {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let endpoints = self.clone();
        Box::pin(async move {
            if request.uri().path().ends_with("/Next") {
                Ok(Grpc::new(Raw).server_streaming(endpoints, request).await)
            } else {
                Ok(Status::unimplemented("this brain serves only Next").into_http())
            }
        })
    }
}

type Items = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl ServerStreamingService<NextFilter> for Endpoints {
    type Response = Bytes;
    type ResponseStream = Items;
    type Future = Answer<Result<Response<Items>, Status>>;

    fn call(&mut self, request: Request<NextFilter>) -> Self::Future {
        let endpoints = self.clone();
        let request = request.into_inner();
        self.shared.log(|log| log.calls.push(request));
        let items = stream::once(async move { endpoints.answer(request).await }).flatten();
        Box::pin(std::future::ready(Ok(Response::new(Box::pin(items) as Items))))
    }
}

impl Endpoints {
    async fn answer(self, request: NextFilter) -> Items {
        let held = Revision { instance: request.instance_id, rev: request.rev };
        self.feed.differing(held).await;
        let fault = lock(&self.shared.faults).pop_front();
        if let Some(Fault::Hold) = fault {
            self.shared.log(|log| log.held += 1);
            self.shared.release.notified().await;
        }
        let delta = request.delta && !matches!(fault, Some(Fault::Full));
        // After a hold, send the newest state, as a slow brain would.
        let mut items: Vec<Bytes> = self.feed.state().answer(held, delta).items.collect();
        self.shared.log(|log| log.answers_started += 1);
        match fault {
            Some(Fault::Cut(after, code)) => {
                items.truncate(after);
                let cut = Err(Status::new(code, "cut on purpose"));
                Box::pin(stream::iter(items.into_iter().map(Ok).chain([cut])))
            }
            Some(Fault::Hang(after)) => {
                items.truncate(after);
                let shared = self.shared;
                let hang = stream::once(async move {
                    shared.log(|log| log.hung += 1);
                    std::future::pending::<Result<Bytes, Status>>().await
                });
                Box::pin(stream::iter(items.into_iter().map(Ok)).chain(hang))
            }
            Some(Fault::Slow(pause)) => Box::pin(stream::iter(items).then(move |item| async move {
                tokio::time::sleep(pause).await;
                Ok(item)
            })),
            Some(Fault::Edit(edit)) => Box::pin(stream::iter(edit(items).into_iter().map(Ok))),
            Some(Fault::Hold | Fault::Full) | None => Box::pin(stream::iter(items.into_iter().map(Ok))),
        }
    }
}

/// Sends encoded items unchanged, because items with unknown fields have no Rust type.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
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

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.len());
        buffer.put(item);
        Ok(())
    }
}
