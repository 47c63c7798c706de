//! Compares localnet-config with kube-proxy v1.37.2: both accept the same configurations, and give them the same meaning.
//!
//! `kube-proxy --write-config-to` checks a configuration and writes the resulting one, without starting a server.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::Context as _;
use clap::Parser;
use localnet_config::{
    Config, Platform, Reader,
    flags::{FLAGS, Kind, KubeProxyFlags, Sets},
};

/// kube-proxy, and a folder for its files.
struct KubeProxy {
    program: PathBuf,
    folder: tempfile::TempDir,
    files: AtomicUsize,
}

impl KubeProxy {
    fn new() -> anyhow::Result<Self> {
        let (program, folder) = (localnet_controlplane::binary("kube-proxy")?, tempfile::tempdir()?);
        Ok(Self { program, folder, files: AtomicUsize::new(0) })
    }

    /// The configuration that kube-proxy writes for a file, or its error.
    fn file(&self, text: &str) -> anyhow::Result<Result<String, String>> {
        let path = self.path();
        fs::write(&path, text)?;
        self.run(&["--config".to_owned(), path.display().to_string()])
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(self.files.fetch_add(1, Ordering::Relaxed).to_string())
    }

    fn run(&self, flags: &[String]) -> anyhow::Result<Result<String, String>> {
        let written = self.path();
        let run = Command::new(&self.program).args(flags).arg("--write-config-to").arg(&written).output()?;
        let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
        Ok(if run.status.success() { Ok(fs::read_to_string(&written).context(stderr)?) } else { Err(stderr) })
    }
}

const READER: Reader = Reader::kube_proxy(Platform::Linux);

fn ours(text: &str) -> Result<Config, String> {
    READER.read(text).map(|reading| reading.config).map_err(|problems| problems.to_string())
}

/// Runs a check for each row, several at a time, and reports all differences.
fn all<T: Sync>(rows: &[T], check: impl Fn(&T) -> anyhow::Result<Option<String>> + Sync) -> anyhow::Result<()> {
    let (next, threads) = (AtomicUsize::new(0), thread::available_parallelism()?.get());
    let differences = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| -> anyhow::Result<Vec<String>> {
                    let mut differences = Vec::new();
                    while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                        differences.extend(check(row)?);
                    }
                    Ok(differences)
                })
            })
            .collect();
        let joined =
            workers.into_iter().map(|worker| worker.join().map_err(|_| anyhow::anyhow!("a check has crashed")));
        joined.collect::<anyhow::Result<Result<Vec<_>, _>>>()
    })??;
    let differences = differences.concat();
    anyhow::ensure!(
        differences.is_empty(),
        "{} of {} differ:\n{}",
        differences.len(),
        rows.len(),
        differences.join("\n")
    );
    Ok(())
}

/// `None` if both refuse the configuration, or if both understand the same.
fn compare(what: &str, ours: Result<Config, String>, theirs: Result<String, String>) -> Option<String> {
    match (ours, theirs) {
        (Err(_), Err(_)) => None,
        (Ok(_), Err(error)) => Some(format!("{what}\n  kube-proxy refuses it: {}", last_line(&error))),
        (Err(error), Ok(_)) => Some(format!("{what}\n  localnet refuses it: {error}")),
        (Ok(config), Ok(written)) => match self::ours(&written) {
            // For an empty mode, kube-proxy writes the mode that it chose. When localnet reads that mode, its nftables section
            // takes the masquerade bit of the iptables section.
            Ok(theirs) => {
                let nftables = if config.explicit.mode { &theirs } else { &config }.nftables;
                let theirs = Config { explicit: config.explicit, nftables, ..theirs };
                (theirs != config)
                    .then(|| format!("{what}\n  ours:       {}\n  kube-proxy: {}", config.to_yaml(), theirs.to_yaml()))
            }
            Err(error) => Some(format!("{what}\n  localnet refuses the written file: {error}")),
        },
    }
}

fn last_line(text: &str) -> &str {
    text.trim().lines().last().unwrap_or_default()
}

