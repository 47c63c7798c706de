//! What kube-proxy tells of itself at `metricsBindAddress`, on the same paths and with the same status, headers and form (of
//! v1.36).
//!
//! | path | |
//! |---|---|
//! | `/metrics` | [`crate::metrics`] |
//! | `/metrics/slis` | how often `/healthz` was asked here, and that it was well |
//! | `/healthz` | `ok`: the process answers. Whether the node is well is told at `healthzBindAddress` |
//! | `/proxyMode` | what programs the node: the backend that reports, and else the configured mode |
//! | `/configz` | the configuration in use, as v1alpha1 |
//! | `/statusz`, `/flagz` | for people |
//! | `/debug/pprof/…` | `profile`, with `enableProfiling` |

mod profile;

use std::{
    fmt::Write as _,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime},
};

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use localnet_config::Config;
use localnet_config_file::Current;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    feed::Feed,
    health::{
        answer::{self, Answer},
        crashed,
        port::{self, Port, Retry},
    },
    metrics,
    serve::Reports,
};

/// The group of the configuration, as `/configz` names it.
const GROUP: &str = "kubeproxy.config.k8s.io";
const TEXT: &str = "text/plain; charset=utf-8";
const PATHS: [&str; 7] = ["/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis", "/proxyMode", "/statusz"];
/// Where profiles are, if `enableProfiling` says so.
const PROFILING: &str = "/debug/pprof";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";

/// The server at work. Dropping it closes its port.
#[derive(Debug)]
pub struct Server {
    work: JoinSet<()>,
    status: watch::Receiver<port::Status>,
}

impl Server {
    /// Whether the port is open.
    pub fn status(&self) -> watch::Receiver<port::Status> {
        self.status.clone()
    }

    /// Resolves when the server has crashed. Cancel-safe.
    pub async fn failed(&mut self) -> anyhow::Error {
        crashed(&mut self.work).await
    }

    /// Closes the port, and returns when it is closed.
    pub async fn stop(mut self) {
        self.work.shutdown().await;
    }
}

/// Whether there can be an answer at that address.
///
/// # Errors
/// The port is taken, or the address is not the node's.
pub fn check(address: SocketAddr) -> anyhow::Result<()> {
    let listened = port::listen(&Port { service: None, address }).map(drop);
    listened.with_context(|| {
        format!("failed to listen for metrics on {address}; free the port, choose another, or set bindAddressHardFail: false")
    })
}

/// Starts the server. Must be called in a tokio runtime.
pub fn start(address: SocketAddr, current: Current, feed: &Feed, reports: &Reports) -> Server {
    let told =
        Told { current, feed: feed.clone(), reports: reports.clone(), asked: AtomicU64::new(0), since: Instant::now() };
    let mut work = JoinSet::new();
    let (status, seen) = watch::channel(port::Status::new());
    let answers = Arc::new(move |asked: &http::Uri| told.answering(asked));
    work.spawn(port::keep(Port { service: None, address }, answers, Retry::Steady, status, "metrics"));
    Server { work, status: seen }
}

/// What is told.
#[derive(Debug)]
struct Told {
    current: Current,
    feed: Feed,
    reports: Reports,
    /// How often `/healthz` was.
    asked: AtomicU64,
    since: Instant,
}

impl Told {
    fn answering(&self, asked: &http::Uri) -> port::Answering {
        match asked.path().strip_prefix(PROFILING) {
            Some(path) if self.current.now().enable_profiling && (path.is_empty() || path.starts_with('/')) => {
                let (path, query) = (path.to_owned(), asked.query().map(str::to_owned));
                Box::pin(async move { profile::answer(&path, query.as_deref()).await })
            }
            _ => port::at_once(self.answer(asked.path())),
        }
    }

    fn answer(&self, path: &str) -> Answer {
        match path {
            "/metrics" => answer::of_type(
                metrics::CONTENT_TYPE,
                self.feed.metrics().text(&self.feed.state(), &self.reports.all()),
            ),
            "/metrics/slis" => answer::of_type(metrics::CONTENT_TYPE, self.slis()),
            "/healthz" | "/healthz/ping" => {
                self.asked.fetch_add(1, Ordering::Relaxed);
                answer::unsniffed(TEXT, "ok")
            }
            "/proxyMode" => answer::unsniffed(TEXT, self.mode()),
            "/configz" => answer::unsniffed("application/json", configz(&self.current.now())),
            "/statusz" => answer::unsniffed(TEXT, self.statusz()),
            "/flagz" => answer::unsniffed(TEXT, flagz(&self.current.now())),
            _ => answer::not_found(),
        }
    }

    fn mode(&self) -> String {
        let reports = self.reports.all();
        // The newest, should a backend have been replaced by another.
        let newest = reports.values().max_by_key(|received| received.at);
        match newest.map(|received| received.report.backend.as_str()) {
            Some("nft") => "nftables".to_owned(),
            Some("win") => "kernelspace".to_owned(),
            Some(other) => other.to_owned(),
            None => self.current.now().mode.as_str().to_owned(),
        }
    }

