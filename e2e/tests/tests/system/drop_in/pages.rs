//! Requests each page of kube-proxy's two servers from kube-proxy and from localnet, with the same configuration on the same
//! node.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use anyhow::Context as _;
use k8s_openapi::{
    api::{discovery::v1::EndpointSlice, events::v1::Event},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use localnet_e2e::{PATIENCE, await_condition};
use localnet_lab::{Probe, Protocol};
use serde_json::{Value, json};

use super::{HTTP, NAMESPACE, PODS, Page, WEB, World, ip};

const HEALTH: &str = "127.0.0.1:10256";
const METRICS: &str = "127.0.0.1:10249";
/// The slice that is created and deleted.
const CHANGE: &str = "change";

/// The page about metrics.
const DOCUMENT: &str = include_str!("../../../../../docs/operations/metrics.md");

/// Metrics of kube-proxy without a counterpart in localnet. The page gives the reasons.
const ABSENT: &[&str] = &[
    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
    "rest_client_exec_plugin_call_total",
    "rest_client_exec_plugin_certificate_rotation_age",
    "rest_client_exec_plugin_policy_call_total",
    "rest_client_exec_plugin_ttl_seconds",
    "rest_client_rate_limiter_duration_seconds",
    "rest_client_request_retries_total",
    "rest_client_transport_ca_reload_total",
    "rest_client_transport_cache_entries",
    "rest_client_transport_cache_gc_calls_total",
    "rest_client_transport_cert_rotation_gc_calls_total",
    "rest_client_transport_create_calls_total",
];

/// A metric: its type, the names of its labels, and the limits of its buckets.
#[derive(Debug, Default, PartialEq, Eq)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
    limits: Vec<String>,
}

/// The metrics of a page, by name.
fn metrics(page: &str) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            metrics.entry(name.to_owned()).or_default().kind = kind.to_owned();
            continue;
        }
        let Some((series, _)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) else { continue };
        let (series, labels) = series.split_once('{').unwrap_or((series, ""));
        let suffixes = ["_bucket", "_sum", "_count"].iter().filter_map(|suffix| series.strip_suffix(suffix));
        let name = suffixes.chain([series]).find(|name| metrics.contains_key(*name)).unwrap_or(series);
        let metric = metrics.entry(name.to_owned()).or_default();
        for (label, value) in labels.trim_end_matches('}').split(',').filter_map(|label| label.split_once('=')) {
            let value = value.trim_matches('"').to_owned();
            match label {
                // Compare numbers: one server writes 1, the other 1.0 or 1e0.
                "le" => {
                    let limit = value.parse::<f64>().map_or(value, |limit| limit.to_string());
                    if !metric.limits.contains(&limit) {
                        metric.limits.push(limit);
                    }
                }
                _ => _ = metric.labels.insert(label.to_owned()),
            }
        }
    }
    let compared = |name: &str| ["kubeproxy_", "rest_client_"].iter().any(|prefix| name.starts_with(prefix));
    metrics.retain(|name, metric| compared(name) && !metric.kind.is_empty());
    metrics
}

/// Normalizes values that Go encodes differently: a missing list and an empty one, a missing text and an empty one.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), plain(value)));
            let fields: serde_json::Map<_, _> = fields.filter(|(_, value)| !value.is_null()).collect();
            if fields.is_empty() { Value::Null } else { Value::Object(fields) }
        }
        Value::Array(items) if items.is_empty() => Value::Null,
        Value::Number(number) if number.as_f64() == Some(0.0) => Value::Null,
        // One server writes 100, the other 100.0.
        Value::Number(number) => number.as_f64().into(),
        Value::String(text) if text.is_empty() || text == "0" || text == "0s" => Value::Null,
        Value::Bool(false) => Value::Null,
        other => other.clone(),
    }
}

/// All requested pages.
struct Pages(BTreeMap<(&'static str, &'static str), Page>);

