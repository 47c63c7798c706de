//! Tests of hostile peers: the server disconnects them, and other readers are unaffected.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Reason, client::SendRequest};
use http::Request;
use localnet_cluster::localize::Localized;
use localnet_proto::{
    Address, Revision, encode,
    wire::{BackendReport, FamilyReport, backends_client::BackendsClient},
};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    task::JoinHandle,
    time,
};
use tonic::Code;

use crate::server::{Reader, Server, applied, at, service, soon};

/// A connection preface with empty SETTINGS.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The maximum number of connections of one peer.
const OF_PEER: usize = 512;

async fn dial(server: &Server) -> UnixStream {
    let Address::Unix(path) = &server.address else { panic!("not a unix socket: {}", server.address) };
    soon(UnixStream::connect(path)).await.unwrap()
}

/// Waits until the server has closed the connection, and discards everything that it sends.
async fn closed(mut peer: UnixStream) {
    let mut buffer = [0; 4096];
    while !matches!(peer.read(&mut buffer).await, Ok(0) | Err(_)) {}
}

/// How long the server keeps the connection of a peer that sends these bytes and then stays silent.
async fn lifetime(sent: &[u8]) -> Duration {
    let server = Server::unix().await;
    let mut peer = dial(&server).await;
    peer.write_all(sent).await.unwrap();
    let start = time::Instant::now();
    closed(peer).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_a_complete_preface_is_disconnected_after_10_s() {
    for sent in [&b""[..], b"P", &HELLO[..23]] {
        let lasted = lifetime(sent).await;
        assert!((Duration::from_secs(9)..Duration::from_secs(12)).contains(&lasted), "{sent:?}: {lasted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_of_another_protocol_is_disconnected_immediately() {
    for sent in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"\x16\x03\x01\x02\0", &[0xff; 100]] {
        assert!(lifetime(sent).await < Duration::from_secs(1), "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_completes_a_frame_is_disconnected() {
    // A SETTINGS frame of 6 bytes, of which one is sent.
    let lasted = lifetime(&[&HELLO[..24], b"\0\0\x06\x04\0\0\0\0\0\0"].concat()).await;
    assert!(lasted < Duration::from_secs(60), "{lasted:?}");
}

/// An HTTP/2 client, and the task of its connection.
async fn http2(server: &Server) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let (requests, connection) = soon(h2::client::handshake(dial(server).await)).await.unwrap();
    (requests, tokio::spawn(connection))
}

fn call(path: &str) -> Request<()> {
    let request = Request::post(format!("http://brain/{path}")).header("content-type", "application/grpc");
    request.header("te", "trailers").body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_although_it_answers_pings() {
    let server = Server::unix().await;
    let (requests, connection) = http2(&server).await;
    let start = time::Instant::now();
    // The result depends on how the server closes the connection.
    _ = connection.await.unwrap();
    let lasted = start.elapsed();
    assert!((Duration::from_secs(100)..Duration::from_secs(200)).contains(&lasted), "{lasted:?}");
    drop(requests);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_completes_is_refused_after_10_s() {
    for path in ["localnetv1.Endpoints/Next", "localnetv1.Backends/Report"] {
        let server = Server::unix().await;
        let (mut requests, _connection) = http2(&server).await;
        let (answer, mut body) = requests.send_request(call(path), false).unwrap();
        // A message of four bytes, of which one is sent.
        body.send_data(Bytes::from_static(b"\0\0\0\0\x04x"), false).unwrap();
        let start = time::Instant::now();
        let answer = answer.await.unwrap();
        let status = answer.headers().get("grpc-status").unwrap();
        assert_eq!(status.to_str().unwrap(), (Code::DeadlineExceeded as i32).to_string());
        assert!(start.elapsed() < Duration::from_secs(12), "{path}");
    }
}

#[tokio::test]
async fn an_oversized_request_is_refused() {
    let server = Server::unix().await;
    server.feed.publish(Localized::default());
    let (mut requests, _connection) = http2(&server).await;
    let (answer, mut body) = requests.send_request(call("localnetv1.Endpoints/Next"), false).unwrap();
    let claimed = [&b"\0"[..], &(16_u32 << 20).to_be_bytes(), &[0; 1000]].concat();
    body.send_data(claimed.into(), false).unwrap();
    let answer = soon(answer).await.unwrap();
    let status: i32 = answer.headers().get("grpc-status").unwrap().to_str().unwrap().parse().unwrap();
    assert!([Code::OutOfRange as i32, Code::ResourceExhausted as i32].contains(&status), "{status}");

    let report = BackendReport {
        backend: "nft".into(),
        families: vec![FamilyReport { error: "x".repeat(3 << 20), ..FamilyReport::default() }],
        ..BackendReport::default()
    };
    let refused = soon(BackendsClient::new(server.channel().await).report(report)).await.unwrap_err();
    assert!([Code::OutOfRange, Code::ResourceExhausted].contains(&refused.code()), "{refused:?}");
    assert!(server.reports.all().is_empty());
}

#[tokio::test]
async fn oversized_headers_are_refused() {
    let server = Server::unix().await;
    server.feed.publish(Localized::default());
    let (mut requests, _connection) = http2(&server).await;
    let mut request = call("localnetv1.Endpoints/Next");
    for number in 0..40 {
        let name: http::HeaderName = format!("x-{number}").parse().unwrap();
        request.headers_mut().insert(name, "x".repeat(1000).parse().unwrap());
    }
    let (answer, _body) = requests.send_request(request, true).unwrap();
    match soon(answer).await {
        Ok(answer) => assert_eq!(answer.status(), 431),
        Err(error) => assert!(error.is_reset() || error.is_go_away(), "{error:?}"),
    }
}

/// Starts calls and resets them immediately ("rapid reset"), with or without a request message.
async fn abandon(mut requests: SendRequest<Bytes>, sends_request: bool) -> Result<(), h2::Error> {
    for _ in 0..100_000 {
        requests = requests.ready().await?;
        let (_answer, mut body) = requests.send_request(call("localnetv1.Endpoints/Next"), false)?;
        if sends_request {
            body.send_data(Bytes::from_static(b"\0\0\0\0\0"), false)?;
        }
        // Let the connection's task send the call. A call that was never sent is not reset either.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        body.send_reset(Reason::CANCEL);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rapid_resets_close_the_connection() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let mut reader = server.reader().await;
    assert_eq!(reader.read(Revision::default(), false).await.revision(), at(1));
    for sends_request in [false, true] {
        let (requests, connection) = http2(&server).await;
        let abandoning = tokio::spawn(abandon(requests, sends_request));
        // The server continues to serve other readers.
        while !abandoning.is_finished() {
            assert_eq!(reader.read(Revision::default(), false).await.revision(), at(1));
        }
        assert!(soon(abandoning).await.unwrap().is_err(), "the server did not close the connection: {sends_request}");
        _ = soon(connection).await.unwrap();
    }
    assert_eq!(server.reader().await.read(Revision::default(), false).await.revision(), at(1));
    server.shutdown().await;
}

#[tokio::test]
async fn connections_and_calls_of_a_peer_are_limited() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let mut peers = Vec::new();
    for _ in 0..OF_PEER {
        let mut peer = dial(&server).await;
        peer.write_all(HELLO).await.unwrap();
        // The server's SETTINGS show that it has admitted the connection.
        soon(peer.read_exact(&mut [0; 9])).await.unwrap();
        peers.push(peer);
    }
    for _ in 0..3 {
        soon(closed(dial(&server).await)).await;
    }
    drop(peers);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut peer = dial(&server).await;
        // This fails if the server closes the connection first.
        _ = peer.write_all(HELLO).await;
        if soon(peer.read_exact(&mut [0; 9])).await.is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "closed connections still count");
    }

    // Calls that wait for a state, on a few connections.
    let request = encode::next_filter(at(1), false).encode_to_vec();
    let message: Bytes = [&[0, 0, 0, 0, u8::try_from(request.len()).unwrap()], &request[..]].concat().into();
    let mut kept = Vec::new();
    for _ in 0..24 {
        let (mut requests, _) = http2(&server).await;
        let mut answers = Vec::new();
        for _ in 0..32 {
            requests = requests.ready().await.unwrap();
            let (answer, mut body) = requests.send_request(call("localnetv1.Endpoints/Next"), false).unwrap();
            body.send_data(message.clone(), true).unwrap();
            answers.push(answer);
        }
        for answer in answers {
            kept.push(soon(answer).await.unwrap());
        }
    }
    let mut reader = server.reader().await;
    let refused = soon(reader.0.next(localnet_proto::wire::NextFilter::default())).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    kept.truncate(100);
    let deadline = Instant::now() + Duration::from_secs(20);
    while soon(reader.0.next(localnet_proto::wire::NextFilter::default())).await.is_err() {
        assert!(Instant::now() < deadline, "ended calls still count");
        tokio::task::yield_now().await;
    }
    assert_eq!(Reader(reader.0).read(Revision::default(), false).await.revision(), at(1));
}

/// The peers are slow, disconnect early, or send malformed or oversized frames.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_among_a_thousand_hostile_peers_is_served() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let mut reader = server.reader().await;
    let mut state = reader.read(Revision::default(), false).await.revision();
    let mut kept = Vec::new();
    for number in 0_u16..1000 {
        let mut peer = dial(&server).await;
        let sent: &[u8] = match number % 5 {
            0 => b"",
            1 => &HELLO[..20],
            2 => b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            // A frame of 16 MiB.
            3 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\0\0\0\0\0\x01",
            _ => HELLO,
        };
        // This fails if the server has refused the connection.
        _ = peer.write_all(sent).await;
        if number % 2 == 0 {
            kept.push(peer);
        }
        if number % 20 == 0 {
            server.feed.publish(applied([service("a", number + 2, 0)]));
            let next = reader.read(state, true).await.revision();
            assert_eq!(next, at(state.rev + 1));
            state = next;
        }
    }
    drop(kept);
    server.shutdown().await;
}
