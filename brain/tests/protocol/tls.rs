//! Tests of mutual TLS: authentication, authorization by name, and certificates that change at run time.

use std::{fs, path::PathBuf, sync::Arc};

use hyper_util::rt::TokioIo;
use localnet_brain::{
    exposition,
    serve::{Listener, Options, TlsFiles},
};
use localnet_proto::{
    Address, Revision,
    wire::{NextFilter, endpoints_client::EndpointsClient},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose, SanType};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};
use tonic::{
    Status,
    transport::{Endpoint, Uri},
};

use crate::server::{Reader, Server, applied, at, service, soon};

/// A certificate authority, and the files of a server whose certificate it has issued.
struct Pki {
    authority: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Pki {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pki = Self { authority, folder: TempDir::new().unwrap() };
        fs::write(pki.path("ca.crt"), pki.authority.pem()).unwrap();
        pki.renew();
        pki
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Issues a certificate. Returns it and its key, in PEM.
    fn issue(&self) -> (String, String) {
        self.issue_to(&[SanType::DnsName("localhost".try_into().unwrap())])
    }

    /// Issues a certificate with these names.
    fn issue_to(&self, names: &[SanType]) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        (params.signed_by(&key, &self.authority).unwrap().pem(), key.serialize_pem())
    }

    /// Replaces the server's certificate, and returns the new one.
    fn renew(&self) -> CertificateDer<'static> {
        let (certificate, key) = self.issue();
        fs::write(self.path("tls.key"), key).unwrap();
        fs::write(self.path("tls.crt"), &certificate).unwrap();
        CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()
    }

    fn options(&self) -> Options {
        let files =
            TlsFiles { certificate: self.path("tls.crt"), key: self.path("tls.key"), client_ca: self.path("ca.crt") };
        Options { tls: Some(files), ..Options::default() }
    }

    /// A client that trusts this authority, and presents a certificate of `issuer`.
    fn client(&self, issuer: Option<&Self>) -> TlsConnector {
        self.client_with(issuer.map(Self::issue))
    }

    /// A client that trusts this authority, and presents this certificate.
    fn client_with(&self, presented: Option<(String, String)>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match presented {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsConnector::from(Arc::new(config))
    }
}

async fn dial(address: &Address, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let Address::Tcp { host, port } = address else { panic!("TCP was called for") };
    let stream = TcpStream::connect((host.as_str(), *port)).await?;
    client.connect("localhost".try_into().unwrap(), stream).await
}

