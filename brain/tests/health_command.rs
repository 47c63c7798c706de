//! Tests of the program's health server: its flag, and the effect of reports.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    future::Future,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::Duration,
};

use localnet_client::{Outcome, Report, Source as _};
use localnet_proto::{Family, Revision, Update};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Waits for `future`, and panics after 20 s.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.expect("timed out")
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = soon(TcpStream::connect(address)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

/// The program. Dropping it kills it.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn healthz_is_served_and_reports_change_the_answer() {
    let folder = tempfile::TempDir::new().unwrap();
    let cluster = folder.path().join("cluster.yaml");
    std::fs::write(&cluster, "{ apiVersion: v1, kind: Node, metadata: { name: here } }").unwrap();
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    // Ports are free on an address of 127.0.0.0/8 that only this process uses.
    let [a, b, ..] = std::process::id().to_le_bytes();
    let healthz = format!("--healthz-bind-address=127.77.{a}.{b}:10256");
    let mut child = Command::new(env!("CARGO_BIN_EXE_localnet-brain"))
        .arg(format!("--source=file:{}", cluster.display()))
        .args(["--node-name=here", &healthz, "--log-format=json", "--listen", &listen])
        .env_remove("RUST_LOG")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let _program = Program(child);
    let (mut address, mut serving, mut complete) = (None, false, false);
    let mut lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    while address.is_none() || !serving || !complete {
        let line = lines.next().expect("the brain has ended");
        let fields = &line["fields"];
        match fields["message"].as_str().unwrap() {
            "answering health checks" => address = Some(fields["address"].as_str().unwrap().parse().unwrap()),
            "serving" => serving = true,
            "first complete state" => complete = true,
            _ => {}
        }
    }
    std::thread::spawn(move || lines.count());
    let address = address.unwrap();
    let answer = get(address, "/healthz").await;
    assert!(answer.ends_with(r#""nodeEligible":true,"healthy":true}"#), "{answer}");

    let brain = localnet_client::grpc::Brain::new(listen.parse().unwrap(), None).unwrap();
    let update = soon(brain.next(Revision::default(), false)).await.unwrap();
    let Update::Full(snapshot) = update else { panic!("{update:?}") };
    let outcome = Outcome { applied: snapshot.revision.rev, ..Outcome::default() };
    let families = vec![(Family::V4, outcome)];
    let report = Report {
        backend: "nft",
        mode: None,
        received: snapshot.revision,
        families,
        skipped: Vec::new(),
        warnings: Vec::new(),
        configuration: None,
        repairs: 0,
    };
    soon(brain.report(&report)).await.unwrap();
    let answer = get(address, "/livez").await;
    assert!(answer.contains(r#","healthy":true,"status":{"IPv4":{"lastUpdated":""#), "{answer}");
}
