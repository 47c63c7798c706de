//! Tests texts that are not a configuration, and mistakes that kube-proxy tolerates.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{path::Path, time::Duration};

use localnet_config::{Config, Mode, Platform, Reader, Version};

fn read(text: &str) -> Result<(Config, Vec<String>), Vec<String>> {
    let message = |problems: &[localnet_core::Diagnostic]| problems.iter().map(ToString::to_string).collect();
    match Reader::kube_proxy(Platform::Linux).read(text) {
        Ok(reading) => Ok((reading.config, message(&reading.warnings))),
        Err(problems) => Err(message(&problems.0)),
    }
}

fn text(version: &str, lines: &str) -> String {
    format!("apiVersion: kubeproxy.config.k8s.io/{version}\nkind: KubeProxyConfiguration\n{lines}\n")
}

#[track_caller]
fn refused(text: &str, expected: &[&str]) {
    assert_eq!(
        read(text).map(|(_, warnings)| warnings),
        Err(expected.iter().map(|text| (*text).to_owned()).collect()),
        "{text}"
    );
}

/// Checks that the lines cause these errors in v1alpha2, and only these warnings in v1alpha1.
#[track_caller]
fn strict(lines: &str, errors: &[&str], warnings: &[&str]) -> Config {
    refused(&text("v1alpha2", lines), errors);
    let (config, message) = read(&text("v1alpha1", lines)).unwrap();
    assert_eq!(message, warnings, "{lines}");
    config
}

#[test]
fn unknown_fields_are_errors_in_v1alpha2_and_skipped_in_v1alpha1() {
    let config = strict(
        "mode: nftables\nmodes: x\niptables:\n  masqueradebit: 3\n  foo:\n    bar: 1\nclientConnection: {burst: 7, zzz: null}",
        &[
            "line 4: modes: unknown field \"modes\"; did you mean mode?",
            "line 6: iptables.masqueradebit: unknown field \"masqueradebit\"; did you mean masqueradeBit?",
            "line 7: iptables.foo: unknown field \"foo\"; remove it, or correct its name",
            "line 9: clientConnection.zzz: unknown field \"zzz\"; remove it, or correct its name",
        ],
        &[
            "line 4: modes: unknown field \"modes\"; skipped, because v1alpha1 is parsed leniently; did you mean mode?",
            "line 6: iptables.masqueradebit: unknown field \"masqueradebit\"; skipped, because v1alpha1 is parsed leniently; did you mean masqueradeBit?",
            "line 7: iptables.foo: unknown field \"foo\"; skipped, because v1alpha1 is parsed leniently; remove it, or correct its name",
            "line 9: clientConnection.zzz: unknown field \"zzz\"; skipped, because v1alpha1 is parsed leniently; remove it, or correct its name",
        ],
    );
    assert_eq!((config.mode, config.client_connection.burst), (Mode::Nftables, 7));
}

#[test]
fn duplicate_fields_are_errors_in_v1alpha2_and_the_last_applies_in_v1alpha1() {
    let config = strict(
        "mode: nftables\niptables:\n  masqueradeBit: 3\n  masqueradeBit: 4\nmode: ipvs\nfeatureGates: {AllBeta: true, AllBeta: false}",
        &[
            "line 7: mode: key \"mode\" already set in map, on line 3; remove one of the two",
            "line 6: iptables.masqueradeBit: key \"masqueradeBit\" already set in map, on line 5; remove one of the two",
            "line 8: featureGates.AllBeta: key \"AllBeta\" already set in map, on line 8; remove one of the two",
        ],
        &[
            "line 7: mode: key \"mode\" already set in map, on line 3; the last one applies, because v1alpha1 is parsed leniently; remove one of the two",
            "line 6: iptables.masqueradeBit: key \"masqueradeBit\" already set in map, on line 5; the last one applies, because v1alpha1 is parsed leniently; remove one of the two",
            "line 8: featureGates.AllBeta: key \"AllBeta\" already set in map, on line 8; the last one applies, because v1alpha1 is parsed leniently; remove one of the two",
        ],
    );
    assert_eq!((config.mode, config.iptables.masquerade_bit), (Mode::Ipvs, 4));
    assert!(!config.feature_gates.enabled("AllBeta"));
}

