//! A table of all flags of kube-proxy v1.36 and of earlier versions: what each one sets, and whether it applies with
//! `--config`.

use crate::config::Platform;

/// A flag of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its name without dashes.
    pub name: &'static str,
    /// Its short name.
    pub short: Option<char>,
    /// The type of its value.
    pub kind: Kind,
    /// What the flag sets.
    pub sets: Sets,
    /// Whether it applies if `--config` is given. All others are ignored then.
    pub beside_config: bool,
    /// The platform that has the flag; `None` means every platform.
    pub platform: Option<Platform>,
    /// Its help text.
    pub help: &'static str,
    /// Why the flag has no effect in localnet; `None` if it has an effect.
    pub no_effect: Option<&'static str>,
}

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`. Without a value it is `true`.
    Bool,
    /// An integer.
    Int,
    /// A number.
    Float,
    /// A text.
    Text,
    /// A path.
    Path,
    /// A duration, such as 30s.
    Duration,
    /// Texts separated by commas. A repeated flag adds more.
    List,
    /// An IP address. An empty one keeps the default.
    Ip,
    /// `IP` or `IP:port`. An empty one keeps the default.
    IpPort,
    /// `name=true` or `name=false`, separated by commas.
    Gates,
    /// `pattern=N`, separated by commas.
    VModule,
    /// A size, such as 4Ki.
    Size,
}

/// What a flag sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// A field of v1alpha2.
    Field(&'static str),
    /// A field of v1alpha2, in the mode ipvs only.
    InIpvs(&'static str),
    /// A field of v1alpha2, in all modes but ipvs.
    ButIpvs(&'static str),
    /// The masquerade bits of iptables and ipvs.
    MasqueradeBit,
    /// The field `nodeIPOverride`, unless the address is unspecified.
    BindAddress,
    /// The field `detectLocal.clusterCIDRs`.
    ClusterCidr,
    /// The port of a field whose address has none. 0 disables the server. Deprecated.
    Port(&'static str),
    /// The action of the program.
    Program,
    /// Nothing: only an earlier version of kube-proxy had the flag.
    Nothing,
}

use Kind::{Bool, Duration, Float, Gates, Int, Ip, IpPort, List, Path, Size, Text, VModule};
use Sets::{BindAddress, ButIpvs, ClusterCidr, Field, InIpvs, MasqueradeBit, Nothing, Port, Program};

const READS_JSON: &str = "the brain requests JSON from the API server";
const NO_LIMIT: &str = "a brain makes few requests and delays none";
const NO_CADVISOR: &str = "neither localnet nor kube-proxy reads it";
const AT_ONCE: &str = "log lines are written at once to standard error";
const GONE: &str = "kube-proxy no longer has this flag";
const NO_RESYNC: &str = "the brain watches objects, and compares them with the API server whenever a watch restarts";

/// All flags, sorted. Those with [`Sets::Nothing`] belong to versions before v1.36.
pub const FLAGS: &[Flag] = &[
    gone("add-dir-header", Bool),
    gone("alsologtostderr", Bool),
    flag(
        "bind-address",
        Ip,
        BindAddress,
        "primary IP of the node, instead of the Node object's; nothing listens on it",
    ),
    flag(
        "bind-address-hard-fail",
        Bool,
        Field("bindAddressHardFail"),
        "exit if the address of health or metrics cannot be bound",
    ),
    without_effect(flag("boot-id-file", Text, Program, "files that may contain a boot ID"), NO_CADVISOR),
    beside(flag("cleanup", Bool, Program, "remove everything that the backend has programmed, and exit")),
    gone("cleanup-ipvs", Bool),
    flag("cluster-cidr", Text, ClusterCidr, "CIDRs of all pods, at most one of each family, with commas between them"),
    beside(flag(
        "config",
        Path,
        Program,
        "file with a KubeProxyConfiguration, v1alpha1 or v1alpha2; it replaces nearly all flags",
    )),
    without_effect(
        flag(
            "config-sync-period",
            Duration,
            Field("configSyncPeriod"),
            "how often all objects are compared with the API server",
        ),
        NO_RESYNC,
    ),
    flag(
        "conntrack-max-per-core",
        Int,
        Field("linux.conntrack.maxPerCore"),
        "maximum of tracked connections per core; 0: keep the kernel's limit",
    ),
    flag("conntrack-min", Int, Field("linux.conntrack.min"), "minimum of the maximum of tracked connections"),
    flag(
        "conntrack-tcp-be-liberal",
        Bool,
        Field("linux.conntrack.tcpBeLiberal"),
        "accept TCP packets outside of the window",
    ),
    flag(
        "conntrack-tcp-timeout-close-wait",
        Duration,
        Field("linux.conntrack.tcpCloseWaitTimeout"),
        "tracking timeout of half-closed TCP connections; 0: keep the kernel's timeout",
    ),
    flag(
        "conntrack-tcp-timeout-established",
        Duration,
        Field("linux.conntrack.tcpEstablishedTimeout"),
        "tracking timeout of idle TCP connections; 0: keep the kernel's timeout",
    ),
    flag(
        "conntrack-udp-timeout",
        Duration,
        Field("linux.conntrack.udpTimeout"),
        "tracking timeout of UDP flows without an answer; 0: keep the kernel's timeout",
    ),
    flag(
        "conntrack-udp-timeout-stream",
        Duration,
        Field("linux.conntrack.udpStreamTimeout"),
        "tracking timeout of UDP flows with an answer; 0: keep the kernel's timeout",
    ),
    flag(
        "detect-local-mode",
        Text,
        Field("detectLocalMode"),
        "how this node's pods are recognized: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
    ),
    windows(flag("enable-dsr", Bool, Field("winkernel.enableDSR"), "direct server return")),
    flag("feature-gates", Gates, Field("featureGates"), "feature gates: name=true|false, with commas between them"),
    windows(flag(
        "forward-healthcheck-vip",
        Bool,
        Field("winkernel.forwardHealthCheckVip"),
        "forward the health check port on VIPs",
    )),
    flag("healthz-bind-address", IpPort, Field("healthzBindAddress"), "address of /healthz and /livez: IP or IP:port"),
    flag("healthz-port", Int, Port("healthzBindAddress"), "deprecated: use --healthz-bind-address; 0 answers nowhere"),
    beside(flag("hostname-override", Text, Field("hostnameOverride"), "name of this Node, instead of the host's name")),
    beside(flag("init-only", Bool, Program, "apply the settings that need more privileges, and exit")),
    flag(
        "iptables-localhost-nodeports",
        Bool,
        Field("iptables.localhostNodePorts"),
        "iptables: NodePorts answer on 127.0.0.1",
    ),
    flag(
        "iptables-masquerade-bit",
        Int,
        MasqueradeBit,
        "iptables, ipvs: bit of the packet mark that requests masquerading",
    ),
    flag(
        "iptables-min-sync-period",
        Duration,
        ButIpvs("minSyncPeriod"),
        "minimum time between two syncs, except in mode ipvs",
    ),
    flag("iptables-sync-period", Duration, ButIpvs("syncPeriod"), "period of resyncs, except in mode ipvs"),
    flag(
        "ipvs-exclude-cidrs",
        List,
        Field("ipvs.excludeCIDRs"),
        "ipvs: CIDRs distribution virtual servers belong to other programs",
    ),
    flag("ipvs-min-sync-period", Duration, InIpvs("minSyncPeriod"), "ipvs: minimum time between two syncs"),
    flag("ipvs-scheduler", Text, Field("ipvs.scheduler"), "ipvs: scheduler, instead of rr"),
    flag("ipvs-strict-arp", Bool, Field("ipvs.strictARP"), "ipvs: arp_ignore 1 and arp_announce 2"),
    flag("ipvs-sync-period", Duration, InIpvs("syncPeriod"), "ipvs: period of resyncs"),
    flag(
        "ipvs-tcp-timeout",
        Duration,
        Field("ipvs.tcpTimeout"),
        "ipvs: timeout of idle TCP connections; 0: keep the kernel's timeout",
    ),
    flag(
        "ipvs-tcpfin-timeout",
        Duration,
        Field("ipvs.tcpFinTimeout"),
        "ipvs: timeout of TCP connections after a FIN; 0: keep the kernel's timeout",
    ),
    flag("ipvs-udp-timeout", Duration, Field("ipvs.udpTimeout"), "ipvs: timeout of UDP; 0: left alone"),
    without_effect(
        flag("kube-api-burst", Int, Field("clientConnection.burst"), "burst of requests to the API server"),
        NO_LIMIT,
    ),
    without_effect(
        flag(
            "kube-api-content-type",
            Text,
            Field("clientConnection.contentType"),
            "content type of requests to the API server",
        ),
        READS_JSON,
    ),
    without_effect(
        flag("kube-api-qps", Float, Field("clientConnection.qps"), "requests per second to the API server"),
        NO_LIMIT,
    ),
    flag(
        "kubeconfig",
        Path,
        Field("clientConnection.kubeconfig"),
        "kubeconfig file, instead of the pod's service account",
    ),
    gone("log-backtrace-at", Text),
    gone("log-dir", Path),
    gone("log-file-max-size", Int),
    without_effect(
        beside(flag("log-flush-frequency", Duration, Field("logging.flushFrequency"), "maximum delay of log lines")),
        AT_ONCE,
    ),
    without_effect(
        beside(flag(
            "log-json-info-buffer-size",
            Size,
            Field("logging.options.json.infoBufferSize"),
            "json: size of the buffer",
        )),
        AT_ONCE,
    ),
    without_effect(
        beside(flag("log-json-split-stream", Bool, Field("logging.options.json.splitStream"), "json: two streams")),
        AT_ONCE,
    ),
    without_effect(
        beside(flag(
            "log-text-info-buffer-size",
            Size,
            Field("logging.options.text.infoBufferSize"),
            "text: size of the buffer",
        )),
        AT_ONCE,
    ),
    without_effect(
        beside(flag("log-text-split-stream", Bool, Field("logging.options.text.splitStream"), "text: two streams")),
        AT_ONCE,
    ),
    beside(flag("logging-format", Text, Field("logging.format"), "text or json")),
    gone("logtostderr", Bool),
    without_effect(flag("machine-id-file", Text, Program, "files that may contain a machine ID"), NO_CADVISOR),
    flag("masquerade-all", Bool, Field("linux.masqueradeAll"), "masquerade all traffic to ClusterIPs"),
    beside(flag("master", Text, Program, "URL of the API server, instead of the kubeconfig's")),
    flag("metrics-bind-address", IpPort, Field("metricsBindAddress"), "address of /metrics: IP or IP:port"),
    flag("metrics-port", Int, Port("metricsBindAddress"), "deprecated: use --metrics-bind-address"),
    windows(flag("network-name", Text, Field("winkernel.networkName"), "name of the HNS network")),
    flag(
        "nodeport-addresses",
        List,
        Field("nodePortAddresses"),
        "CIDRs of the addresses that answer NodePorts, or primary",
    ),
    gone("one-output", Bool),
    flag("oom-score-adj", Int, Field("linux.oomScoreAdj"), "OOM score adjustment of the process, -1000 to 1000"),
    flag(
        "pod-bridge-interface",
        Text,
        Field("detectLocal.bridgeInterface"),
        "the bridge of this node's pods, for BridgeInterface",
    ),
    flag(
        "pod-interface-name-prefix",
        Text,
        Field("detectLocal.interfaceNamePrefix"),
        "prefix of the interface names of this node's pods, for InterfaceNamePrefix",
    ),
    flag("profiling", Bool, Field("enableProfiling"), "serve profiles at the address of metrics"),
    flag("proxy-mode", Text, Field("mode"), "iptables, ipvs or nftables; on Windows kernelspace"),
    gone("proxy-port-range", Text),
    gone("resource-container", Text),
    windows(flag(
        "root-hnsendpoint-name",
        Text,
        Field("winkernel.rootHnsEndpointName"),
        "HNS endpoint of the root namespace",
    )),
    flag(
        "show-hidden-metrics-for-version",
        Text,
        Field("showHiddenMetricsForVersion"),
        "previous minor version, to show the metrics hidden since then",
    ),
    gone("skip-headers", Bool),
    gone("skip-log-headers", Bool),
    windows(flag("source-vip", Text, Field("winkernel.sourceVip"), "source address of balanced traffic")),
    gone("stderrthreshold", Text),
    Flag {
        short: Some('v'),
        ..beside(flag(
            "v",
            Int,
            Field("logging.verbosity"),
            "log verbosity: 4 and above is debug, 6 and above is trace",
        ))
    },
    without_effect(
        beside(flag(
            "vmodule",
            VModule,
            Field("logging.vmodule"),
            "verbosity of source files: pattern=N, with commas between them",
        )),
        "localnet does not have kube-proxy's source files",
    ),
    windows(beside(flag("windows-service", Bool, Field("windows.runAsService"), "run as a Windows service"))),
    beside(flag("write-config-to", Path, Program, "write the configuration as a v1alpha2 file, and exit")),
];

/// The flags that only affect the brain.
pub(super) const OF_THE_BRAIN: &[&str] = &[
    "bind-address",
    "bind-address-hard-fail",
    "feature-gates",
    "healthz-bind-address",
    "healthz-port",
    "hostname-override",
    "kubeconfig",
    "master",
    "metrics-bind-address",
    "metrics-port",
    "profiling",
    "show-hidden-metrics-for-version",
];

/// The flags that only affect a backend.
pub(super) const OF_BACKENDS: &[&str] = &[
    "cluster-cidr",
    "conntrack-max-per-core",
    "conntrack-min",
    "conntrack-tcp-be-liberal",
    "conntrack-tcp-timeout-close-wait",
    "conntrack-tcp-timeout-established",
    "conntrack-udp-timeout",
    "conntrack-udp-timeout-stream",
    "detect-local-mode",
    "iptables-localhost-nodeports",
    "iptables-masquerade-bit",
    "iptables-min-sync-period",
    "ipvs-exclude-cidrs",
    "ipvs-min-sync-period",
    "ipvs-scheduler",
    "ipvs-strict-arp",
    "ipvs-tcp-timeout",
    "ipvs-tcpfin-timeout",
    "ipvs-udp-timeout",
    "masquerade-all",
    "oom-score-adj",
    "pod-bridge-interface",
    "pod-interface-name-prefix",
];

const fn flag(name: &'static str, kind: Kind, sets: Sets, help: &'static str) -> Flag {
    Flag { name, short: None, kind, sets, beside_config: false, platform: None, help, no_effect: None }
}

const fn beside(flag: Flag) -> Flag {
    Flag { beside_config: true, ..flag }
}

/// Creates a flag that an earlier version of kube-proxy had. Command lines may still contain it.
const fn gone(name: &'static str, kind: Kind) -> Flag {
    let help = "none: kube-proxy no longer has this flag";
    without_effect(beside(flag(name, kind, Nothing, help)), GONE)
}

const fn windows(flag: Flag) -> Flag {
    Flag { platform: Some(Platform::Windows), ..flag }
}

const fn without_effect(flag: Flag, why: &'static str) -> Flag {
    Flag { no_effect: Some(why), ..flag }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FIELDS;

    #[test]
    fn flags_are_sorted_and_set_fields_that_there_are() {
        assert!(FLAGS.is_sorted_by(|a, b| a.name < b.name));
        for name in OF_THE_BRAIN.iter().chain(OF_BACKENDS) {
            assert!(FLAGS.iter().any(|flag| flag.name == *name), "--{name}");
        }
        for flag in FLAGS {
            if let Field(path) | InIpvs(path) | ButIpvs(path) | Port(path) = flag.sets {
                assert!(FIELDS.iter().any(|field| field.path == path), "--{}: {path}", flag.name);
            }
        }
    }
}
