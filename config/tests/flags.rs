//! Tests kube-proxy's flags: the field that each sets, the values that are refused, and the flags that apply beside a file.

use clap::{CommandFactory as _, Parser};
use localnet_config::{
    Config, Mode, NodePortAddress, NodePortAddresses, Platform, Reader,
    flags::{FLAGS, Flag, Kind, KubeProxyFlags, Part, Sets},
};

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    flags: KubeProxyFlags,
}

fn flags(given: &[&str]) -> Result<KubeProxyFlags, String> {
    let program = Program::try_parse_from([&["program"], given].concat()).map_err(|error| error.to_string())?;
    Ok(program.flags)
}

fn read(given: &[&str], text: Option<&str>) -> Result<(Config, Vec<String>), Vec<String>> {
    let flags = flags(given).map_err(|error| vec![error])?;
    let message = |problems: &[localnet_core::Diagnostic]| problems.iter().map(ToString::to_string).collect();
    match flags.read(Reader::kube_proxy(Platform::Linux), text) {
        Ok(reading) => Ok((reading.config, message(&reading.warnings))),
        Err(problems) => Err(message(&problems.0)),
    }
}

/// The configuration as a document of v1alpha2.
#[track_caller]
fn document(given: &[&str]) -> serde_json::Value {
    let (config, _) = read(given, None).unwrap_or_else(|problems| panic!("{given:?}: {problems:?}"));
    localnet_config::Document::from(&config).to_json()
}

/// Checks the value, as JSON, that the field at `path` has with these flags.
#[track_caller]
fn sets(given: &[&str], path: &str, expected: &str) {
    let document = document(given);
    let value = path.split('.').fold(&document, |value, step| &value[step]);
    assert_eq!(value.to_string(), expected, "{given:?}: {path}");
}