/// Lines of a v1alpha1 document.
const FILES: &[&str] = &[
    "",
    "mode: ''",
    "mode: iptables",
    "mode: ipvs",
    "mode: nftables",
    "mode: userspace",
    "mode: kernelspace",
    "mode: NFTables",
    "mode: 1",
    "modes: ipvs",
    "mode: ipvs\nmode: nftables",
    "linux: {oomScoreAdj: 1}",
    "iptables: {unknown: {a: 1}}",
    "iptables: {masqueradeBit: 1, masqueradeBit: 2}",
    "---\nmode: ipvs\n",
    "mode: ipvs\n---\nmode: nftables\n",
    "iptables:",
    "iptables: []",
    "iptables: null\nconntrack: ~",
    "bindAddress: ::",
    "bindAddress: '::'",
    "bindAddress: '[::]'",
    "bindAddress: 10.0.0.1",
    "bindAddress: 010.0.0.1",
    "bindAddress: ::ffff:10.0.0.1",
    "bindAddress: fd00::1",
    "bindAddress: nonsense",
    "bindAddress: 10.0.0.1:80",
    "bindAddress: ''",
    "healthzBindAddress: 10.0.0.1",
    "healthzBindAddress: fd00::1",
    "healthzBindAddress: '[fd00::1]:80'",
    "healthzBindAddress: '[fd00::1]'",
    "healthzBindAddress: ':10256'",
    "healthzBindAddress: 10.0.0.1:0",
    "healthzBindAddress: 10.0.0.1:65535",
    "healthzBindAddress: 10.0.0.1:65536",
    "healthzBindAddress: localhost:80",
    "metricsBindAddress: 0.0.0.0",
    "metricsBindAddress: 10.0.0.1:+80",
    "metricsBindAddress: 10.0.0.1:080",
    "metricsBindAddress: ''",
    "bindAddressHardFail: true",
    "bindAddressHardFail: yes",
    "bindAddressHardFail: 'true'",
    "bindAddressHardFail: 1",
    "enableProfiling: on",
    "showHiddenMetricsForVersion: '1.36'",
    "showHiddenMetricsForVersion: '1.35'",
    "showHiddenMetricsForVersion: '1.37'",
    "showHiddenMetricsForVersion: 1.36",
    "showHiddenMetricsForVersion: x",
    "hostnameOverride: Node-A",
    "clientConnection: {kubeconfig: /a, acceptContentTypes: a, contentType: b, qps: 7.5, burst: 8}",
    "clientConnection: {qps: -1}",
    "clientConnection: {burst: -1}",
    "clientConnection: {burst: 1.5}",
    "clientConnection: {qps: 0, burst: 0, contentType: ''}",
    "clusterCIDR: 10.0.0.0/8",
    "clusterCIDR: 10.0.0.0/8,fd00::/48",
    "clusterCIDR: 10.0.0.0/8, fd00::/48",
    "clusterCIDR: 10.0.0.0/8,11.0.0.0/8",
    "clusterCIDR: 10.0.0.0/8,fd00::/48,fd01::/48",
    "clusterCIDR: 10.0.0.0",
    "clusterCIDR: 10.1.2.3/8",
    "clusterCIDR: 010.0.0.0/08",
    "clusterCIDR: nonsense\ndetectLocalMode: NodeCIDR",
    "configSyncPeriod: 0s",
    "configSyncPeriod: -1s",
    "configSyncPeriod: 1m",
    "configSyncPeriod: 1h30m",
    "configSyncPeriod: 1.5h",
    "configSyncPeriod: 30",
    "configSyncPeriod: 30 s",
    "configSyncPeriod: ''",
    "configSyncPeriod: '0'",
    "configSyncPeriod: 10000000h",
    "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
    "conntrack: {maxPerCore: null, min: null, tcpEstablishedTimeout: null, tcpCloseWaitTimeout: null}",
    "conntrack: {maxPerCore: 1, min: 2, tcpEstablishedTimeout: 3s, tcpCloseWaitTimeout: 4s, tcpBeLiberal: true, udpTimeout: 5s, udpStreamTimeout: 6s}",
    "conntrack: {maxPerCore: -1}",
    "conntrack: {min: -1}",
    "conntrack: {tcpEstablishedTimeout: -1s}",
    "conntrack: {tcpCloseWaitTimeout: -1s}",
    "conntrack: {udpTimeout: -1s}",
    "conntrack: {udpStreamTimeout: -1s}",
    "detectLocalMode: NodeCIDR",
    "detectLocalMode: ClusterCIDR",
    "detectLocalMode: PodCIDR",
    "detectLocalMode: BridgeInterface",
    "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
    "detectLocalMode: InterfaceNamePrefix",
    "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
    "detectLocal: {clusterCIDRs: [10.0.0.0/8]}",
    "iptables: {masqueradeBit: 0, masqueradeAll: true, localhostNodePorts: false, syncPeriod: 20s, minSyncPeriod: 2s}",
    "iptables: {masqueradeBit: 31}",
    "iptables: {masqueradeBit: 32}",
    "iptables: {masqueradeBit: -1}",
    "iptables: {masqueradeBit: 3000000000}",
    "iptables: {masqueradeBit: '14'}",
    "iptables: {masqueradeBit: 017}",
    "iptables: {masqueradeBit: 0x1f}",
    "iptables: {syncPeriod: 0s, minSyncPeriod: 0s}",
    "iptables: {syncPeriod: 1s, minSyncPeriod: 2s}",
    "iptables: {syncPeriod: -1s}",
    "iptables: {minSyncPeriod: -1s}",
    "mode: ipvs\nipvs: {syncPeriod: 20s, minSyncPeriod: 2s, scheduler: wrr, excludeCIDRs: [10.0.0.0/8, 'fd00::/8'], strictARP: true, tcpTimeout: 1s, tcpFinTimeout: 2s, udpTimeout: 3s}",
    "mode: ipvs\nipvs: {tcpTimeout: -1s}",
    "mode: ipvs\nipvs: {tcpFinTimeout: -1s}",
    "mode: ipvs\nipvs: {udpTimeout: -1s}",
    "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.1]}",
    "mode: ipvs\nipvs: {excludeCIDRs: 10.0.0.0/8}",
    "mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}",
    "mode: ipvs\niptables: {masqueradeBit: 7, masqueradeAll: true}",
    "ipvs: {tcpTimeout: -1s, excludeCIDRs: [x]}",
    "mode: nftables\nnftables: {masqueradeBit: 7, masqueradeAll: true, syncPeriod: 20s, minSyncPeriod: 2s}",
    "mode: nftables\nnftables: {masqueradeBit: 32}",
    "nftables: {masqueradeBit: 32}",
    "mode: nftables\nnftables: {syncPeriod: 1s, minSyncPeriod: 2s}",
    "mode: nftables\nnodePortAddresses: []",
    "winkernel: {networkName: a, sourceVip: 10.0.0.1, enableDSR: true, rootHnsEndpointName: b, forwardHealthCheckVip: true}",
    "winkernel: {sourceVip: nonsense}",
    "nodePortAddresses: [primary]",
    "nodePortAddresses: primary",
    "nodePortAddresses: [primary, primary]",
    "nodePortAddresses: [primary, 10.0.0.0/8]",
    "nodePortAddresses: [10.0.0.0/8, primary]",
    "nodePortAddresses: [localhost]",
    "nodePortAddresses: [all, all]",
    "nodePortAddresses: [localhost, 10.0.0.0/8, localhost]",
    "nodePortAddresses: [primary, localhost, all, 10.0.0.0/8, 'fd00::/8']",
    "nodePortAddresses: [Localhost]",
    "mode: nftables\nnodePortAddresses: [localhost]\nfeatureGates: {KubeProxyNFTablesLocalhostNodePorts: true}",
    "nodePortAddresses: [10.0.0.0/8, 'fd00::/8', 10.1.0.0/16]",
    "nodePortAddresses: [10.0.0.1]",
    "nodePortAddresses: ['']",
    "nodePortAddresses: [null]",
    "oomScoreAdj: 0",
    "oomScoreAdj: -1000",
    "oomScoreAdj: 1000",
    "oomScoreAdj: -1001",
    "oomScoreAdj: 1001",
    "oomScoreAdj: null",
    "portRange: 1-2",
    "windowsRunAsService: true",
    // An alpha gate needs GenericWorkload, which kube-proxy does not use.
    "featureGates: {AllAlpha: true, GenericWorkload: true}",
    "featureGates: {KubeProxyIPVS: false, NFTablesNetlink: false}",
    "featureGates: {KubeProxyIPVS: false}\nmode: ipvs",
    "featureGates: {KubeProxyIPVS: true}\nmode: ipvs",
    "featureGates: {AllBeta: true, AllAlpha: false}",
    "featureGates: {AllowServiceExternalIPs: false}",
    "featureGates: {WinDSR: false}",
    "featureGates: {WinDSR: true}",
    "featureGates: {NFTablesProxyMode: false}",
    "featureGates: {MultiCIDRServiceAllocator: false}",
    "featureGates: {PreferSameTrafficDistribution: false}",
    "featureGates: {WinOverlay: false}",
    "featureGates: {ComponentFlagz: false, ComponentStatusz: false, ContextualLogging: false, NativeHistograms: true}",
    "featureGates: {AllAlpha: 'true'}",
    "logging: {format: json, verbosity: 4, flushFrequency: 7s}",
    "logging: {format: xml}",
    "logging: {format: ''}",
    "logging: {flushFrequency: 1000000000}",
    "logging: {flushFrequency: -1}",
    "logging: {flushFrequency: -1s}",
    "logging: {flushFrequency: 0}",
    "logging: {verbosity: -1}",
    "logging: {verbosity: 2147483647}",
    "logging: {verbosity: 2147483648}",
    "logging: {verbosity: 4294967296}",
    "logging: {vmodule: [{filePattern: a, verbosity: 3}]}",
    "logging: {vmodule: [{filePattern: a}]}",
    "logging: {vmodule: [{verbosity: 3}]}",
    "logging: {vmodule: [{filePattern: 'a=b', verbosity: 3}]}",
    "logging: {vmodule: [{filePattern: 'a,b', verbosity: 3}]}",
    "logging: {vmodule: [{filePattern: a, verbosity: 2147483648}]}",
    "logging: {format: json, vmodule: [{filePattern: a, verbosity: 3}]}",
    "logging: {format: json}\nfeatureGates: {LoggingBetaOptions: false}",
    "logging: {format: json}\nfeatureGates: {AllBeta: false}",
    "logging: {options: {text: {splitStream: true}}}",
    "logging: {options: {json: {splitStream: true}}}",
    "logging: {options: {json: {infoBufferSize: 4Ki}}}",
    "logging: {options: {json: {infoBufferSize: 0}}}",
    "logging: {options: {text: {infoBufferSize: 1.5Mi}, json: {infoBufferSize: 4k}}}\nfeatureGates: {LoggingAlphaOptions: true}",
    "logging: {options: {text: {infoBufferSize: 4kb}}}\nfeatureGates: {LoggingAlphaOptions: true}",
    "logging: {options: {text: {infoBufferSize: 512}}}\nfeatureGates: {AllAlpha: true, GenericWorkload: true}",
];