async fn call_next(server: &Server, client: TlsConnector) -> Result<Reader, Status> {
    let address = server.address.clone();
    let connect = tower::service_fn(move |_: Uri| {
        let (address, client) = (address.clone(), client.clone());
        async move { dial(&address, &client).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connect).await;
    let mut reader = EndpointsClient::new(channel.map_err(|error| Status::from_error(Box::new(error)))?);
    reader.next(NextFilter::default()).await?;
    Ok(Reader(reader))
}

#[tokio::test]
async fn only_clients_of_the_authority_are_served() {
    let (pki, other) = (Pki::new(), Pki::new());
    let server = Server::tcp(&pki.options()).await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let mut reader = soon(call_next(&server, pki.client(Some(&pki)))).await.unwrap();
    assert_eq!(reader.read(Revision::default(), false).await.revision(), at(1));
    assert!(soon(call_next(&server, pki.client(None))).await.is_err(), "a client without a certificate");
    assert!(soon(call_next(&server, pki.client(Some(&other)))).await.is_err(), "a client of another authority");
    assert!(
        soon(call_next(&server, other.client(Some(&pki)))).await.is_err(),
        "a client that does not trust the server"
    );
    server.shutdown().await;
}

#[tokio::test]
async fn only_allowed_names_are_served() {
    let pki = Pki::new();
    let allowed = ["backend.example", "spiffe://cluster.local/ns/kube-system/*"].map(|name| name.parse().unwrap());
    let server = Server::tcp(&Options { allow_names: allowed.to_vec(), ..pki.options() }).await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let uri = |uri: &str| SanType::URI(uri.try_into().unwrap());
    let rows = [
        (vec![dns("backend.example")], true),
        (vec![uri("spiffe://cluster.local/ns/kube-system/sa/localnet")], true),
        (vec![dns("other.example")], false),
        (vec![uri("spiffe://cluster.local/ns/default/sa/localnet")], false),
        (vec![uri("spiffe://cluster.local/ns/kube-system/sa/a"), uri("spiffe://cluster.local/ns/default/sa/b")], false),
        (vec![], false),
    ];
    for (names, expected) in rows {
        let client = pki.client_with(Some(pki.issue_to(&names)));
        let called = soon(call_next(&server, client)).await;
        assert_eq!(called.is_ok(), expected, "{names:?}");
        // Regression: the server closed the connection without an alert.
        if let Err(status) = called {
            let text = format!("{status:?}");
            assert!(text.contains("AccessDenied"), "{text}");
        }
    }
    // An allowed name in a certificate of another authority.
    let other = Pki::new();
    let client = pki.client_with(Some(other.issue_to(&[dns("backend.example")])));
    assert!(soon(call_next(&server, client)).await.is_err());
    server.shutdown().await;
}

/// A client that connected before the authority was replaced has to reconnect, and is then refused.
#[tokio::test]
async fn clients_of_a_replaced_authority_are_disconnected() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (pki, other) = (Pki::new(), Pki::new());
    let server = Server::tcp(&pki.options()).await;
    let mut early = dial(&server.address, &pki.client(Some(&pki))).await.unwrap();
    early.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    early.read_exact(&mut [0; 9]).await.unwrap();
    fs::write(pki.path("ca.crt"), other.authority.pem()).unwrap();
    // The handshake is complete, so from now on the paused clock advances only while the server waits.
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    // The server checks the files although no other client connects. The read ends with an error or an end of file.
    _ = early.read_to_end(&mut Vec::new()).await;
    // The timeout of unanswered pings would take longer.
    assert!(start.elapsed() < std::time::Duration::from_secs(14), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_client_without_tls_is_not_served() {
    let pki = Pki::new();
    let server = Server::tcp(&pki.options()).await;
    let plain = crate::server::connect(server.address.clone(), Endpoint::from_static("http://localhost")).await;
    if let Ok(channel) = plain {
        soon(EndpointsClient::new(channel).next(NextFilter::default())).await.unwrap_err();
    }
}

async fn server_certificate(server: &Server, pki: &Pki) -> CertificateDer<'static> {
    let stream = soon(dial(&server.address, &pki.client(Some(pki)))).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

#[tokio::test]
async fn changed_certificates_are_reloaded() {
    let pki = Pki::new();
    let server = Server::tcp(&pki.options()).await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let mut early = soon(call_next(&server, pki.client(Some(&pki)))).await.unwrap();

    let renewed = pki.renew();
    assert_eq!(server_certificate(&server, &pki).await, renewed);
    assert_eq!(early.read(Revision::default(), false).await.revision(), at(1));

    // If only some of the files are new, the previous content stays in use until the others follow.
    let (certificate, key) = pki.issue();
    fs::write(pki.path("tls.crt"), &certificate).unwrap();
    assert_eq!(server_certificate(&server, &pki).await, renewed);
    fs::write(pki.path("tls.key"), key).unwrap();
    assert_eq!(
        server_certificate(&server, &pki).await,
        CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()
    );

    // Another authority for clients.
    let other = Pki::new();
    fs::write(pki.path("ca.crt"), other.authority.pem()).unwrap();
    assert!(soon(call_next(&server, pki.client(Some(&pki)))).await.is_err());
    soon(call_next(&server, pki.client(Some(&other)))).await.unwrap();
}

#[tokio::test]
async fn errors_name_the_unusable_file() {
    let pki = Pki::new();
    let address = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
    let rows =
        [("tls.crt", "no certificate"), ("tls.key", "failed to read a private key"), ("ca.crt", "no certificate")];
    for (file, problem) in rows {
        let valid = fs::read(pki.path(file)).unwrap();
        fs::write(pki.path(file), "nothing").unwrap();
        let text = format!("{:#}", Listener::bind(&address, &pki.options()).await.unwrap_err());
        assert!(text.contains(file) && text.contains(problem) && !text.contains('\n'), "{text}");
        fs::write(pki.path(file), valid).unwrap();
    }
    fs::write(pki.path("tls.key"), pki.issue().1).unwrap();
    let text = format!("{:#}", Listener::bind(&address, &pki.options()).await.unwrap_err());
    assert!(text.contains("does not belong to the certificate"), "{text}");
}

/// Regression: there was no warning before or after a certificate expired.
#[tokio::test]
async fn a_metric_has_the_expiry_of_the_certificate() {
    let pki = Pki::new();
    let server = Server::tcp(&pki.options()).await;
    let text = || exposition::text(server.feed.metrics(), &server.feed.state(), &server.reports.all());
    // rcgen's default expiry: 1 January 4096.
    let metric = "localnet_server_certificate_expiration_timestamp_seconds";
    let expected = format!("{metric} 67090118400\n");
    soon(async {
        while !text().contains(&expected) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let without = Server::unix().await;
    assert!(!exposition::text(without.feed.metrics(), &without.feed.state(), &without.reports.all()).contains(metric));
}
