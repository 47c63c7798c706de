//! The configuration with parsed values instead of texts. Documents of both versions are converted to it.

use std::{fmt, net::IpAddr, net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;

use crate::gates::FeatureGates;

/// A configuration in the shape of v1alpha2, validated and with all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `featureGates`: the gates that the configuration names.
    pub feature_gates: FeatureGates,
    /// `clientConnection`: how to connect to the API server.
    pub client_connection: ClientConnection,
    /// `logging`: the options of logging.
    pub logging: Logging,
    /// `hostnameOverride`: the name of the Node in lower case. `None` means the host's name.
    pub hostname_override: Option<String>,
    /// `nodeIPOverride`: the node's primary addresses, at most one per family, that of the primary family first. The Node
    /// object gives the address of a family that is missing here.
    pub node_ip_override: Vec<IpAddr>,
    /// `ipFamilyPolicy`: the families of the node's primary addresses. `None` means each family that the node has.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// `configHardFail`: whether the program exits on configuration errors that otherwise are only warnings.
    pub config_hard_fail: bool,
    /// `healthzBindAddress`: the address that serves `/healthz` and `/livez`. `None` only with the flag `--healthz-port=0`.
    pub healthz_bind_address: Option<SocketAddr>,
    /// `metricsBindAddress`: the address that serves `/metrics` and related paths.
    pub metrics_bind_address: SocketAddr,
    /// `bindAddressHardFail`: whether the program exits if it cannot bind to these two addresses.
    pub bind_address_hard_fail: bool,
    /// `enableProfiling`: whether the metrics address also serves profiles.
    pub enable_profiling: bool,
    /// `showHiddenMetricsForVersion`: show the metrics that were hidden in the version after this one.
    pub show_hidden_metrics_for_version: Option<MinorVersion>,
    /// `mode`: the kernel subsystem that the backend programs. The reader decides what an empty `mode` means.
    pub mode: Mode,
    /// Which values the configuration sets explicitly. Only values for which an explicit default and a missing value differ.
    pub explicit: Explicit,
    /// `linux`: options for Linux in every mode.
    pub linux: Linux,
    /// `windows`: options for Windows.
    pub windows: Windows,
    /// `iptables`: options of the mode iptables.
    pub iptables: Iptables,
    /// `ipvs`: options of the mode ipvs.
    pub ipvs: Ipvs,
    /// `nftables`: options of the mode nftables.
    pub nftables: Nftables,
    /// `winkernel`: options of the mode kernelspace.
    pub winkernel: Winkernel,
    /// `detectLocalMode` and `detectLocal`: how to recognize traffic of the node's own pods.
    pub detect_local: DetectLocal,
    /// `nodePortAddresses`: the addresses that answer NodePorts.
    pub node_port_addresses: NodePortAddresses,
    /// `syncPeriod`: the interval of full syncs; more than zero.
    pub sync_period: Duration,
    /// `minSyncPeriod`: the minimum time between two syncs; at most `sync_period`.
    pub min_sync_period: Duration,
    /// `configSyncPeriod`: the interval of full comparisons with the API server; more than zero.
    pub config_sync_period: Duration,
}

impl Config {
    /// The minimum time between two syncs for a backend whose syncs take time in proportion to the changes.
    ///
    /// It is `minSyncPeriod` if that is set explicitly, otherwise zero. kube-proxy's default of one second does not apply:
    /// kube-proxy needs it because the duration of its syncs grows with the cluster.
    pub fn min_interval(&self) -> Duration {
        if self.explicit.min_sync_period { self.min_sync_period } else { Duration::ZERO }
    }

    /// The bit of the packet mark that requests masquerading in a mode, 0–31.
    pub fn masquerade_bit(&self, mode: Mode) -> u8 {
        match mode {
            Mode::Ipvs => self.ipvs.masquerade_bit,
            Mode::Nftables => self.nftables.masquerade_bit,
            Mode::Iptables | Mode::Kernelspace => self.iptables.masquerade_bit,
        }
    }
}

/// Which values are set explicitly, in a file or by a flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explicit {
    /// Whether `mode` is not empty.
    pub mode: bool,
    /// Whether the mode's `minSyncPeriod` is present and has a value that kube-proxy does not treat as missing.
    pub min_sync_period: bool,
}

/// `mode`: the kernel subsystem that is programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `iptables`: rules of ip_tables.
    Iptables,
    /// `ipvs`: virtual servers of IPVS.
    Ipvs,
    /// `nftables`: rules of nf_tables.
    Nftables,
    /// `kernelspace`: the Host Networking Service of Windows.
    Kernelspace,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Iptables, Self::Ipvs, Self::Nftables, Self::Kernelspace];

    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
            Self::Kernelspace => "kernelspace",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The operating system of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// Linux
    Linux,
    /// Windows
    Windows,
}