#[test]
fn errors_about_fields_of_the_other_version_name_that_version() {
    refused(
        &text(
            "v1alpha2",
            "bindAddress: 10.0.0.1\nconntrack:\n  min: 1\nclusterCIDR: 10.0.0.0/8\nportRange: ''\nipvs: {syncPeriod: 1s}",
        ),
        &[
            "line 3: bindAddress: unknown field \"bindAddress\"; in v1alpha2 it is nodeIPOverride",
            "line 4: conntrack: unknown field \"conntrack\"; in v1alpha2 it is linux.conntrack",
            "line 6: clusterCIDR: unknown field \"clusterCIDR\"; in v1alpha2 it is detectLocal.clusterCIDRs",
            "line 7: portRange: unknown field \"portRange\"; remove it: no mode has used it since the userspace mode was removed",
            "line 8: ipvs.syncPeriod: unknown field \"syncPeriod\"; in v1alpha2 it is syncPeriod",
        ],
    );
    let (_, warnings) = read(&text("v1alpha1", "linux:\n  oomScoreAdj: 1\nipFamilyPolicy: SingleStack")).unwrap();
    let skipped =
        "skipped, because v1alpha1 is parsed leniently; v1alpha2 has it: convert the file with --write-config-to";
    assert_eq!(
        warnings,
        [
            format!("line 3: linux: unknown field \"linux\"; {skipped}"),
            format!("line 5: ipFamilyPolicy: unknown field \"ipFamilyPolicy\"; {skipped}"),
        ]
    );
}

#[test]
fn all_mistyped_values_are_reported_at_once() {
    for version in ["v1alpha1", "v1alpha2"] {
        refused(
            &text(
                version,
                "enableProfiling: 'true'
mode: 1
iptables:
  masqueradeBit: '14'
  localhostNodePorts: 1
clientConnection:
  burst: 1.5
  qps: fast
nodePortAddresses: primary
ipvs: [x]
configSyncPeriod: 30
showHiddenMetricsForVersion: 1.36
featureGates: {A: 1}
winkernel: no
logging:
  vmodule: [x, {filePattern: 1}]
detectLocalMode: [x]",
            ),
            &[
                "line 3: enableProfiling: is \"true\", not true or false; write true or false, without quotes",
                "line 4: mode: is 1, not a string; put it in quotes",
                "line 6: iptables.masqueradeBit: is \"14\", not a number; write it in digits, without quotes",
                "line 7: iptables.localhostNodePorts: is 1, not true or false; write true or false, without quotes",
                "line 9: clientConnection.burst: is 1.5, not a whole number; remove the fraction",
                "line 10: clientConnection.qps: is \"fast\", not a number; write it in digits, without quotes",
                "line 11: nodePortAddresses: is \"primary\", not a list; begin each of its items with '- '",
                "line 12: ipvs: is a list, not a map of fields; write its fields as name: value, indented below it",
                "line 13: configSyncPeriod: is 30, not a duration; write it with a unit, like 30s",
                "line 14: showHiddenMetricsForVersion: is 1.36, not a string; put it in quotes",
                "line 15: featureGates.A: is 1, not true or false; write true or false, without quotes",
                "line 16: winkernel: is false, not a map of fields; write its fields as name: value, indented below it",
                "line 18: logging.vmodule[0]: is \"x\", not a map of fields; write its fields as name: value, indented below it",
                "line 18: logging.vmodule[1].filePattern: is 1, not a string; put it in quotes",
                "line 19: detectLocalMode: is a list, not a string; write one value",
            ],
        );
    }
}

#[test]
fn items_without_value_are_errors() {
    refused(
        &text("v1alpha2", "nodePortAddresses:\n- 10.0.0.0/8\n-\n"),
        &["line 5: nodePortAddresses[1]: is nothing, not a string; write a string, or remove the item"],
    );
}

#[test]
fn values_out_of_range_are_errors() {
    const NANOS: &str = "logging.flushFrequency: is too large or small for a duration in nanoseconds; write it like 5s";
    for (lines, message) in [
        (
            "iptables: {masqueradeBit: 3000000000}",
            "iptables.masqueradeBit: 3000000000 is out of range; use a number that is closer to zero",
        ),
        ("logging: {verbosity: -1}", "logging.verbosity: -1 is out of range; use a number that is closer to zero"),
        ("configSyncPeriod: 30 s", "configSyncPeriod: \"30 s\" is not a duration; write it like 30s, 1h30m or 250ms"),
        ("logging: {flushFrequency: 99999999999999999999}", NANOS),
        ("logging: {flushFrequency: 18446744073709551615}", NANOS),
        (
            "logging: {options: {text: {infoBufferSize: 4kb}}}",
            "logging.options.text.infoBufferSize: \"4kb\" is not a size; write it like 512, 1k or 4Ki",
        ),
    ] {
        for version in ["v1alpha1", "v1alpha2"] {
            refused(&text(version, lines), &[&format!("line 3: {message}")]);
        }
    }
}

