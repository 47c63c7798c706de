//! Events of Kubernetes, as kube-proxy posts them: by the same reasons and actions, so that what looks for them finds them.
//!
//! They are posted one after the other, beside everything else. An API server that is away is waited for; what comes meanwhile
//! queues up, and what is more than the queue holds is only in the log.

mod warnings;

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use localnet_proto::ServiceKey;
use tokio::{sync::mpsc, task::JoinSet, time};
use tracing::{debug, warn};

use crate::{serve::Reports, watch::kube::ApiServer};

/// Events that wait to be posted.
const QUEUE: usize = 64;
/// An API server that is away is asked again after this.
const AGAIN: Duration = Duration::from_secs(5);
/// So often; then the next one's turn comes. It is ten minutes.
const ATTEMPTS: u32 = 120;
/// The most that an event may say, and that it may name as its reason, in bytes: the API server takes no more.
const MAX_NOTE: usize = 1024;
const MAX_REASON: usize = 128;

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The program has started.
    Starting,
    /// A backend warns of how it is run; the one for ipvs does so by kube-proxy's `IPVSDeprecation`.
    BackendWarning {
        /// The backend's name.
        backend: String,
        /// One word for programs.
        reason: String,
        /// What of, and the remedy.
        note: String,
    },
    /// A port for health checks of a Service cannot be opened.
    ServiceHealthcheckFailed {
        /// The Service.
        service: ServiceKey,
        /// The port.
        port: u16,
        /// Why.
        error: String,
    },
    /// Metrics cannot be told.
    MetricServerFailed {
        /// Why.
        error: String,
    },
    /// `/healthz` cannot be answered.
    HealthcheckFailed {
        /// Why.
        error: String,
    },
}

/// Posts events about a node. Clones post to the same queue.
#[derive(Clone, Debug, Default)]
pub struct Events {
    queue: Option<mpsc::Sender<Happened>>,
}

impl Events {
    /// Posts to an API server, in a task of `work`.
    pub fn start(api: &ApiServer, node: &str, work: &mut JoinSet<anyhow::Result<()>>) -> Self {
        let (queue, mut waiting) = mpsc::channel::<Happened>(QUEUE);
        let reporter = Reporter { controller: "localnet".to_owned(), instance: Some(format!("localnet-{node}")) };
        let (recorder, node) = (Recorder::new(api.client(), reporter), node.to_owned());
        work.spawn(async move {
            while let Some(happened) = waiting.recv().await {
                post(&recorder, &node, &happened).await;
            }
            std::future::pending().await
        });
        Self { queue: Some(queue) }
    }

    /// This has happened. Without an API server nobody is told.
    pub fn tell(&self, happened: Happened) {
        if let Some(queue) = &self.queue
            && let Err(error) = queue.try_send(happened)
        {
            debug!(%error, "an event is not posted");
        }
    }

    /// Tells what backends warn of, each warning once, in a task of `work`.
    pub fn tell_warnings(&self, reports: &Reports, work: &mut JoinSet<anyhow::Result<()>>) {
        if self.queue.is_some() {
            let telling = warnings::tell(self.clone(), reports.subscribe());
            work.spawn(async move {
                telling.await;
                Ok(())
            });
        }
    }
}

async fn post(recorder: &Recorder, node: &str, happened: &Happened) {
    let (event, about) = event(node, happened);
    for _ in 0..ATTEMPTS {
        match recorder.publish(&event, &about).await {
            Ok(()) => return,
            // It was understood and refused: asking again changes nothing.
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                let note = event.note.as_deref().unwrap_or_default();
                warn!(
                    reason = event.reason, note, error = %status,
                    "the API server refused an event: may this account create and patch events of events.k8s.io?"
                );
                return;
            }
            Err(error) => debug!(reason = event.reason, %error, "an event could not be posted"),
        }
        time::sleep(AGAIN).await;
    }
}

/// The event, and what it is about.
fn event(node: &str, happened: &Happened) -> (Event, ObjectReference) {
    // kube-proxy names the Node so, its uid included.
    let of_node = ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    };
    let (type_, reason, action, note, about) = match happened {
        Happened::Starting => (EventType::Normal, "Starting", "StartKubeProxy", String::new(), of_node),
        Happened::BackendWarning { reason, note, .. } => {
            (EventType::Warning, shortened(reason, MAX_REASON), "StartKubeProxy", note.clone(), of_node)
        }
        Happened::ServiceHealthcheckFailed { service, port, error } => (
            EventType::Warning,
            "FailedToStartServiceHealthcheck",
            "Listen",
            format!("node {node} failed to start healthcheck {service} on port {port}: {error}"),
            ObjectReference {
                kind: Some("Service".to_owned()),
                namespace: Some(service.namespace.to_string()),
                name: Some(service.name.to_string()),
                uid: Some(service.to_string()),
                ..ObjectReference::default()
            },
        ),
        Happened::HealthcheckFailed { error } => {
            (EventType::Warning, "FailedToStartProxierHealthcheck", "StartKubeProxy", error.clone(), of_node)
        }
        Happened::MetricServerFailed { error } => {
            (EventType::Warning, "FailedToStartMetricServer", "StartKubeProxy", error.clone(), of_node)
        }
    };
    let note = Some(shortened(&note, MAX_NOTE).to_owned()).filter(|note| !note.is_empty());
    let event = Event { type_, reason: reason.to_owned(), action: action.to_owned(), note, secondary: None };
    (event, about)
}

/// At most so many bytes.
fn shortened(text: &str, longest: usize) -> &str {
    let end = (0..=longest.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_those_of_kube_proxy() {
        let of = |happened: Happened| {
            let (event, about) = event("node-a", &happened);
            (event.reason, event.action, about.kind.unwrap_or_default(), about.name.unwrap_or_default())
        };
        let expected = |texts: [&str; 4]| {
            let [reason, action, kind, name] = texts.map(str::to_owned);
            (reason, action, kind, name)
        };
        assert_eq!(of(Happened::Starting), expected(["Starting", "StartKubeProxy", "Node", "node-a"]));
        let warning = Happened::BackendWarning {
            backend: "ipvs".to_owned(),
            reason: "IPVSDeprecation".to_owned(),
            note: "é".repeat(1000),
        };
        assert_eq!(event("node-a", &warning).0.note.map(|note| note.len()), Some(MAX_NOTE));
        assert_eq!(of(warning), expected(["IPVSDeprecation", "StartKubeProxy", "Node", "node-a"]));
        let failed = Happened::ServiceHealthcheckFailed {
            service: ServiceKey::new("shop", "web"),
            port: 30_100,
            error: "x".repeat(2_000),
        };
        let (said, _) = event("node-a", &failed);
        assert!(
            said.note.is_some_and(|note| note.chars().count() == MAX_NOTE && note.contains("shop/web on port 30100"))
        );
        assert_eq!(of(failed), expected(["FailedToStartServiceHealthcheck", "Listen", "Service", "web"]));
        let failed = Happened::HealthcheckFailed { error: "taken".to_owned() };
        assert_eq!(of(failed), expected(["FailedToStartProxierHealthcheck", "StartKubeProxy", "Node", "node-a"]));
        let failed = Happened::MetricServerFailed { error: "taken".to_owned() };
        assert_eq!(of(failed), expected(["FailedToStartMetricServer", "StartKubeProxy", "Node", "node-a"]));
    }
}
