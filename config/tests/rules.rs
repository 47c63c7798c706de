//! Tests every rule of validation in both versions: the message, and the field that it names.

use localnet_config::{Platform, Reader};

fn read(version: &str, lines: &str, platform: Platform) -> (Vec<String>, Vec<String>) {
    let text = format!("apiVersion: kubeproxy.config.k8s.io/{version}\nkind: KubeProxyConfiguration\n{lines}\n");
    let message = |problems: &[localnet_core::Diagnostic]| problems.iter().map(ToString::to_string).collect();
    match Reader::kube_proxy(platform).read(&text) {
        Ok(reading) => (Vec::new(), message(&reading.warnings)),
        Err(problems) => (message(&problems.0), Vec::new()),
    }
}

/// Checks the errors of invalid lines in v1alpha1 and in v1alpha2. The lines are empty if a version has no such field.
#[track_caller]
fn check(v1alpha1: &str, v1alpha2: &str, expected: &[&str]) {
    for (version, lines) in [("v1alpha1", v1alpha1), ("v1alpha2", v1alpha2)] {
        if !lines.is_empty() {
            assert_eq!(read(version, lines, Platform::Linux).0, expected, "{version}: {lines}");
        }
    }
}

/// Checks the errors of lines that are invalid in both versions.
#[track_caller]
fn check_both(lines: &str, expected: &[&str]) {
    check(lines, lines, expected);
}

/// Checks that both versions accept the lines without a warning.
#[track_caller]
fn good(lines: &str) {
    for version in ["v1alpha1", "v1alpha2"] {
        assert_eq!(read(version, lines, Platform::Linux), (Vec::new(), Vec::new()), "{version}: {lines}");
    }
}

#[test]
fn feature_gates_are_settable() {
    check_both(
        "featureGates: {WinDSR: false, NFTablesProxyMode: false, AllAlpha: true}",
        &[
            "line 3: featureGates.NFTablesProxyMode: Invalid value: false: cannot set feature gate NFTablesProxyMode to false, feature is locked to true; remove it",
            "line 3: featureGates.WinDSR: Invalid value: false: cannot set feature gate WinDSR to false, feature is locked to true; remove it",
        ],
    );
    good("featureGates: {WinDSR: true, AllowServiceExternalIPs: false}");
    for version in ["v1alpha1", "v1alpha2"] {
        let message = read(version, "featureGates:\n  SidecarContainers: true", Platform::Linux);
        let warning = "line 4: featureGates.SidecarContainers: feature gate SidecarContainers is unknown and has no effect; remove it";
        assert_eq!(message, (Vec::new(), vec![warning.to_owned()]), "{version}");
    }
}

#[test]
fn masquerade_bits_are_bits() {
    let message = |field: &str, bit: i32| {
        format!("line 3: {field}: Invalid value: {bit}: must be within the range [0, 31]; 14 is the default")
    };
    for bit in [-1, 32] {
        check_both(&format!("iptables: {{masqueradeBit: {bit}}}"), &[&message("iptables.masqueradeBit", bit)]);
        let lines = format!("nftables: {{masqueradeBit: {bit}}}\nmode: nftables");
        check_both(&lines, &[&message("nftables.masqueradeBit", bit)]);
        let lines = format!("ipvs: {{masqueradeBit: {bit}}}\nmode: ipvs");
        check("", &lines, &[&message("ipvs.masqueradeBit", bit)]);
    }
    // In v1alpha1, the mode ipvs uses this field, too. The errors name the field once.
    check("iptables: {masqueradeBit: 32}\nmode: ipvs", "", &[&message("iptables.masqueradeBit", 32)]);
    for bit in [0, 31] {
        good(&format!("iptables: {{masqueradeBit: {bit}}}\nnftables: {{masqueradeBit: {bit}}}\nmode: nftables"));
    }
}

