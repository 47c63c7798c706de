//! The default documents of both versions, as golden files.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{env, fs, path::Path};

use localnet_config::{Config, Document, Mode, NodePortAddresses, Platform, Reader, Version};

fn reader() -> Reader {
    Reader::kube_proxy(Platform::Linux)
}

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

#[track_caller]
fn check_golden(name: &str, text: &str) {
    let path = golden(name);
    if env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "{} (make bless)", path.display());
}

#[track_caller]
fn config(text: &str) -> Config {
    let reading = reader().read(text).unwrap();
    assert_eq!((reading.warnings, reading.lost), (Vec::new(), Vec::new()));
    reading.config
}

#[test]
fn the_default_documents_are_unchanged() {
    check_golden("v1alpha1.yaml", &Document::new(Version::V1alpha1).complete().to_yaml());
    check_golden("v1alpha2.yaml", &Document::new(Version::V1alpha2).complete().to_yaml());
    let converted = config(&header("v1alpha1")).to_yaml();
    check_golden("v1alpha1-converted.yaml", &converted);
}

fn header(version: &str) -> String {
    format!("apiVersion: kubeproxy.config.k8s.io/{version}\nkind: KubeProxyConfiguration\n")
}

#[test]
fn an_empty_document_is_the_default_document() {
    for version in ["v1alpha1", "v1alpha2"] {
        let text = fs::read_to_string(golden(&format!("{version}.yaml"))).unwrap();
        let mut message = config(&text);
        // The text contains the default of `minSyncPeriod`, which is therefore explicit.
        assert!(std::mem::take(&mut message.explicit.min_sync_period), "{version}");
        assert_eq!(message, config(&header(version)), "{version}");
    }
}

#[test]
fn the_versions_differ_in_the_defaults_that_the_kep_changes() {
    let (old, mut new) = (config(&header("v1alpha1")), config(&header("v1alpha2")));
    assert!(!old.bind_address_hard_fail && new.bind_address_hard_fail);
    assert!(old.iptables.localhost_node_ports && !new.iptables.localhost_node_ports);
    assert!(!old.config_hard_fail && new.config_hard_fail);
    new.bind_address_hard_fail = false;
    new.iptables.localhost_node_ports = true;
    new.config_hard_fail = false;
    assert_eq!(old, new, "nothing else differs");
}

#[test]
fn the_reader_replaces_an_empty_mode() {
    for version in ["v1alpha1", "v1alpha2"] {
        for (reader, mode, node_ports) in [
            (Reader::kube_proxy(Platform::Linux), Mode::Iptables, NodePortAddresses::default()),
            (
                Reader { platform: Platform::Linux, empty_mode: Mode::Nftables },
                Mode::Nftables,
                // In kube-proxy, the empty mode means iptables. NodePorts continue to answer on all addresses.
                NodePortAddresses::default(),
            ),
            (Reader::kube_proxy(Platform::Windows), Mode::Kernelspace, NodePortAddresses::default()),
        ] {
            let reading = reader.read(&header(version)).unwrap();
            assert_eq!((reading.config.mode, reading.config.node_port_addresses), (mode, node_ports), "{version}");
            assert_eq!(reading.version.as_str(), version);
        }
    }
    let windows = Reader::kube_proxy(Platform::Windows).read(&header("v1alpha2")).unwrap();
    assert_eq!(windows.config.winkernel.root_hns_endpoint_name.as_deref(), Some("cbr0"));
    assert_eq!(windows.version, Version::V1alpha2);
}

/// In kube-proxy, an empty mode means iptables, so the operator's choice is in the section `iptables`.
#[test]
fn an_empty_mode_keeps_the_masquerade_bit() {
    let nft = Reader { platform: Platform::Linux, empty_mode: Mode::Nftables };
    for (lines, expected) in [
        ("", 14),
        ("iptables: {masqueradeBit: 20}", 20),
        ("iptables: {masqueradeBit: 20}\nnftables: {masqueradeBit: 21}", 21),
        ("mode: nftables\niptables: {masqueradeBit: 20}", 14),
        ("mode: iptables\niptables: {masqueradeBit: 20}", 20),
        ("mode: ipvs\niptables: {masqueradeBit: 20}", 20),
    ] {
        let config = nft.read(&format!("{}{lines}\n", header("v1alpha1"))).unwrap().config;
        assert_eq!(config.masquerade_bit(config.mode), expected, "{lines}");
    }
}

