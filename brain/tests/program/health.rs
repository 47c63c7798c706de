//! The program's health server: its address in the log, and the effect of reports.

use std::{future::Future, net::SocketAddr, time::Duration};

use localnet_client::{Outcome, Report, Source as _};
use localnet_proto::{Family, Revision, Update};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{start, write};

/// Waits for `future`, and panics after 20 s.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.expect("timed out")
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = soon(TcpStream::connect(address)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn healthz_is_served_and_reports_change_the_answer() {
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), &["10.0.0.1"]);
    let listen = format!("unix://{}", folder.path().join("brain.sock").display());
    let (_program, mut lines) = start(folder.path(), &listen);
    let (mut address, mut serving, mut complete) = (None, false, false);
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
    let report = Report { backend: "nft", received: snapshot.revision, families, ..Report::default() };
    soon(brain.report(&report)).await.unwrap();
    let answer = get(address, "/livez").await;
    assert!(answer.contains(r#","healthy":true,"status":{"IPv4":{"lastUpdated":""#), "{answer}");
}
