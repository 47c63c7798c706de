//! Tests of a half-open connection, whose peer has disappeared without closing it.

use std::{convert::Infallible, fs, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use localnet_brain::watch::kube::{self as watch, ApiServer, KeepAlive};
use localnet_cluster::{Options, objects::Kind};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch as cell},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, pem::PemObject as _},
    },
};
use tokio_util::sync::CancellationToken;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers lists of Nodes with one Node, other lists with none, and watches with a silent stream.
fn answer(request: &http::Request<impl Sized>) -> http::Response<Body> {
    let query = request.uri().query().unwrap_or_default();
    let body = if query.contains("watch=true") {
        StreamBody::new(futures::stream::pending().boxed()).boxed_unsync()
    } else {
        let node = json!({ "metadata": { "name": "node-a", "resourceVersion": "1" } });
        let items = if request.uri().path().ends_with("nodes") { vec![node] } else { Vec::new() };
        Full::new(Bytes::from(json!({ "metadata": { "resourceVersion": "1" }, "items": items }).to_string()))
            .boxed_unsync()
    };
    http::Response::new(body)
}

/// An API server over TLS and HTTP/2. It sends the query of each request to `requests`.
async fn serve(listener: TcpListener, config: ServerConfig, requests: mpsc::UnboundedSender<String>) {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, requests) = (acceptor.clone(), requests.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = tower::service_fn(move |request: http::Request<_>| {
                assert_eq!(request.version(), http::Version::HTTP_2);
                let _ = requests.send(request.uri().query().unwrap_or_default().to_owned());
                let answer = answer(&request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
        });
    }
}

/// Relays bytes until `cut`. After that it keeps the existing connections open, but discards their bytes.
async fn relay(listener: TcpListener, server: std::net::SocketAddr, cut: cell::Receiver<bool>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let server = TcpStream::connect(server).await.unwrap();
        let swallow = !*cut.borrow();
        let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
        for (mut from, mut to) in [(client_in, server_out), (server_in, client_out)] {
            let cut = cut.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(length @ 1..) = from.read(&mut buffer).await {
                    if swallow && *cut.borrow() {
                        continue;
                    }
                    if to.write_all(&buffer[..length]).await.is_err() {
                        return;
                    }
                }
            });
        }
    }
}

#[tokio::test]
async fn watches_move_to_a_new_connection_when_their_peer_has_disappeared() {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];

    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (server_address, port) = (server.local_addr().unwrap(), between.local_addr().unwrap().port());
    let (requests, mut requested) = mpsc::unbounded_channel();
    tokio::spawn(serve(server, config, requests));
    let (cut, is_cut) = cell::channel(false);
    tokio::spawn(relay(between, server_address, is_cut));

    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    let (ca, url) = (folder.path().join("ca.crt"), format!("https://localhost:{port}"));
    fs::write(&ca, certificate.pem()).unwrap();
    let kubeconfig = json!({
        "clusters": [{ "name": "c", "cluster": { "server": url, "certificate-authority": ca } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "" } }],
        "current-context": "c",
    });
    fs::write(&path, kubeconfig.to_string()).unwrap();
    let keep_alive = KeepAlive { idle: Duration::from_millis(200), answer: Duration::from_millis(200) };
    let api = ApiServer::from_kubeconfig(Some(&path), None, keep_alive).await.unwrap();

    let (events, mut received) = mpsc::channel(16);
    let options = Options::of_node("node-a");
    tokio::spawn(watch::run(api, options, events, CancellationToken::new()));
    let mut until_watching = async || {
        let mut watches = 0;
        while watches < Kind::ALL.len() {
            let query = tokio::time::timeout(Duration::from_secs(20), requested.recv()).await.unwrap().unwrap();
            watches += usize::from(query.contains("watch=true"));
        }
    };
    until_watching().await;
    for _ in Kind::ALL {
        received.recv().await.unwrap();
    }

    cut.send_replace(true);
    until_watching().await;
    assert!(received.try_recv().is_err(), "nothing has changed");
}