/// kube-proxy's default is one second, because its syncs take longer in a larger cluster. An explicit second is kept.
#[test]
fn only_an_explicit_minimum_period_is_kept() {
    for (version, lines, expected) in [
        ("v1alpha1", "", 0),
        ("v1alpha1", "iptables: {minSyncPeriod: 0s}", 0),
        ("v1alpha1", "iptables: {minSyncPeriod: null}", 0),
        ("v1alpha1", "mode: ipvs", 0),
        ("v1alpha1", "iptables: {minSyncPeriod: 1s}", 1_000),
        ("v1alpha1", "iptables: {minSyncPeriod: 2s}", 2_000),
        ("v1alpha1", "iptables: {minSyncPeriod: 100ms}", 100),
        ("v1alpha1", "mode: nftables\nnftables: {minSyncPeriod: 1s}", 1_000),
        ("v1alpha1", "mode: ipvs\nipvs: {minSyncPeriod: 1s}", 1_000),
        ("v1alpha2", "", 0),
        ("v1alpha2", "minSyncPeriod: null", 0),
        ("v1alpha2", "minSyncPeriod: 0s", 0),
        ("v1alpha2", "minSyncPeriod: 1s", 1_000),
    ] {
        let config = config(&format!("{}{lines}\n", header(version)));
        assert_eq!(config.min_interval().as_millis(), expected, "{version} {lines}");
        let written = reader().read(&config.to_yaml()).unwrap().config;
        assert_eq!(written.min_interval().as_millis(), expected, "{version} {lines}: written and read again");
    }
}

#[test]
fn the_verbosity_maps_to_a_log_level() {
    let level = |verbosity: u32| {
        config(&format!("{}logging: {{verbosity: {verbosity}}}\n", header("v1alpha1"))).logging.level()
    };
    assert_eq!([0, 2, 3, 4, 5, 6, 10].map(level), ["info", "info", "info", "debug", "debug", "trace", "trace"]);
}

#[test]
fn addresses_follow_the_family_of_the_node() {
    let at =
        |config: Config| (config.healthz_bind_address.unwrap().to_string(), config.metrics_bind_address.to_string());
    let v4 = ("0.0.0.0:10256".to_owned(), "127.0.0.1:10249".to_owned());
    let v6 = ("[::]:10256".to_owned(), "[::1]:10249".to_owned());
    for (line, expected) in [
        ("bindAddress: 10.0.0.1", &v4),
        ("bindAddress: '::'", &v6),
        ("bindAddress: fd00::1", &v6),
        ("bindAddress: ''", &v4),
    ] {
        assert_eq!(at(config(&format!("{}{line}\n", header("v1alpha1")))), *expected, "{line}");
    }
    for (line, expected) in [
        ("nodeIPOverride: [10.0.0.1, 'fd00::1']", &v4),
        ("nodeIPOverride: ['fd00::1', 10.0.0.1]", &v6),
        ("nodeIPOverride: []", &v4),
    ] {
        assert_eq!(at(config(&format!("{}{line}\n", header("v1alpha2")))), *expected, "{line}");
    }
    let bare = "healthzBindAddress: 'fd00::1'\nmetricsBindAddress: 0.0.0.0\n";
    for version in ["v1alpha1", "v1alpha2"] {
        let expected = ("[fd00::1]:10256".to_owned(), "0.0.0.0:10249".to_owned());
        assert_eq!(at(config(&format!("{}{bare}", header(version)))), expected, "{version}");
    }
}

#[test]
fn zero_means_the_default_where_kube_proxy_treats_it_as_unset() {
    let zeros = "configSyncPeriod: 0s
clientConnection: {qps: 0, burst: 0, contentType: ''}
logging: {format: '', flushFrequency: 0}
iptables: {syncPeriod: 0s, minSyncPeriod: 0s}
ipvs: {syncPeriod: 0s, minSyncPeriod: 0s}
nftables: {syncPeriod: 0s, minSyncPeriod: 0s}
conntrack:
featureGates: null
";
    assert_eq!(config(&format!("{}{zeros}", header("v1alpha1"))), config(&header("v1alpha1")));
    let zeros = "configSyncPeriod: 0s
syncPeriod: 0s
clientConnection: {qps: 0, burst: 0, contentType: ''}
logging: {format: '', flushFrequency: 0}
linux:
nodeIPOverride: null
";
    assert_eq!(config(&format!("{}{zeros}", header("v1alpha2"))), config(&header("v1alpha2")));
}

#[test]
fn zero_stays_zero_where_it_has_a_meaning() {
    let message = "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
oomScoreAdj: 0
iptables: {masqueradeBit: 0, localhostNodePorts: false}
nftables: {masqueradeBit: 0}
";
    let config = config(&format!("{}{message}", header("v1alpha1")));
    let conntrack = &config.linux.conntrack;
    assert_eq!((conntrack.max_per_core, conntrack.min), (None, 0));
    assert_eq!((conntrack.tcp_established_timeout, conntrack.tcp_close_wait_timeout), (None, None));
    assert_eq!((config.linux.oom_score_adj, config.iptables.localhost_node_ports), (0, false));
    for mode in [Mode::Iptables, Mode::Ipvs, Mode::Nftables] {
        assert_eq!(config.masquerade_bit(mode), 0, "{mode}");
    }
    let at_once = self::config(&format!("{}minSyncPeriod: 0s\n", header("v1alpha2")));
    assert!(at_once.min_sync_period.is_zero());
}
