//! Tests of `Next`: what it answers, and when.

use futures::FutureExt as _;
use localnet_brain::serve::Options;
use localnet_cluster::localize::Localized;
use localnet_proto::{Change, Revision, ServiceKey, Snapshot, Update, encode, wire::endpoints_client::EndpointsClient};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::server::{INSTANCE, Reader, Server, applied, assemble, at, node, removed, service, soon};

fn revision_of(update: &Update) -> (Revision, bool) {
    (update.revision(), matches!(update, Update::Delta { .. }))
}

async fn long_poll(server: Server) {
    server.feed.publish(applied([service("a", 1, 0)]));
    let mut reader = server.reader().await;
    let first = reader.read(Revision::default(), false).await;
    assert_eq!(first, Update::Full(server.feed.state().snapshot().unwrap()));
    assert_eq!(first.revision(), at(1));

    let mut waiting = reader.request(at(1), false).await;
    assert!(waiting.message().now_or_never().is_none(), "nothing has changed");
    server.feed.publish(applied([service("b", 2, 0)]));
    let second = soon(assemble(waiting)).await.unwrap();
    assert_eq!(second, Update::Full(server.feed.state().snapshot().unwrap()));
    assert_eq!(second.revision(), at(2));
    server.shutdown().await;
}

#[tokio::test]
async fn the_long_poll_waits_for_a_change_over_a_unix_socket() {
    long_poll(Server::unix().await).await;
}

#[tokio::test]
async fn the_long_poll_waits_for_a_change_over_tcp() {
    long_poll(Server::tcp(&Options::default()).await).await;
}

#[tokio::test]
async fn nothing_is_sent_before_the_first_complete_state() {
    let server = Server::unix().await;
    let channel = server.channel().await;
    let mut reader = Reader(EndpointsClient::new(channel.clone()));
    let mut answers = Vec::new();
    for (held, delta) in
        [(Revision::default(), false), (at(0), true), (at(5), false), (Revision { instance: 1, rev: 1 }, true)]
    {
        answers.push(reader.request(held, delta).await);
    }
    // After a round trip over the same connection, the server has received the earlier calls.
    soon(HealthClient::new(channel).check(HealthCheckRequest::default())).await.unwrap();
    for answer in &mut answers {
        assert!(answer.message().now_or_never().is_none());
    }
    server.feed.publish(node("node-a"));
    for answer in answers {
        assert_eq!(revision_of(&soon(assemble(answer)).await.unwrap()), (at(1), false));
    }
}

#[tokio::test]
async fn an_empty_cluster_is_a_state() {
    let server = Server::unix().await;
    server.feed.publish(Localized::default());
    let mut answer = server.reader().await.request(Revision::default(), false).await;
    let mut items = Vec::new();
    while let Some(item) = soon(answer.message()).await.unwrap() {
        items.push(item);
    }
    assert_eq!(items[0], encode::next_item(at(1), false));
    assert!(items[1].node.is_some());
    assert_eq!(items.len(), 2);
}

#[tokio::test]
async fn an_unknown_revision_is_answered_immediately_with_the_full_state() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    server.feed.publish(applied([service("b", 2, 0)]));
    let mut reader = server.reader().await;
    let full = Update::Full(server.feed.state().snapshot().unwrap());
    let unknown = [
        Revision::default(),
        Revision { instance: INSTANCE + 1, rev: 1 },
        Revision { instance: INSTANCE + 1, rev: 2 },
        Revision { instance: 0, rev: 2 },
        at(3),
        at(u64::MAX),
    ];
    for held in unknown {
        for delta in [false, true] {
            assert_eq!(reader.read(held, delta).await, full, "{held} {delta}");
        }
    }
}

#[tokio::test]
async fn a_new_connection_resumes_from_a_revision_of_an_earlier_one() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("a", 1, 0)]));
    let held = server.reader().await.read(Revision::default(), false).await.revision();
    let mut resumed = server.reader().await.request(held, true).await;
    assert!(resumed.message().now_or_never().is_none());
    server.feed.publish(removed("a"));
    let update = soon(assemble(resumed)).await.unwrap();
    assert_eq!(
        update,
        Update::Delta { revision: at(2), changes: vec![Change::Removed(ServiceKey::new("default", "a"))] }
    );
}

#[tokio::test]
async fn a_reader_may_mix_deltas_and_full_states() {
    let server = Server::unix().await;
    let mut reader = server.reader().await;
    let mut states = Vec::new();
    let mut folded = Snapshot::default();
    let steps = [
        applied([service("a", 1, 0), service("b", 1, 0)]),
        applied([service("c", 1, 0)]),
        removed("a"),
        node("node-b"),
        applied([service("a", 2, 0), service("b", 2, 0)]),
        removed("c"),
    ];
    for (step, localized) in steps.into_iter().enumerate() {
        server.feed.publish(localized);
        let delta = step % 3 != 2;
        let update = reader.read(folded.revision, delta).await;
        assert_eq!(revision_of(&update), (at(step as u64 + 1), delta && step > 0));
        folded.apply(update);
        assert_eq!(folded, server.feed.state().snapshot().unwrap());
        states.push(folded.clone());
    }
    // A delta leads from any earlier state to the newest one.
    for mut state in states {
        if state.revision == folded.revision {
            continue;
        }
        let update = reader.read(state.revision, true).await;
        state.apply(update);
        assert_eq!(state, folded);
    }
}

#[tokio::test]
async fn a_shutdown_ends_waiting_calls_with_unavailable() {
    let server = Server::unix().await;
    let mut before = server.reader().await.request(Revision::default(), false).await;
    server.feed.publish(applied([service("a", 1, 0)]));
    soon(before.message()).await.unwrap();
    let waiting = server.reader().await.request(at(1), false).await;
    server.begin_shutdown();
    let error = soon(assemble(waiting)).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable);
    server.shutdown().await;
}

#[tokio::test]
async fn a_shutdown_waits_for_answers_in_progress() {
    let server = Server::unix().await;
    server.feed.publish(applied((0..2000).map(|number| service(&format!("s{number}"), 1, 1000))));
    let mut answer = server.reader().await.request(Revision::default(), false).await;
    let first = soon(answer.message()).await.unwrap().unwrap();
    assert_eq!(first, encode::next_item(at(1), false));
    server.begin_shutdown();
    let mut items = 1;
    while soon(answer.message()).await.unwrap().is_some() {
        items += 1;
    }
    assert_eq!(items, 2 + 2000);
    server.shutdown().await;
}