#[test]
fn ipvs_has_timeouts_and_cidrs() {
    check_both(
        "mode: ipvs\nipvs:\n  tcpTimeout: -1s\n  tcpFinTimeout: -2s\n  udpTimeout: -3s\n  excludeCIDRs:\n  - 10.0.0.0/8\n  - 10.0.0.1",
        &[
            "line 10: ipvs.excludeCIDRs[1]: Invalid value: \"10.0.0.1\": must be a valid CIDR; write it like 10.0.0.0/8 or 2001:db8::/32",
            "line 5: ipvs.tcpTimeout: Invalid value: \"-1s\": must be greater than or equal to 0; use 0s to keep the kernel's value",
            "line 6: ipvs.tcpFinTimeout: Invalid value: \"-2s\": must be greater than or equal to 0; use 0s to keep the kernel's value",
            "line 7: ipvs.udpTimeout: Invalid value: \"-3s\": must be greater than or equal to 0; use 0s to keep the kernel's value",
        ],
    );
    good(
        "mode: ipvs\nipvs: {tcpTimeout: 0s, tcpFinTimeout: 2m, udpTimeout: 5m0s, excludeCIDRs: ['fd00::/64', 010.0.0.0/8]}",
    );
}

#[test]
fn negative_conntrack_values_are_errors() {
    let fields = "  maxPerCore: -1\n  min: -2\n  tcpEstablishedTimeout: -3s\n  tcpCloseWaitTimeout: -4s\n  udpTimeout: -5s\n  udpStreamTimeout: -6s";
    let expected = |prefix: &str, first: usize| {
        let rows = [
            ("maxPerCore", "-1", 0, "use 0 to keep the kernel's limit"),
            ("tcpEstablishedTimeout", "\"-3s\"", 2, "use 0s to keep the kernel's value"),
            ("tcpCloseWaitTimeout", "\"-4s\"", 3, "use 0s to keep the kernel's value"),
            ("udpTimeout", "\"-5s\"", 4, "use 0s to keep the kernel's value"),
            ("udpStreamTimeout", "\"-6s\"", 5, "use 0s to keep the kernel's value"),
            ("min", "-2", 1, "use 0 for no minimum"),
        ];
        rows.map(|(name, value, line, remedy)| {
            let line = first + line;
            format!(
                "line {line}: {prefix}.{name}: Invalid value: {value}: must be greater than or equal to 0; {remedy}"
            )
        })
    };
    let v1alpha1 = expected("conntrack", 4);
    check(&format!("conntrack:\n{fields}"), "", &v1alpha1.each_ref().map(String::as_str));
    let v1alpha2 = expected("linux.conntrack", 5);
    let deeper = fields.replace("  ", "    ");
    check("", &format!("linux:\n  conntrack:\n{deeper}"), &v1alpha2.each_ref().map(String::as_str));
}

#[test]
fn oom_scores_are_limited() {
    for score in [-1001, 1001] {
        let message = |field: &str, line: u64| {
            format!(
                "line {line}: {field}: Invalid value: {score}: must be within the range [-1000, 1000]; -999 is the default"
            )
        };
        check(&format!("oomScoreAdj: {score}"), "", &[&message("oomScoreAdj", 3)]);
        check("", &format!("linux:\n  oomScoreAdj: {score}"), &[&message("linux.oomScoreAdj", 4)]);
    }
    for score in [-1000, 0, 1000] {
        assert_eq!(read("v1alpha1", &format!("oomScoreAdj: {score}"), Platform::Linux), (Vec::new(), Vec::new()));
    }
}

#[test]
fn modes_depend_on_the_platform() {
    for mode in ["userspace", "kernelspace", "NFTables"] {
        let message = format!(
            "line 3: mode: Invalid value: {mode:?}: must be iptables, ipvs, nftables or blank; use one of them"
        );
        check_both(&format!("mode: {mode}"), &[&message]);
    }
    for mode in ["iptables", "ipvs", "nftables", "''"] {
        good(&format!("mode: {mode}"));
    }
    for version in ["v1alpha1", "v1alpha2"] {
        let message = "line 3: mode: Invalid value: \"ipvs\": must be kernelspace or blank; use one of them".to_owned();
        assert_eq!(read(version, "mode: ipvs", Platform::Windows), (vec![message], Vec::new()));
        assert_eq!(read(version, "mode: kernelspace", Platform::Windows), (Vec::new(), Vec::new()));
    }
}

