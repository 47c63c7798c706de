//! Tests the gRPC source against a small server on the generated code, which plays a broken or unusual peer.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use localnet_client::{
    Code, Counts, Diagnostic, FlowChecks, Mode, Report, Revision, Source as _, SourceError, Subject,
};
use localnet_client::{
    grpc::{Brain, TlsFiles},
    vips::{Config, Effective},
};
use localnet_proto::{Address, ByFamily, Node, ServiceKey, Snapshot, Update, encode, traffic::TrafficReport, wire};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::Mutex,
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{self, pki_types::CertificateDer},
};
use tokio_stream::{StreamExt as _, wrappers::UnixListenerStream};
use tonic::{Request, Response, Status, transport::Server};
use wire::{
    backends_server::{Backends, BackendsServer},
    endpoints_server::{Endpoints, EndpointsServer},
};

type Items = Vec<Result<wire::NextItem, Status>>;

/// Answers every call with the same items, and records the requests.
#[derive(Clone, Default)]
struct Peer {
    items: Arc<Mutex<Items>>,
    requested: Arc<Mutex<Vec<wire::NextFilter>>>,
    reports: Arc<Mutex<Vec<wire::BackendReport>>>,
    /// The status with which the peer refuses reports, if any.
    refusal: Arc<Mutex<Option<Status>>>,
}

#[tonic::async_trait]
impl Endpoints for Peer {
    type NextStream = tokio_stream::Iter<std::vec::IntoIter<Result<wire::NextItem, Status>>>;

    async fn next(&self, request: Request<wire::NextFilter>) -> Result<Response<Self::NextStream>, Status> {
        self.requested.lock().await.push(request.into_inner());
        Ok(Response::new(tokio_stream::iter(self.items.lock().await.clone())))
    }

    type WatchStream = tokio_stream::Empty<Result<wire::OpItem, Status>>;

    async fn watch(&self, _: Request<tonic::Streaming<wire::WatchReq>>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("this test expects no clients of KPNG"))
    }
}

#[tonic::async_trait]
impl Backends for Peer {
    async fn report(
        &self,
        request: Request<wire::BackendReport>,
    ) -> Result<Response<wire::BackendReportReply>, Status> {
        if let Some(status) = self.refusal.lock().await.clone() {
            return Err(status);
        }
        self.reports.lock().await.push(request.into_inner());
        Ok(Response::new(wire::BackendReportReply {}))
    }
}

fn serve(path: &Path, peer: &Peer) -> JoinHandle<()> {
    let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
    let server = Server::builder()
        .add_service(EndpointsServer::new(peer.clone()))
        .add_service(BackendsServer::new(peer.clone()));
    tokio::spawn(async move { server.serve_with_incoming(listener).await.unwrap() })
}

fn full(rev: u64) -> Items {
    let revision = Revision { instance: 9, rev };
    vec![Ok(encode::next_item(revision, false)), Ok(encode::node_item(&Node::default()))]
}

#[tokio::test]
async fn answers_become_updates_and_broken_ones_are_discarded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("brain.sock");
    let brain = Brain::new(Address::Unix(path.clone()), None).unwrap();
    let absent = brain.next(Revision::default(), false).await.unwrap_err();
    assert!(matches!(&absent, SourceError::Unreachable(text) if text.contains("No such file")), "{absent}");

    let peer = Peer::default();
    serve(&path, &peer);
    let revision = Revision { instance: 9, rev: 4 };
    *peer.items.lock().await = full(4);
    let state = Snapshot { revision, ..Snapshot::default() };
    assert_eq!(brain.next(Revision { instance: 9, rev: 3 }, true).await, Ok(Update::Full(state)));
    assert_eq!(peer.requested.lock().await[0], wire::NextFilter { instance_id: 9, rev: 3, delta: true });

    peer.items.lock().await.push(Err(Status::aborted("brain is going down")));
    let broken = brain.next(revision, true).await;
    assert_eq!(broken, Err(SourceError::Broken("Aborted: brain is going down".to_owned())));

    // Changes for a client that has no state to fold them into.
    *peer.items.lock().await = vec![Ok(encode::next_item(revision, true))];
    assert!(matches!(brain.next(Revision { instance: 9, rev: 3 }, true).await, Ok(Update::Delta { .. })));
    let unasked = brain.next(revision, false).await;
    assert_eq!(unasked, Err(SourceError::Invalid("changes instead of the requested full state".to_owned())));

    *peer.items.lock().await = Vec::new();
    let empty = brain.next(revision, true).await;
    assert_eq!(empty, Err(SourceError::Invalid("answer: Next: the answer is empty".to_owned())));
}

