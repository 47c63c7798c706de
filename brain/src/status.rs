//! The HTTP server at `metricsBindAddress`. Its paths, status codes, headers and formats are those of kube-proxy v1.37.
//!
//! | path | content |
//! |---|---|
//! | `/metrics` | [`crate::exposition`] |
//! | `/metrics/slis` | the number and the result of requests to `/healthz` on this server |
//! | `/healthz` | `ok`, because the process answers; the health of the node is at `healthzBindAddress` |
//! | `/proxyMode` | the mode of the backend that reports, or the configured mode if none does |
//! | `/configz` | the current configuration, as v1alpha1 |
//! | `/statusz`, `/flagz` | the state and the configuration, in a form for people |
//! | `/debug/pprof/…` | CPU profiles, if `enableProfiling` is set |

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

use k8s_openapi::jiff::Timestamp;
use localnet_config::Config;
use localnet_config_file::Current;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    exposition,
    feed::Feed,
    health::{
        answer::{self, Answer},
        port::{self, Port, Retry, Servers},
    },
    reports::Reports,
};

/// The key of the configuration in `/configz`: its API group.
const GROUP: &str = "kubeproxy.config.k8s.io";
const TEXT: &str = "text/plain; charset=utf-8";
const PATHS: [&str; 7] = ["/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis", "/proxyMode", "/statusz"];
/// The path of profiles, which exists if `enableProfiling` is set.
const PROFILING: &str = "/debug/pprof";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";

/// Starts the server. If the port cannot be opened, the server retries until it can. Must be called in a tokio runtime.
pub fn start(address: SocketAddr, current: Current, feed: &Feed, reports: &Reports) -> Servers {
    let pages = Pages {
        current,
        feed: feed.clone(),
        reports: reports.clone(),
        checks: AtomicU64::new(0),
        since: Instant::now(),
    };
    let mut work = JoinSet::new();
    let (status, published) = watch::channel(port::Status::new());
    let answers = Arc::new(move |uri: &http::Uri| pages.answering(uri));
    work.spawn(port::keep(Port { service: None, address }, answers, Retry::Steady, status, "metrics"));
    Servers::new(work, published)
}

/// The content of all pages.
#[derive(Debug)]
struct Pages {
    current: Current,
    feed: Feed,
    reports: Reports,
    /// The number of requests to `/healthz`.
    checks: AtomicU64,
    /// When the server started.
    since: Instant,
}

impl Pages {
    fn answering(&self, uri: &http::Uri) -> port::Answering {
        match uri.path().strip_prefix(PROFILING) {
            Some(path) if self.current.now().enable_profiling && (path.is_empty() || path.starts_with('/')) => {
                let (path, query) = (path.to_owned(), uri.query().map(str::to_owned));
                Box::pin(async move { profile::answer(&path, query.as_deref()).await })
            }
            _ => port::at_once(self.answer(uri.path())),
        }
    }

    fn answer(&self, path: &str) -> Answer {
        match path {
            "/metrics" => answer::of_type(
                exposition::CONTENT_TYPE,
                exposition::text(self.feed.metrics(), &self.feed.state(), &self.reports.all()),
            ),
            "/metrics/slis" => answer::of_type(exposition::CONTENT_TYPE, self.slis()),
            "/healthz" | "/healthz/ping" => {
                self.checks.fetch_add(1, Ordering::Relaxed);
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
        // If one backend has replaced another, there are reports of both. The newest report counts. A backend without a mode may
        // run beside one with a mode, as the eBPF backend does.
        let newest = reports.values().max_by_key(|received| (received.mode().is_some(), received.at));
        match newest.map(|received| (received, received.mode())) {
            Some((_, Some(mode))) => mode.to_string(),
            Some((received, None)) => received.report.backend.clone(),
            None => self.current.now().mode.to_string(),
        }
    }

    fn slis(&self) -> String {
        let checks = self.checks.load(Ordering::Relaxed);
        if checks == 0 {
            return String::new();
        }
        format!(
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.\n\
             # TYPE kubernetes_healthcheck gauge\n\
             kubernetes_healthcheck{{name=\"ping\",type=\"healthz\"}} 1\n\
             # HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.\n\
             # TYPE kubernetes_healthchecks_total counter\n\
             kubernetes_healthchecks_total{{name=\"ping\",status=\"success\",type=\"healthz\"}} {checks}\n"
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
fn configz(config: &Config) -> String {
    serde_json::json!({ GROUP: config.to_v1alpha1() }).to_string()
}

fn flagz(config: &Config) -> String {
    format!("\nlocalnet-brain flagz\n{WARNING}\n\n{}", config.to_yaml())
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
    async fn each_page_has_its_content_and_type() {
        let reader = Reader { platform: Platform::Linux, empty_mode: Mode::Nftables };
        let Ok(Begin::Run(running)) = begin(KubeProxyFlags::default(), reader) else { panic!("there are no flags") };
        let (current, _following) = running.follow();
        let pages = Pages {
            current,
            feed: Feed::new(7),
            reports: Reports::default(),
            checks: AtomicU64::new(0),
            since: Instant::now(),
        };
        let get = |path: &str| {
            let (head, body) = pages.answer(path).into_parts();
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
        let report = |backend: &str, mode: &str| {
            let (backend, proxy_mode) = (backend.to_owned(), mode.to_owned());
            pages.reports.record(BackendReport { backend, proxy_mode, ..BackendReport::default() }).unwrap();
        };
        report("other", "");
        assert_eq!(get("/proxyMode"), text("other"));
        report("nft", "ipvs");
        assert_eq!(get("/proxyMode"), text("ipvs"));
        report("nft", "nftables");
        assert_eq!(get("/proxyMode"), text("nftables"));
        report("ebpf", "");
        assert_eq!(get("/proxyMode"), text("nftables"), "a backend beside another has no mode");
        report("nft", "no mode");
        assert_eq!(get("/proxyMode"), text("nft"));
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