#[test]
fn a_negative_burst_is_an_error() {
    check_both(
        "clientConnection:\n  qps: -1\n  burst: -1",
        &[
            "line 5: clientConnection.burst: Invalid value: -1: must be greater than or equal to 0; use 0 for the default",
        ],
    );
    good("clientConnection: {qps: -1, burst: 1}");
}

#[test]
fn periods_are_positive_and_in_order() {
    check_both(
        "configSyncPeriod: -1s",
        &["line 3: configSyncPeriod: Invalid value: \"-1s\": must be greater than 0; write it like 30s"],
    );
    for (mode, section) in [("", "iptables"), ("iptables", "iptables"), ("ipvs", "ipvs"), ("nftables", "nftables")] {
        let lines = |fields: &str| format!("mode: '{mode}'\n{section}: {{{fields}}}");
        let message = |name: &str, rest: &str| format!("line 4: {section}.{name}: Invalid value: {rest}");
        check(
            &lines("syncPeriod: -1s"),
            "",
            &[&message("syncPeriod", "\"-1s\": must be greater than 0; write it like 30s")],
        );
        check(
            &lines("minSyncPeriod: -1s"),
            "",
            &[&message("minSyncPeriod", "\"-1s\": must be greater than or equal to 0; use 0s to sync at once")],
        );
        let order = "\"10s\": must be greater than or equal to minSyncPeriod, \"11s\"; make it longer, or minSyncPeriod shorter";
        check(&lines("syncPeriod: 10s, minSyncPeriod: 11s"), "", &[&message("syncPeriod", order)]);
        assert_eq!(read("v1alpha1", &lines("syncPeriod: 10s, minSyncPeriod: 10s"), Platform::Linux).0, [""; 0]);
    }
    for (lines, message) in [
        ("syncPeriod: -1s", "syncPeriod: Invalid value: \"-1s\": must be greater than 0; write it like 30s"),
        (
            "minSyncPeriod: -1s",
            "minSyncPeriod: Invalid value: \"-1s\": must be greater than or equal to 0; use 0s to sync at once",
        ),
        (
            "syncPeriod: 10s\nminSyncPeriod: 11s",
            "syncPeriod: Invalid value: \"10s\": must be greater than or equal to minSyncPeriod, \"11s\"; make it longer, or minSyncPeriod shorter",
        ),
    ] {
        check("", lines, &[&format!("line 3: {message}")]);
    }
}

#[test]
fn a_node_has_addresses() {
    let remedy = "write it like 10.0.0.1 or 2001:db8::1";
    for text in ["nonsense", "10.0.0.1:80", "10.0.0.1,fd00::1"] {
        let message = format!("Invalid value: {text:?}: not a valid textual representation of an IP address; {remedy}");
        check(&format!("bindAddress: '{text}'"), "", &[&format!("line 3: bindAddress: {message}")]);
        check("", &format!("nodeIPOverride: ['{text}']"), &[&format!("line 3: nodeIPOverride[0]: {message}")]);
    }
    check(
        "",
        "nodeIPOverride:\n- 10.0.0.1\n- 10.0.0.2\n- '::'",
        &[
            "line 5: nodeIPOverride[1]: Invalid value: \"10.0.0.2\": must be a single IP or a dual-stack pair of IPs; name one address of each family",
            "line 6: nodeIPOverride[2]: Invalid value: \"::\": must not be unspecified; leave the list empty to use the addresses of the Node",
        ],
    );
    assert_eq!(read("v1alpha1", "bindAddress: 010.0.0.1", Platform::Linux), (Vec::new(), Vec::new()));
}

