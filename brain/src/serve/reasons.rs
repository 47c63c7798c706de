//! The services `Reasons` and `ReasonsService` (of `localnet.reasons.v1alpha1`): they explain the state to operators (`localnet explain`,
//! `localnet doctor`), and change nothing.

use std::time::Duration;

use localnet_proto::{
    Revision, ServiceKey,
    encode::next_filter,
    reasons::Reasons,
    v1::{
        ErrorInfo,
        explain::wire::{self as v1, reasons_service_server::ReasonsService},
        report::BackendStatus,
    },
    wire::{
        self, BrainStatus, ReceivedReport, ServiceReasons, SourceProblem, StatusRequest,
        reasons_server::Reasons as OlderReasons,
    },
};
use tonic::{Request, Response, Status};

use super::ServerState;

/// The handler of both services.
#[derive(Clone, Debug)]
pub(super) struct Explainer(ServerState);

impl Explainer {
    pub(super) fn new(state: ServerState) -> Self {
        Self(state)
    }

    async fn explain(&self, key: ServiceKey) -> Result<(Revision, Reasons), Status> {
        let answer = self.0.questions.why(key).await;
        answer.ok_or_else(|| Status::unavailable("the brain has no complete state yet; retry the call"))
    }
}

#[tonic::async_trait]
impl OlderReasons for Explainer {
    async fn why(&self, request: Request<wire::ServiceKey>) -> Result<Response<ServiceReasons>, Status> {
        let wire::ServiceKey { namespace, name } = request.into_inner();
        if namespace.is_empty() || name.is_empty() {
            return Err(Status::invalid_argument("Namespace and Name are required"));
        }
        let key = ServiceKey::new(namespace, name);
        let (revision, reasons) = self.explain(key.clone()).await?;
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

#[tonic::async_trait]
impl ReasonsService for Explainer {
    async fn explain_service(
        &self,
        request: Request<v1::ExplainServiceRequest>,
    ) -> Result<Response<v1::ExplainServiceResponse>, Status> {
        let key = request.into_inner().service.unwrap_or_default();
        if key.namespace.is_empty() || key.name.is_empty() {
            return Err(ErrorInfo::invalid("service", "lacks its namespace or name"));
        }
        let key = ServiceKey::new(key.namespace, key.name);
        let (revision, reasons) = self.explain(key.clone()).await?;
        Ok(Response::new(reasons.to_v1(&key, revision)))
    }

    async fn get_status(&self, _: Request<v1::GetStatusRequest>) -> Result<Response<v1::GetStatusResponse>, Status> {
        let view = self.0.views.own();
        let (feed, metrics) = (view.feed(), view.feed().metrics());
        let state = feed.state();
        let problems = metrics.troubles().all().into_iter().map(|(of, trouble)| v1::SourceProblem {
            source: of.into_owned(),
            diagnostic: Some((&trouble.diagnostic).into()),
            age_millis: millis(trouble.since.elapsed()),
        });
        let backends = feed.known(|known| {
            let received = self.0.reports.all().into_values().map(|received| v1::ReceivedReport {
                report: Some(match received.status() {
                    Some(status) => status.message().clone(),
                    None => BackendStatus::message_of(&received.report, known),
                }),
                age_millis: millis(received.at.elapsed()),
            });
            received.collect()
        });
        Ok(Response::new(v1::GetStatusResponse {
            revision: Some(state.revision().into()),
            digest: state.records_digest().unwrap_or_default().0,
            service_count: state.len().try_into().unwrap_or(u32::MAX),
            backends,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            source_problems: problems.collect(),
            unread: metrics.readers() == 0,
        }))
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

fn count(count: usize) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use localnet_cluster::localize::Localized;
    use localnet_core::{Code, Diagnostic, Subject};

    use super::*;
    use crate::{feed::Feed, pump, reports::Reports};

    #[tokio::test]
    async fn both_packages_have_the_same_status() {
        let feed = Feed::with_records(7, std::sync::Arc::default());
        feed.publish(Localized::default());
        let problem = Diagnostic::new(Code::FileNotText, Subject::Program, "is not UTF-8").remedy("save it again");
        feed.metrics().troubles().is("files", problem);
        let (questions, _) = pump::questions();
        let state = ServerState { views: feed.clone().into(), reports: Reports::default(), questions, pushers: None };
        let explainer = Explainer::new(state);
        let older = explainer.status(Request::new(StatusRequest {})).await.unwrap().into_inner();
        let status = explainer.get_status(Request::new(v1::GetStatusRequest {})).await.unwrap().into_inner();
        assert_eq!(status.revision, Some(feed.state().revision().into()));
        assert_eq!(Some(status.digest), feed.state().records_digest().map(|sum| sum.0));
        assert_eq!((status.service_count, status.version, status.unread), (0, older.version, older.unread));
        let [(older, problem)] = &older.source_problems.iter().zip(&status.source_problems).collect::<Vec<_>>()[..]
        else {
            panic!("one problem")
        };
        let diagnostic = problem.diagnostic.as_ref().unwrap();
        assert_eq!((&problem.source, &diagnostic.code), (&older.of, &older.code));
        assert_eq!(older.problem, format!("{}; {}", diagnostic.problem, diagnostic.remedy));
    }
}
