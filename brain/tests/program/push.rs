//! Programs that push Services: what the brain serves, what it refuses, and what remains after a stream has ended.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use hyper_util::rt::TokioIo;
use localnet_client::{Source as _, grpc::Brain};
use localnet_proto::{
    Revision, Service, ServiceKey, Update,
    source::{
        AddressKind, Clear, Commit, Committed, EndpointPort, Hello, PushRequest, PushResponse, PushedEndpoint,
        PushedService, ServiceAddress, ServicePort, push_request::Step, push_response::Answer,
        source_service_client::SourceServiceClient,
    },
};
use serde_json::Value;
use tokio::{net::UnixStream, sync::mpsc, time};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Status, Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri},
};

use super::{Program, start_with, write};

/// Limit for every wait, so that a failing test does not hang.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A brain with files, and with a file of grants.
struct Brains {
    folder: tempfile::TempDir,
    listen: String,
}

impl Brains {
    fn new(grants: &str) -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        write(folder.path(), &["10.0.0.1"]);
        let listen = format!("unix://{}", folder.path().join("brain.sock").display());
        let brains = Self { folder, listen };
        brains.grant(grants);
        brains
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Replaces the file of grants.
    fn grant(&self, grants: &str) {
        // The tests run as any user.
        let uid = fs::metadata(self.path()).unwrap().uid().to_string();
        fs::write(self.path().join("grants.new"), grants.replace("UID", &uid)).unwrap();
        fs::rename(self.path().join("grants.new"), self.path().join("grants.yaml")).unwrap();
    }

    fn start(&self, more: &[&str]) -> (Program, impl Iterator<Item = Value> + Send + use<>) {
        let grants = format!("--push-grants={}", self.path().join("grants.yaml").display());
        start_with(self.path(), &self.listen, &[&[grants.as_str()][..], more].concat())
    }

    fn client(&self) -> Brain {
        Brain::new(self.listen.parse().unwrap(), None).unwrap()
    }

    /// The Services of the newest state, each as `namespace/name ClusterIP -> endpoints`.
    async fn services(&self) -> Vec<String> {
        let next = time::timeout(TIMEOUT, self.client().next(Revision::default(), false)).await.unwrap();
        let Update::Full(state) = next.unwrap() else { panic!("the full state") };
        let text = |service: &std::sync::Arc<Service>| {
            let endpoints: Vec<_> = service.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
            format!("{} {} -> {}", service.key, service.cluster_ips[0], endpoints.join(" "))
        };
        state.services.values().map(text).collect()
    }

    /// Connects, once the brain listens.
    async fn connect(&self) -> Channel {
        let path = self.path().join("brain.sock");
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://brain").connect_with_connector(connector).await.unwrap()
    }

    async fn push(&self) -> Pusher {
        Pusher::open(self.connect().await).await.unwrap()
    }
}

/// A stream.
#[derive(Debug)]
struct Pusher {
    hello: Hello,
    steps: mpsc::Sender<PushRequest>,
    answers: Streaming<PushResponse>,
}

impl Pusher {
    async fn open(channel: Channel) -> Result<Self, Status> {
        let (steps, receiver) = mpsc::channel(1);
        let mut client = SourceServiceClient::new(channel);
        let mut answers =
            time::timeout(TIMEOUT, client.push(ReceiverStream::new(receiver))).await.unwrap()?.into_inner();
        let Some(PushResponse { answer: Some(Answer::Hello(hello)) }) = answers.message().await? else {
            panic!("the first answer is hello")
        };
        Ok(Self { hello, steps, answers })
    }

    async fn step(&self, step: Step) {
        // This fails if the brain has ended the stream.
        _ = self.steps.send(PushRequest { step: Some(step) }).await;
    }

    async fn commit(&mut self, steps: Vec<Step>) -> Result<Committed, Status> {
        for step in steps {
            self.step(step).await;
        }
        self.step(Step::Commit(Commit { number: 7 })).await;
        match self.answer().await? {
            Some(Answer::Committed(committed)) => Ok(committed),
            other => panic!("{other:?}"),
        }
    }

