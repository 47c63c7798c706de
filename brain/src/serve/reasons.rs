//! The `Reasons` service: explains the state to operators (`localnet explain`, `localnet doctor`). It changes nothing.

use std::{net::IpAddr, time::Duration};

use localnet_core::{Diagnostic, Severity};
use localnet_proto::{
    Family, Revision, ServiceKey,
    wire::{
        self, BrainStatus, ReceivedReport, ServiceReasons, SourceTrouble, StatusRequest,
        reasons_server::Reasons as ReasonsService,
    },
};
use tonic::{Request, Response, Status};

use super::ServerState;
use localnet_cluster::{
    localize::{Mode, Reasons, Topology, reasons::LeftOut},
    objects::Conditions,
};

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
        Ok(Response::new(service_reasons(&key, revision, &reasons)))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<BrainStatus>, Status> {
        let view = self.0.views.own();
        let state = view.feed().state();
        let troubles = view.feed().metrics().troubles().all().into_iter().map(|(of, trouble)| SourceTrouble {
            of: of.to_owned(),
            problem: trouble.diagnostic.to_string(),
            code: trouble.diagnostic.code.to_string(),
            age_millis: millis(trouble.since.elapsed()),
        });
        let backends = self.0.reports.all().into_values().map(|received| ReceivedReport {
            age_millis: millis(received.at.elapsed()),
            report: Some(received.report),
        });
        Ok(Response::new(BrainStatus {
            state: Some(wire_revision(state.revision())),
            services: count(state.len()),
            backends: backends.collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            troubles: troubles.collect(),
            unread: view.feed().metrics().readers() == 0,
        }))
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

fn count(count: usize) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

fn wire_revision(revision: Revision) -> wire::NextFilter {
    wire::NextFilter { instance_id: revision.instance, rev: revision.rev, delta: false }
}

fn service_reasons(key: &ServiceKey, revision: Revision, reasons: &Reasons) -> ServiceReasons {
    ServiceReasons {
        service: Some(wire::ServiceKey { namespace: key.namespace.to_string(), name: key.name.to_string() }),
        state: Some(wire_revision(revision)),
        standing: reasons.standing.into(),
        findings: reasons.findings.iter().map(finding).collect(),
        left_out: reasons.left_out.iter().map(left_out).collect(),
        left_out_count: count(reasons.left_out_count),
        topology: reasons.topology.iter().map(topology).collect(),
        slices: count(reasons.slices),
        endpoints: count(reasons.endpoints),
        unready: reasons.unready.iter().map(conditions).collect(),
    }
}

fn conditions((address, of): &(IpAddr, Conditions)) -> wire::EndpointConditions {
    let Conditions { ready, serving, terminating } = *of;
    wire::EndpointConditions { address: address.to_string(), ready, serving, terminating }
}

fn finding(of: &Diagnostic) -> wire::Finding {
    wire::Finding {
        left_out: of.severity == Severity::Error,
        object: of.subject.to_string(),
        field: of.field.clone(),
        problem: of.problem.clone(),
        remedy: of.remedy.clone(),
        code: of.code.to_string(),
        severity: wire::Severity::from(of.severity).into(),
    }
}

fn left_out(of: &LeftOut) -> wire::LeftOut {
    wire::LeftOut {
        slice: of.slice.to_string(),
        address: of.address.to_string(),
        port_name: of.port_name.to_string(),
        number: of.number.map_or(0, i32::from),
        node: of.node.to_string(),
        local: of.local,
        from: Some(of.from.into()),
        rule: of.rule.into(),
        field: of.field.clone(),
        problem: of.problem.clone(),
        remedy: of.remedy.to_owned(),
    }
}

fn topology(of: &Topology) -> wire::Topology {
    let nearness = match of.mode {
        Mode::Everywhere => wire::Nearness::Everywhere,
        Mode::SameNode => wire::Nearness::SameNode,
        Mode::SameZone => wire::Nearness::SameZone,
    };
    let family = match of.family {
        Family::V4 => wire::IpFamily::IPv4,
        Family::V6 => wire::IpFamily::IPv6,
    };
    let text = |reason: &Option<localnet_cluster::localize::Reason>| {
        reason.as_ref().map(ToString::to_string).unwrap_or_default()
    };
    wire::Topology {
        port_name: of.port.to_string(),
        family: family.into(),
        nearness: nearness.into(),
        not_same_node: text(&of.not_same_node),
        not_same_zone: text(&of.not_same_zone),
    }
}