impl Pages {
    /// Requests the pages after the Service answers and the metrics contain its changes.
    async fn of(world: &World) -> anyhow::Result<Self> {
        let endpoints = PODS.map(|pod| (ip(pod), HTTP).into());
        let web = Probe::new(Protocol::Tcp, (ip(WEB), 80).into());
        let answered = world.programs.await_answers(world.network.client(), web, &endpoints);
        answered.with_context(|| world.logs())?;
        // A change whose trigger time is measured.
        let slices: Api<EndpointSlice> = Api::namespaced(world.plane.client(), NAMESPACE);
        let changed = serde_json::from_value(json!({
            "metadata": {
                "name": CHANGE,
                "labels": { "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "e2e" },
                "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": Timestamp::now().to_string() },
            },
            "addressType": "IPv4",
            "ports": [{ "name": "http", "port": HTTP, "protocol": "TCP" }],
            "endpoints": [{ "addresses": ["10.180.0.9"], "conditions": { "ready": true } }],
        }))?;
        slices.create(&PostParams::default(), &changed).await?;
        await_condition("a change of endpoints is measured", || {
            let counted = |page: Page| {
                page.body.lines().any(|line| {
                    line.starts_with("kubeproxy_network_programming_duration_seconds_count") && !line.ends_with(" 0")
                })
            };
            world.get(METRICS, "/metrics").is_ok_and(counted)
        })
        .with_context(|| world.logs())?;
        slices.delete(CHANGE, &DeleteParams::default()).await?;
        let page = [
            (HEALTH, "/healthz"),
            (HEALTH, "/livez"),
            (HEALTH, "/metrics"),
            (METRICS, "/healthz"),
            (METRICS, "/livez"),
            (METRICS, "/proxyMode"),
            (METRICS, "/configz"),
            (METRICS, "/statusz"),
            (METRICS, "/flagz"),
            (METRICS, "/metrics/slis"),
            (METRICS, "/metrics"),
            (METRICS, "/debug/pprof"),
            (METRICS, "/debug/pprof/"),
            (METRICS, "/debug/pprof/cmdline"),
        ];
        let pages = page.into_iter().map(|(at, path)| Ok(((at, path), world.get(at, path)?)));
        Ok(Self(pages.collect::<anyhow::Result<_>>()?))
    }

