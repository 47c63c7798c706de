//! The page of metrics, in the text format of Prometheus.
//!
//! ```text
//! Metrics, counted as things happen      ─┐
//! feed: the newest state                 ─┼─► text ─► /metrics
//! reports of backends, process, conntrack ┘
//! ```

mod conntrack;
mod families;
mod page;
#[cfg(unix)]
mod process;
mod traffic;

use std::{collections::BTreeMap, fs};

use prometheus::{Encoder as _, TextEncoder, proto::MetricFamily};

use self::page::Page;
use crate::{feed::State, metrics::Metrics, reports::Received};

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// All metrics of a brain, of its newest state and of the latest report of each backend.
pub fn text(metrics: &Metrics, state: &State, reports: &BTreeMap<String, Received>) -> String {
    let families = families(metrics, state, reports, |path| fs::read_to_string(path).ok());
    let mut text = Vec::new();
    // Encoding fails only for a metric family without metrics. The registry skips such families, and the page contains
    // none.
    if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
        tracing::warn!(%error, "failed to write metrics");
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The families of all metrics, sorted by name. `read` returns the content of a file of `/proc`.
fn families(
    metrics: &Metrics,
    state: &State,
    reports: &BTreeMap<String, Received>,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<MetricFamily> {
    let mut page = Page::default();
    families::of_state(&mut page, state);
    families::of_pending(&mut page, metrics);
    families::of_reports(&mut page, reports);
    traffic::add(&mut page, reports);
    conntrack::add(&mut page, read);
    #[cfg(unix)]
    process::add(&mut page);
    let mut families: Vec<_> = metrics.gather().into_iter().chain(page.families()).collect();
    families.sort_by(|one, other| one.name().cmp(other.name()));
    families
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        path::Path,
        time::{Instant, SystemTime},
    };

    use localnet_core::{Code, Diagnostic, Subject};
    use localnet_proto::wire::{
        Attempts, BackendReport, FamilyReport, FlowSearches, IpFamily, PacketCounts, RuleCount,
    };

    use super::*;
    use crate::{feed::Feed, reports::Reports};
    use localnet_cluster::localize::{Localized, ObjectChanges};

    fn lines(text: &str, prefix: &str) -> Vec<String> {
        text.lines().filter(|line| line.starts_with(prefix)).map(str::to_owned).collect()
    }

    fn report(rev: u64, error: &str, counts: Vec<u64>) -> BackendReport {
        let family = FamilyReport {
            family: IpFamily::IPv4.into(),
            applied_rev: rev,
            error: error.to_owned(),
            full: Some(Attempts { counts: vec![0, 1], sum_micros: 2_000 }),
            partial: Some(Attempts { counts, sum_micros: 500_000 }),
            failures: 3,
            partial_failures: 2,
            flows: Some(FlowSearches { took: Some(Attempts { counts: vec![0, 0, 1], sum_micros: 3_000 }), ended: 5 }),
            rules: vec![RuleCount { table: "nat".to_owned(), total: 70, last: 7 }],
            applied_digest: 0,
        };
        BackendReport {
            backend: "nft".to_owned(),
            proxy_mode: "nftables".to_owned(),
            instance_id: 7,
            rev,
            families: vec![family],
            ..Default::default()
        }
    }

    /// The names of localnet's own metrics in the code of this crate.
    fn names_in_code() -> Vec<String> {
        let folders =
            ["metrics", "exposition"].map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name));
        let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        let code: String = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
        let is_name = |text: &&str| text.strip_prefix("localnet_").is_some_and(|rest| !rest.is_empty());
        let is_plain = |text: &&str| text.chars().all(|c| c == '_' || c.is_ascii_lowercase());
        code.split('"').filter(is_name).filter(is_plain).map(str::to_owned).collect()
    }

    /// A row of the table in docs/operations/metrics.md.
    fn row(family: &MetricFamily) -> String {
        let labels = family.get_metric()[0].get_label().iter().map(prometheus::proto::LabelPair::name);
        let labels = labels.collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let kind = format!("{:?}", family.get_field_type()).to_lowercase();
        format!("| `{}{labels}` | {kind} | {} |\n", family.name(), family.help())
    }

    #[tokio::test]
    async fn the_page_lists_every_metric_of_localnet() {
        let (feed, reports) = (Feed::new(7), Reports::default());
        let metrics = feed.metrics();
        feed.publish(Localized::default()).unwrap();
        reports.record(report(1, "", vec![1])).unwrap();
        metrics.reported(&report(1, "", vec![1]), Instant::now());
        reports.record_traffic(traffic::tests::report());
        metrics.certificate_expires(1);
        let troubles = metrics.troubles();
        troubles.is("files", Diagnostic::new(Code::YamlInvalid, Subject::text(1), "is wrong"));
        troubles.heard("files");
        troubles.restored("files");
        troubles.held("files", 1);
        let read = |path: &str| Some(if path.contains("stat") { "drop\n0\n" } else { "1" }.to_owned());
        let families = families(metrics, &feed.state(), &reports.all(), read);
        let families = families.iter().filter(|family| family.name().starts_with("localnet_"));
        let rows: BTreeMap<&str, String> = families.map(|family| (family.name(), row(family))).collect();
        let missing: Vec<_> = names_in_code().into_iter().filter(|name| !rows.contains_key(&**name)).collect();
        assert_eq!(missing, [""; 0], "this test must give each metric a value");
        let rows: String = rows.into_values().collect();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations/metrics.md");
        let page = fs::read_to_string(&path).unwrap();
        let (head, rest) = page.split_once("## localnet's own\n").unwrap();
        let (intro, rest) = rest.split_once("|---|---|---|\n").unwrap();
        let (_, rest) = rest.split_once("\n\n").unwrap();
        let expected = format!("{head}## localnet's own\n{intro}|---|---|---|\n{rows}\n{rest}");
        if env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, &expected).unwrap();
        }
        assert_eq!(fs::read_to_string(path).unwrap(), expected, "make bless rewrites docs/operations/metrics.md");
    }

    fn micros_now() -> i64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        now.as_micros().try_into().unwrap()
    }

    #[tokio::test]
    async fn changes_are_pending_until_a_backend_reports_them() {
        let (feed, reports) = (Feed::new(7), Reports::default());
        let metrics = feed.metrics().clone();
        let triggered = vec![1, micros_now() + 3_600_000_000];
        let changes = ObjectChanges { services: 2, slices: 3, triggered, ..ObjectChanges::default() };
        feed.publish(Localized { changes, ..Localized::default() }).unwrap();
        let text = || text(&metrics, &feed.state(), &reports.all());
        let pending = |text: &str| {
            lines(text, "kubeproxy_sync_proxy_rules_service_changes_pending")
                .into_iter()
                .chain(lines(text, "kubeproxy_sync_proxy_rules_endpoint_changes_pending"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            pending(&text()),
            [
                "kubeproxy_sync_proxy_rules_service_changes_pending 2",
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending 3",
            ]
        );
        assert_eq!(lines(&text(), "kubeproxy_network_programming_duration_seconds_count"), [""; 0]);
        let report = report(1, "", vec![0, 0, 4]);
        reports.record(report.clone()).unwrap();
        metrics.reported(&report, Instant::now());
        metrics.reported(&report, Instant::now());
        let text = text();
        assert_eq!(
            pending(&text),
            [
                "kubeproxy_sync_proxy_rules_service_changes_pending 0",
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
            ]
        );
        for line in [
            // A trigger from before the start of the brain is not counted. A trigger from the future counts as 0 s.
            "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_network_programming_duration_seconds_sum{ip_family=\"IPv4\"} 0",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.25\"} 1",
            "localnet_apply_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_proxy_rules_service_changes_total 2",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 3",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.002\"} 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 5",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"16.384\"} 5",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"+Inf\"} 5",
            "kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family=\"IPv4\"} 0.502",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 4",
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 3",
            "localnet_backend_revision{backend=\"nft\",ip_family=\"IPv4\"} 1",
            "localnet_revision 1",
            "localnet_services 0",
        ] {
            assert!(text.lines().any(|is| is == line), "{line} is not in\n{text}");
        }
        for line in [
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1",
            "process_resident_memory_bytes ",
        ] {
            assert!(!lines(&text, line).is_empty(), "{line} is not in\n{text}");
        }
    }

    #[tokio::test]
    async fn a_report_without_a_new_attempt_does_not_change_the_timestamp() {
        let (feed, metrics) = (Feed::new(7), Metrics::default());
        let last = || {
            let text = text(&metrics, &feed.state(), &BTreeMap::new());
            lines(&text, "kubeproxy_sync_proxy_rules_last_timestamp_seconds{")
        };
        metrics.reported(&report(1, "", vec![0, 0, 4]), Instant::now());
        let first = last();
        assert_eq!(first.len(), 1);
        metrics.reported(&report(1, "", vec![0, 0, 4]), Instant::now());
        assert_eq!(last(), first);
        metrics.reported(&report(1, "", vec![0, 0, 5]), Instant::now());
        assert_ne!(last(), first);
    }

    #[tokio::test]
    async fn totals_of_backends_have_the_names_of_kube_proxy() {
        let (feed, reports) = (Feed::new(7), Reports::default());
        let packets = Some(PacketCounts { invalid_dropped: 8, localhost_node_ports_accepted: 9 });
        reports.record(BackendReport { proxy_mode: "iptables".to_owned(), packets, ..report(1, "", vec![]) }).unwrap();
        let text = text(feed.metrics(), &feed.state(), &reports.all());
        for line in [
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family=\"IPv4\"} 3",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family=\"IPv4\"} 2",
            "kubeproxy_sync_proxy_rules_iptables_total{ip_family=\"IPv4\",table=\"nat\"} 70",
            "kubeproxy_sync_proxy_rules_iptables_last{ip_family=\"IPv4\",table=\"nat\"} 7",
            "# TYPE kubeproxy_iptables_ct_state_invalid_dropped_packets_total counter",
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total 8",
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total 9",
            "kubeproxy_conntrack_reconciler_sync_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 1",
            "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 5",
        ] {
            assert!(text.lines().any(|is| is == line), "{line} is not in\n{text}");
        }
    }
}