impl Platform {
    /// The modes that exist on this platform.
    pub fn modes(self) -> &'static [Mode] {
        match self {
            Self::Linux => &[Mode::Iptables, Mode::Ipvs, Mode::Nftables],
            Self::Windows => &[Mode::Kernelspace],
        }
    }
}

/// `clientConnection`: how to connect to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConnection {
    /// `kubeconfig`: the file with server and credentials. `None` means the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// `acceptContentTypes`: the HTTP header Accept. If empty, it is `contentType`.
    pub accept_content_types: String,
    /// `contentType`: the content type of requests.
    pub content_type: String,
    /// `qps`: requests per second. A negative value means no limit.
    pub qps: f32,
    /// `burst`: how many requests may exceed `qps` at once.
    pub burst: u32,
}

/// `logging`: the options of logging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// `format`: the format of log lines.
    pub format: LogFormat,
    /// `flushFrequency`: how long log lines may be buffered; more than zero.
    pub flush_frequency: Duration,
    /// `verbosity`: the log verbosity; at most `i32::MAX`.
    pub verbosity: u32,
    /// `vmodule`: the verbosity of source files by pattern.
    pub vmodule: Vec<VModule>,
    /// `options.text`: the output of lines in format text.
    pub text: OutputRouting,
    /// `options.json`: the output of lines in format json.
    pub json: OutputRouting,
}

impl Logging {
    /// The log level for `verbosity`. kube-proxy logs nothing more than usual below 4, and everything from 6 on.
    pub fn level(&self) -> &'static str {
        match self.verbosity {
            0..4 => "info",
            4..6 => "debug",
            _ => "trace",
        }
    }
}

/// `logging.format`: the format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `text`: lines for people.
    #[default]
    Text,
    /// `json`: one JSON object per line.
    Json,
}

impl LogFormat {
    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// An item of `logging.vmodule`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VModule {
    /// The name of a source file without its extension, or a pattern of such names. It contains neither `=` nor `,`.
    pub file_pattern: String,
    /// The verbosity in these files; at most `i32::MAX`.
    pub verbosity: u32,
}

/// The output of a log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputRouting {
    /// `splitStream`: whether errors are written to standard error and other lines to standard output.
    pub split_stream: bool,
    /// `infoBufferSize`: how many bytes of the other lines may be buffered.
    pub info_buffer_size: u64,
}

/// `ipFamilyPolicy`: the address families of a node's primary addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamilyPolicy {
    /// `SingleStack`: the family of its first address.
    SingleStack,
    /// `PreferDualStack`: both families, if the node has addresses of both.
    PreferDualStack,
    /// `RequireDualStack`: both families. A node without addresses of both is an error.
    RequireDualStack,
}

impl IpFamilyPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::SingleStack, Self::PreferDualStack, Self::RequireDualStack];

    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleStack => "SingleStack",
            Self::PreferDualStack => "PreferDualStack",
            Self::RequireDualStack => "RequireDualStack",
        }
    }
}

/// A minor version of Kubernetes, such as 1.35.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MinorVersion {
    /// The major number, 1.
    pub major: u16,
    /// The minor number, such as 35.
    pub minor: u16,
}

impl fmt::Display for MinorVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// `linux`: options for Linux in every mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linux {
    /// `conntrack`: sysctls of connection tracking.
    pub conntrack: Conntrack,
    /// `masqueradeAll`: whether all traffic to ClusterIPs is masqueraded.
    pub masquerade_all: bool,
    /// `oomScoreAdj`: the kernel's preference for ending the program when memory is short, from -1000 (never) to 1000.
    pub oom_score_adj: i16,
}

/// `linux.conntrack`: sysctls under `net.netfilter`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// `maxPerCore`: `nf_conntrack_max` per processor core. `None` means that the sysctl stays unchanged, whatever `min` is.
    pub max_per_core: Option<u32>,
    /// `min`: the lower limit of `nf_conntrack_max`.
    pub min: u32,
    /// `tcpEstablishedTimeout`: `nf_conntrack_tcp_timeout_established`. `None` means unchanged.
    pub tcp_established_timeout: Option<Duration>,
    /// `tcpCloseWaitTimeout`: `nf_conntrack_tcp_timeout_close_wait`. `None` means unchanged.
    pub tcp_close_wait_timeout: Option<Duration>,
    /// `tcpBeLiberal`: whether to set `nf_conntrack_tcp_be_liberal`. Otherwise it stays unchanged.
    pub tcp_be_liberal: bool,
    /// `udpTimeout`: `nf_conntrack_udp_timeout`. `None` means unchanged.
    pub udp_timeout: Option<Duration>,
    /// `udpStreamTimeout`: `nf_conntrack_udp_timeout_stream`. `None` means unchanged.
    pub udp_stream_timeout: Option<Duration>,
}

