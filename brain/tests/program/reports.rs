//! A brain with `--draft-v1`: it knows as much about a backend that reports to `localnet.v1` as about one that reports to `localnetv1`.

use std::{collections::BTreeSet, net::SocketAddr, path::Path};

use hyper_util::rt::TokioIo;
use localnet_client::{
    Code, Counts, Diagnostic, Mode, Outcome, Report, Source as _, Subject,
    grpc::Brain,
    vips::{Config, Effective, NodePortAddresses},
};
use localnet_proto::{
    Digest, Family, Revision, ServiceKey, Update,
    v1::{
        explain::wire::{GetStatusRequest, reasons_service_client::ReasonsServiceClient},
        wire::{
            self, ReportStatusRequest, backend_service_client::BackendServiceClient,
            state_service_client::StateServiceClient,
        },
    },
    wire::{BackendReport, BrainStatus, StatusRequest, reasons_client::ReasonsClient},
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use super::{
    health::{get, soon},
    start_with, write,
};

async fn connect(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    let connect = move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    };
    let endpoint = Endpoint::from_static("http://brain");
    soon(endpoint.connect_with_connector(tower::service_fn(connect))).await.unwrap()
}

/// A state as readers of both packages know it.
struct Known {
    revision: Revision,
    digest: Digest,
    sum: u64,
}

/// The newest state.
async fn known(brain: &Brain, channel: &Channel) -> Known {
    let Update::Full(state) = soon(brain.next(Revision::default(), false)).await.unwrap() else { panic!("no token") };
    let mut client = StateServiceClient::new(channel.clone());
    let mut stream = soon(client.next_state(wire::NextStateRequest::default())).await.unwrap().into_inner();
    let mut commit = None;
    while let Some(message) = soon(stream.message()).await.unwrap() {
        commit = message.commit;
    }
    Known { revision: state.revision, digest: Digest::of(&state), sum: commit.unwrap().digest }
}

/// Two reports with the same content: the first to `localnetv1`, and the second to `localnet.v1`. Both digests differ from the right
/// one by `wrong`.
fn both(at: &Known, applied: u64, error: &str, wrong: u64) -> (Report, ReportStatusRequest) {
    let families = Family::BOTH.map(|family| {
        let digest = (applied > 0).then(|| at.digest.and(Digest(wrong)));
        let error = Some(error.to_owned()).filter(|error| !error.is_empty());
        (family, Outcome { applied, digest, error, ..Outcome::default() })
    });
    let web = Subject::service(&ServiceKey::new("shop", "web"));
    let skipped = Diagnostic::new(Code::KernelRefused, web, "no space").field("spec.ports[0]").remedy("wait");
    let warning = Diagnostic::new(Code::IpvsDeprecated, Subject::Program, "ipvs is deprecated");
    let cidrs = ["10.0.0.1/32", "::/128"].map(|cidr| cidr.parse().unwrap());
    let config = Config {
        masquerade_bit: 3,
        masquerade_all: true,
        node_port_addresses: NodePortAddresses::in_cidrs(cidrs.into()),
        ..Config::default()
    };
    let older = Report {
        backend: "older",
        mode: Some(Mode::Ipvs),
        received: at.revision,
        families: families.into(),
        skipped: vec![skipped],
        warnings: vec![warning],
        configuration: Some(Effective { config, node_port_addresses: vec!["10.0.0.1".parse().unwrap()] }),
        counts: Some(Counts { repairs: 3, ..Counts::default() }),
    };
    let families = [wire::IpFamily::Ipv4, wire::IpFamily::Ipv6].map(|family| wire::FamilyStatus {
        family: family.into(),
        applied: (applied > 0).then(|| Revision { rev: applied, ..at.revision }.into()),
        applied_digest: (applied > 0).then(|| at.sum.wrapping_add(wrong)),
        error: error.to_owned(),
    });
    let diagnostic = |code: &str, severity: wire::Severity, [field, problem, remedy]: [&str; 3]| wire::Diagnostic {
        code: code.to_owned(),
        severity: severity.into(),
        field: field.to_owned(),
        problem: problem.to_owned(),
        remedy: remedy.to_owned(),
    };
    let part = wire::SkippedPart {
        service: Some(wire::ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() }),
        diagnostic: Some(diagnostic("kernel-refused", wire::Severity::Error, ["spec.ports[0]", "no space", "wait"])),
    };
    let traffic = wire::TrafficSettings {
        node_ports: Some(wire::NodePortAddresses { addresses: vec!["10.0.0.1".to_owned()], ..Default::default() }),
        local_pods: Some(wire::LocalPods { detection: wire::LocalPodDetection::None.into(), ..Default::default() }),
        cluster_ip_masquerade: wire::ClusterIpMasquerade::All.into(),
        masquerade_mark_bit: Some(3),
    };
    let warning = diagnostic("ipvs-deprecated", wire::Severity::Warning, ["", "ipvs is deprecated", ""]);
    let draft = ReportStatusRequest {
        reader_name: "draft".to_owned(),
        received: Some(at.revision.into()),
        families: families.into(),
        skipped: Some(wire::SkippedParts { parts: vec![part], count: 1 }),
        traffic: Some(traffic),
        warnings: vec![warning],
        repairs: 3,
        kube_proxy_mode: "ipvs".to_owned(),
    };
    (older, draft)
}