#[test]
fn unknown_family_policies_are_errors() {
    check(
        "",
        "ipFamilyPolicy: DualStack",
        &[
            "line 3: ipFamilyPolicy: Unsupported value: \"DualStack\": supported values: \"SingleStack\", \"PreferDualStack\", \"RequireDualStack\"; use one of them, or remove the field",
        ],
    );
    check(
        "",
        "ipFamilyPolicy: SingleStack\nnodeIPOverride: [10.0.0.1, 'fd00::1']",
        &[
            "line 3: ipFamilyPolicy: Invalid value: \"SingleStack\": nodeIPOverride has addresses of two families; remove one of the addresses, or use PreferDualStack",
        ],
    );
    for policy in ["SingleStack", "PreferDualStack", "RequireDualStack", "''"] {
        let lines = format!("ipFamilyPolicy: {policy}\nnodeIPOverride: [10.0.0.1]");
        assert_eq!(read("v1alpha2", &lines, Platform::Linux), (Vec::new(), Vec::new()), "{policy}");
    }
}

#[test]
fn addresses_without_ip_or_port_are_errors() {
    for field in ["healthzBindAddress", "metricsBindAddress"] {
        for (value, shown, why) in [
            ("nonsense", "nonsense", "must be IP:port"),
            ("localhost:80", "localhost", "must be a valid IP"),
            (":10256", "", "must be a valid IP"),
            ("10.0.0.1:0", "0", "must be a valid port"),
            ("10.0.0.1:70000", "70000", "must be a valid port"),
        ] {
            let message =
                format!("line 3: {field}: Invalid value: {shown:?}: {why}; write it like 0.0.0.0:10256 or [::]:10256");
            check_both(&format!("{field}: '{value}'"), &[&message]);
        }
        for value in ["10.0.0.1:1", "[fd00::1]:65535", "10.0.0.1", "'fd00::1'", "''"] {
            let value = if value.starts_with('[') { format!("'{value}'") } else { value.to_owned() };
            good(&format!("{field}: {value}"));
        }
    }
}

#[test]
fn node_port_addresses_are_cidrs_and_words() {
    check_both(
        "nodePortAddresses:\n- 10.0.0.0/8\n- 10.0.0.1\n- ''",
        &[
            "line 5: nodePortAddresses[1]: Invalid value: \"10.0.0.1\": must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'; write it like 10.0.0.0/8 or 2001:db8::/32",
            "line 6: nodePortAddresses[2]: Invalid value: \"\": must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'; write it like 10.0.0.0/8 or 2001:db8::/32",
        ],
    );
    for word in ["primary", "localhost", "all"] {
        let message = format!("line 3: nodePortAddresses[2]: Duplicate value: {word:?}; remove it");
        check_both(&format!("nodePortAddresses: [{word}, 10.0.0.0/8, {word}]"), &[&message]);
        good(&format!("nodePortAddresses: [{word}]"));
        good(&format!("nodePortAddresses: [10.0.0.0/8, {word}]"));
    }
    good("nodePortAddresses: [primary, localhost, all]");
    good("nodePortAddresses: [10.0.0.0/8, 10.1.0.0/16, 'fd00::/8', 10.0.0.0/8]");
    good("nodePortAddresses: []");
}

#[test]
fn hidden_metrics_can_be_shown_only_for_the_previous_version() {
    for version in ["1.37", "1.35", "1", "x"] {
        let message = format!(
            "line 3: showHiddenMetricsForVersion: Invalid value: {version:?}: only the previous minor version is meaningful, 1.36; use that, or remove the field"
        );
        check_both(&format!("showHiddenMetricsForVersion: '{version}'"), &[&message]);
    }
    good("showHiddenMetricsForVersion: '1.36'");
}

