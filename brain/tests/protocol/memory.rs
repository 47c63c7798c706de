//! Tests of the memory that hostile peers can occupy. The brain is a separate process, whose peak the kernel reports.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
};

use localnet_client::{Revision, Source as _, grpc::Brain};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::server::soon;

/// Half a megabyte of state.
const SERVICES: usize = 2000;
const CONNECTIONS: usize = 600;
const STREAMS: u32 = 32;

/// The program. Dropping it kills it.
struct Program {
    child: Child,
    tcp: SocketAddr,
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Program {
    fn start(folder: &Path) -> Self {
        let mut cluster = String::new();
        for number in 0..SERVICES {
            let (high, low) = (number / 250, number % 250 + 1);
            writeln!(
                cluster,
                "---\n{{ apiVersion: v1, kind: Service, metadata: {{ name: web-{number}, namespace: default }}, \
                 spec: {{ clusterIP: 10.96.{high}.{low}, clusterIPs: [10.96.{high}.{low}], ports: [{{ name: http, port: 80 }}, {{ name: https, port: 443 }}] }} }}"
            )
            .unwrap();
        }
        let file = folder.join("cluster.yaml");
        fs::write(&file, cluster).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_localnet-brain"))
            .args(["--node-name=here", "--healthz-bind-address=", "--log-format=json", "--listen=tcp://127.0.0.1:0"])
            .arg(format!("--source=file:{}", file.display()))
            .env_remove("RUST_LOG")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut tcp, mut complete) = (None, false);
        while tcp.is_none() || !complete {
            let line: serde_json::Value =
                serde_json::from_str(&lines.next().expect("the brain has ended").unwrap()).unwrap();
            let fields = &line["fields"];
            match fields["message"].as_str().unwrap() {
                "serving" => {
                    let address = fields["address"].as_str().unwrap().strip_prefix("tcp://");
                    tcp = address.map(|address| address.parse().unwrap());
                }
                "first complete state" => complete = true,
                _ => {}
            }
        }
        // Drain the log, or a full pipe would block the program.
        std::thread::spawn(move || lines.count());
        Self { child, tcp: tcp.unwrap() }
    }

    /// The peak of the program's memory, in KiB.
    fn peak(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    /// Reads the full state.
    async fn read(&self) {
        let brain = Brain::new(format!("tcp://{}", self.tcp).parse().unwrap(), None).unwrap();
        soon(brain.next(Revision::default(), false)).await.unwrap();
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a call, in HPACK without the dynamic table.
fn head() -> Vec<u8> {
    let mut head = vec![0x83, 0x86];
    let path = b"/localnetv1.Endpoints/Next";
    for (index, value) in [(&[4][..], &path[..]), (&[1], b"brain"), (&[0x0f, 0x10], b"application/grpc")] {
        head.extend([index, &[u8::try_from(value.len()).unwrap()], value].concat());
    }
    head.extend(b"\0\x02te\x08trailers");
    head
}

/// Connects a peer that requests the full state on many streams, opens their windows completely, and reads only the first
/// bytes.
async fn attack(from: [u8; 4], tcp: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut peer = soon(socket.connect(tcp)).await.unwrap();
    // INITIAL_WINDOW_SIZE, and the window of the connection.
    let settings = frame(4, 0, 0, &[&[0, 4][..], &0x7fff_ffff_u32.to_be_bytes()].concat());
    let window = frame(8, 0, 0, &0x7fff_0000_u32.to_be_bytes());
    let mut sent = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &window].concat();
    for stream in 0..STREAMS {
        sent.extend(frame(1, 4, 2 * stream + 1, &head()));
        sent.extend(frame(0, 1, 2 * stream + 1, &[0; 5]));
    }
    peer.write_all(&sent).await.unwrap();
    soon(peer.read_exact(&mut [0; 9])).await.unwrap();
    peer
}

/// Regression: with a send buffer of 64 KiB for each of the 4096 calls of a peer, one peer cost 250 MiB.
#[tokio::test]
async fn six_hundred_connections_that_do_not_read_cost_at_most_32_mib() {
    let folder = TempDir::new().unwrap();
    let program = Program::start(folder.path());
    program.read().await;
    let before = program.peak();
    let mut peers = Vec::new();
    for number in 0..CONNECTIONS {
        peers.push(attack([127, 0, 0, 2 + u8::from(number % 2 == 0)], program.tcp).await);
    }
    // The brain still serves other readers.
    program.read().await;
    let grown = program.peak() - before;
    assert!(grown <= 32 << 10, "{before} KiB before, {grown} KiB more with {CONNECTIONS} connections");
}
