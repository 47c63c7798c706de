//! Tests the conversion from v1alpha1 to v1alpha2: each row of KEP-784's tables, and the values that v1alpha2 cannot express.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use localnet_config::{DROPPED, Document, FIELDS, Formerly, Platform, Reader, Version, convert};
use serde_json::{Value, json};

/// Converts a v1alpha1 document with these fields. Returns JSON, and the diagnostics about lost values.
fn converted(fields: &Value) -> (Value, Vec<String>) {
    let mut document = json!({});
    merge(&mut document, fields);
    let old = Document::from_json(Version::V1alpha1, &document).unwrap();
    let (new, lost) = convert(&old.complete());
    (new.to_json(), lost.iter().map(ToString::to_string).collect())
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert_with(|| json!({})), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn at<'a>(document: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(document, |value, step| &value[step])
}

fn nested(path: &str, value: &Value) -> Value {
    path.rsplit('.').fold(value.clone(), |value, step| json!({ step: value }))
}

/// Checks one row: a field of v1alpha1 in a mode, with its value, and a field of v1alpha2 with the expected value.
#[track_caller]
fn row(mode: &str, from: &str, value: &Value, to: &str, expected: &Value) {
    let mut fields = json!({ "mode": mode });
    merge(&mut fields, &nested(from, value));
    let (new, lost) = converted(&fields);
    assert_eq!(at(&new, to), expected, "{from}: {value} in mode {mode:?} → {to}");
    assert_eq!(lost, [""; 0], "{from}: {value} in mode {mode:?}");
}

const MODES: [&str; 4] = ["", "iptables", "ipvs", "nftables"];

#[test]
fn other_fields_stay_in_place() {
    for (path, value) in [
        ("kind", json!("KubeProxyConfiguration")),
        ("featureGates", json!({"AllAlpha": true})),
        ("clientConnection.kubeconfig", json!("/a")),
        ("clientConnection.acceptContentTypes", json!("application/json")),
        ("clientConnection.contentType", json!("application/json")),
        ("clientConnection.qps", json!(7.5)),
        ("clientConnection.burst", json!(11)),
        ("logging.format", json!("json")),
        ("logging.flushFrequency", json!("7s")),
        ("logging.verbosity", json!(4)),
        ("logging.vmodule", json!([{"filePattern": "a", "verbosity": 3}])),
        ("logging.options.text.splitStream", json!(true)),
        ("logging.options.text.infoBufferSize", json!("512")),
        ("logging.options.json.splitStream", json!(true)),
        ("logging.options.json.infoBufferSize", json!("512")),
        ("hostnameOverride", json!("a")),
        ("healthzBindAddress", json!("10.0.0.1:1")),
        ("metricsBindAddress", json!("10.0.0.1:2")),
        ("bindAddressHardFail", json!(true)),
        ("bindAddressHardFail", json!(false)),
        ("enableProfiling", json!(true)),
        ("showHiddenMetricsForVersion", json!("1.36")),
        ("mode", json!("ipvs")),
        ("iptables.masqueradeBit", json!(15)),
        ("iptables.localhostNodePorts", json!(false)),
        ("iptables.localhostNodePorts", json!(true)),
        ("ipvs.scheduler", json!("wrr")),
        ("ipvs.excludeCIDRs", json!(["10.0.0.0/8"])),
        ("ipvs.strictARP", json!(true)),
        ("ipvs.tcpTimeout", json!("1s")),
        ("ipvs.tcpFinTimeout", json!("2s")),
        ("ipvs.udpTimeout", json!("3s")),
        ("nftables.masqueradeBit", json!(16)),
        ("winkernel.networkName", json!("a")),
        ("winkernel.sourceVip", json!("10.0.0.1")),
        ("winkernel.enableDSR", json!(true)),
        ("winkernel.rootHnsEndpointName", json!("b")),
        ("winkernel.forwardHealthCheckVip", json!(true)),
        ("detectLocalMode", json!("NodeCIDR")),
        ("detectLocal.bridgeInterface", json!("cni0")),
        ("detectLocal.interfaceNamePrefix", json!("veth")),
        ("nodePortAddresses", json!(["primary"])),
        ("configSyncPeriod", json!("1m0s")),
    ] {
        for mode in MODES.into_iter().filter(|_| path != "mode") {
            row(mode, path, &value, path, &value);
        }
        assert!(FIELDS.iter().any(|field| field.path == path && field.formerly == Formerly::Same), "{path}");
    }
    let (new, lost) = converted(&json!({"mode": "ipvs"}));
    assert_eq!((&new["mode"], lost), (&json!("ipvs"), Vec::new()));
    assert_eq!(new["apiVersion"], json!("kubeproxy.config.k8s.io/v1alpha2"));
}