#[test]
fn each_detect_local_mode_needs_its_field() {
    check_both(
        "detectLocalMode: PodCIDR",
        &[
            "line 3: detectLocalMode: Unsupported value: \"PodCIDR\": supported values: \"ClusterCIDR\", \"NodeCIDR\", \"BridgeInterface\", \"InterfaceNamePrefix\"; use one of them, or remove the field",
        ],
    );
    check_both(
        "detectLocalMode: BridgeInterface",
        &[
            "line 1: detectLocal.bridgeInterface: Invalid value: \"\": must not be empty; detectLocalMode BridgeInterface needs it",
        ],
    );
    check_both(
        "detectLocal:\n  interfaceNamePrefix: ''\ndetectLocalMode: InterfaceNamePrefix",
        &[
            "line 4: detectLocal.interfaceNamePrefix: Invalid value: \"\": must not be empty; detectLocalMode InterfaceNamePrefix needs it",
        ],
    );
    for (mode, field) in [("BridgeInterface", "bridgeInterface"), ("InterfaceNamePrefix", "interfaceNamePrefix")] {
        let message = format!(
            "line 4: detectLocal.{field}: Invalid value: \"sixteen-letters-\": must be no longer than 15 bytes; no interface has a longer name"
        );
        check_both(&format!("detectLocalMode: {mode}\ndetectLocal: {{{field}: sixteen-letters-}}"), &[&message]);
        good(&format!("detectLocalMode: {mode}\ndetectLocal: {{{field}: fifteen-letters}}"));
        good(&format!("detectLocal: {{{field}: sixteen-letters-}}"));
    }
    good("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}");
    good("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}");
    good("detectLocalMode: NodeCIDR");
}

#[test]
fn cluster_cidrs_have_at_most_one_cidr_per_family() {
    let block = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48); write CIDRs without spaces around them";
    let pair = "must be either a single CIDR or a dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]); name one CIDR of each family";
    for (list, index, shown, why) in [
        ("10.0.0.0", "[0]", "\"10.0.0.0\"", block),
        ("10.0.0.0/8, fd00::/48", "[1]", "\" fd00::/48\"", block),
        ("10.0.0.0/8,11.0.0.0/8", "", "[\"10.0.0.0/8\", \"11.0.0.0/8\"]", pair),
        ("10.0.0.0/8,fd00::/48,fd01::/48", "", "[\"10.0.0.0/8\", \"fd00::/48\", \"fd01::/48\"]", pair),
    ] {
        for mode in ["", "ClusterCIDR"] {
            let message = format!("line 4: clusterCIDR: Invalid value: {shown}: {why}");
            check(&format!("detectLocalMode: '{mode}'\nclusterCIDR: '{list}'"), "", &[&message]);
            let items = list.split(',').map(|item| format!("'{item}'")).collect::<Vec<_>>().join(",");
            let message = format!("line 5: detectLocal.clusterCIDRs{index}: Invalid value: {shown}: {why}");
            check("", &format!("detectLocalMode: '{mode}'\ndetectLocal:\n  clusterCIDRs: [{items}]"), &[&message]);
        }
    }
    assert_eq!(read("v1alpha1", "clusterCIDR: 10.0.0.0/8,fd00::/48", Platform::Linux), (Vec::new(), Vec::new()));
    assert_eq!(read("v1alpha1", "clusterCIDR: 10.0.0.0/8", Platform::Linux), (Vec::new(), Vec::new()));
}

