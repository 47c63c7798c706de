//! What backends warn of, as Events of the Node: operators look there, and not into the logs of every node.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::{sync::watch, time};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::ApiServer;
use crate::serve::Reports;

/// After this an Event that could not be published is tried again.
const AGAIN: Duration = Duration::from_secs(30);
/// As many different warnings are published: backends have a handful.
const MOST: usize = 64;
/// What the API server takes, in bytes.
const LONGEST_REASON: usize = 128;
const LONGEST_NOTE: usize = 1024;
/// What all these Events are about.
const ACTION: &str = "StartBackend";

/// Who warns, the reason, and what of.
type Warning = (String, String, String);

/// Publishes each warning once, until `cancel`. While the API server is away, or says no, it waits.
pub async fn run(api: ApiServer, node_name: String, reports: Reports, cancel: CancellationToken) {
    let publish = publish_all(api, node_name, reports);
    cancel.run_until_cancelled(publish).await;
}

async fn publish_all(api: ApiServer, node_name: String, reports: Reports) {
    let client = api.client(watch::Sender::default());
    let recorder =
        Recorder::new(client, Reporter { controller: "localnet-brain".to_owned(), instance: Some(node_name.clone()) });
    // As the kubelet and kube-proxy name a Node in Events: by its name as its uid.
    let node = ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(node_name.clone()),
        uid: Some(node_name),
        ..ObjectReference::default()
    };
    let mut reported = reports.subscribe();
    let mut published: BTreeSet<Warning> = BTreeSet::new();
    let mut failing = false;
    loop {
        let all = warnings(&reported.borrow_and_update());
        // What is over may come again, and is news then.
        published.retain(|warning| all.contains(warning));
        let mut left = false;
        for warning in all.into_iter().take(MOST) {
            if published.contains(&warning) {
                continue;
            }
            let (backend, reason, note) = &warning;
            let event = Event {
                type_: EventType::Warning,
                reason: reason.clone(),
                note: Some(note.clone()),
                action: ACTION.to_owned(),
                secondary: None,
            };
            match recorder.publish(&event, &node).await {
                Ok(()) => {
                    info!(backend, reason, "published a backend's warning as an Event of the Node");
                    failing = false;
                    published.insert(warning);
                }
                Err(error) => {
                    left = true;
                    if std::mem::replace(&mut failing, true) {
                        debug!(%error, backend, reason, "still no Event");
                    } else {
                        warn!(
                            %error, backend, reason,
                            "a backend's warning is not published as an Event, will be tried again: may this account create \
                             events of events.k8s.io?"
                        );
                    }
                }
            }
        }
        if left {
            time::sleep(AGAIN).await;
        } else if reported.changed().await.is_err() {
            return;
        }
    }
}

fn warnings(reports: &std::collections::BTreeMap<String, crate::serve::Received>) -> BTreeSet<Warning> {
    let of = |(backend, received): (&String, &crate::serve::Received)| {
        let warnings = received.report.warnings.iter().filter(|warning| !warning.reason.is_empty());
        let cut = warnings
            .map(|warning| (shortened(&warning.reason, LONGEST_REASON), shortened(&warning.note, LONGEST_NOTE)));
        cut.map(|(reason, note)| (backend.clone(), reason, note)).collect::<Vec<_>>()
    };
    reports.iter().flat_map(of).collect()
}

/// At most so many bytes.
fn shortened(text: &str, longest: usize) -> String {
    let end = (0..=longest.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned()
}
