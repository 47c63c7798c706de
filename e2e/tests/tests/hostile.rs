//! A thousand hostile connections affect neither the brain's memory nor the latency of its readers.
//!
//! The brain is the program as shipped, on a unix socket and on TCP with TLS. The peers are slow, cut off, malformed or
//! oversized, or use a certificate of an unknown authority. They connect continuously while a reader reads.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use localnet_client::{Revision, Source as _, grpc::Brain};
use localnet_proto::Address;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{PrivateKeyDer, pem::PemObject as _},
    },
};

const HOSTILE: usize = 1000;
const READS: usize = 100;
/// Minimum time of each hostile connection. With 64 at a time, a thousand connections take some seconds.
const PACE: Duration = Duration::from_millis(300);
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The program. Dropping it kills the program.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // Both calls fail only if the program has exited.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Program {
    /// The resident memory in KiB.
    fn resident(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }
}

/// A certificate authority, and a certificate that it issued for `localhost`.
struct Pki {
    authority: CertifiedIssuer<'static, KeyPair>,
    certificate: String,
    key: String,
}

impl Pki {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap().pem();
        Self { authority, certificate, key: key.serialize_pem() }
    }

    /// A client that trusts this authority, but presents a certificate of another one.
    fn stranger(&self) -> TlsConnector {
        let other = Self::new();
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let chain = tokio_rustls::rustls::pki_types::CertificateDer::from_pem_slice(other.certificate.as_bytes());
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![chain.unwrap()], PrivateKeyDer::from_pem_slice(other.key.as_bytes()).unwrap());
        TlsConnector::from(Arc::new(config.unwrap()))
    }
}

fn start(folder: &Path, pki: &Pki) -> (Program, PathBuf, SocketAddr) {
    let path = |name: &str| folder.join(name);
    fs::write(path("tls.crt"), &pki.certificate).unwrap();
    fs::write(path("tls.key"), &pki.key).unwrap();
    fs::write(path("ca.crt"), pki.authority.pem()).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let file = |name: &str| path(name).display().to_string();
    let mut command = Command::new(localnet_e2e::program("localnet-brain").unwrap());
    command.args(["--node-name", "node-a", "--source", &format!("file:{}", examples.display())]);
    command.args(["--listen", &format!("unix://{}", file("brain.sock")), "--listen", "tcp://127.0.0.1:0"]);
    command.args(["--tls-cert", &file("tls.crt"), "--tls-key", &file("tls.key"), "--tls-client-ca", &file("ca.crt")]);
    // The metrics listener cannot be disabled, so it gets a free port.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    command.args(["--healthz-port", "0", "--metrics-bind-address", &free.to_string()]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (mut tcp, mut seen) = (None, 0);
    while seen < 2 {
        let line = lines.next().expect("it serves").unwrap();
        seen += usize::from(line.contains("serving"));
        let port = line.split("127.0.0.1:").nth(1).filter(|_| line.contains("serving") && line.contains("tcp://"));
        tcp = tcp.or(port.map(|port| port.chars().take_while(char::is_ascii_digit).collect::<String>()));
    }
    // Read the log to its end, so that logging never blocks the program.
    std::thread::spawn(move || lines.count());
    let tcp = format!("127.0.0.1:{}", tcp.expect("the log has the port")).parse().unwrap();
    (Program(child), path("brain.sock"), tcp)
}

/// Reads the full state `count` times. Returns the duration of each read, sorted.
async fn reads(brain: &Brain, count: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        timeout(Duration::from_secs(30), brain.next(Revision::default(), false)).await.unwrap().unwrap();
        took.push(began.elapsed());
    }
    took.sort();
    took
}

/// Opens one hostile connection, and keeps it for a while unless the brain closes it.
async fn attack(kind: usize, unix: &Path, tcp: SocketAddr, tls: &TlsConnector) {
    let keep = PACE;
    if kind.is_multiple_of(6) {
        let Ok(stream) = TcpStream::connect(tcp).await else { return };
        let tls = timeout(keep, tls.connect("localhost".try_into().unwrap(), stream)).await;
        if let Ok(Ok(mut stream)) = tls {
            // In TLS 1.3, the client learns of the rejection only when it reads.
            _ = stream.write_all(HELLO).await;
            let answered = timeout(keep, stream.read(&mut [0; 9])).await;
            assert!(!matches!(answered, Ok(Ok(1..))), "a stranger was answered");
        }
        return;
    }
    let Ok(mut stream) = UnixStream::connect(unix).await else { return };
    let oversized = [&HELLO[..24], b"\xff\xff\xff\x01\x04\0\0\0\x01", &[0; 40_000]].concat();
    let bytes: &[u8] = match kind % 6 {
        // Slow: sends a part, or nothing.
        1 => &HELLO[..kind % 24],
        // Malformed.
        2 => b"\x16\x03\x01\xff\xff GET / HTTP/1.1\r\n\r\n",
        // Oversized.
        3 => &oversized,
        // Cut off in the middle.
        4 => {
            _ = stream.write_all(HELLO).await;
            return;
        }
        // Sends the preface and nothing else.
        _ => HELLO,
    };
    _ = stream.write_all(bytes).await;
    let read = async { while matches!(stream.read(&mut [0; 1024]).await, Ok(1..)) {} };
    _ = timeout(keep, read).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_hostile_connections_change_neither_memory_nor_latency() {
    let (folder, pki) = (tempfile::tempdir().unwrap(), Pki::new());
    let (program, unix, tcp) = start(folder.path(), &pki);
    let brain = Brain::new(Address::Unix(unix.clone()), None).unwrap();
    reads(&brain, READS).await;
    let before = reads(&brain, READS).await;
    let memory = program.resident();

    let tls = pki.stranger();
    let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let attackers: Vec<_> = (0..64)
        .map(|_| {
            let (begun, done, unix, tls) = (Arc::clone(&begun), Arc::clone(&done), unix.clone(), tls.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let kind = begun.fetch_add(1, Ordering::Relaxed);
                    tokio::join!(attack(kind, &unix, tcp, &tls), tokio::time::sleep(PACE));
                }
            })
        })
        .collect();
    let mut during = Vec::new();
    while begun.load(Ordering::Relaxed) < HOSTILE || during.len() < READS {
        during.extend(reads(&brain, 20).await);
    }
    let most = program.resident();
    done.store(true, Ordering::Relaxed);
    for attacker in attackers {
        attacker.await.unwrap();
    }
    during.sort();
    let after = reads(&brain, READS).await;
    let left = program.resident();

    let figures = |took: &[Duration]| format!("{:?} (99 %: {:?})", took[took.len() / 2], took[took.len() * 99 / 100]);
    println!(
        "{} hostile connections; a read took {} before, {} during and {} after them; resident {memory} KiB, {most} during, {left} after",
        begun.load(Ordering::Relaxed),
        figures(&before),
        figures(&during),
        figures(&after)
    );
    // Each read was answered. The benchmark measures the latency next to stalled readers.
    assert!(most < memory + memory / 2 + 8 * 1024, "{memory} KiB before, {most} KiB during");
    assert!(left < memory + memory / 10 + 2 * 1024, "{memory} KiB, {left} KiB afterwards");
}
