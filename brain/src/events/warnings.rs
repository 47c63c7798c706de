//! What backends warn of, told as events of the Node: operators look there, and not into the logs of every node.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;

use super::{Events, Happened};
use crate::serve::Received;

/// As many different warnings are told: backends have a handful.
const MOST: usize = 64;

/// Tells each warning when it appears, and again when it was gone. Ends with the reports.
pub(super) async fn tell(events: Events, mut reported: watch::Receiver<BTreeMap<String, Received>>) {
    let mut told = BTreeSet::new();
    loop {
        let all = warnings(&reported.borrow_and_update());
        for (backend, reason, note) in all.difference(&told).cloned() {
            events.tell(Happened::BackendWarning { backend, reason, note });
        }
        told = all;
        if reported.changed().await.is_err() {
            return;
        }
    }
}

/// Who warns, the reason, and what of.
fn warnings(reports: &BTreeMap<String, Received>) -> BTreeSet<(String, String, String)> {
    let of = |(backend, received): (&String, &Received)| {
        let warnings = received.report.warnings.iter().filter(|warning| !warning.reason.is_empty());
        warnings.map(|warning| (backend.clone(), warning.reason.clone(), warning.note.clone())).collect::<Vec<_>>()
    };
    reports.iter().flat_map(of).take(MOST).collect()
}
