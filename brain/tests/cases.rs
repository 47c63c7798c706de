//! Compares the state that the brain makes of each Case in `e2e/cases` with the expected one.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{collections::BTreeMap, path::Path, sync::Arc};

use localnet_brain::{
    feed::{Feed, Selection},
    watch::file,
};
use localnet_cluster::{Cluster, Options, localize::Localized};
use localnet_core::Severity;
use localnet_lab::{cases, expect_file};
use localnet_proto::{
    Snapshot,
    v1::{Answer, Metadata, PUBLISHED, Reader, wire::NextStateResponse},
};
use prost::Message as _;
use serde::Serialize;
use serde_json::Value;
use serde_saphyr::{FlowMap, FlowSeq};

/// The state of a node, from the cluster in a file.
fn snapshot(cluster_yaml: &Path, node_name: &str) -> (Snapshot, Localized) {
    let loaded = file::load(cluster_yaml).unwrap_or_else(|problems| panic!("{}", problems[0]));
    let mut cluster = Cluster::new(Options::of_node(node_name));
    for event in loaded.events {
        cluster.handle(event);
    }
    let localized = cluster.localize().expect("files are complete lists");
    let services = localized.services.iter().filter_map(|(key, service)| Some((key.clone(), service.clone()?)));
    let services: BTreeMap<_, _> = services.collect();
    let node = localized.node.clone().expect("the first state has the node");
    (Snapshot { node, services, ..Snapshot::default() }, localized)
}

/// The diagnostics, as comments to write above the state.
fn skipped(localized: &Localized) -> String {
    localized.skipped.iter().fold(String::new(), |mut text, (_, skipped)| {
        let what = if skipped.severity == Severity::Error { "skipped" } else { "suspicious" };
        text.push_str(&format!("# {what}: {}: {}: {}\n", skipped.subject, skipped.field, skipped.problem));
        text
    })
}

/// The state as YAML: a line for the node, for each field of a Service, and for each of its ports and endpoints.
fn yaml(snapshot: &Snapshot) -> String {
    let mut text = format!("node: {}", in_line(&FlowMap(&snapshot.node)));
    text.push_str(if snapshot.services.is_empty() { "services: []\n" } else { "services:\n" });
    for service in snapshot.services.values() {
        text.push_str(&format!("- service: {}\n  type: {}\n", service.key, service.kind));
        let fields: BTreeMap<String, Value> = serde_json::from_value(serde_json::to_value(service).unwrap()).unwrap();
        for (name, value) in fields {
            match (name.as_str(), &value) {
                ("service" | "type" | "ports" | "endpoints", _) => {}
                (_, Value::Array(list)) => text.push_str(&format!("  {name}: {}", in_line(&FlowSeq(list)))),
                (_, scalar) => text.push_str(&format!("  {name}: {}", in_line(scalar))),
            }
        }
        text.push_str("  ports:\n");
        service.ports.iter().for_each(|port| text.push_str(&format!("  - {}", in_line(&FlowMap(port)))));
        text.push_str(if service.endpoints.is_empty() { "" } else { "  endpoints:\n" });
        service.endpoints.iter().for_each(|endpoint| text.push_str(&format!("  - {}", in_line(&FlowMap(endpoint)))));
    }
    text
}

/// The states that readers of `localnetv1` and of the draft `localnet.v1` decode.
fn read(localized: Localized) -> [Snapshot; 2] {
    let feed = Feed::with_records(7, Arc::default());
    feed.publish(localized);
    let state = feed.state();
    let metadata = PUBLISHED.map(|key| (Metadata::Annotation, key.into())).into();
    let selection = Selection { observes: true, metadata, ..Selection::default() };
    let (mut reader, mut answer) = (Reader::default(), Answer::default());
    for message in state.messages(None, selection, Default::default()).unwrap() {
        answer.push(NextStateResponse::decode(message).unwrap());
    }
    let mut draft = Snapshot::default();
    draft.apply(reader.accept(answer).unwrap().unwrap());
    [state.snapshot().unwrap(), draft].map(|state| Snapshot { revision: Default::default(), ..state })
}

/// The value as a line of YAML.
fn in_line(value: &impl Serialize) -> String {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let mut line = String::new();
    serde_saphyr::to_fmt_writer_with_options(&mut line, value, options).unwrap();
    line
}

#[test]
fn every_case_has_its_state() {
    let cases = cases();
    assert!(cases.len() >= 12, "there are only {} Cases", cases.len());
    let mut wrong = Vec::new();
    let of_both_nodes = cases.into_iter().flat_map(|case| [case.on_other_node(), Some(case)]).flatten();
    for case in of_both_nodes {
        let (snapshot, localized) = snapshot(&case.cluster(), &case.flows.node.name);
        let text = skipped(&localized) + &yaml(&snapshot);
        for yaml in [&text, &serde_saphyr::to_string(&snapshot).unwrap()] {
            let read: Snapshot = serde_saphyr::from_str(yaml).unwrap();
            assert_eq!(read, snapshot, "{}: the YAML of a state parses to the same state", case.name);
        }
        for state in read(localized) {
            assert_eq!(state, snapshot, "{}: readers decode the same state", case.name);
        }
        // The test fails after all Cases have been compared.
        let check = || expect_file(&case.state(), &text);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err() {
            wrong.push(case.name);
        }
    }
    assert!(wrong.is_empty(), "the states of these Cases differ: {wrong:?}");
}
