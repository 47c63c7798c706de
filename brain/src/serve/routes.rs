//! Routes requests to the gRPC services by path.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use localnet_proto::{
    DESCRIPTORS, localv1,
    wire::{backends_server::BackendsServer, endpoints_server, reasons_server::ReasonsServer},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, server::NamedService};
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::{BoxError, Service, ServiceExt as _, service_fn, util::BoxCloneSyncService};

use super::{ServerState, next::Next, reasons::Explainer, stall::Stalls, watch::Watch};

/// The service that serves the state, and a name that health clients may query.
pub(super) const ENDPOINTS: &str = endpoints_server::SERVICE_NAME;
/// The service that serves the state to newer KPNG clients.
pub(super) const SETS: &str = localv1::sets_server::SERVICE_NAME;

/// Maximum size of a report, in bytes. A report lists the first parts of the state that a backend skipped, which can be
/// many.
const LARGEST_REPORT: usize = 2 << 20;

type Route = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible>;

/// The gRPC services by name. Clones share them.
#[derive(Clone)]
pub(super) struct Routes(Arc<[(&'static str, Route)]>);

impl Routes {
    pub(super) fn new(
        state: &ServerState,
        health: HealthServer<impl Health>,
        stalls: Stalls,
        stop: CancellationToken,
    ) -> Self {
        let watch = Watch::new(state.views.clone(), stalls.clone(), stop.clone());
        let next = Next::new(state.views.own().feed().clone(), stalls, stop);
        let endpoints = {
            let watch = watch.clone();
            service_fn(move |request: http::Request<Body>| {
                let (next, watch) = (next.clone(), watch.clone());
                async move {
                    Ok(match method(&request) {
                        "Next" => next.handle(request).await,
                        "Watch" => watch.handle(request).await,
                        _ => unimplemented(request.uri().path()),
                    })
                }
            })
        };
        let sets = service_fn(move |request: http::Request<Body>| {
            let watch = watch.clone();
            async move {
                Ok(match method(&request) {
                    "Watch" => watch.handle(request).await,
                    _ => unimplemented(request.uri().path()),
                })
            }
        });
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let reflection_v1 = reflection().build_v1().expect("descriptors of the build are well-formed");
        let reflection_v1alpha = reflection().build_v1alpha().expect("descriptors of the build are well-formed");
        Self(Arc::new([
            (ENDPOINTS, BoxCloneSyncService::new(endpoints)),
            (SETS, BoxCloneSyncService::new(sets)),
            named(BackendsServer::new(state.reports.clone()).max_decoding_message_size(LARGEST_REPORT)),
            named(ReasonsServer::new(Explainer::new(state.clone()))),
            named(health),
            named(reflection_v1),
            named(reflection_v1alpha),
        ]))
    }
}

/// The name of the method, without its service.
fn method<B>(request: &http::Request<B>) -> &str {
    request.uri().path().rsplit('/').next().unwrap_or_default()
}

fn named<S>(service: S) -> (&'static str, Route)
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    (S::NAME, BoxCloneSyncService::new(service))
}

fn unimplemented(path: &str) -> http::Response<Body> {
    Status::unimplemented(format!("this server has no method {path}")).into_http()
}

impl<B> Service<http::Request<B>> for Routes
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let name = request.uri().path().split('/').nth(1);
        match self.0.iter().find(|(route, _)| Some(*route) == name) {
            Some((_, route)) => Box::pin(route.clone().oneshot(request.map(Body::new))),
            None => Box::pin(std::future::ready(Ok(unimplemented(request.uri().path())))),
        }
    }
}