/// `windows`: options for Windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// `runAsService`: whether to run under the Windows service control manager.
    pub run_as_service: bool,
}

/// `iptables`: options of the mode iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iptables {
    /// `masqueradeBit`: the bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: u8,
    /// `localhostNodePorts`: whether NodePorts also answer on 127.0.0.1.
    pub localhost_node_ports: bool,
}

/// `ipvs`: options of the mode ipvs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvs {
    /// `masqueradeBit`: the bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: u8,
    /// `scheduler`: the kernel's name of the scheduler. `None` means `rr`.
    pub scheduler: Option<String>,
    /// `excludeCIDRs`: virtual servers in these CIDRs are not changed.
    pub exclude_cidrs: Vec<IpNet>,
    /// `strictARP`: whether to set `arp_ignore` to 1 and `arp_announce` to 2, so that the node does not answer ARP for VIPs.
    pub strict_arp: bool,
    /// `tcpTimeout`: the timeout of idle TCP sessions. `None` means unchanged.
    pub tcp_timeout: Option<Duration>,
    /// `tcpFinTimeout`: the timeout of TCP sessions after a FIN. `None` means unchanged.
    pub tcp_fin_timeout: Option<Duration>,
    /// `udpTimeout`: the timeout of UDP sessions. `None` means unchanged.
    pub udp_timeout: Option<Duration>,
}

/// `nftables`: options of the mode nftables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nftables {
    /// `masqueradeBit`: the bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: u8,
}

/// `winkernel`: options of the mode kernelspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Winkernel {
    /// `networkName`: the HNS network. `None` means the one that the CNI plugin names, or the first one.
    pub network_name: Option<String>,
    /// `sourceVip`: the source address of load-balanced traffic in an overlay network.
    pub source_vip: Option<IpAddr>,
    /// `enableDSR`: whether policies use direct server return.
    pub enable_dsr: bool,
    /// `rootHnsEndpointName`: the HNS endpoint of the root network namespace on an l2bridge. On Windows it is never `None`.
    pub root_hns_endpoint_name: Option<String>,
    /// `forwardHealthCheckVip`: whether VIPs forward the health check port.
    pub forward_health_check_vip: bool,
}

/// `detectLocal`: how to recognize traffic of the node's own pods. Values that the current mode does not use are kept, so that
/// they can be written back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectLocal {
    /// `detectLocalMode`: the method in use.
    pub mode: DetectLocalMode,
    /// `bridgeInterface`: the bridge of the node's pods. It is not empty in the mode `BridgeInterface`.
    pub bridge_interface: String,
    /// `interfaceNamePrefix`: the prefix of the pods' interface names. It is not empty in the mode `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
    /// `clusterCIDRs`: the CIDRs of all pods, at most one per family. If empty, the mode `ClusterCIDR` recognizes no pod.
    pub cluster_cidrs: Vec<IpNet>,
}

/// `detectLocalMode`: the method that recognizes the node's own pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DetectLocalMode {
    /// `ClusterCIDR`: the source is in `clusterCIDRs`.
    #[default]
    ClusterCidr,
    /// `NodeCIDR`: the source is in the Node's `spec.podCIDRs`.
    NodeCidr,
    /// `BridgeInterface`: the packet arrives through `bridgeInterface`.
    BridgeInterface,
    /// `InterfaceNamePrefix`: the packet arrives through an interface whose name begins with `interfaceNamePrefix`.
    InterfaceNamePrefix,
}

impl DetectLocalMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::ClusterCidr, Self::NodeCidr, Self::BridgeInterface, Self::InterfaceNamePrefix];

    /// The name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterCidr => "ClusterCIDR",
            Self::NodeCidr => "NodeCIDR",
            Self::BridgeInterface => "BridgeInterface",
            Self::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }
}

/// `nodePortAddresses`: the node's addresses that answer NodePorts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All addresses. This is an empty list, unless `mode` is explicitly `nftables`: kube-proxy treats an empty mode as
    /// iptables, whichever backend takes over.
    All,
    /// `primary`: the Node's primary addresses. This is also an empty list if `mode` is explicitly `nftables`.
    Primary,
    /// The addresses in these CIDRs. A family without a CIDR has all of its addresses.
    Cidrs(Vec<IpNet>),
}

/// The word in documents for [`NodePortAddresses::Primary`].
pub(crate) const PRIMARY: &str = "primary";