#[test]
fn files_have_the_same_meaning_as_in_kube_proxy() -> anyhow::Result<()> {
    let kube_proxy = KubeProxy::new()?;
    all(FILES, |lines| {
        let text = format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{lines}\n");
        Ok(compare(lines, ours(&text), kube_proxy.file(&text)?))
    })?;
    let odd = [
        "",
        "nonsense",
        "[]",
        "kind: KubeProxyConfiguration",
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1",
        "apiVersion: v1\nkind: ConfigMap",
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Other",
        "apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration",
        "{\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\", \"kind\": \"KubeProxyConfiguration\", \"mode\": \"ipvs\"}",
        "{\n\t\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\",\n\t\"kind\": \"KubeProxyConfiguration\"\n}",
        "---\n# a comment\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n---\n",
    ];
    all(&odd, |text| Ok(compare(text, ours(text), kube_proxy.file(text)?)))
}

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    flags: KubeProxyFlags,
}

/// Parses flags alone. Without a configuration file, NodePorts are not answered on loopback addresses unless mode iptables is
/// configured. This is the only default that differs from kube-proxy's.
fn our_flags(flags: &[String]) -> Result<Config, String> {
    let theirs = "--iptables-localhost-nodeports=true".to_owned();
    let program = [String::new(), theirs].into_iter().chain(flags.iter().cloned());
    let program = Program::try_parse_from(program).map_err(|error| error.to_string())?;
    program.flags.read(READER, None).map(|reading| reading.config).map_err(|problems| problems.to_string())
}