#[test]
fn logging_follows_the_rules_of_component_base() {
    check_both(
        "logging:\n  flushFrequency: -1s\n  format: xml\n  verbosity: 2147483648\n  vmodule:\n  - filePattern: ''\n  - filePattern: a=b,c\n    verbosity: 4294967295",
        &[
            "line 4: logging.flushFrequency: Invalid value: \"-1s\": Must be greater than zero; write it like 5s",
            "line 5: logging.format: Invalid value: \"xml\": Unsupported log format; use text or json",
            "line 6: logging.verbosity: Invalid value: 2147483648: Must be <= 2147483647; use a smaller number",
            "line 8: logging.vmodule[0]: Required value: File pattern must not be empty; write the name of a source file",
            "line 9: logging.vmodule[1]: Invalid value: \"a=b,c\": File pattern must not contain equal sign or comma; write one item for each pattern",
            "line 9: logging.vmodule[1]: Invalid value: 4294967295: Must be <= 2147483647; use a smaller number",
        ],
    );
    check_both(
        "logging:\n  format: json\n  vmodule:\n  - filePattern: a",
        &["line 5: logging.vmodule: Forbidden: Only supported for text log format; remove it, or use format text"],
    );
    let options = "logging:\n  options:\n    text: {splitStream: true}\n    json: {infoBufferSize: 4Ki}";
    let why = "Feature LoggingAlphaOptions is disabled; turn on that feature gate, or remove the field";
    let buffer = format!("line 6: logging.options.json.infoBufferSize: Forbidden: {why}");
    let split = format!("line 5: logging.options.text.splitStream: Forbidden: {why}");
    check("", options, &[&split, &buffer]);
    check(options, "", &[&buffer]);
    // kube-proxy does not check `splitStream` here, so localnet skips it.
    let skipped = format!("line 5: logging.options.text.splitStream: skipped: {why}");
    assert_eq!(read("v1alpha1", &options.replace("4Ki", "0"), Platform::Linux), (Vec::new(), vec![skipped]));
    good(&format!("{options}\nfeatureGates: {{LoggingAlphaOptions: true}}"));
    good(&format!("{options}\nfeatureGates: {{AllAlpha: true}}"));
    check_both(
        "logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}",
        &[
            "line 3: logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature; turn on that gate, or use format text",
        ],
    );
    good("logging: {format: json, verbosity: 4, flushFrequency: 1000000000}");
    good("logging: {vmodule: [{filePattern: a, verbosity: 3}, {filePattern: 'b*'}]}");
}

#[test]
fn a_blank_host_name_is_an_error() {
    check_both(
        "hostnameOverride: '  '",
        &[
            "line 3: hostnameOverride: Invalid value: \"  \": empty hostname-override is invalid; write the Node's name, or remove the field",
        ],
    );
    let text =
        "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nhostnameOverride: ' Node-A '";
    let config = Reader::kube_proxy(Platform::Linux).read(text).unwrap().config;
    assert_eq!(config.hostname_override.as_deref(), Some("node-a"));
}

/// kube-proxy does not check sections that its mode does not use. v1alpha2 checks them, unless `configHardFail` is false.
#[test]
fn errors_in_unused_sections_count_only_with_config_hard_fail() {
    for (lines, field, why) in [
        (
            "ipvs: {excludeCIDRs: [x]}",
            "ipvs.excludeCIDRs[0]: Invalid value: \"x\": must be a valid CIDR",
            "write it like 10.0.0.0/8 or 2001:db8::/32",
        ),
        (
            "ipvs: {udpTimeout: -1s}",
            "ipvs.udpTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
            "use 0s to keep the kernel's value",
        ),
        (
            "nftables: {masqueradeBit: 40}",
            "nftables.masqueradeBit: Invalid value: 40: must be within the range [0, 31]",
            "14 is the default",
        ),
        (
            "winkernel: {sourceVip: x}",
            "winkernel.sourceVip: Invalid value: \"x\": must be a valid IP",
            "write it like 10.0.0.1",
        ),
    ] {
        let warning = format!("line 3: {field}; skipped, because the mode does not use it; {why}");
        let error = format!("line 3: {field}; {why}");
        assert_eq!(read("v1alpha1", lines, Platform::Linux), (Vec::new(), vec![warning.clone()]));
        assert_eq!(read("v1alpha2", lines, Platform::Linux), (vec![error], Vec::new()));
        let soft = format!("{lines}\nconfigHardFail: false");
        assert_eq!(read("v1alpha2", &soft, Platform::Linux), (Vec::new(), vec![warning]));
    }
    let nodes = "detectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/8,11.0.0.0/8";
    assert_eq!(read("v1alpha1", nodes, Platform::Linux).0, [""; 0]);
    assert_eq!(read("v1alpha1", nodes, Platform::Linux).1.len(), 1);
}
