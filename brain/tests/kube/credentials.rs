//! Tests of credentials that change at run time.

use std::{
    borrow::Cow, collections::BTreeMap, convert::Infallible, fs, future::ready, net::SocketAddr,
    os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc, time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use localnet_brain::{
    metrics::{Metrics, Trouble},
    watch::kube::{self as watch, ApiServer, KeepAlive},
};
use localnet_cluster::{Options, objects::Kind};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::{mpsc, watch as cell},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Waits for `future`, and panics after 20 s.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("timed out")
}

/// The credentials of a request: the header `Authorization`, and the client certificate in DER.
#[derive(Debug, PartialEq)]
struct Credentials {
    token: Option<String>,
    certificate: Option<Vec<u8>>,
}

/// An API server without objects. Its watches are silent until [`Server::end_watches`].
struct Server {
    address: SocketAddr,
    watches: mpsc::UnboundedReceiver<Credentials>,
    end: cell::Sender<()>,
}

impl Server {
    async fn start(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ((sender, watches), end) = (mpsc::unbounded_channel(), cell::Sender::default());
        let over = end.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, sender, over) = (tls.clone(), sender.clone(), over.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, None, sender, over).await,
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            let certificate = stream.get_ref().1.peer_certificates().map(|chain| chain[0].to_vec());
                            serve(stream, certificate, sender, over).await;
                        }
                    }
                });
            }
        });
        Self { address, watches, end }
    }

    /// The credentials of the next four watches, one of each kind.
    async fn credentials(&mut self) -> Credentials {
        let first = soon(self.watches.recv()).await.unwrap();
        for _ in 1..Kind::ALL.len() {
            assert_eq!(soon(self.watches.recv()).await.unwrap(), first);
        }
        first
    }

    async fn token(&mut self) -> String {
        self.credentials().await.token.unwrap_or_default()
    }

    /// Ends all watches, so that the client opens them again.
    fn end_watches(&self) {
        self.end.send_replace(());
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    certificate: Option<Vec<u8>>,
    sender: mpsc::UnboundedSender<Credentials>,
    over: cell::Sender<()>,
) {
    let service = tower::service_fn(move |request: http::Request<_>| {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if is_watch {
            let token = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
            // This fails if the test has ended.
            _ = sender.send(Credentials { token, certificate: certificate.clone() });
        }
        let body = if is_watch { silence(over.subscribe()) } else { list(&request) };
        ready(Ok::<_, Infallible>(http::Response::new(body)))
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    _ = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn silence(mut over: cell::Receiver<()>) -> Body {
    let end = async move { _ = over.changed().await };
    StreamBody::new(end.into_stream().filter_map(|()| ready(None)).boxed()).boxed_unsync()
}

fn list(request: &http::Request<impl Sized>) -> Body {
    let node = json!({ "metadata": { "name": "node-a", "resourceVersion": "1" } });
    let items = if request.uri().path().ends_with("nodes") { vec![node] } else { Vec::new() };
    let list = json!({ "metadata": { "resourceVersion": "1" }, "items": items });
    Full::new(Bytes::from(list.to_string())).boxed_unsync()
}

/// A kubeconfig, and a source that uses it.
struct Client {
    folder: TempDir,
    metrics: Metrics,
    _stop: DropGuard,
}

impl Client {
    async fn start(folder: TempDir, server: &Value, user: &Value) -> Self {
        let stop = CancellationToken::new();
        let client = Self { folder, metrics: Metrics::default(), _stop: stop.clone().drop_guard() };
        client.configure(server, user);
        let keep_alive = KeepAlive { idle: Duration::from_secs(5), answer: Duration::from_secs(5) };
        let api = ApiServer::from_kubeconfig(Some(&client.path("kubeconfig")), None, keep_alive).await.unwrap();
        let api = api.with_metrics(&client.metrics);
        let (events, mut received) = mpsc::channel(16);
        tokio::spawn(async move { while received.recv().await.is_some() {} });
        let options = Options::of_node("node-a");
        tokio::spawn(watch::run(api, options, events, stop));
        client
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, server: &Value, user: &Value) {
        let kubeconfig = json!({
            "clusters": [{ "name": "c", "cluster": server }],
            "users": [{ "name": "u", "user": user }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "c",
        });
        self.write("kubeconfig", &kubeconfig.to_string());
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }
}

fn plain(server: &Server) -> Value {
    json!({ "server": format!("http://{}", server.address) })
}

#[tokio::test]
async fn a_rotated_token_is_read_again() {
    let mut server = Server::start(None).await;
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("token"), "one\n").unwrap();
    let client = Client::start(folder, &plain(&server), &json!({ "tokenFile": "token" })).await;
    assert_eq!(server.token().await, "Bearer one");
    client.write("token", "two");
    server.end_watches();
    assert_eq!(server.token().await, "Bearer two");
    // The file may be deleted after it was read, or be empty while it is being written.
    for content in [None, Some(" \n"), Some("a\u{0}b")] {
        fs::remove_file(client.path("token")).unwrap_or_default();
        content.into_iter().for_each(|text| client.write("token", text));
        server.end_watches();
        assert_eq!(server.token().await, "Bearer two", "{content:?}");
    }
    client.write("token", "three\r\n");
    server.end_watches();
    assert_eq!(server.token().await, "Bearer three");
}

#[tokio::test]
async fn a_changed_kubeconfig_is_read_again() {
    let mut server = Server::start(None).await;
    let client = Client::start(TempDir::new().unwrap(), &plain(&server), &json!({ "token": "one" })).await;
    assert_eq!(server.token().await, "Bearer one");
    client.configure(&plain(&server), &json!({ "token": "two" }));
    server.end_watches();
    assert_eq!(server.token().await, "Bearer two");
    client.write("kubeconfig", "clusters: [");
    server.end_watches();
    assert_eq!(server.token().await, "Bearer two", "an invalid kubeconfig changes nothing");

    let mut other = Server::start(None).await;
    client.configure(&plain(&other), &json!({ "token": "three" }));
    server.end_watches();
    assert_eq!(other.token().await, "Bearer three");
}

/// kube-proxy runs the plugin for the first request, and again after a failure. The brain does the same, and reports the failure
/// as a trouble of the source.
#[tokio::test]
async fn a_failing_credential_plugin_is_run_again() {
    let mut server = Server::start(None).await;
    let folder = TempDir::new().unwrap();
    let plugin = |text: &str| {
        let (path, new) = (folder.path().join("plugin"), folder.path().join("new"));
        fs::write(&new, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, path).unwrap();
    };
    plugin("echo secret; echo 'the vault is sealed' >&2; exit 3");
    let command = folder.path().join("plugin").to_str().unwrap().to_owned();
    let user = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": command, "interactiveMode": "Never",
    } });
    let folder_of_client = TempDir::new().unwrap();
    let client = Client::start(folder_of_client, &plain(&server), &user).await;
    let troubles = client.metrics.troubles();
    let mut changes = troubles.subscribe();
    let all = soon(changes.wait_for(|troubles| troubles.len() == Kind::ALL.len())).await.unwrap().clone();
    for trouble in all.values() {
        let text = &trouble.diagnostic.problem;
        assert!(text.contains(&command) && text.contains("ended with exit status: 3: the vault is sealed"), "{text}");
        assert!(!text.contains("secret") && text.contains("under exec"), "{text}");
    }
    plugin("echo nonsense");
    let is_like = |words: &'static str| {
        move |troubles: &BTreeMap<Cow<'static, str>, Trouble>| {
            troubles.values().all(|of| of.diagnostic.problem.contains(words))
        }
    };
    soon(changes.wait_for(is_like("has not written an ExecCredential"))).await.unwrap();
    let credential = json!({ "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": { "token": "one" } });
    plugin(&format!("echo '{credential}'"));
    assert_eq!(server.token().await, "Bearer one");
    soon(changes.wait_for(BTreeMap::is_empty)).await.unwrap();
}