    fn json(&self, at: &'static str, path: &'static str) -> Value {
        serde_json::from_str(&self.0[&(at, path)].body).expect("a page in JSON")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_page_equals_that_of_kube_proxy_in_mode_nftables() -> anyhow::Result<()> {
    compare("nftables", false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_page_equals_that_of_kube_proxy_in_mode_iptables() -> anyhow::Result<()> {
    compare("iptables", true).await
}

/// The reasons of the events about the node from this reporter.
async fn events(world: &World, by: &str) -> anyhow::Result<BTreeSet<String>> {
    let events: Api<Event> = Api::default_namespaced(world.plane.client());
    let posted = events.list(&ListParams::default()).await?.items.into_iter();
    let of_theirs = posted.filter(|event| event.reporting_controller.as_deref().is_some_and(|who| who.contains(by)));
    Ok(of_theirs.filter_map(|event| event.reason).collect())
}

async fn compare(mode: &str, profiling: bool) -> anyhow::Result<()> {
    let world = World::build().await?;
    let lines = format!("mode: {mode}\nnodePortAddresses: [192.168.0.0/24]\nenableProfiling: {profiling}");
    let config = world.write_config("config.yaml", &lines)?;
    let mut kube_proxy = world.start_kube_proxy(&config)?;
    let theirs = Pages::of(&world).await?;
    // The ports are still in use by kube-proxy, which is reported by events, too.
    let _ours = world.programs.start(world.network.node(), "localnet-node", &["--config", &config])?;
    let expected = ["FailedToStartMetricServer", "FailedToStartProxierHealthcheck", "Starting"].map(str::to_owned);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let posted = events(&world, "localnet").await?;
        if posted == BTreeSet::from(expected.clone()) {
            break;
        }
        anyhow::ensure!(Instant::now() < deadline, "{posted:?} are posted\n{}", world.logs());
    }
    anyhow::ensure!(events(&world, "kube-proxy").await?.contains("Starting"), "kube-proxy has posted it, too");
    kube_proxy.kill()?;
    kube_proxy.wait()?;
    world.network.node().output(std::process::Command::new("nft").args(["flush", "ruleset"]))?;
    await_condition("localnet uses its ports", || [HEALTH, METRICS].iter().all(|at| world.get(at, "/healthz").is_ok()))
        .with_context(|| world.logs())?;
    let ours = Pages::of(&world).await?;
    if profiling {
        let profile = world.get(METRICS, "/debug/pprof/profile?seconds=1")?;
        assert_eq!((profile.status, profile.kind.as_str()), (200, "application/octet-stream"), "{}", profile.body);
    } else {
        assert_eq!(world.get(METRICS, "/debug/pprof/profile?seconds=1")?.status, 404);
    }

    for (page, theirs) in &theirs.0 {
        let ours = &ours.0[page];
        let kind = |page: &Page| (page.status, page.kind.clone(), page.sniff.clone());
        match page {
            // Prometheus negotiates an escaping scheme with its client.
            (_, "/metrics" | "/metrics/slis") if theirs.status == 200 => {
                assert_eq!(ours.status, 200, "{page:?}");
                assert!(theirs.kind.starts_with(&ours.kind), "{page:?}: {} {}", ours.kind, theirs.kind);
            }
            // These pages are for people or describe the program, so their texts differ.
            (_, "/debug/pprof/" | "/debug/pprof/cmdline") => assert_eq!(kind(ours), kind(theirs), "{page:?}"),
            (_, "/statusz" | "/flagz") => {
                assert_eq!((ours.status, theirs.status), (200, 200), "{page:?}");
                assert!(ours.kind.starts_with("text/plain") && theirs.kind.starts_with("text/plain"), "{page:?}");
            }
            _ => assert_eq!(kind(ours), kind(theirs), "{page:?}"),
        }
        let own_words = matches!(page.1, "/statusz" | "/flagz" | "/metrics" | "/debug/pprof/" | "/debug/pprof/cmdline");
        if !theirs.body.contains('{') && (!own_words || theirs.status == 404) {
            assert_eq!(ours.body, theirs.body, "{page:?}");
        }
    }
    for path in ["/healthz", "/livez"] {
        let names = |value: &Value| -> Vec<String> {
            let fields = |value: &Value| {
                value.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect::<Vec<_>>()
            };
            [fields(value), fields(&value["status"]), fields(&value["status"]["IPv4"])].concat()
        };
        let (ours, theirs) = (ours.json(HEALTH, path), theirs.json(HEALTH, path));
        assert_eq!(names(&ours), names(&theirs), "{path}: {ours} {theirs}");
        assert_eq!([&ours["healthy"], &theirs["healthy"]], [true, true], "{path}");
    }
    assert_eq!(plain(&ours.json(METRICS, "/configz")), plain(&theirs.json(METRICS, "/configz")));

    let [of_ours, of_theirs] = [&ours, &theirs].map(|pages| metrics(&pages.0[&(METRICS, "/metrics")].body));
    let absent: BTreeSet<&str> =
        of_theirs.keys().filter(|name| !of_ours.contains_key(*name)).map(String::as_str).collect();
    let explained: BTreeSet<&str> = ABSENT.iter().copied().collect();
    assert!(absent.is_subset(&explained), "only kube-proxy has {:?}", absent.difference(&explained));
    for name in explained {
        assert!(!of_ours.contains_key(name), "localnet exports {name}");
        assert!(DOCUMENT.contains(&format!("`{name}`")), "it is not written why {name} is absent");
    }
    let expected = match mode {
        "iptables" => [
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
            "kubeproxy_sync_proxy_rules_iptables_total",
            "kubeproxy_sync_proxy_rules_iptables_last",
        ]
        .as_slice(),
        _ => [].as_slice(),
    };
    let common = ["kubeproxy_conntrack_reconciler_sync_duration_seconds", "rest_client_requests_total"];
    for name in expected.iter().chain(&common) {
        assert!(of_ours.contains_key(*name) && of_theirs.contains_key(*name), "{name} is compared");
    }
    for (name, theirs) in &of_theirs {
        let Some(ours) = of_ours.get(name) else { continue };
        assert_eq!(ours.kind, theirs.kind, "{name}");
        // A family without series has no labels yet.
        if !theirs.labels.is_empty() && !ours.labels.is_empty() {
            assert_eq!(ours.labels, theirs.labels, "{name}");
        }
        assert_eq!(ours.limits, theirs.limits, "{name}");
    }
    Ok(())
}