#[tokio::test]
async fn all_calls_share_one_connection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("brain.sock");
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    let listener = UnixListenerStream::new(UnixListener::bind(&path).unwrap()).map(move |stream| {
        count.fetch_add(1, Ordering::Relaxed);
        stream
    });
    let peer = Peer::default();
    *peer.items.lock().await = full(4);
    let server =
        Server::builder().add_service(EndpointsServer::new(peer.clone())).add_service(BackendsServer::new(peer));
    tokio::spawn(async move { server.serve_with_incoming(listener).await.unwrap() });
    let brain = Brain::new(Address::Unix(path), None).unwrap();
    let (clone, have, report) = (brain.clone(), Revision::default(), Report::default());
    let (first, second, report) = tokio::join!(brain.next(have, false), clone.next(have, false), brain.report(&report));
    assert!(first.is_ok() && first == second && report.is_ok(), "{first:?} {second:?} {report:?}");
    assert_eq!(accepted.load(Ordering::Relaxed), 1);
}

/// An authority, and the files of a client with a certificate from it.
struct Pki {
    folder: tempfile::TempDir,
    authority: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        let pki = Self { folder: tempfile::tempdir().unwrap(), authority };
        fs::write(pki.path("ca.crt"), pki.authority.pem()).unwrap();
        pki
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn issue(&self) -> (rcgen::Certificate, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.signed_by(&key, &self.authority).unwrap(), key)
    }

    /// Issues another certificate for the client and returns it.
    fn renew(&self) -> CertificateDer<'static> {
        let (certificate, key) = self.issue();
        fs::write(self.path("tls.crt"), certificate.pem()).unwrap();
        fs::write(self.path("tls.key"), key.serialize_pem()).unwrap();
        certificate.der().clone()
    }

    /// A server that requires a certificate of the authority.
    fn acceptor(&self) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let (certificate, key) = self.issue();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

/// The brain disconnects its clients so that they present their current certificates.
#[tokio::test]
async fn tls_files_are_read_at_each_connection_and_the_last_valid_ones_stay() {
    let pki = Pki::new();
    let first = pki.renew();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::Tcp { host: "localhost".to_owned(), port: listener.local_addr().unwrap().port() };
    let identity = Some((pki.path("tls.crt"), pki.path("tls.key")));
    let brain = Brain::new(address.clone(), Some(&TlsFiles { ca: pki.path("ca.crt"), identity })).unwrap();
    // Each client presents its certificate and is then disconnected.
    let acceptor = pki.acceptor();
    let shown = async || {
        let accepted = async {
            let (stream, _) = listener.accept().await.unwrap();
            let stream = acceptor.accept(stream).await.unwrap();
            stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
        };
        let (shown, requested) = tokio::join!(accepted, brain.next(Revision::default(), false));
        requested.unwrap_err();
        shown
    };
    assert_eq!(shown().await, first);
    let second = pki.renew();
    assert_eq!(shown().await, second);
    // First only some of the files are new, then one is missing. The last good ones stay in use until all files match.
    fs::write(pki.path("tls.key"), pki.issue().1.serialize_pem()).unwrap();
    assert_eq!(shown().await, second);
    fs::remove_file(pki.path("tls.key")).unwrap();
    assert_eq!(shown().await, second);
    let third = pki.renew();
    assert_eq!(shown().await, third);
    // At the start there are no earlier files to continue with.
    fs::write(pki.path("tls.key"), "nothing").unwrap();
    let identity = Some((pki.path("tls.crt"), pki.path("tls.key")));
    let files = TlsFiles { ca: pki.path("ca.crt"), identity };
    let error = format!("{:#}", Brain::new(address, Some(&files)).map(drop).unwrap_err());
    assert!(error.contains("tls.key") && error.contains("private key"), "{error}");
}

#[tokio::test]
async fn pipes_are_supported_only_on_windows() {
    let error = Brain::new(Address::Pipe("localnet".to_owned()), None).map(drop).unwrap_err().to_string();
    assert_eq!(
        error,
        "npipe:////./pipe/localnet: only Windows has named pipes; use unix:///absolute/path or tcp://host:port"
    );
}

#[tokio::test]
async fn a_refused_report_differs_from_a_lost_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("brain.sock");
    let peer = Peer::default();
    serve(&path, &peer);
    let brain = Brain::new(Address::Unix(path), None).unwrap();
    let report = Report { backend: "nft", received: Revision { instance: 9, rev: 4 }, ..Report::default() };
    for (status, expected) in [
        (Status::invalid_argument("no name"), Err(SourceError::Refused("InvalidArgument: no name".to_owned()))),
        (Status::resource_exhausted("full"), Err(SourceError::Refused("ResourceExhausted: full".to_owned()))),
        (Status::permission_denied("no"), Err(SourceError::Refused("PermissionDenied: no".to_owned()))),
        (Status::unavailable("gone"), Err(SourceError::Unreachable("gone".to_owned()))),
        (Status::unimplemented("what"), Ok(())),
    ] {
        *peer.refusal.lock().await = Some(status);
        assert_eq!(brain.report(&report).await, expected);
    }
}