/// A certificate authority for the server and its clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Issues a certificate. Returns it in PEM and in DER, and its key in PEM.
    fn issue(&self) -> (String, Vec<u8>, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), certificate.der().to_vec(), key.serialize_pem())
    }

    /// A TLS server with a certificate of this authority, which accepts its clients.
    fn acceptor(&self) -> TlsAcceptor {
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let (_, certificate, key) = self.issue();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(vec![certificate.into()], PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

#[tokio::test]
async fn rotated_certificates_are_read_again() {
    let authority = Authority::new();
    let mut server = Server::start(Some(authority.acceptor())).await;
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let (certificate, first, key) = authority.issue();
    write("ca.crt", &authority.0.pem());
    write("client.crt", &certificate);
    write("client.key", &key);
    let cluster = |server: &Server| json!({ "server": format!("https://localhost:{}", server.address.port()), "certificate-authority": "ca.crt" });
    let user = json!({ "client-certificate": "client.crt", "client-key": "client.key" });
    let client = Client::start(folder, &cluster(&server), &user).await;
    assert_eq!(server.credentials().await.certificate, Some(first.clone()));

    let (certificate, second, key) = authority.issue();
    client.write("client.crt", &certificate);
    server.end_watches();
    assert_eq!(server.credentials().await.certificate, Some(first), "a certificate without its key is not used");
    client.write("client.key", &key);
    server.end_watches();
    assert_eq!(server.credentials().await.certificate, Some(second));

    // The authority and the server change together.
    let authority = Authority::new();
    let mut server_of_other = Server::start(Some(authority.acceptor())).await;
    let (certificate, third, key) = authority.issue();
    client.write("ca.crt", &authority.0.pem());
    client.write("client.crt", &certificate);
    client.write("client.key", &key);
    client.configure(&cluster(&server_of_other), &user);
    server.end_watches();
    assert_eq!(server_of_other.credentials().await.certificate, Some(third));
}
