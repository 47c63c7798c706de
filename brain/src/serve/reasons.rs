//! The `Reasons` service: explains the state to operators (`localnet explain`, `localnet doctor`). It changes nothing.

use std::time::Duration;

use localnet_proto::{
    ServiceKey,
    encode::next_filter,
    wire::{
        self, BrainStatus, ReceivedReport, ServiceReasons, SourceProblem, StatusRequest,
        reasons_server::Reasons as ReasonsService,
    },
};
use tonic::{Request, Response, Status};

use super::ServerState;

/// The handler of `Reasons`.
#[derive(Clone, Debug)]
pub(super) struct Explainer(ServerState);

impl Explainer {
    pub(super) fn new(state: ServerState) -> Self {
        Self(state)
    }
}

#[tonic::async_trait]
impl ReasonsService for Explainer {
    async fn why(&self, request: Request<wire::ServiceKey>) -> Result<Response<ServiceReasons>, Status> {
        let wire::ServiceKey { namespace, name } = request.into_inner();
        if namespace.is_empty() || name.is_empty() {
            return Err(Status::invalid_argument("Namespace and Name are required"));
        }
        let key = ServiceKey::new(namespace, name);
        let answer = self.0.questions.why(key.clone()).await;
        let (revision, reasons) =
            answer.ok_or_else(|| Status::unavailable("the brain has no complete state yet; retry the call"))?;
        Ok(Response::new(reasons.to_wire(&key, revision)))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<BrainStatus>, Status> {
        let view = self.0.views.own();
        let state = view.feed().state();
        let troubles = view.feed().metrics().troubles().all().into_iter().map(|(of, trouble)| SourceProblem {
            of: of.into_owned(),
            problem: trouble.diagnostic.to_string(),
            code: trouble.diagnostic.code.to_string(),
            age_millis: millis(trouble.since.elapsed()),
        });
        let backends = self.0.reports.all().into_values().map(|received| ReceivedReport {
            age_millis: millis(received.at.elapsed()),
            report: Some(received.report),
        });
        Ok(Response::new(BrainStatus {
            state: Some(next_filter(state.revision(), false)),
            services: count(state.len()),
            backends: backends.collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            source_problems: troubles.collect(),
            unread: view.feed().metrics().readers() == 0,
            digest: state.digest().0,
        }))
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

fn count(count: usize) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}
