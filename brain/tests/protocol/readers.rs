//! Tests of readers that are slow, disconnect or have crashed.

use std::time::Duration;

use bytes::Bytes;
use localnet_brain::serve::Options;
use localnet_proto::{
    Revision, Update,
    wire::{NextItem, endpoints_client::EndpointsClient},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    task::yield_now,
    time,
};
use tonic::{Status, Streaming, transport::Endpoint};

use crate::server::{Reader, Server, applied, at, connect, removed, service, soon};

/// A state of this many Services exceeds the buffers between a server and a reader that does not read.
const SERVICES: usize = 500;
const SIZE: usize = 4000;

/// Publishes a state of two megabytes. Returns a part of it, whose reference count shows whether the state is still alive.
fn publish_much(server: &Server) -> Bytes {
    let many = (0..SERVICES).map(|number| service(&format!("s{number}"), 1, SIZE));
    server.feed.publish(applied(many.chain([service("watched", 1, 0)])));
    let mut items = server.feed.state().answer(Revision::default(), false).items;
    items.find(|item| item.windows(7).any(|part| part == b"watched")).unwrap()
}

/// A reader with small HTTP/2 windows.
async fn narrow_reader(server: &Server) -> Reader {
    let endpoint =
        Endpoint::from_static("http://brain").initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    Reader(EndpointsClient::new(soon(connect(server.address.clone(), endpoint)).await.unwrap()))
}

/// Reads an incomplete answer up to its error.
async fn failure(mut answer: Streaming<NextItem>) -> Status {
    loop {
        match answer.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("an incomplete state has ended with OK"),
            Err(error) => return error,
        }
    }
}

/// Waits until the server has dropped the state.
async fn dropped(state: &Bytes) {
    while !state.is_unique() {
        yield_now().await;
    }
}

#[tokio::test]
async fn a_slow_reader_delays_no_other_reader() {
    let server = Server::unix().await;
    publish_much(&server);
    let mut stuck = Vec::new();
    for _ in 0..8 {
        let mut reader = narrow_reader(&server).await;
        let mut answer = reader.request(Revision::default(), false).await;
        soon(answer.message()).await.unwrap();
        stuck.push((reader, answer));
    }

    let mut reader = server.reader().await;
    let mut state = match reader.read(Revision::default(), false).await {
        Update::Full(state) => state,
        delta @ Update::Delta { .. } => panic!("{delta:?}"),
    };
    for change in 2..=50 {
        server.feed.publish(applied([service("changing", change, 0)]));
        state.apply(reader.read(state.revision, true).await);
        assert_eq!(state.revision, at(change.into()));
    }
    assert_eq!(state, server.feed.state().snapshot().unwrap());

    // Nothing was queued for the stuck readers: they finish their answer, and then get only the newest state.
    for (mut reader, mut answer) in stuck {
        let mut items = 1;
        while soon(answer.message()).await.unwrap().is_some() {
            items += 1;
        }
        assert_eq!(items, SERVICES + 3);
        let next = reader.read(at(1), true).await;
        assert_eq!(next.revision(), at(50));
        assert!(matches!(next, Update::Delta { changes, .. } if changes.len() == 1));
    }
}

#[tokio::test]
async fn a_cancelled_stream_releases_its_state() {
    let server = Server::unix().await;
    let state = publish_much(&server);
    let mut reader = narrow_reader(&server).await;
    let mut answer = reader.request(Revision::default(), false).await;
    soon(answer.message()).await.unwrap();
    let waiting = reader.request(at(1), false).await;

    server.feed.publish(removed("watched"));
    assert!(!state.is_unique(), "the answer in progress keeps its state");
    drop((answer, waiting));
    soon(dropped(&state)).await;

    // The connection and the server continue.
    assert_eq!(reader.read(at(1), true).await.revision(), at(2));
    drop(reader);
    assert_eq!(server.reader().await.read(Revision::default(), false).await.revision(), at(2));
    server.shutdown().await;
}

#[tokio::test]
async fn a_disconnected_reader_releases_its_state() {
    let server = Server::unix().await;
    let state = publish_much(&server);
    let mut reader = narrow_reader(&server).await;
    let mut answer = reader.request(Revision::default(), false).await;
    soon(answer.message()).await.unwrap();
    server.feed.publish(removed("watched"));
    drop((answer, reader));
    soon(dropped(&state)).await;
}

#[tokio::test]
async fn a_stuck_reader_does_not_delay_a_shutdown() {
    let server = Server::unix().await;
    publish_much(&server);
    let mut reader = narrow_reader(&server).await;
    let mut answer = reader.request(Revision::default(), false).await;
    soon(answer.message()).await.unwrap();
    server.shutdown().await;
    soon(failure(answer)).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stays_stuck_loses_its_state() {
    let server = Server::unix().await;
    let state = publish_much(&server);
    let mut reader = narrow_reader(&server).await;
    let mut answer = reader.request(Revision::default(), false).await;
    answer.message().await.unwrap();
    server.feed.publish(removed("watched"));
    assert!(!state.is_unique());
    while !state.is_unique() {
        time::advance(Duration::from_secs(5)).await;
    }
    assert_eq!(failure(answer).await.code(), tonic::Code::Aborted);
    assert_eq!(reader.read(at(1), true).await.revision(), at(2));
}

/// A connection preface with empty SETTINGS, from a client that then stays silent.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_no_pings_is_disconnected() {
    let server = Server::unix_with(&Options::default()).await;
    let localnet_proto::Address::Unix(path) = &server.address else { panic!("not a unix socket: {}", server.address) };
    let mut peer = UnixStream::connect(path).await.unwrap();
    peer.write_all(HELLO).await.unwrap();
    let start = time::Instant::now();
    let mut received = Vec::new();
    peer.read_to_end(&mut received).await.unwrap();
    let silence = start.elapsed();
    assert!(Duration::from_secs(15) <= silence && silence <= Duration::from_secs(30), "{silence:?}");
}
