//! Logs which Services were added, removed or changed, and how.
//!
//! If no change was logged in the last second, the journal logs a change immediately. It collects further changes for one
//! second, and then compares the newest state with the last state that it logged. A burst of changes therefore causes at
//! most 20 lines a second, and the journal decodes only the Services that it logs.

use std::time::Duration;

use localnet_proto::{Revision, ServiceKey, difference, node_difference};
use tokio::time::{Instant, sleep_until};

use crate::feed::{Encoded, Feed, State};

/// Minimum time between two comparisons.
const INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of Services that one comparison logs by name. The journal only counts the others.
const MAX_LINES: usize = 20;

/// Logs the changes of a feed. Never returns.
pub async fn run(feed: Feed) {
    let mut logged: Option<State> = None;
    loop {
        let revision = logged.as_ref().map_or_else(Revision::default, State::revision);
        let now = feed.differing(revision).await;
        let at = Instant::now();
        log(logged.as_ref(), &now);
        logged = Some(now);
        sleep_until(at + INTERVAL).await;
    }
}

fn log(before: Option<&State>, now: &State) {
    let revision = now.revision().rev;
    let Some(before) = before else {
        tracing::info!(revision, services = now.len(), endpoints = now.counts().endpoints, "first complete state");
        return;
    };
    if before.node() != now.node() {
        tracing::info!(revision, node = %now.node().name, change = node_difference(before.node(), now.node()), "Node changed");
    }
    let (changes, others) = changes(before, now);
    for Change { service, kind } in changes {
        match kind {
            Kind::Added { endpoints } => tracing::info!(revision, %service, endpoints, "Service added"),
            Kind::Removed => tracing::info!(revision, %service, "Service removed"),
            Kind::Changed(change) => tracing::info!(revision, %service, change, "Service changed"),
        }
    }
    if others > 0 {
        tracing::info!(revision, services = others, "more Services changed");
    }
}

/// The change of one Service.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    service: ServiceKey,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Added {
        endpoints: usize,
    },
    Removed,
    /// A description of the difference.
    Changed(String),
}

/// The first [`MAX_LINES`] Services, sorted by name, that differ between two states, and the number of the others.
fn changes(before: &State, now: &State) -> (Vec<Change>, usize) {
    let differing = now.differing(Some(before));
    let others = differing.len().saturating_sub(MAX_LINES);
    let named = differing.into_iter().take(MAX_LINES).filter_map(|(service, before, now)| {
        let kind = match (before.as_ref().and_then(Encoded::service), now.as_ref().and_then(Encoded::service)) {
            (None, Some(now)) => Kind::Added { endpoints: now.endpoints.len() },
            (Some(_), None) => Kind::Removed,
            (Some(before), Some(now)) => Kind::Changed(difference(&before, &now)),
            (None, None) => return None,
        };
        Some(Change { service, kind })
    });
    (named.collect(), others)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use localnet_proto::{Port, Service};

    use super::*;
    use localnet_cluster::localize::Localized;

    fn web(name: &str, port: u16) -> Arc<Service> {
        let mut service = Service::new(ServiceKey::new("shop", name), vec!["10.96.0.1".parse().unwrap()]);
        service.ports.push(Port { name: "http".into(), port, ..Port::default() });
        service.into()
    }

    fn publish(feed: &Feed, services: impl IntoIterator<Item = (String, Option<u16>)>) -> State {
        let services = services
            .into_iter()
            .map(|(name, port)| (ServiceKey::new("shop", name.as_str()), port.map(|port| web(&name, port))));
        feed.publish(Localized { services: services.collect(), ..Localized::default() });
        feed.state()
    }

    #[test]
    fn changes_over_several_revisions_are_joined() {
        let feed = Feed::new(7);
        let one = |name: &str, port: Option<u16>| [(name.to_owned(), port)];
        publish(&feed, one("a", Some(80)));
        let before = publish(&feed, one("b", Some(80)));
        publish(&feed, one("a", None));
        publish(&feed, one("b", Some(81)));
        publish(&feed, one("d", Some(80)));
        publish(&feed, one("d", None));
        let now = publish(&feed, one("c", Some(80)));
        let of = |name: &str, kind| Change { service: ServiceKey::new("shop", name), kind };
        let expected = vec![
            of("a", Kind::Removed),
            of("b", Kind::Changed("ports: http TCP 80 -> http TCP 81".to_owned())),
            of("c", Kind::Added { endpoints: 0 }),
        ];
        assert_eq!(changes(&before, &now), (expected, 0));
    }

    #[test]
    fn a_burst_names_some_services_and_counts_the_others() {
        let feed = Feed::new(7);
        let before = publish(&feed, []);
        let now = publish(&feed, (0..1000).map(|number| (format!("s{number}"), Some(80))));
        let (named, others) = changes(&before, &now);
        assert_eq!((named.len(), others), (MAX_LINES, 1000 - MAX_LINES));
    }
}