#[test]
fn the_error_for_another_document_names_the_expected_one() {
    let remedy = "write kind: KubeProxyConfiguration and apiVersion: kubeproxy.config.k8s.io/v1alpha2 or kubeproxy.config.k8s.io/v1alpha1";
    for (text, message) in [
        ("", "line 1: is nothing, not a KubeProxyConfiguration"),
        ("# nothing\n", "line 2: is nothing, not a KubeProxyConfiguration"),
        ("just words", "line 1: is \"just words\", not a KubeProxyConfiguration"),
        ("[]", "line 1: is a list, not a KubeProxyConfiguration"),
        ("mode: ipvs", "kind: is missing"),
        ("kind: KubeProxyConfiguration", "apiVersion: is missing"),
        ("kind: KubeProxyConfiguration\napiVersion:", "line 2: apiVersion: is missing"),
        ("kind: 1", "line 1: kind: is not a string"),
        ("apiVersion: v1\nkind: ConfigMap", "line 2: kind: no kind \"ConfigMap\" is registered for version \"v1\""),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration",
            "line 1: apiVersion: no kind \"KubeProxyConfiguration\" is registered for version \"kubeproxy.config.k8s.io/v1beta1\"",
        ),
        (
            "apiVersion: v1alpha1\nkind: KubeProxyConfiguration",
            "line 1: apiVersion: no kind \"KubeProxyConfiguration\" is registered for version \"v1alpha1\"",
        ),
    ] {
        refused(text, &[&format!("{message}; {remedy}")]);
    }
}

#[test]
fn invalid_yaml_is_refused_with_its_line() {
    for (lines, remedy) in [
        ("bindAddress: ::", "correct the YAML"),
        ("mode: [", "correct the YAML"),
        ("mode: ipvs\n\tiptables: {}", "correct the YAML"),
        ("mode: ipvs\n  iptables: {}", "correct the YAML"),
        ("mode: *none", "an alias (*name) has no anchor; define &name before the alias"),
    ] {
        for version in ["v1alpha1", "v1alpha2"] {
            let message = read(&text(version, lines)).unwrap_err();
            let placed = message[0].starts_with("line 3: ") || message[0].starts_with("line 4: ");
            assert!(message.len() == 1 && placed && message[0].ends_with(remedy), "{lines}: {message:?}");
        }
    }
}

#[test]
fn only_the_first_document_is_read() {
    strict(
        "mode: ipvs\n---\nmode: nftables",
        &["line 4: another document begins here, but only the first is read; keep only the KubeProxyConfiguration"],
        &["line 4: another document begins here, but only the first is read; keep only the KubeProxyConfiguration"],
    );
    let (config, warnings) = read(&format!("---\n{}---\n# the end\n", text("v1alpha2", "mode: ipvs"))).unwrap();
    assert_eq!((config.mode, warnings), (Mode::Ipvs, Vec::new()));
}

#[test]
fn json_is_read_too() {
    let json = r#"{
	"apiVersion": "kubeproxy.config.k8s.io/v1alpha2", "kind": "KubeProxyConfiguration",
	"mode": "nftables", "syncPeriod": "1m", "nodePortAddresses": ["10.0.0.0/8"],
	"linux": {"conntrack": {"min": 0}, "oomScoreAdj": null}
}"#;
    let (config, warnings) = read(json).unwrap();
    assert_eq!(warnings, [""; 0]);
    assert_eq!(
        (config.mode, config.sync_period, config.linux.conntrack.min),
        (Mode::Nftables, Duration::from_secs(60), 0)
    );
    refused(
        &json.replace("\"min\": 0", "\"min\": -1"),
        &["line 4: linux.conntrack.min: Invalid value: -1: must be greater than or equal to 0; use 0 for no minimum"],
    );
}

#[test]
fn yaml_is_parsed_like_in_kube_proxy() {
    let lines = "enableProfiling: yes
bindAddressHardFail: Off
iptables: &bits {masqueradeBit: 010}
nftables: *bits
oomScoreAdj: -0x10
hostnameOverride: \"node\\u002da\"
clusterCIDR: >-
  10.0.0.0/8";
    let (config, warnings) = read(&text("v1alpha1", lines)).unwrap();
    assert_eq!(warnings, [""; 0]);
    assert_eq!((config.enable_profiling, config.bind_address_hard_fail), (true, false));
    assert_eq!((config.iptables.masquerade_bit, config.nftables.masquerade_bit), (8, 8));
    assert_eq!((config.linux.oom_score_adj, config.hostname_override.as_deref()), (-16, Some("node-a")));
    assert_eq!(config.detect_local.cluster_cidrs, ["10.0.0.0/8".parse().unwrap()]);
}

#[test]
fn problems_name_the_file() {
    let problems = Reader::kube_proxy(Platform::Linux).read(&text("v1alpha2", "mode: x\nsyncPeriod: -1s")).unwrap_err();
    let named: Vec<_> =
        problems.0.iter().map(|problem| problem.clone().in_file(Path::new("/etc/proxy.yaml")).to_string()).collect();
    assert_eq!(
        named,
        [
            "/etc/proxy.yaml:3: mode: Invalid value: \"x\": must be iptables, ipvs, nftables or blank; use one of them",
            "/etc/proxy.yaml:4: syncPeriod: Invalid value: \"-1s\": must be greater than 0; write it like 30s",
        ]
    );
    assert_eq!(problems.to_string().lines().count(), 2);
    assert_eq!(Version::V1alpha1.as_str(), "v1alpha1");
}