#[tokio::test]
async fn reports_contain_each_family() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("brain.sock");
    let peer = Peer::default();
    serve(&path, &peer);
    let flow_checks = FlowChecks { ended: 5, ..FlowChecks::default() };
    let counts = Counts {
        flow_checks: ByFamily::new(flow_checks.clone(), flow_checks),
        rules: ByFamily::from_fn(|_| vec![wire::RuleCount { table: "nat".to_owned(), total: 70, last: 7 }]),
        repairs: 6,
        packets: Some(wire::PacketCounts { invalid_dropped: 8, localhost_node_ports_accepted: 9 }),
        traffic: None,
    };
    let outcome = |error: Option<&str>| localnet_client::Outcome {
        applied: 3,
        digest: Some(localnet_proto::Digest(0xd1)),
        error: error.map(str::to_owned),
        failures: 2,
        partial_failures: 1,
        ..Default::default()
    };
    let families = localnet_proto::Family::BOTH.into_iter().zip([outcome(None), outcome(Some("no"))]).collect();
    let odd = Subject::service(&ServiceKey::new("ns", "odd"));
    let skipped = Diagnostic::new(Code::KernelRefused, odd, "is too odd").field("spec.type").remedy("change it");
    let skipped = vec![skipped; 300];
    let warnings = vec![Diagnostic::new(Code::NodeGone, Subject::Program, "is old").remedy("take another one")];
    let received = Revision { instance: 9, rev: 4 };
    let effective = Effective { config: Config::default(), node_port_addresses: vec![IpAddr::from([192, 168, 0, 2])] };
    let configuration = Some(effective);
    let report = Report {
        backend: "nft",
        mode: Some(Mode::Nftables),
        received,
        families,
        skipped,
        warnings,
        configuration,
        counts: Some(counts),
    };
    let brain = Brain::new(Address::Unix(path), None).unwrap();
    brain.report(&report).await.unwrap();
    assert_eq!(brain.report_traffic(&TrafficReport::default()).await, Ok(()), "an older brain ignores traffic");
    let family = |family: wire::IpFamily, error: &str| wire::FamilyReport {
        family: family.into(),
        applied_rev: 3,
        error: error.to_owned(),
        full: Some(wire::Attempts { counts: vec![0; 16], sum_micros: 0 }),
        partial: Some(wire::Attempts { counts: vec![0; 16], sum_micros: 0 }),
        failures: 2,
        partial_failures: 1,
        flows: Some(wire::FlowSearches { took: Some(wire::Attempts { counts: vec![0; 16], sum_micros: 0 }), ended: 5 }),
        rules: vec![wire::RuleCount { table: "nat".to_owned(), total: 70, last: 7 }],
        applied_digest: 0xd1,
    };
    let families = vec![family(wire::IpFamily::IPv4, ""), family(wire::IpFamily::IPv6, "no")];
    let service = wire::ServiceKey { namespace: "ns".to_owned(), name: "odd".to_owned() };
    let skipped = wire::SkippedService {
        service: Some(service),
        reason: "spec.type: is too odd; change it".to_owned(),
        code: "kernel-refused".to_owned(),
        severity: wire::Severity::Error.into(),
        field: "spec.type".to_owned(),
        problem: "is too odd".to_owned(),
        remedy: "change it".to_owned(),
    };
    let expected = wire::BackendReport {
        backend: "nft".to_owned(),
        instance_id: 9,
        rev: 4,
        families,
        skipped: vec![skipped; 256],
        skipped_count: 300,
        warnings: vec![wire::BackendWarning {
            reason: "NodeGone".to_owned(),
            note: "is old; take another one".to_owned(),
            code: "node-gone".to_owned(),
            problem: "is old".to_owned(),
            remedy: "take another one".to_owned(),
        }],
        configuration: Some(wire::BackendConfiguration {
            detect_local: wire::DetectLocal::None.into(),
            masquerade_bit: 14,
            node_ports_on_primary: true,
            node_port_addresses: Some(wire::IpSet { v4: vec!["192.168.0.2".to_owned()], v6: vec![] }),
            ..wire::BackendConfiguration::default()
        }),
        repairs: 6,
        packets: Some(wire::PacketCounts { invalid_dropped: 8, localhost_node_ports_accepted: 9 }),
        proxy_mode: "nftables".to_owned(),
    };
    assert_eq!(*peer.reports.lock().await, [expected]);
}