#[test]
fn fields_of_one_system_move_to_its_section() {
    for (from, value) in [
        ("conntrack.maxPerCore", json!(1)),
        ("conntrack.min", json!(2)),
        ("conntrack.tcpEstablishedTimeout", json!("3s")),
        ("conntrack.tcpCloseWaitTimeout", json!("4s")),
        ("conntrack.tcpBeLiberal", json!(true)),
        ("conntrack.udpTimeout", json!("5s")),
        ("conntrack.udpStreamTimeout", json!("6s")),
        ("oomScoreAdj", json!(7)),
    ] {
        for mode in MODES {
            row(mode, from, &value, &format!("linux.{from}"), &value);
        }
    }
    row("", "windowsRunAsService", &json!(true), "windows.runAsService", &json!(true));
}

#[test]
fn the_section_of_the_mode_gives_periods_and_masquerading() {
    for (mode, section) in [("", "iptables"), ("iptables", "iptables"), ("ipvs", "ipvs"), ("nftables", "nftables")] {
        for name in ["syncPeriod", "minSyncPeriod"] {
            row(mode, &format!("{section}.{name}"), &json!("7s"), name, &json!("7s"));
        }
        // The section `ipvs` does not have this field.
        let section = if section == "ipvs" { "iptables" } else { section };
        row(mode, &format!("{section}.masqueradeAll"), &json!(true), "linux.masqueradeAll", &json!(true));
    }
    // In v1alpha1, the mode ipvs has a different default.
    assert_eq!(converted(&json!({"mode": "ipvs"})).0["minSyncPeriod"], json!("0s"));
    assert_eq!(converted(&json!({"mode": "nftables"})).0["minSyncPeriod"], json!("1s"));
}

#[test]
fn ipvs_gets_its_own_masquerade_bit() {
    for mode in MODES {
        row(mode, "iptables.masqueradeBit", &json!(15), "ipvs.masqueradeBit", &json!(15));
    }
}

#[test]
fn the_text_of_cluster_cidrs_becomes_a_list() {
    for (text, list) in [
        ("", json!([])),
        ("10.0.0.0/8", json!(["10.0.0.0/8"])),
        ("10.0.0.0/8,fd00::/48", json!(["10.0.0.0/8", "fd00::/48"])),
    ] {
        row("", "clusterCIDR", &json!(text), "detectLocal.clusterCIDRs", &list);
    }
}

#[test]
fn bind_address_becomes_node_ip_override() {
    for (text, list) in [
        ("", json!([])),
        ("0.0.0.0", json!([])),
        ("::", json!([])),
        ("000.0.0.0", json!([])),
        ("10.0.0.1", json!(["10.0.0.1"])),
        ("fd00::1", json!(["fd00::1"])),
        ("nonsense", json!(["nonsense"])),
    ] {
        row("", "bindAddress", &json!(text), "nodeIPOverride", &list);
    }
    // The other addresses still depend on `bindAddress`.
    let (new, _) = converted(&json!({"bindAddress": "::"}));
    assert_eq!(new["healthzBindAddress"], json!("[::]:10256"));
}