    fn slis(&self) -> String {
        let asked = self.asked.load(Ordering::Relaxed);
        if asked == 0 {
            return String::new();
        }
        format!(
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n\
             # TYPE kubernetes_healthcheck gauge\n\
             kubernetes_healthcheck{{name=\"ping\",type=\"healthz\"}} 1\n\
             # HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.\n\
             # TYPE kubernetes_healthchecks_total counter\n\
             kubernetes_healthchecks_total{{name=\"ping\",status=\"success\",type=\"healthz\"}} {asked}\n"
        )
    }

    fn statusz(&self) -> String {
        let (up, state) = (self.since.elapsed(), self.feed.state());
        let started = SystemTime::now().checked_sub(up).and_then(|time| Timestamp::try_from(time).ok());
        let mut text = format!("\nlocalnet-brain statusz\n{WARNING}\n\n");
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            // Writing to a string does not fail.
            _ = writeln!(text, "{name}: {value}");
        };
        line("Started", &started.map(|time| time.to_string()).unwrap_or_default());
        line("Up", &format_args!("{} s", up.as_secs()));
        line("Binary version", &env!("CARGO_PKG_VERSION"));
        line("Revision", &state.revision());
        line("Services", &state.len());
        for (backend, received) in self.reports.all() {
            for family in &received.report.families {
                let behind = state.revision().rev.saturating_sub(family.applied_rev);
                let error = if family.error.is_empty() { String::new() } else { format!("; {}", family.error) };
                line(
                    &format!("Backend {backend}, {}", family.family().as_str_name()),
                    &format_args!("revision {}, {behind} behind{error}", family.applied_rev),
                );
            }
        }
        line("Paths", &PATHS.join(" "));
        text
    }
}

/// `{"kubeproxy.config.k8s.io": {…}}`
fn configz(said: &Config) -> String {
    serde_json::json!({ GROUP: localnet_config::v1alpha1::Document::from(said) }).to_string()
}

fn flagz(said: &Config) -> String {
    format!("\nlocalnet-brain flagz\n{WARNING}\n\n{}", said.to_yaml())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;
    use localnet_config::{KubeProxyFlags, Mode, Platform, Reader};
    use localnet_config_file::{Begin, begin};
    use localnet_proto::wire::BackendReport;

    use super::*;

    #[tokio::test]
    async fn each_page_says_what_it_is() {
        let reader = Reader { platform: Platform::Linux, empty_mode: Mode::Nftables };
        let Ok(Begin::Run(running)) = begin(KubeProxyFlags::default(), reader) else { panic!("there are no flags") };
        let (current, _following) = running.follow();
        let told = Told {
            current,
            feed: Feed::new(7),
            reports: Reports::default(),
            asked: AtomicU64::new(0),
            since: Instant::now(),
        };
        let get = |path: &str| {
            let (head, body) = told.answer(path).into_parts();
            let body = body.collect().now_or_never().unwrap().unwrap().to_bytes();
            (
                head.status.as_u16(),
                head.headers["content-type"].to_str().unwrap().to_owned(),
                String::from_utf8(body.to_vec()).unwrap(),
            )
        };
        let text = |body: &str| (200, TEXT.to_owned(), body.to_owned());
        assert_eq!(get("/metrics/slis").2, "");
        assert_eq!(get("/healthz"), text("ok"));
        assert!(
            get("/metrics/slis")
                .2
                .contains("kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 1\n")
        );
        assert_eq!(get("/proxyMode"), text("nftables"));
        told.reports.record(BackendReport { backend: "iptables".to_owned(), ..BackendReport::default() }).unwrap();
        assert_eq!(get("/proxyMode"), text("iptables"));
        told.reports.record(BackendReport { backend: "nft".to_owned(), ..BackendReport::default() }).unwrap();
        assert_eq!(get("/proxyMode"), text("nftables"));
        let (status, kind, body) = get("/configz");
        assert_eq!((status, kind.as_str()), (200, "application/json"));
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body[GROUP]["kind"], "KubeProxyConfiguration");
        assert_eq!(body[GROUP]["apiVersion"], "kubeproxy.config.k8s.io/v1alpha1");
        assert_eq!(body[GROUP]["nftables"]["syncPeriod"], "30s");
        assert_eq!(body[GROUP]["iptables"]["syncPeriod"], "0s", "that of another mode");
        assert!(get("/metrics").2.contains("\nlocalnet_revision 0\n"));
        assert!(get("/statusz").2.contains("\nBackend nft") || get("/statusz").2.contains("\nPaths: "));
        assert!(get("/flagz").2.contains("detectLocalMode: ClusterCIDR"));
        for nothing in ["/", "/metrics/", "/debug/pprof/"] {
            assert_eq!(get(nothing).0, 404, "{nothing}");
        }
    }
}