/// Valid and invalid values for flags of a kind.
fn values(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Bool => &["true", "false", "1", "T", "yes", ""],
        Kind::Int | Kind::Unsigned => &["0", "7", "31", "32", "-1", "1000", "x", "1.5", "3000000000"],
        Kind::Float => &["0", "2.5", "-1", "x", "1e2"],
        Kind::Text | Kind::Path => {
            &["a", "10.0.0.0/8", "10.0.0.0/8,fd00::/48", "nftables", "ipvs", "NodeCIDR", "json", "1.36"]
        }
        Kind::Duration => &["20s", "1m30s", "0", "0s", "-1s", "30", "x", "2h"],
        Kind::List => &["10.0.0.0/8", "10.0.0.0/8,fd00::/8", "primary", "primary,localhost", "all,all", "x", ""],
        Kind::Ip => &["10.0.0.1", "fd00::1", "::", "0.0.0.0", "010.0.0.1", "x", "", "10.0.0.1:80"],
        Kind::IpPort => &["10.0.0.1:80", "[fd00::1]:80", "x", "", "10.0.0.1:0", "10.0.0.1:x", "[::]:65536"],
        Kind::Gates => &[
            "AllAlpha=true,GenericWorkload=true",
            "AllAlpha=true,AllBeta=true",
            "WinDSR=false",
            "AllAlpha",
            "AllAlpha=x",
            "",
        ],
        Kind::VModule => &["a=1", "a=1,b*=2", "a", "a=x", "=1", "a=2147483648", ""],
        Kind::Size => &["0", "4Ki", "4K", "x"],
    }
}