/// The reports in `Status`, without what only `localnetv1` counts. The second one, too, has the name "older".
fn reports(status: BrainStatus) -> Vec<BackendReport> {
    let report = |mut report: BackendReport| {
        report.backend = "older".to_owned();
        for family in &mut report.families {
            (family.full, family.partial, family.flows) = (None, None, None);
        }
        report
    };
    status.backends.into_iter().map(|received| report(received.report.unwrap())).collect()
}

/// The metrics with the label of a backend, without the label's value.
fn of_backend(page: &str, backend: &str) -> BTreeSet<String> {
    let label = format!("backend=\"{backend}\"");
    page.lines().filter(|line| line.contains(&label)).map(|line| line.replace(&label, "backend")).collect()
}

#[tokio::test]
async fn a_report_counts_the_same_in_both_packages() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), &["10.1.0.1"]);
    let socket = folder.path().join("brain.sock");
    let listen = format!("unix://{}", socket.display());
    let (_program, mut lines) = start_with(folder.path(), &listen, &["--draft-v1"]);
    let (mut metrics, mut complete) = (None::<SocketAddr>, false);
    while metrics.is_none() || !complete {
        let line = lines.next().expect("the brain has ended");
        match line["fields"]["message"].as_str().unwrap() {
            "answering metrics" => metrics = Some(line["fields"]["address"].as_str().unwrap().parse().unwrap()),
            "first complete state" => complete = true,
            _ => {}
        }
    }
    std::thread::spawn(move || lines.count());
    let brain = Brain::new(listen.parse().unwrap(), None).unwrap();
    let channel = connect(&socket).await;
    let at = known(&brain, &channel).await;
    let (mut draft, mut reasons) = (BackendServiceClient::new(channel.clone()), ReasonsClient::new(channel.clone()));
    let mut explained = ReasonsServiceClient::new(channel.clone());
    for (applied, error, wrong) in [(0, "no such device", 0), (1, "", 1), (1, "", 0)] {
        let (of_older, of_draft) = both(&at, applied, error, wrong);
        soon(brain.report(&of_older)).await.unwrap();
        let answer = soon(draft.report_status(of_draft.clone())).await.unwrap().into_inner();
        assert!(!answer.complete_report_wanted);
        let status = soon(reasons.status(StatusRequest {})).await.unwrap().into_inner();
        let digest = status.digest;
        let reports = reports(status);
        assert_eq!(reports.len(), 2);
        assert_eq!(reports[0], reports[1]);
        let families: Vec<_> = reports[0].families.iter().map(|of| (of.applied_rev, of.applied_digest)).collect();
        let expected = if applied == 0 { 0 } else { digest.wrapping_add(wrong) };
        assert!(applied == 0 || families == [(applied, expected); 2], "{families:?}");

        let status = soon(explained.get_status(GetStatusRequest {})).await.unwrap().into_inner();
        assert_eq!((status.revision, status.digest), (Some(at.revision.into()), at.sum));
        let reports: Vec<_> = status.backends.into_iter().map(|received| received.report.unwrap()).collect();
        let same = ReportStatusRequest { reader_name: "older".to_owned(), ..of_draft.clone() };
        assert_eq!(reports, [of_draft, same]);
    }
    let page = soon(get(metrics.unwrap(), "/metrics")).await;
    let of_older = of_backend(&page, "older");
    assert!(of_older.contains("localnet_backend_revision{backend,ip_family=\"IPv4\"} 1"), "{page}");
    assert!(of_older.contains("localnet_backend_skipped{backend} 1") && of_older.len() >= 8, "{of_older:?}");
    assert_eq!(of_older, of_backend(&page, "draft"));
    let mode = soon(get(metrics.unwrap(), "/proxyMode")).await;
    assert!(mode.ends_with("ipvs"), "{mode}");
}
