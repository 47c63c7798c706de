//! Routes requests to the gRPC services by path. tonic routes all requests except those for `Next`, `NextState`, `Watch` and
//! `Read`, whose answers are already encoded.

use std::sync::Arc;

use bytes::Bytes;
use localnet_proto::{
    history::history_server,
    localv1,
    traffic::traffic_server::TrafficServer,
    v1::{
        explain::wire::reasons_service_server::ReasonsServiceServer,
        report,
        wire::{backend_service_server::BackendServiceServer, state_service_server},
    },
    wire::{backends_server::BackendsServer, endpoints_server, reasons_server::ReasonsServer},
};
use tokio_util::sync::CancellationToken;
use tonic::{body::Body, service};
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::{BoxError, ServiceExt as _};

use super::{
    ServerState, backend::Backends, history::Read, next::Next, push::Push, reasons::Explainer, stall::Stalls,
    state::NextState, watch::Watch,
};

/// The name of the service that serves the state. Clients of `grpc.health.v1` may also use this name.
const ENDPOINTS: &str = endpoints_server::SERVICE_NAME;
/// The name of the service that serves the state to newer KPNG clients.
const SETS: &str = localv1::sets_server::SERVICE_NAME;
/// The name of the service that serves the state in the draft of `localnet.v1`.
const STATE: &str = state_service_server::SERVICE_NAME;

/// The name of the service that serves the history.
const HISTORY: &str = history_server::SERVICE_NAME;

/// The serialized `FileDescriptorSet` of the packages that are always served, comments included, for gRPC reflection.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/localnetv1.binpb"));
/// The same of the draft of `localnet.v1`.
const DRAFT_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/localnet.v1.binpb"));

/// Maximum size of a report, in bytes. A report contains the parts of Services that a backend skipped, and there can be
/// many.
const LARGEST_REPORT: usize = 2 << 20;

/// The gRPC services. Clones share them.
#[derive(Clone)]
pub(super) struct Routes {
    next: Next,
    watch: Watch,
    /// `None` without `--draft-v1`.
    next_state: Option<NextState>,
    history: Read,
    others: service::Routes,
}

impl Routes {
    pub(super) fn new(
        state: &ServerState,
        health: HealthServer<impl Health>,
        stalls: Stalls,
        stop: CancellationToken,
    ) -> Self {
        let own = state.views.own();
        let published = own.feed().published();
        let draft = published.is_some();
        let reflection = || {
            let services = tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
            if draft { services.register_encoded_file_descriptor_set(DRAFT_DESCRIPTORS) } else { services }
        };
        let others = service::Routes::new(health)
            .add_service(BackendsServer::new(state.reports.clone()).max_decoding_message_size(LARGEST_REPORT))
            .add_service(TrafficServer::new(state.reports.clone()).max_decoding_message_size(2 * LARGEST_REPORT))
            .add_service(ReasonsServer::new(Explainer::new(state.clone())))
            .add_service(reflection().build_v1().expect("descriptors of the build are well-formed"))
            .add_service(reflection().build_v1alpha().expect("descriptors of the build are well-formed"));
        let others = match &state.pushers {
            Some(pushers) => others.add_service(Push::service(pushers.clone(), stop.clone())),
            None => others,
        };
        let others = if draft {
            let backends = Backends::new(own.feed().clone(), state.reports.clone(), stop.clone());
            others
                .add_service(BackendServiceServer::new(backends).max_decoding_message_size(report::LARGEST))
                .add_service(ReasonsServiceServer::new(Explainer::new(state.clone())))
        } else {
            others
        };
        let next_state = published
            .map(|published| NextState::new(own.feed().clone(), Arc::clone(published), stalls.clone(), stop.clone()));
        Self {
            next_state,
            next: Next::new(own.feed().clone(), stalls.clone(), stop.clone()),
            history: Read::new(own.feed().history().clone(), stalls.clone(), stop.clone()),
            watch: Watch::new(state.views.clone(), stalls, stop),
            others: others.prepare(),
        }
    }

    /// The names for which clients may query `grpc.health.v1`.
    pub(super) fn health_names(&self) -> &'static [&'static str] {
        if self.next_state.is_some() { &["", ENDPOINTS, SETS, STATE] } else { &["", ENDPOINTS, SETS] }
    }

    /// The routes of one connection.
    pub(super) fn of_connection(self) -> Self {
        Self { next_state: self.next_state.map(NextState::of_connection), ..self }
    }

    /// The answer to a request.
    pub(super) async fn answer<B>(self, request: http::Request<B>) -> http::Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let path = request.uri().path().trim_start_matches('/').split_once('/');
        match (path, self.next_state) {
            (Some((STATE, "NextState")), Some(next_state)) => next_state.handle(request.map(Body::new)).await,
            (Some((ENDPOINTS, "Next")), _) => self.next.handle(request.map(Body::new)).await,
            (Some((HISTORY, "Read")), _) => self.history.handle(request.map(Body::new)).await,
            (Some((ENDPOINTS | SETS, "Watch")), _) => self.watch.handle(request.map(Body::new)).await,
            _ => self.others.oneshot(request).await.unwrap_or_else(|never| match never {}),
        }
    }
}