#[test]
fn new_fields_have_neutral_defaults() {
    let (new, lost) = converted(&json!({}));
    assert_eq!(new["configHardFail"], json!(false));
    assert_eq!(new["ipFamilyPolicy"], json!(""));
    assert_eq!(lost, [""; 0]);
    let tables = [FIELDS.iter().filter(|field| field.formerly == Formerly::New).count(), DROPPED.len()];
    assert_eq!(tables, [2, 1], "every row of the tables has its test here");
}

#[test]
fn lost_values_are_reported() {
    let periods = |section: &str| json!({section: {"syncPeriod": "20s", "minSyncPeriod": "2s"}});
    for (mode, own, others) in [
        ("", "iptables", ["ipvs", "nftables"]),
        ("iptables", "iptables", ["ipvs", "nftables"]),
        ("ipvs", "ipvs", ["iptables", "nftables"]),
        ("nftables", "nftables", ["iptables", "ipvs"]),
    ] {
        let mut fields = json!({ "mode": mode });
        merge(&mut fields, &periods(others[0]));
        merge(&mut fields, &periods(others[1]));
        let shown = if mode.is_empty() { "\"\"" } else { mode };
        let min = if own == "ipvs" { "0s" } else { "1s" };
        let mut expected = Vec::new();
        for section in others {
            for (name, value, carried) in [("syncPeriod", "20s", "30s"), ("minSyncPeriod", "2s", min)] {
                expected.push(format!(
                    "{section}.{name}: \"{value}\" is not carried over: v1alpha2 has only one {name}, and mode {shown} sets it to \"{carried}\"; to use \"{value}\" instead, set {name}"
                ));
            }
        }
        assert_eq!(converted(&fields).1, expected, "mode {mode:?}");
        // A value that all sections share is not lost.
        merge(&mut fields, &periods(own));
        assert_eq!(converted(&fields).1, [""; 0], "mode {mode:?}");
    }
    for (mode, section) in [("ipvs", "nftables"), ("nftables", "iptables"), ("", "nftables")] {
        let (_, lost) = converted(&json!({"mode": mode, section: {"masqueradeAll": true}}));
        let shown = if mode.is_empty() { "\"\"" } else { mode };
        assert_eq!(
            lost,
            [format!(
                "{section}.masqueradeAll: true is not carried over: v1alpha2 has only one masqueradeAll, and mode {shown} sets it to false; to use true instead, set linux.masqueradeAll"
            )]
        );
    }
    let (_, lost) = converted(&json!({"portRange": "1-2"}));
    assert_eq!(
        lost,
        ["portRange: \"1-2\" is not carried over; no mode has used it since the userspace mode was removed"]
    );
}

#[test]
fn a_lost_value_is_reported_with_its_line() {
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
iptables:
  syncPeriod: 10s
portRange: 1-2
";
    let reading = Reader::kube_proxy(Platform::Linux).read(text).unwrap();
    let lines: Vec<_> = reading.lost.iter().map(|lost| (lost.subject.to_string(), lost.field.as_str())).collect();
    assert_eq!(lines, [("line 5".to_owned(), "iptables.syncPeriod"), ("line 6".to_owned(), "portRange")]);
    assert_eq!(reading.warnings, []);
}

#[test]
fn changed_fields_that_wait_for_a_start_are_named() {
    let read = |lines: &str| {
        let text =
            format!("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: ipvs\n{lines}");
        Reader::kube_proxy(Platform::Linux).read(&text).unwrap().config
    };
    let before = read("");
    assert_eq!(before.at_start(&read("syncPeriod: 7s\nlinux: {conntrack: {min: 7}}")), [""; 0]);
    let after = read(
        "hostnameOverride: a\nlogging: {verbosity: 7}\nclientConnection: {qps: 7.5}\nfeatureGates: {AllAlpha: true}",
    );
    assert_eq!(before.at_start(&after), ["featureGates", "logging.verbosity", "hostnameOverride"]);
    assert_eq!(after.at_start(&after), [""; 0]);
}
