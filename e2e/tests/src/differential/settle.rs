//! Waits until a proxy has reached a state: what the brain serves, what the backend logs, and where packets go.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use localnet_client::{Snapshot, Source as _, grpc::Brain};
use localnet_lab::{Namespace, Outcome, Probe};
use localnet_proto::{Revision, Update};
use tokio::{runtime::Runtime, time::timeout};

use crate::patience;

/// Waits for a state of the brain that satisfies `is_right`.
pub(crate) fn await_state(
    brain: &mut Brain,
    runtime: &Runtime,
    is_right: impl Fn(&Snapshot) -> bool,
) -> anyhow::Result<Snapshot> {
    let newest = async {
        let mut have = Revision::default();
        loop {
            let Update::Full(state) = brain.next(have, false).await? else { continue };
            if is_right(&state) {
                return anyhow::Ok(state);
            }
            have = state.revision;
        }
    };
    let awaited = runtime.block_on(async { timeout(patience(), newest).await });
    awaited.map_err(anyhow::Error::from).flatten()
}

/// Whether a backend's log says that it has applied this state or a later one.
pub(crate) fn has_applied(log: &str, state: &Snapshot) -> bool {
    let Revision { instance, rev } = state.revision;
    // "applied revision=…", or "applied so far revision=…" if several states follow in quick succession.
    let lines = log.lines().rev().filter(|line| line.contains(" applied "));
    let revisions = lines.filter_map(|line| line.split_once(" revision=")?.1.split(' ').next());
    let mut numbers = revisions.filter_map(|revision| revision.split_once(':'));
    numbers.any(|(of, number)| of.parse() == Ok(instance) && number.parse().is_ok_and(|number: u64| number >= rev))
}

/// Waits until exactly these endpoints answer `connections` in a row.
pub(crate) fn await_answers(
    from: &Namespace,
    probe: Probe,
    connections: usize,
    endpoints: &BTreeSet<SocketAddr>,
    patience: Duration,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let (mut by, mut wrong) = (BTreeSet::new(), None);
        from.probe_until(probe, connections, |outcome| {
            match outcome {
                Outcome::Answer { by: endpoint, .. } if endpoints.contains(&endpoint) => {
                    by.insert(endpoint);
                }
                other => wrong = Some(other),
            }
            wrong.is_some()
        })?;
        if wrong.is_none() && by == *endpoints {
            return Ok(());
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "{} is not answered by {endpoints:?} but by {by:?} and {wrong:?}",
            probe.to
        );
        // Rejects come at once. Leave the processors to the proxies.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// The last lines of a log.
pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