#[test]
fn flags_have_the_same_meaning_as_in_kube_proxy() -> anyhow::Result<()> {
    // kube-proxy checks single ports only when it starts a server.
    let flags = FLAGS
        .iter()
        .filter(|flag| flag.platform.is_none() && !matches!(flag.sets, Sets::Program | Sets::Port(_) | Sets::Nothing));
    let mut rows: Vec<Vec<String>> =
        flags.flat_map(|flag| values(flag.kind).iter().map(|value| vec![format!("--{}={value}", flag.name)])).collect();
    let more: &[&[&str]] = &[
        &["--proxy-mode=ipvs", "--ipvs-sync-period=20s", "--ipvs-min-sync-period=5s"],
        &["--proxy-mode=ipvs", "--iptables-sync-period=20s", "--ipvs-exclude-cidrs=x"],
        &["--proxy-mode=ipvs", "--iptables-masquerade-bit=7", "--masquerade-all"],
        &["--proxy-mode=nftables", "--iptables-sync-period=20s", "--iptables-min-sync-period=5s", "--masquerade-all"],
        &["--proxy-mode=nftables", "--ipvs-sync-period=20s"],
        &["--proxy-mode=nftables", "--proxy-mode=ipvs"],
        &["--detect-local-mode=BridgeInterface"],
        &["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"],
        &["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"],
        &["--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses=fd00::/8"],
        &["--feature-gates=AllAlpha=true", "--feature-gates=AllBeta=true"],
        &["--feature-gates=LoggingAlphaOptions=true", "--log-text-split-stream", "--log-text-info-buffer-size=4Ki"],
        &["--logging-format=json", "--vmodule=a=1"],
        &["-v=3"],
        &["-v", "3"],
        &["--iptables-sync-period=1s", "--iptables-min-sync-period=2s"],
        &["--hostname-override= "],
        &["--masquerade-all", "true"],
        &["--no-such-flag"],
        &["--source-vip=10.0.0.1"],
    ];
    rows.extend(more.iter().map(|row| row.iter().map(|flag| (*flag).to_owned()).collect()));
    // Values that v1alpha1 cannot express: there, zero and empty mean the default.
    let unwritten = [
        "--iptables-min-sync-period=0",
        "--iptables-min-sync-period=0s",
        "--kube-api-burst=0",
        "--kube-api-qps=0",
        "--healthz-bind-address=",
    ];
    let kube_proxy = KubeProxy::new()?;
    all(&rows, |flags| {
        let (ours, theirs) = (our_flags(flags), kube_proxy.run(flags)?);
        if ours.is_ok() && theirs.is_ok() && unwritten.contains(&flags.join(" ").as_str()) {
            return Ok(None);
        }
        Ok(compare(&flags.join(" "), ours, theirs))
    })
}

#[test]
fn every_flag_of_kube_proxy_is_accepted() -> anyhow::Result<()> {
    let help = Command::new(localnet_controlplane::binary("kube-proxy")?).arg("--help").output()?;
    let help = String::from_utf8(help.stdout)?;
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.filter_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix("--")));
    let theirs: BTreeSet<_> = words.map(|word| word.split('=').next().unwrap_or(word)).collect();
    assert!(theirs.len() > 50, "{help}");
    // Deprecated flags are hidden from the help, and clap provides those that every program has.
    let hidden = ["healthz-port", "metrics-port"];
    let current = |flag: &&localnet_config::flags::Flag| flag.platform.is_none() && flag.sets != Sets::Nothing;
    let ours: BTreeSet<_> = FLAGS.iter().filter(current).map(|flag| flag.name).collect();
    let theirs: BTreeSet<_> =
        theirs.into_iter().chain(hidden).filter(|name| !["help", "version"].contains(name)).collect();
    assert_eq!(ours, theirs);
    Ok(())
}
