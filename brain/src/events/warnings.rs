//! Posts the backends' warnings as events of the Node, because operators read events before the logs of a node.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;

use super::{Events, NodeEvent};
use crate::reports::Received;

/// Maximum number of different warnings. Backends have a handful.
const MAX_WARNINGS: usize = 64;

/// Posts each warning when it appears. If a warning disappears and returns, posts it again. Ends when the sender of the
/// reports is dropped.
pub(super) async fn post(events: Events, mut reported: watch::Receiver<BTreeMap<String, Received>>) {
    let mut posted = BTreeSet::new();
    loop {
        let all = warnings(&reported.borrow_and_update());
        for (_, reason, note) in all.difference(&posted).cloned() {
            events.post(NodeEvent::BackendWarning { reason, note });
        }
        posted = all;
        if reported.changed().await.is_err() {
            return;
        }
    }
}

/// All current warnings: backend, reason and note.
fn warnings(reports: &BTreeMap<String, Received>) -> BTreeSet<(String, String, String)> {
    let of = |(backend, received): (&String, &Received)| {
        let warnings = received.report.warnings.iter().filter(|warning| !warning.reason.is_empty());
        warnings.map(|warning| (backend.clone(), warning.reason.clone(), warning.note.clone())).collect::<Vec<_>>()
    };
    reports.iter().flat_map(of).take(MAX_WARNINGS).collect()
}
