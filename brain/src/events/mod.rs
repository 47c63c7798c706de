//! Posts Kubernetes events with the reasons and actions of kube-proxy, so that existing alerts match them.
//!
//! A task posts the events one by one. While the API server is unavailable, the task retries, and further events wait in
//! a queue. If the queue is full, the brain logs further events instead of posting them.

mod warnings;

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use localnet_proto::ServiceKey;
use tokio::{sync::mpsc, task::JoinSet, time};
use tracing::{debug, warn};

use crate::{reports::Reports, watch::kube::ApiServer};

/// Maximum number of events that wait to be posted.
const QUEUE: usize = 64;
/// Pause between two attempts to post an event.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of attempts to post an event. Together, they take ten minutes.
const ATTEMPTS: u32 = 120;
/// Maximum length of an event's note, in bytes (the validation of events.k8s.io/v1).
const MAX_NOTE: usize = 1024;
/// Maximum length of an event's reason, in bytes.
const MAX_REASON: usize = 128;

/// An event about the node or one of its Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The program has started.
    Starting,
    /// A backend warns about its configuration. For example, the ipvs backend posts kube-proxy's `IPVSDeprecation`.
    BackendWarning {
        /// The reason, in CamelCase.
        reason: String,
        /// The problem and the remedy.
        note: String,
    },
    /// The brain cannot open the health check port of a Service.
    ServiceHealthcheckFailed {
        /// The Service with the health check port.
        service: ServiceKey,
        /// The health check port.
        port: u16,
        /// The cause.
        error: String,
    },
    /// The brain cannot serve metrics.
    MetricServerFailed {
        /// The cause.
        error: String,
    },
    /// The brain cannot serve `/healthz`.
    HealthcheckFailed {
        /// The cause.
        error: String,
    },
}

/// The queue of events to post. Clones share it. Without an API server there is no queue, and events are discarded.
#[derive(Clone, Debug, Default)]
pub struct Events {
    queue: Option<mpsc::Sender<NodeEvent>>,
}

impl Events {
    /// Starts a task in `work` that posts events to `api`.
    pub fn start(api: &ApiServer, node: &str, work: &mut JoinSet<anyhow::Result<()>>) -> Self {
        let (queue, mut waiting) = mpsc::channel::<NodeEvent>(QUEUE);
        let reporter = Reporter { controller: "localnet".to_owned(), instance: Some(format!("localnet-{node}")) };
        let (recorder, node) = (Recorder::new(api.client(), reporter), node.to_owned());
        work.spawn(async move {
            while let Some(event) = waiting.recv().await {
                publish(&recorder, &node, &event).await;
            }
            std::future::pending().await
        });
        Self { queue: Some(queue) }
    }

    /// Queues an event.
    pub fn post(&self, event: NodeEvent) {
        if let Some(queue) = &self.queue
            && let Err(error) = queue.try_send(event)
        {
            debug!(%error, "an event was dropped");
        }
    }

    /// Starts a task that posts each warning of the backends once. The task runs in `work`.
    pub fn post_warnings(&self, reports: &Reports, work: &mut JoinSet<anyhow::Result<()>>) {
        if self.queue.is_some() {
            let posting = warnings::post(self.clone(), reports.subscribe());
            work.spawn(async move {
                posting.await;
                Ok(())
            });
        }
    }
}

/// Posts one event, with retries.
async fn publish(recorder: &Recorder, node: &str, event: &NodeEvent) {
    let (event, about) = kube_event(node, event);
    for _ in 0..ATTEMPTS {
        match recorder.publish(&event, &about).await {
            Ok(()) => return,
            // A retry after a client error would fail again.
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                let note = event.note.as_deref().unwrap_or_default();
                warn!(
                    reason = event.reason, note, error = %status,
                    "the API server refused an event; allow this account to create and patch events of events.k8s.io"
                );
                return;
            }
            Err(error) => debug!(reason = event.reason, %error, "failed to post an event"),
        }
        time::sleep(RETRY_INTERVAL).await;
    }
}

/// The Kubernetes event and the object that it concerns.
fn kube_event(node: &str, event: &NodeEvent) -> (Event, ObjectReference) {
    // As in kube-proxy, the UID is the name.
    let of_node = ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    };
    let (type_, reason, action, note, about) = match event {
        NodeEvent::Starting => (EventType::Normal, "Starting", "StartKubeProxy", String::new(), of_node),
        NodeEvent::BackendWarning { reason, note } => {
            (EventType::Warning, shortened(reason, MAX_REASON), "StartKubeProxy", note.clone(), of_node)
        }
        NodeEvent::ServiceHealthcheckFailed { service, port, error } => (
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
        NodeEvent::HealthcheckFailed { error } => {
            (EventType::Warning, "FailedToStartProxierHealthcheck", "StartKubeProxy", error.clone(), of_node)
        }
        NodeEvent::MetricServerFailed { error } => {
            (EventType::Warning, "FailedToStartMetricServer", "StartKubeProxy", error.clone(), of_node)
        }
    };
    let note = Some(shortened(&note, MAX_NOTE).to_owned()).filter(|note| !note.is_empty());
    let event = Event { type_, reason: reason.to_owned(), action: action.to_owned(), note, secondary: None };
    (event, about)
}

/// The longest prefix of `text` that has at most `max` bytes.
fn shortened(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_actions_and_objects_match_kube_proxy() {
        let of = |event: NodeEvent| {
            let (event, about) = kube_event("node-a", &event);
            (event.reason, event.action, about.kind.unwrap_or_default(), about.name.unwrap_or_default())
        };
        let expected = |texts: [&str; 4]| {
            let [reason, action, kind, name] = texts.map(str::to_owned);
            (reason, action, kind, name)
        };
        assert_eq!(of(NodeEvent::Starting), expected(["Starting", "StartKubeProxy", "Node", "node-a"]));
        let warning = NodeEvent::BackendWarning { reason: "IPVSDeprecation".to_owned(), note: "é".repeat(1000) };
        assert_eq!(kube_event("node-a", &warning).0.note.map(|note| note.len()), Some(MAX_NOTE));
        assert_eq!(of(warning), expected(["IPVSDeprecation", "StartKubeProxy", "Node", "node-a"]));
        let failed = NodeEvent::ServiceHealthcheckFailed {
            service: ServiceKey::new("shop", "web"),
            port: 30_100,
            error: "x".repeat(2_000),
        };
        let (posted, _) = kube_event("node-a", &failed);
        assert!(
            posted.note.is_some_and(|note| note.chars().count() == MAX_NOTE && note.contains("shop/web on port 30100"))
        );
        assert_eq!(of(failed), expected(["FailedToStartServiceHealthcheck", "Listen", "Service", "web"]));
        let failed = NodeEvent::HealthcheckFailed { error: "taken".to_owned() };
        assert_eq!(of(failed), expected(["FailedToStartProxierHealthcheck", "StartKubeProxy", "Node", "node-a"]));
        let failed = NodeEvent::MetricServerFailed { error: "taken".to_owned() };
        assert_eq!(of(failed), expected(["FailedToStartMetricServer", "StartKubeProxy", "Node", "node-a"]));
    }
}