    async fn answer(&mut self) -> Result<Option<Answer>, Status> {
        Ok(time::timeout(TIMEOUT, self.answers.message()).await.unwrap()?.and_then(|of| of.answer))
    }

    /// The status that ends the stream.
    async fn end(&mut self) -> Code {
        self.answer().await.unwrap_err().code()
    }
}

fn key(namespace: &str, name: &str) -> localnet_proto::source::ServiceKey {
    localnet_proto::source::ServiceKey { namespace: namespace.into(), name: name.into() }
}

fn set(namespace: &str, name: &str, ip: &str, endpoint: &str) -> Step {
    Step::Set(PushedService {
        key: Some(key(namespace, name)),
        addresses: vec![ServiceAddress { address: ip.into(), kind: AddressKind::ClusterIp.into() }],
        ports: vec![ServicePort { number: 80, ..ServicePort::default() }],
        endpoints: vec![PushedEndpoint {
            address: endpoint.into(),
            ports: vec![EndpointPort { name: String::new(), number: 8080 }],
            ..PushedEndpoint::default()
        }],
        ..PushedService::default()
    })
}

fn problems(committed: &Committed) -> Vec<String> {
    let text = |of: &localnet_proto::source::Problem| {
        let key = of.service.clone().unwrap();
        format!("{}/{} {}: {}", key.namespace, key.name, of.field, of.code)
    };
    committed.problems.iter().map(text).collect()
}

