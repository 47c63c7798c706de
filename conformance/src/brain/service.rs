//! The brain's gRPC services. Each answer comes from the feed, with the next fault that a check has requested.

use std::{
    convert::Infallible,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{BufMut as _, Bytes};
use futures::{Stream, StreamExt as _, stream};
use localnet_brain::feed::Feed;
use localnet_proto::{
    v1::{
        report::{BackendStatus, Known},
        wire::{ReportStatusRequest, ReportStatusResponse, backend_service_server::BackendService},
    },
    wire::{BackendReport, BackendReportReply, backends_server::Backends},
};
use tonic::{
    Request, Response, Status,
    body::Body,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
    server::{Grpc, NamedService, ServerStreamingService},
};
use tonic_prost::ProstDecoder;

use super::{
    log::{Call, Fault, Shared, lock},
    package::StateRequest,
};

/// Records the backend's reports, in either package.
#[derive(Clone)]
pub(super) struct Reports {
    pub(super) shared: Arc<Shared>,
    pub(super) feed: Feed,
}

#[tonic::async_trait]
impl Backends for Reports {
    async fn report(&self, request: Request<BackendReport>) -> Result<Response<BackendReportReply>, Status> {
        self.shared.log(|log| log.reports.push(request.into_inner()));
        Ok(Response::new(BackendReportReply {}))
    }
}

#[tonic::async_trait]
impl BackendService for Reports {
    /// Like a brain that has just been restarted, the kit asks for all of the first report.
    async fn report_status(
        &self,
        request: Request<ReportStatusRequest>,
    ) -> Result<Response<ReportStatusResponse>, Status> {
        let state = self.feed.state();
        let newest = state.revision();
        let status = BackendStatus::checked(request.into_inner(), newest)?;
        let report = status.to_older(&Known { newest, node: state.node(), digests: &|_| None });
        let mut is_first = false;
        self.shared.log(|log| {
            is_first = log.reports.is_empty();
            log.reports.push(report);
        });
        Ok(Response::new(ReportStatusResponse { complete_report_wanted: is_first && !status.is_complete() }))
    }
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Answers requests for the state, in the package of `R`.
pub(super) struct States<R> {
    shared: Arc<Shared>,
    feed: Feed,
    request: PhantomData<fn(R)>,
}

impl<R> States<R> {
    pub(super) fn new(shared: Arc<Shared>, feed: Feed) -> Self {
        Self { shared, feed, request: PhantomData }
    }
}

impl<R> Clone for States<R> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.shared), self.feed.clone())
    }
}

impl<R: StateRequest> NamedService for States<R> {
    const NAME: &'static str = R::SERVICE;
}

impl<R: StateRequest> tower::Service<http::Request<Body>> for States<R> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let states = self.clone();
        Box::pin(async move {
            if request.uri().path().rsplit('/').next() == Some(R::METHOD) {
                Ok(Grpc::new(Raw(PhantomData)).server_streaming(states, request).await)
            } else {
                Ok(Status::unimplemented(format!("this brain serves only {}", R::METHOD)).into_http())
            }
        })
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl<R: StateRequest> ServerStreamingService<R> for States<R> {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Answer<Result<Response<Messages>, Status>>;

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let states = self.clone();
        let request = request.into_inner();
        self.shared.log(|log| log.calls.push(Call { package: R::PACKAGE, held: request.held() }));
        let messages = stream::once(async move { states.answer(request).await }).flatten();
        Box::pin(std::future::ready(Ok(Response::new(Box::pin(messages) as Messages))))
    }
}

impl<R: StateRequest> States<R> {
    async fn answer(self, request: R) -> Messages {
        self.feed.differing(request.held().unwrap_or_default()).await;
        let fault = lock(&self.shared.faults).pop_front();
        if let Some(Fault::Hold) = fault {
            self.shared.log(|log| log.held += 1);
            self.shared.release.notified().await;
        }
        // After a hold, send the newest state, as a slow brain would.
        let mut parts = match request.parts(&self.feed.state(), matches!(fault, Some(Fault::Full))) {
            Ok(parts) => parts,
            Err(refused) => return Box::pin(stream::iter([Err(refused)])),
        };
        self.shared.log(|log| log.answers_started += 1);
        match fault {
            Some(Fault::Cut(after, code)) => {
                parts.truncate(after);
                let cut = Err(Status::new(code, "cut on purpose"));
                Box::pin(stream::iter(parts.into_iter().map(Ok).chain([cut])))
            }
            Some(Fault::Hang(after)) => {
                parts.truncate(after);
                let shared = self.shared;
                let hang = stream::once(async move {
                    shared.log(|log| log.hung += 1);
                    std::future::pending::<Result<Bytes, Status>>().await
                });
                Box::pin(stream::iter(parts.into_iter().map(Ok)).chain(hang))
            }
            Some(Fault::Slow(pause)) => Box::pin(stream::iter(parts).then(move |part| async move {
                tokio::time::sleep(pause).await;
                Ok(part)
            })),
            Some(Fault::Edit(edit)) => Box::pin(stream::iter(R::edited(edit, parts).into_iter().map(Ok))),
            Some(Fault::Hold | Fault::Full) | None => Box::pin(stream::iter(parts.into_iter().map(Ok))),
        }
    }
}

/// Sends encoded messages unchanged, because messages with unknown fields have no Rust type.
struct Raw<R>(PhantomData<fn(R)>);

impl<R: StateRequest> Codec for Raw<R> {
    type Encode = Bytes;
    type Decode = R;
    type Encoder = Copied;
    type Decoder = ProstDecoder<R>;

    fn encoder(&mut self) -> Copied {
        Copied
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::default())
    }
}

/// The encoder of [`Raw`].
struct Copied;

impl Encoder for Copied {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, part: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(part.len());
        buffer.put(part);
        Ok(())
    }
}
