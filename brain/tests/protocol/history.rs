//! Tests of `History.Read`.

use localnet_proto::{
    history::{Entry, HistoryRequest, entry::Event, history_client::HistoryClient},
    wire::{BackendReport, FamilyReport, backends_client::BackendsClient},
};
use tonic::Code;

use crate::server::{INSTANCE, Server, applied, service, soon};

fn in_words(entry: &Entry) -> String {
    match entry.event.as_ref().unwrap() {
        Event::Start(start) => format!("start {}", start.instance_id),
        Event::Change(change) => format!("revision {}, {} patches", change.rev, change.patches.len()),
        Event::Progress(progress) => {
            let family = &progress.families[0];
            format!("{} {} {:?}", progress.backend, family.applied_rev, family.error)
        }
        Event::Problem(problem) => problem.of.clone(),
        Event::State(state) => format!("state in {} items", state.items.len()),
        Event::Drain(drain) => format!("{} open connections to {}", drain.open, drain.endpoint),
    }
}

#[tokio::test]
async fn the_history_contains_changes_and_progress_in_their_order() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("a", 80, 10)]));
    server.feed.publish(applied([service("b", 80, 10), service("c", 80, 10)]));
    let mut backends = BackendsClient::new(server.channel().await);
    for (applied_rev, error) in [(1, "no"), (1, "no"), (2, "")] {
        let family = FamilyReport { family: 1, applied_rev, error: error.to_owned(), ..FamilyReport::default() };
        let report = BackendReport {
            backend: "nft".to_owned(),
            instance_id: INSTANCE,
            families: vec![family],
            ..BackendReport::default()
        };
        soon(backends.report(report)).await.unwrap();
    }
    let mut client = HistoryClient::new(server.channel().await);
    let mut stream = soon(client.read(HistoryRequest::default())).await.unwrap().into_inner();
    let mut entries = Vec::new();
    while let Some(entry) = soon(stream.message()).await.unwrap() {
        entries.push(in_words(&entry));
    }
    let start = format!("start {INSTANCE}");
    let expected = [&*start, "revision 1, 0 patches", "revision 2, 2 patches", "nft 1 \"no\"", "nft 2 \"\""];
    assert_eq!(entries, expected);
    server.shutdown().await;
}

#[tokio::test]
async fn few_clients_can_read_the_history_at_the_same_time() {
    let server = Server::unix().await;
    // An answer that exceeds the flow control window lasts until the client reads it.
    for port in 1..1000 {
        server.feed.publish(applied([service("a", port, 1000)]));
    }
    let mut client = HistoryClient::new(server.channel().await);
    let mut open = Vec::new();
    let refused = loop {
        match soon(client.read(HistoryRequest::default())).await {
            Ok(answer) => open.push(answer.into_inner()),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused.code(), open.len()), (Code::ResourceExhausted, 4));
    server.shutdown().await;
}

#[tokio::test]
async fn a_follower_gets_each_later_entry_until_the_brain_ends() {
    let server = Server::unix().await;
    server.feed.publish(applied([service("a", 80, 10)]));
    let mut client = HistoryClient::new(server.channel().await);
    let mut stream = soon(client.read(HistoryRequest { follow: true })).await.unwrap().into_inner();
    // Many more changes than fit into a block.
    for port in 1..3000 {
        server.feed.publish(applied([service("b", port, 10)]));
        if port % 1000 == 0 {
            for port in port - 999..=port {
                let entry = soon(stream.message()).await.unwrap().unwrap();
                assert_eq!(in_words(&entry), format!("revision {}, 1 patches", port + 1));
            }
        }
    }
    server.begin_shutdown();
    while soon(stream.message()).await.unwrap().is_some() {}
    server.shutdown().await;
}