const MESH: &str = "grants: [{name: mesh, peer: {uid: UID}, namespaces: [mesh, shop], clusterIPs: [10.97.0.0/24, 10.96.0.1/32], endpoints: [10.0.0.0/8], keep: 1s}]";
const FILES: &str = "shop/web 10.96.0.1 -> 10.0.0.1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_pushes_services_within_its_grant() {
    let brains = Brains::new(MESH);
    let (_program, mut lines) = brains.start(&[]);
    lines.find(|line| line["fields"]["message"] == "serving").unwrap();
    let mut pusher = brains.push().await;
    let hello = Hello { grant: "mesh".into(), keep_millis: Some(1000), max_services: 1000, max_endpoints: 20_000 };
    assert_eq!(pusher.hello, hello);
    let list = vec![
        set("mesh", "a", "10.97.0.1", "10.1.0.1"),
        // The grant allows the address, but an older Service has it.
        set("mesh", "b", "10.96.0.1", "10.1.0.2"),
        set("mesh", "c", "10.99.0.1", "10.1.0.3"),
        set("kube-system", "dns", "10.97.0.3", "10.1.0.4"),
        // The files have this Service. Their endpoints stay its only ones.
        set("shop", "web", "10.97.0.4", "10.1.0.5"),
    ];
    let committed = pusher.commit(list).await.unwrap();
    assert_eq!((committed.number, committed.revision), (7, 1));
    assert_eq!(
        problems(&committed),
        [
            "kube-system/dns key.namespace: push-not-granted",
            "mesh/b spec.clusterIPs[0]: address-taken",
            "mesh/c addresses[0].address: push-not-granted",
            "shop/web : object-shadowed",
        ]
    );
    assert!(committed.problems[0].problem.ends_with("; use another namespace, or add it to namespaces of the grant"));
    assert_eq!(brains.services().await, ["mesh/a 10.97.0.1 -> 10.1.0.1", FILES]);
    let not_granted = lines.find(|line| line["fields"]["code"] == "push-not-granted").unwrap();
    assert_eq!(not_granted["fields"]["object"], "Service kube-system/dns");
    // The operator finds the problem, too.
    let findings = brains.client().why(&ServiceKey::new("mesh", "c")).await.unwrap().findings;
    assert_eq!(findings.iter().map(|found| found.code.as_str()).collect::<Vec<_>>(), ["push-not-granted"]);

    let changes = ["c", "b"].map(|name| Step::Remove(key("mesh", name)));
    let committed = pusher.commit([&changes[..], &[set("mesh", "a", "10.97.0.1", "10.1.0.9")]].concat()).await.unwrap();
    assert_eq!(problems(&committed), ["kube-system/dns key.namespace: push-not-granted", "shop/web : object-shadowed"]);
    assert_eq!(brains.services().await, ["mesh/a 10.97.0.1 -> 10.1.0.9", FILES]);
    // If the files no longer have the Service, the pushed one is used.
    fs::write(brains.path().join("cluster.yaml"), "{apiVersion: v1, kind: Node, metadata: {name: here}}").unwrap();
    lines.find(|line| line["fields"]["service"] == "shop/web").unwrap();
    assert_eq!(brains.services().await, ["mesh/a 10.97.0.1 -> 10.1.0.9", "shop/web 10.97.0.4 -> 10.1.0.5"]);
    let committed = pusher.commit(vec![Step::Clear(Clear {})]).await.unwrap();
    assert_eq!((problems(&committed), brains.services().await), (vec![], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_stay_for_some_time_after_a_stream_has_ended() {
    let brains = Brains::new(MESH);
    let (_program, mut lines) = brains.start(&[]);
    lines.find(|line| line["fields"]["message"] == "serving").unwrap();
    let mut pusher = brains.push().await;
    pusher.commit(vec![set("mesh", "a", "10.97.0.1", "10.1.0.1")]).await.unwrap();
    // Steps without a commit have no effect.
    pusher.step(set("mesh", "b", "10.97.0.2", "10.1.0.1")).await;
    drop(pusher);
    let text = |line: &Value| line["fields"]["message"].as_str().unwrap_or_default().to_owned();
    let trouble = lines.find(|line| text(line).contains("push:mesh is not connected")).unwrap();
    assert!(text(&trouble).contains("its 1 Services stay for 1 s"), "{trouble}");
    let removed = lines.find(|line| text(line) == "Service removed").unwrap();
    assert_eq!(removed["fields"]["service"], "mesh/a");
    assert_eq!(brains.services().await, [FILES]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_narrower_grant_takes_effect_at_once() {
    let brains = Brains::new(MESH);
    let (_program, mut lines) = brains.start(&[]);
    lines.find(|line| line["fields"]["message"] == "serving").unwrap();
    let mut pusher = brains.push().await;
    let list = || vec![set("mesh", "a", "10.97.0.1", "10.1.0.1"), set("mesh", "b", "10.97.0.2", "10.1.0.1")];
    pusher.commit(list()).await.unwrap();
    brains.grant("grants: [{}]");
    let refused = lines.find(|line| line["level"] == "ERROR").unwrap()["fields"]["message"].to_string();
    assert!(refused.contains("grants[0]: missing field `name`") && refused.contains("keeping the previous grants"));
    pusher.commit(vec![]).await.unwrap();
    brains.grant(&MESH.replace("10.97.0.0/24", "10.97.0.1/32").replace("keep: 1s", "keep: forever"));
    assert_eq!(pusher.end().await, Code::Aborted);
    assert_eq!(brains.services().await[0], "mesh/a 10.97.0.1 -> 10.1.0.1");
    lines.find(|line| line["fields"]["message"] == "Service removed" && line["fields"]["service"] == "mesh/b").unwrap();
    let mut pusher = brains.push().await;
    assert_eq!(pusher.hello.keep_millis, None);
    let committed = pusher.commit(list()).await.unwrap();
    assert_eq!(problems(&committed), ["mesh/b addresses[0].address: push-not-granted"]);
    brains.grant("grants: []");
    assert_eq!(pusher.end().await, Code::PermissionDenied);
    lines.find(|line| line["fields"]["message"] == "Service removed" && line["fields"]["service"] == "mesh/a").unwrap();
    let refused = Pusher::open(brains.connect().await).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().ends_with("has no grant; add one to the file of --push-grants"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_brain_waits_for_the_list() {
    let brains = Brains::new(MESH);
    for _ in 0..2 {
        let (_program, mut lines) = brains.start(&[]);
        let awaited = "the first state waits for the first lists of push:mesh";
        lines.find(|line| line["fields"]["message"] == awaited).unwrap();
        assert_eq!(brains.client().status().await.unwrap().state.unwrap().rev, 0);
        let mut pusher = brains.push().await;
        let committed = pusher.commit(vec![set("mesh", "a", "10.97.0.1", "10.1.0.1")]).await.unwrap();
        assert_eq!(committed.revision, 1, "no state lacks the pushed Services");
        assert_eq!(brains.services().await, ["mesh/a 10.97.0.1 -> 10.1.0.1", FILES]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_stream_replaces_the_first() {
    let brains = Brains::new(MESH);
    let (_program, mut lines) = brains.start(&[]);
    lines.find(|line| line["fields"]["message"] == "serving").unwrap();
    let mut first = brains.push().await;
    first.commit(vec![set("mesh", "a", "10.97.0.1", "10.1.0.1")]).await.unwrap();
    let mut second = brains.push().await;
    assert_eq!(first.end().await, Code::Aborted);
    second.commit(vec![set("mesh", "b", "10.97.0.2", "10.1.0.1")]).await.unwrap();
    assert_eq!(brains.services().await, ["mesh/b 10.97.0.2 -> 10.1.0.1", FILES]);
}

/// A certificate authority's certificate, and a key pair of a server and of clients with these URIs.
fn certificates(uris: &[&str]) -> (String, Vec<(String, String)>) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType};
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
    let names = std::iter::once(SanType::DnsName("localhost".try_into().unwrap())).chain(names);
    let issue = |name| {
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        params.subject_alt_names = vec![name];
        (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
    };
    (authority.pem(), names.map(issue).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_programs_do_not_affect_each_other() {
    let (vms, other) = ("spiffe://cluster.local/ns/vms/sa/control", "spiffe://cluster.local/ns/other/sa/control");
    let grants = format!(
        "{}, {{name: vms, peer: {{tlsName: '{vms}'}}, namespaces: [vms], clusterIPs: [10.98.0.0/24], endpoints: [10.0.0.0/8]}}]",
        MESH.strip_suffix(']').unwrap()
    );
    let brains = Brains::new(&grants);
    let (authority, issued) = certificates(&[vms, other]);
    let write = |name: &str, text: &str| {
        let path = brains.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let files = [("ca", &authority), ("cert", &issued[0].0), ("key", &issued[0].1)];
    let [ca, cert, tls_key] = files.map(|(name, text)| write(name, text));
    let flags = [
        "--listen=tcp://127.0.0.1:0",
        &format!("--tls-client-ca={ca}"),
        &format!("--tls-cert={cert}"),
        &format!("--tls-key={tls_key}"),
    ];
    let (_program, mut lines) = brains.start(&flags);
    let tcp =
        lines.find_map(|line| Some(line["fields"]["address"].as_str()?.strip_prefix("tcp://")?.to_owned())).unwrap();
    let connect = |of: usize| {
        let (certificate, key) = &issued[of];
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&authority));
        let tls = tls.identity(Identity::from_pem(certificate, key)).domain_name("localhost");
        let endpoint = Endpoint::from_shared(format!("https://{tcp}")).unwrap().tls_config(tls).unwrap();
        async move { endpoint.connect().await.unwrap() }
    };
    let mut second = Pusher::open(connect(1).await).await.unwrap();
    assert_eq!(second.hello.grant, "vms");
    let refused = Pusher::open(connect(2).await).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);

    let mut first = brains.push().await;
    // The first state waits for both lists.
    let lists = tokio::join!(
        first.commit(vec![set("mesh", "a", "10.97.0.1", "10.1.0.1"), set("vms", "v", "10.97.0.2", "10.1.0.2")]),
        second.commit(vec![set("vms", "v", "10.98.0.1", "10.2.0.1"), set("vms", "w", "10.97.0.1", "10.2.0.1")]),
    );
    assert_eq!(problems(&lists.0.unwrap()), ["vms/v key.namespace: push-not-granted"]);
    assert_eq!(problems(&lists.1.unwrap()), ["vms/w addresses[0].address: push-not-granted"]);
    let both = ["mesh/a 10.97.0.1 -> 10.1.0.1", FILES, "vms/v 10.98.0.1 -> 10.2.0.1"];
    assert_eq!(brains.services().await, both);
    // A list, a removal and the end of one stream affect only its own Services.
    first.commit(vec![Step::Remove(key("vms", "v"))]).await.unwrap();
    let mut first = brains.push().await;
    first.commit(vec![set("mesh", "a", "10.97.0.1", "10.1.0.1")]).await.unwrap();
    assert_eq!(brains.services().await, both);
    drop(first);
    lines.find(|line| line["fields"]["message"] == "Service removed").unwrap();
    assert_eq!(brains.services().await, both[1..]);
    second.commit(vec![]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_ends_only_its_own_stream() {
    let brains = Brains::new(&MESH.replace("keep: 1s", "keep: forever, maxServices: 2"));
    let (_program, mut lines) = brains.start(&[]);
    lines.find(|line| line["fields"]["message"] == "serving").unwrap();
    let list = || vec![set("mesh", "a", "10.97.0.1", "10.1.0.1")];
    brains.push().await.commit(list()).await.unwrap();
    let served = ["mesh/a 10.97.0.1 -> 10.1.0.1", FILES];

    let mut pusher = brains.push().await;
    pusher.steps.send(PushRequest { step: None }).await.unwrap();
    assert_eq!(pusher.end().await, Code::InvalidArgument);
    let mut pusher = brains.push().await;
    pusher.commit(list()).await.unwrap();
    for number in 0..10 {
        pusher.step(Step::Remove(key("mesh", &format!("unknown-{number}")))).await;
    }
    assert_eq!(pusher.end().await, Code::InvalidArgument);
    let mut pusher = brains.push().await;
    pusher.step(set("mesh", &"x".repeat(3 << 20), "10.97.0.1", "10.1.0.1")).await;
    let code = pusher.end().await;
    assert!([Code::OutOfRange, Code::ResourceExhausted].contains(&code), "{code:?}");
    assert_eq!(brains.services().await, served, "what the list of an earlier stream contained stays");

    // Names and numbers that make no sense.
    let mut pusher = brains.push().await;
    let odd = PushedService {
        key: Some(key("mesh", "odd")),
        addresses: vec![ServiceAddress { address: "\0".into(), kind: i32::MIN }],
        ports: vec![ServicePort {
            protocol: i32::MAX,
            number: u32::MAX,
            node_port: u32::MAX,
            ..ServicePort::default()
        }],
        internal_policy: -1,
        ..PushedService::default()
    };
    let list =
        [list(), vec![Step::Set(odd), Step::Set(PushedService::default()), set("mesh", "../a", "1", "2")]].concat();
    let committed = pusher.commit(list).await.unwrap();
    assert_eq!(problems(&committed).len(), 3, "{committed:?}");
    assert_eq!(brains.services().await, served);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_brain_without_grants_accepts_no_stream() {
    let brains = Brains::new(MESH);
    let (_program, mut lines) = start_with(brains.path(), &brains.listen, &[]);
    lines.find(|line| line["fields"]["message"] == "serving").unwrap();
    assert_eq!(Pusher::open(brains.connect().await).await.unwrap_err().code(), Code::Unimplemented);
}

#[test]
fn an_invalid_file_of_grants_is_refused_at_the_start() {
    let brains = Brains::new("grants:\n- name: mesh\n  peer: {uid: all}\n");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_localnet-brain"));
    let grants = brains.path().join("grants.yaml");
    command.args(["--source=file:/", "--node-name=here", "--push-grants"]).arg(&grants);
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let expected = format!(
        "error: failed to read the file of --push-grants: {}:3: grants[0].peer.uid: invalid type",
        grants.display()
    );
    assert!(!output.status.success() && error.lines().any(|line| line.starts_with(&expected)), "{error}");
}