const ROWS: &[(&str, &str, &str, &str)] = &[
    ("bind-address", "10.0.0.1", "nodeIPOverride", r#"["10.0.0.1"]"#),
    ("bind-address", "::", "nodeIPOverride", "[]"),
    ("bind-address", "", "nodeIPOverride", "[]"),
    ("bind-address-hard-fail", "true", "bindAddressHardFail", "true"),
    ("cluster-cidr", "10.0.0.0/8,fd00::/48", "detectLocal.clusterCIDRs", r#"["10.0.0.0/8","fd00::/48"]"#),
    ("cluster-cidr", "", "detectLocal.clusterCIDRs", "[]"),
    ("config-sync-period", "1m", "configSyncPeriod", r#""1m0s""#),
    ("conntrack-max-per-core", "0", "linux.conntrack.maxPerCore", "0"),
    ("conntrack-min", "7", "linux.conntrack.min", "7"),
    ("conntrack-tcp-be-liberal", "true", "linux.conntrack.tcpBeLiberal", "true"),
    ("conntrack-tcp-timeout-close-wait", "2s", "linux.conntrack.tcpCloseWaitTimeout", r#""2s""#),
    ("conntrack-tcp-timeout-established", "0", "linux.conntrack.tcpEstablishedTimeout", r#""0s""#),
    ("conntrack-udp-timeout", "3s", "linux.conntrack.udpTimeout", r#""3s""#),
    ("conntrack-udp-timeout-stream", "4s", "linux.conntrack.udpStreamTimeout", r#""4s""#),
    ("detect-local-mode", "NodeCIDR", "detectLocalMode", r#""NodeCIDR""#),
    ("feature-gates", "AllAlpha=true, AllBeta=false", "featureGates", r#"{"AllAlpha":true,"AllBeta":false}"#),
    ("healthz-bind-address", "10.0.0.1:80", "healthzBindAddress", r#""10.0.0.1:80""#),
    ("healthz-bind-address", "fd00::1", "healthzBindAddress", r#""[fd00::1]:10256""#),
    ("healthz-bind-address", "", "healthzBindAddress", r#""""#),
    ("metrics-bind-address", "", "metricsBindAddress", r#""127.0.0.1:10249""#),
    ("hostname-override", " Node-A ", "hostnameOverride", r#""node-a""#),
    ("iptables-localhost-nodeports", "false", "iptables.localhostNodePorts", "false"),
    ("iptables-masquerade-bit", "20", "iptables.masqueradeBit", "20"),
    ("iptables-masquerade-bit", "20", "ipvs.masqueradeBit", "20"),
    ("iptables-min-sync-period", "0s", "minSyncPeriod", r#""0s""#),
    ("iptables-sync-period", "20s", "syncPeriod", r#""20s""#),
    ("ipvs-exclude-cidrs", "10.0.0.0/8,fd00::/48", "ipvs.excludeCIDRs", r#"["10.0.0.0/8","fd00::/48"]"#),
    ("ipvs-min-sync-period", "5s", "minSyncPeriod", r#""1s""#),
    ("ipvs-scheduler", "wrr", "ipvs.scheduler", r#""wrr""#),
    ("ipvs-strict-arp", "true", "ipvs.strictARP", "true"),
    ("ipvs-sync-period", "20s", "syncPeriod", r#""30s""#),
    ("ipvs-tcp-timeout", "1s", "ipvs.tcpTimeout", r#""1s""#),
    ("ipvs-tcpfin-timeout", "2s", "ipvs.tcpFinTimeout", r#""2s""#),
    ("ipvs-udp-timeout", "3s", "ipvs.udpTimeout", r#""3s""#),
    ("kube-api-burst", "20", "clientConnection.burst", "20"),
    ("kube-api-content-type", "application/json", "clientConnection.contentType", r#""application/json""#),
    ("kube-api-qps", "2.5", "clientConnection.qps", "2.5"),
    ("kubeconfig", "/etc/k", "clientConnection.kubeconfig", r#""/etc/k""#),
    ("log-flush-frequency", "1s", "logging.flushFrequency", r#""1s""#),
    ("logging-format", "json", "logging.format", r#""json""#),
    ("masquerade-all", "true", "linux.masqueradeAll", "true"),
    ("metrics-bind-address", "0.0.0.0", "metricsBindAddress", r#""0.0.0.0:10249""#),
    ("nodeport-addresses", "10.0.0.0/8,fd00::/48", "nodePortAddresses", r#"["10.0.0.0/8","fd00::/48"]"#),
    ("nodeport-addresses", "primary", "nodePortAddresses", r#"["primary"]"#),
    ("oom-score-adj", "-5", "linux.oomScoreAdj", "-5"),
    ("pod-bridge-interface", "cni0", "detectLocal.bridgeInterface", r#""cni0""#),
    ("pod-interface-name-prefix", "veth", "detectLocal.interfaceNamePrefix", r#""veth""#),
    ("profiling", "true", "enableProfiling", "true"),
    ("proxy-mode", "nftables", "mode", r#""nftables""#),
    ("show-hidden-metrics-for-version", "1.36", "showHiddenMetricsForVersion", r#""1.36""#),
    ("v", "4", "logging.verbosity", "4"),
    (
        "vmodule",
        "a=1,b*=2",
        "logging.vmodule",
        r#"[{"filePattern":"a","verbosity":1},{"filePattern":"b*","verbosity":2}]"#,
    ),
];

#[test]
fn each_flag_sets_its_field() {
    for (name, value, path, expected) in ROWS {
        sets(&[&format!("--{name}={value}")], path, expected);
        // A value may also be a separate argument, unless the flag has a meaning without a value.
        let kind = FLAGS.iter().find(|flag| flag.name == *name).map(|flag| flag.kind);
        if kind != Some(Kind::Bool) {
            sets(&[&format!("--{name}"), value], path, expected);
        }
    }
    // These flags have separate rows below.
    let apart = ["healthz-port", "metrics-port"];
    let gated =
        ["log-json-info-buffer-size", "log-json-split-stream", "log-text-info-buffer-size", "log-text-split-stream"];
    let set_something = |flag: &&Flag| flag.platform.is_none() && ![Sets::Program, Sets::Nothing].contains(&flag.sets);
    for flag in FLAGS.iter().filter(set_something) {
        let covered =
            ROWS.iter().any(|row| row.0 == flag.name) || apart.contains(&flag.name) || gated.contains(&flag.name);
        assert!(covered, "--{} has no row", flag.name);
    }
    for (name, value, path, expected) in [
        ("log-json-info-buffer-size", "4Ki", "logging.options.json.infoBufferSize", r#""4096""#),
        ("log-json-split-stream", "true", "logging.options.json.splitStream", "true"),
        ("log-text-info-buffer-size", "512", "logging.options.text.infoBufferSize", r#""512""#),
        ("log-text-split-stream", "true", "logging.options.text.splitStream", "true"),
    ] {
        sets(&["--feature-gates=LoggingAlphaOptions=true", &format!("--{name}={value}")], path, expected);
    }
}

#[test]
fn defaults_equal_kube_proxys_except_node_ports_on_loopback() {
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\niptables: {localhostNodePorts: false}\n";
    let file = Reader::kube_proxy(Platform::Linux).read(text).map(|reading| reading.config);
    assert_eq!(read(&[], None).ok().map(|(config, _)| config), file.ok());
}

#[test]
fn periods_depend_on_the_mode() {
    for (given, sync, min) in [
        (&["--proxy-mode=ipvs"][..], "30s", "1s"),
        (&["--proxy-mode=ipvs", "--ipvs-sync-period=20s", "--ipvs-min-sync-period=5s"], "20s", "5s"),
        (&["--proxy-mode=ipvs", "--iptables-sync-period=20s", "--iptables-min-sync-period=5s"], "30s", "1s"),
        (&["--proxy-mode=nftables", "--iptables-sync-period=20s", "--iptables-min-sync-period=5s"], "20s", "5s"),
        (&["--proxy-mode=nftables", "--ipvs-sync-period=20s"], "30s", "1s"),
    ] {
        let is_set = given.iter().any(|flag| flag.contains("min-sync-period") && min == "5s");
        let config = read(given, None).unwrap_or_else(|problems| panic!("{given:?}: {problems:?}")).0;
        assert_eq!(config.min_interval().as_secs(), if is_set { 5 } else { 0 }, "{given:?}");
        sets(given, "syncPeriod", &format!("\"{sync}\""));
        sets(given, "minSyncPeriod", &format!("\"{min}\""));
    }
}

#[test]
fn a_repeated_flag_replaces_or_adds() {
    sets(&["--proxy-mode=ipvs", "--proxy-mode=nftables"], "mode", "\"nftables\"");
    sets(
        &["--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses=fd00::/48"],
        "nodePortAddresses",
        r#"["10.0.0.0/8","fd00::/48"]"#,
    );
    sets(
        &["--feature-gates=AllAlpha=true", "--feature-gates=AllBeta=true"],
        "featureGates",
        r#"{"AllAlpha":true,"AllBeta":true}"#,
    );
    sets(&["-v=2", "-v", "6"], "logging.verbosity", "6");
}

#[test]
fn a_switch_without_value_is_on() {
    sets(&["--masquerade-all"], "linux.masqueradeAll", "true");
    sets(&["--masquerade-all", "--profiling"], "enableProfiling", "true");
    for (text, expected) in [("1", "true"), ("T", "true"), ("True", "true"), ("0", "false"), ("F", "false")] {
        sets(&[&format!("--iptables-localhost-nodeports={text}")], "iptables.localhostNodePorts", expected);
    }
}

#[test]
fn deprecated_port_flags_apply_to_addresses_without_a_port() {
    sets(&["--healthz-port=80"], "healthzBindAddress", "\"0.0.0.0:10256\"");
    sets(&["--healthz-bind-address=10.0.0.1", "--healthz-port=80"], "healthzBindAddress", "\"10.0.0.1:80\"");
    sets(&["--metrics-bind-address=10.0.0.1", "--metrics-port=81"], "metricsBindAddress", "\"10.0.0.1:81\"");
    sets(&["--metrics-bind-address=10.0.0.1:5", "--metrics-port=81"], "metricsBindAddress", "\"10.0.0.1:5\"");
    for nowhere in ["--healthz-port=0", "--healthz-bind-address="] {
        assert_eq!(read(&[nowhere], None).map(|(config, _)| config.healthz_bind_address), Ok(None), "{nowhere}");
    }
}

#[test]
fn errors_name_the_flag_and_the_remedy() {
    for (given, message) in [
        ("--bind-address=x", "\"x\" is not a valid IP address; write it like 10.0.0.1"),
        (
            "--cluster-cidr=x",
            "Invalid value: \"x\": must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48); write CIDRs without spaces around them",
        ),
        ("--config-sync-period=30", "\"30\" is not a duration; write it like 30s, 1h30m or 250ms"),
        ("--conntrack-min=x", "\"x\" is not a whole number; write it in digits"),
        ("--conntrack-min=-1", "Invalid value: -1: must be greater than or equal to 0; use 0 for no minimum"),
        ("--feature-gates=A", "\"A\" is not a feature gate; write name=true or name=false"),
        (
            "--feature-gates=WinDSR=false",
            "Invalid value: false: cannot set feature gate WinDSR to false, feature is locked to true; remove it",
        ),
        (
            "--healthz-bind-address=x:1",
            "\"x:1\" is neither IP nor IP:port; write it like 10.0.0.1, 10.0.0.1:80 or [fd00::1]:80",
        ),
        // Port 0 stands for a random port, which no client would know.
        ("--healthz-bind-address=127.0.0.1:0", "\"0\" in \"127.0.0.1:0\" is not a port; use a port from 1 to 65535"),
        (
            "--metrics-bind-address=[::1]:65536",
            "\"65536\" in \"[::1]:65536\" is not a port; use a port from 1 to 65535",
        ),
        (
            "--hostname-override=  ",
            "Invalid value: \"  \": empty hostname-override is invalid; write the Node's name, or remove the field",
        ),
        ("--iptables-masquerade-bit=32", "Invalid value: 32: must be within the range [0, 31]; 14 is the default"),
        ("--iptables-sync-period=0s", "Invalid value: \"0s\": must be greater than 0; write it like 30s"),
        ("--kube-api-qps=fast", "\"fast\" is not a number; write it in digits"),
        ("--log-text-info-buffer-size=4kb", "\"4kb\" is not a size; write it like 512, 1k or 4Ki"),
        ("--masquerade-all=yes", "\"yes\" is neither true nor false; write true or false, or only the flag"),
        (
            "--metrics-port=0",
            "metrics cannot be switched off; bind metrics to a loopback address with --metrics-bind-address",
        ),
        ("--healthz-port=70000", "70000 is not a port; use a number from 1 to 65535"),
        (
            "--nodeport-addresses=10.0.0.1",
            "Invalid value: \"10.0.0.1\": must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'; write it like 10.0.0.0/8 or 2001:db8::/32",
        ),
        ("--nodeport-addresses=primary,10.0.0.0/8,primary", "Duplicate value: \"primary\"; remove it"),
        (
            "--proxy-mode=userspace",
            "Invalid value: \"userspace\": must be iptables, ipvs, nftables or blank; use one of them",
        ),
        ("--vmodule=a", "\"a\" does not have the pattern=N format; write pattern=N"),
        ("--source-vip=10.0.0.1", "is a flag of Windows; remove it"),
        ("--windows-service", "is a flag of Windows; remove it"),
    ] {
        let name = given.split('=').next().unwrap_or_default();
        assert_eq!(read(&[given], None).map(|_| ()), Err(vec![format!("{name}: {message}")]), "{given}");
    }
    let many = read(&["--conntrack-min=x", "--masquerade-all=x"], None);
    assert_eq!(many.map(|_| ()).map_err(|problems| problems.len()), Err(2), "all at once");
    for given in ["--unknown", "--proxy-mode", "positional"] {
        assert!(flags(&[given]).is_err(), "{given}");
    }
}

#[test]
fn warnings_about_flags_without_effect_give_the_reason() {
    for flag in FLAGS.iter().filter(|flag| flag.no_effect.is_some()) {
        let value = match flag.kind {
            Kind::Bool => "false",
            Kind::Duration => "1m",
            Kind::VModule => "a=1",
            Kind::Int | Kind::Float | Kind::Size => "0",
            _ if flag.name == "show-hidden-metrics-for-version" => "1.36",
            _ => "x",
        };
        let warnings = read(&[&format!("--{}={value}", flag.name)], None).map(|(_, warnings)| warnings);
        let message = format!("--{}: has no effect: {}; remove it", flag.name, flag.no_effect.unwrap_or_default());
        assert_eq!(warnings, Ok(vec![message]));
    }
    assert_eq!(read(&["--proxy-mode=nftables"], None).map(|(_, warnings)| warnings), Ok(Vec::new()));
}

const FILE: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
hostnameOverride: from-file
mode: nftables
syncPeriod: 20s
nodePortAddresses: [10.0.0.0/8]
logging:
  verbosity: 1
  format: json
";

#[test]
fn a_file_overrides_nearly_all_flags() {
    let (config, warnings) =
        read(&["--config=x", "--proxy-mode=ipvs", "--conntrack-min=x", "--kubeconfig=k"], Some(FILE))
            .unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(
        warnings,
        ["conntrack-min", "kubeconfig", "proxy-mode"]
            .map(|name| format!("--{name}: is ignored: --config is given; set it in the configuration file"))
    );
    let file = Reader::kube_proxy(Platform::Linux).read(FILE).map(|reading| reading.config);
    assert_eq!(Ok(config), file.map_err(|problems| problems.to_string()));
}

#[test]
fn the_flags_for_node_name_and_logging_apply_beside_a_file() {
    let given =
        ["--config=x", "--hostname-override=From-Flag", "-v=5", "--logging-format=text", "--log-flush-frequency=1s"];
    let (config, warnings) = read(&given, Some(FILE)).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(
        warnings,
        ["--log-flush-frequency: has no effect: localnet writes log lines immediately to standard error; remove it"]
    );
    assert_eq!(config.hostname_override.as_deref(), Some("from-flag"));
    assert_eq!((config.logging.verbosity, config.logging.format.as_str()), (5, "text"));
    assert_eq!((config.mode, config.sync_period.as_secs()), (Mode::Nftables, 20));
    assert_eq!(
        config.node_port_addresses,
        NodePortAddresses(vec![NodePortAddress::Cidr("10.0.0.0/8".parse().unwrap())])
    );
    let vmodule =
        format!("{}  vmodule: [{{filePattern: b, verbosity: 2}}]\n", FILE.replace("format: json", "format: text"));
    let (config, _) =
        read(&["--config=x", "--vmodule=a=1"], Some(&vmodule)).unwrap_or_else(|problems| panic!("{problems:?}"));
    let patterns: Vec<_> = config.logging.vmodule.iter().map(|item| item.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["a", "b"], "flags come first");
    assert_eq!(
        read(&["--config=x", "--logging-format=xml"], Some(FILE)).map(|_| ()),
        Err(vec!["--logging-format: Invalid value: \"xml\": Unsupported log format; use text or json".to_owned()])
    );
    assert_eq!(
        read(&["--config=x"], Some(&FILE.replace("nftables", "x"))).map(|_| ()),
        Err(vec![
            "line 4: mode: Invalid value: \"x\": must be iptables, ipvs, nftables or blank; use one of them".to_owned()
        ])
    );
    let current = FLAGS.iter().filter(|flag| flag.sets != Sets::Nothing);
    let beside: Vec<_> = current.filter(|flag| flag.beside_config).map(|flag| flag.name).collect();
    assert_eq!(
        beside,
        [
            "cleanup",
            "config",
            "hostname-override",
            "init-only",
            "log-flush-frequency",
            "log-json-info-buffer-size",
            "log-json-split-stream",
            "log-text-info-buffer-size",
            "log-text-split-stream",
            "logging-format",
            "master",
            "v",
            "vmodule",
            "windows-service",
            "write-config-to",
        ]
    );
}

#[test]
fn flags_request_actions() {
    let given =
        ["--config=/a", "--write-config-to", "/b", "--cleanup=false", "--init-only=false", "--master=https://m"];
    let flags = flags(&given).unwrap_or_else(|error| panic!("{error}"));
    let to_do = flags.to_do().unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(to_do.config, Some("/a".as_ref()));
    assert_eq!(to_do.write_config_to, Some("/b".as_ref()));
    assert_eq!((to_do.cleanup, to_do.init_only, to_do.master), (false, false, Some("https://m")));
    for (given, expected) in [(&["--cleanup"][..], (true, false)), (&["--init-only"], (false, true))] {
        let flags = self::flags(given).unwrap_or_else(|error| panic!("{error}"));
        let to_do = flags.to_do().unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!((to_do.cleanup, to_do.init_only), expected);
    }
    assert_eq!(KubeProxyFlags::default().to_do(), Ok(localnet_config::flags::ToDo::default()));
    let wrong =
        self::flags(&["--cleanup=x"]).map(|flags| flags.to_do().map(|_| ()).map_err(|problems| problems.to_string()));
    let message = "--cleanup: \"x\" is neither true nor false; write true or false, or only the flag".to_owned();
    assert_eq!(wrong, Ok(Err(message)));
}

/// Each of these flags makes the program exit, so only one of them could take effect.
#[test]
fn flags_that_end_the_program_cannot_be_combined() {
    for (given, message) in [
        (&["--cleanup", "--init-only"][..], "--cleanup: cannot be combined with --init-only"),
        (&["--write-config-to=/b", "--cleanup"], "--write-config-to: cannot be combined with --cleanup"),
        (
            &["--write-config-to=/b", "--cleanup", "--init-only"],
            "--write-config-to: cannot be combined with --cleanup and --init-only",
        ),
    ] {
        let problems = flags(given).map(|flags| flags.to_do().map(|_| ()).map_err(|problems| problems.to_string()));
        let message = format!("{message}: each of them ends the program; run the program once for each flag");
        assert_eq!(problems, Ok(Err(message)), "{given:?}");
    }
}

/// Command lines for earlier versions of kube-proxy, and the spelling with `_` that every version accepts.
#[test]
fn command_lines_of_earlier_versions_are_accepted() {
    let old = ["--logtostderr=true", "--cleanup-ipvs=false", "--proxy-port-range=0-0"];
    let (_, warnings) = read(&old, None).unwrap_or_else(|problems| panic!("{problems:?}"));
    let message = ["cleanup-ipvs", "logtostderr", "proxy-port-range"]
        .map(|name| format!("--{name}: has no effect: kube-proxy no longer has this flag; remove it"));
    assert_eq!(warnings, message);
    let (_, warnings) =
        read(&["--config=x", "--logtostderr"], Some(FILE)).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(warnings, ["--logtostderr: has no effect: kube-proxy no longer has this flag; remove it"]);

    let spelled = |given: &[&str]| -> Vec<String> {
        let words = localnet_config::flags::spelled(given.iter().map(Into::into));
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    };
    let given = ["--proxy_mode", "a_b", "--cluster_cidr=a_b", "-v", "--", "--a_b"];
    assert_eq!(spelled(&given), ["--proxy-mode", "a_b", "--cluster-cidr=a_b", "-v", "--", "--a_b"]);
}

/// kube-proxy is one program, and localnet has two. Without a report, a flag for the wrong program would be ignored silently.
#[test]
fn flags_for_the_other_program_are_reported() {
    let elsewhere = |given: &[&str], here| {
        let flags = flags(given).unwrap_or_else(|error| panic!("{error}"));
        flags.elsewhere(here).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let given = ["--masquerade-all", "--kubeconfig=k", "--proxy-mode=nftables"];
    let to_backend = "--masquerade-all: has no effect in this program; pass it to the backend";
    assert_eq!(elsewhere(&given, Part::Brain), [to_backend]);
    let to_brain = "--kubeconfig: has no effect in this program; pass it to localnet-brain";
    assert_eq!(elsewhere(&given, Part::Backend), [to_brain]);
    assert!(
        elsewhere(&["--config=x", "--hostname-override=a"], Part::Backend).is_empty(),
        "both programs get the same flags"
    );
}

/// If a flag applies beside a file, the document is checked a second time.
#[test]
fn a_warning_about_a_file_is_reported_once() {
    let file = format!("{FILE}featureGates: {{Unknown: true}}\nconfigHardFail: false\nwinkernel: {{sourceVip: x}}\n");
    let (_, alone) = read(&["--config=x"], Some(&file)).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(alone.len(), 2, "{alone:?}");
    assert_eq!(read(&["--config=x", "-v=4"], Some(&file)).map(|(_, warnings)| warnings), Ok(alone));
}

/// One flag sets all gates, so the message names the unknown gate.
#[test]
fn an_unknown_feature_gate_is_named() {
    let (_, warnings) = read(&["--feature-gates=CloudDualStackNodeIPs=true,WinDSR=true"], None)
        .unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(
        warnings,
        ["--feature-gates: feature gate CloudDualStackNodeIPs is unknown and has no effect; remove it"]
    );
}

#[test]
fn node_settings_are_applied_only_if_configured() {
    for (given, expected) in [
        (&[][..], false),
        (&["--masquerade-all", "--proxy-mode=nftables"], false),
        (&["--config=/a"], true),
        (&["--conntrack-min=1"], true),
        (&["--oom-score-adj=0"], true),
    ] {
        assert_eq!(flags(given).map(|flags| flags.configures_node()), Ok(expected), "{given:?}");
    }
}

#[test]
fn windows_flags_apply_only_on_windows() {
    let given =
        ["--source-vip=10.0.0.1", "--enable-dsr", "--network-name=n", "--root-hnsendpoint-name=r", "--windows-service"];
    let flags = flags(&given).unwrap_or_else(|error| panic!("{error}"));
    let config = flags.read(Reader::kube_proxy(Platform::Windows), None).map(|reading| reading.config);
    let config = config.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.winkernel.source_vip, "10.0.0.1".parse().ok());
    assert_eq!(config.winkernel.network_name.as_deref(), Some("n"));
    assert_eq!(config.winkernel.root_hns_endpoint_name.as_deref(), Some("r"));
    assert!(config.winkernel.enable_dsr && config.windows.run_as_service);
}

#[test]
fn the_command_is_sound() {
    Program::command().debug_assert();
    let help = Program::command().render_long_help().to_string();
    for flag in FLAGS.iter() {
        let shown =
            help.split_whitespace().any(|word| word.trim_end_matches("[=<BOOL>]") == format!("--{}", flag.name));
        assert_eq!(shown, flag.sets != Sets::Nothing, "--{}", flag.name);
    }
}
