//! The configuration as programs use it: values, not texts. Both versions of the documents become this.

use std::{fmt, net::IpAddr, net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;

use crate::gates::FeatureGates;

/// What an operator wants of a proxy, in the shape of v1alpha2: checked, and with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `featureGates`: those that were named.
    pub feature_gates: FeatureGates,
    /// `clientConnection`: how the API server is spoken to.
    pub client_connection: ClientConnection,
    /// `logging`.
    pub logging: Logging,
    /// `hostnameOverride`: the name of the Node, in lower case; `None`: the host's name.
    pub hostname_override: Option<String>,
    /// `nodeIPOverride`: the node's primary addresses, the first of its primary family; at most one of each family. What is not
    /// here is what the Node object says.
    pub node_ip_override: Vec<IpAddr>,
    /// `ipFamilyPolicy`: which of the node's addresses are its primary ones; `None`: the first of each family that it has.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// `configHardFail`: errors of the configuration that would only be said end the program.
    pub config_hard_fail: bool,
    /// `healthzBindAddress`: where `/healthz` and `/livez` are answered. Only the flag `--healthz-port=0` makes it `None`.
    pub healthz_bind_address: Option<SocketAddr>,
    /// `metricsBindAddress`: where `/metrics` and its like are answered.
    pub metrics_bind_address: SocketAddr,
    /// `bindAddressHardFail`: the program ends when it cannot bind to those two.
    pub bind_address_hard_fail: bool,
    /// `enableProfiling`: profiles can be had at the address of metrics.
    pub enable_profiling: bool,
    /// `showHiddenMetricsForVersion`: show metrics that are hidden since the version after this one.
    pub show_hidden_metrics_for_version: Option<MinorVersion>,
    /// `mode`: what programs the node; an empty one is what the reader said it stands for.
    pub mode: Mode,
    /// Which values somebody has written down, where the default does not mean the same as its value.
    pub explicit: Explicit,
    /// `linux`.
    pub linux: Linux,
    /// `windows`.
    pub windows: Windows,
    /// `iptables`.
    pub iptables: Iptables,
    /// `ipvs`.
    pub ipvs: Ipvs,
    /// `nftables`.
    pub nftables: Nftables,
    /// `winkernel`.
    pub winkernel: Winkernel,
    /// `detectLocalMode` and `detectLocal`: how traffic of the node's own pods is told.
    pub detect_local: DetectLocal,
    /// `nodePortAddresses`: where NodePorts are answered.
    pub node_port_addresses: NodePortAddresses,
    /// `syncPeriod`: how often everything is looked at again, and repaired; more than zero.
    pub sync_period: Duration,
    /// `minSyncPeriod`: how long there is at least between two syncs; at most `sync_period`.
    pub min_sync_period: Duration,
    /// `configSyncPeriod`: how often everything is compared with the API server; more than zero.
    pub config_sync_period: Duration,
}

impl Config {
    /// The shortest time between two syncs for a backend whose syncs cost what changed, and not what there is.
    ///
    /// It is `minSyncPeriod` where somebody has written it down. kube-proxy's default of one second is not taken over: it is
    /// there because each of its syncs costs what there is.
    pub fn min_interval(&self) -> Duration {
        if self.explicit.min_sync_period { self.min_sync_period } else { Duration::ZERO }
    }

    /// The bit of the packet mark that asks for masquerading in a mode, 0–31.
    pub fn masquerade_bit(&self, mode: Mode) -> u8 {
        match mode {
            Mode::Ipvs => self.ipvs.masquerade_bit,
            Mode::Nftables => self.nftables.masquerade_bit,
            Mode::Iptables | Mode::Kernelspace => self.iptables.masquerade_bit,
        }
    }
}

/// Which values somebody has written down, in a file or as a flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explicit {
    /// `mode` is not empty.
    pub mode: bool,
    /// `minSyncPeriod` of the mode is there and is not what kube-proxy takes for its absence.
    pub min_sync_period: bool,
}

/// `mode`: the subsystem that is programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// `iptables`
    Iptables,
    /// `ipvs`
    Ipvs,
    /// `nftables`
    Nftables,
    /// `kernelspace`: Windows' Host Networking Service.
    Kernelspace,
}

impl Mode {
    /// As documents write it.
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

/// The operating system that a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// Linux
    Linux,
    /// Windows
    Windows,
}

impl Platform {
    /// The modes there are.
    pub fn modes(self) -> &'static [Mode] {
        match self {
            Self::Linux => &[Mode::Iptables, Mode::Ipvs, Mode::Nftables],
            Self::Windows => &[Mode::Kernelspace],
        }
    }
}

/// `clientConnection`: how the API server is spoken to.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientConnection {
    /// `kubeconfig`: the file that names server and credentials; `None`: the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// `acceptContentTypes`: the HTTP header Accept; empty: `contentType`.
    pub accept_content_types: String,
    /// `contentType` of requests.
    pub content_type: String,
    /// `qps`: requests a second; less than zero: without limit.
    pub qps: f32,
    /// `burst`: requests that may be made at once beyond that.
    pub burst: u32,
}

/// `logging`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// `format` of lines.
    pub format: LogFormat,
    /// `flushFrequency`: how long lines may wait before they are written; more than zero.
    pub flush_frequency: Duration,
    /// `verbosity`: how much is said; at most `i32::MAX`.
    pub verbosity: u32,
    /// `vmodule`: verbosity of source files by pattern.
    pub vmodule: Vec<VModule>,
    /// `options.text`: where lines of format text go.
    pub text: OutputRouting,
    /// `options.json`: where lines of format json go.
    pub json: OutputRouting,
}

impl Logging {
    /// The level that `verbosity` stands for: kube-proxy says nothing more than usual below 4, and everything from 6 on.
    pub fn level(&self) -> &'static str {
        match self.verbosity {
            0..4 => "info",
            4..6 => "debug",
            _ => "trace",
        }
    }
}

/// `logging.format`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `text`
    #[default]
    Text,
    /// `json`
    Json,
}

impl LogFormat {
    /// As documents write it.
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
    /// Name of a source file without its ending, or a pattern of such names; without `=` and `,`.
    pub file_pattern: String,
    /// Verbosity there; at most `i32::MAX`.
    pub verbosity: u32,
}

/// Where lines of a log format go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputRouting {
    /// `splitStream`: errors to standard error, the rest to standard output.
    pub split_stream: bool,
    /// `infoBufferSize`: bytes of the rest that may be held back.
    pub info_buffer_size: u64,
}

/// `ipFamilyPolicy`: which families a node's primary addresses are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamilyPolicy {
    /// `SingleStack`: that of its first address.
    SingleStack,
    /// `PreferDualStack`: both, where it has addresses of both.
    PreferDualStack,
    /// `RequireDualStack`: both; a node that has not is an error.
    RequireDualStack,
}

impl IpFamilyPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::SingleStack, Self::PreferDualStack, Self::RequireDualStack];

    /// As documents write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleStack => "SingleStack",
            Self::PreferDualStack => "PreferDualStack",
            Self::RequireDualStack => "RequireDualStack",
        }
    }
}

/// A minor version of Kubernetes: 1.35.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MinorVersion {
    /// 1
    pub major: u16,
    /// 35
    pub minor: u16,
}

impl fmt::Display for MinorVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// `linux`: what concerns Linux, whatever the mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linux {
    /// `conntrack`: sysctls of connection tracking.
    pub conntrack: Conntrack,
    /// `masqueradeAll`: masquerade everything that is sent to a ClusterIP.
    pub masquerade_all: bool,
    /// `oomScoreAdj`: how readily the kernel ends the program when memory is short, -1000 (never) to 1000.
    pub oom_score_adj: i16,
}

/// `linux.conntrack`: sysctls under `net.netfilter`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// `maxPerCore`: `nf_conntrack_max` for each core; `None`: it is left as it is, and `min` too.
    pub max_per_core: Option<u32>,
    /// `min`: but at least so many.
    pub min: u32,
    /// `tcpEstablishedTimeout`: `nf_conntrack_tcp_timeout_established`; `None`: left as it is.
    pub tcp_established_timeout: Option<Duration>,
    /// `tcpCloseWaitTimeout`: `nf_conntrack_tcp_timeout_close_wait`; `None`: left as it is.
    pub tcp_close_wait_timeout: Option<Duration>,
    /// `tcpBeLiberal`: set `nf_conntrack_tcp_be_liberal`; otherwise left as it is.
    pub tcp_be_liberal: bool,
    /// `udpTimeout`: `nf_conntrack_udp_timeout`; `None`: left as it is.
    pub udp_timeout: Option<Duration>,
    /// `udpStreamTimeout`: `nf_conntrack_udp_timeout_stream`; `None`: left as it is.
    pub udp_stream_timeout: Option<Duration>,
}

/// `windows`: what concerns Windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// `runAsService`: answer the service control manager.
    pub run_as_service: bool,
}

/// `iptables`: options of the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iptables {
    /// `masqueradeBit`: bit of the packet mark that asks for masquerading, 0–31.
    pub masquerade_bit: u8,
    /// `localhostNodePorts`: NodePorts answer on 127.0.0.1 too.
    pub localhost_node_ports: bool,
}

/// `ipvs`: options of the mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvs {
    /// `masqueradeBit`: bit of the packet mark that asks for masquerading, 0–31.
    pub masquerade_bit: u8,
    /// `scheduler`, by the name that the kernel has for it; `None`: `rr`.
    pub scheduler: Option<String>,
    /// `excludeCIDRs`: virtual servers in them are left alone.
    pub exclude_cidrs: Vec<IpNet>,
    /// `strictARP`: `arp_ignore` 1 and `arp_announce` 2, so that VIPs are not answered for.
    pub strict_arp: bool,
    /// `tcpTimeout` of idle sessions; `None`: left as it is.
    pub tcp_timeout: Option<Duration>,
    /// `tcpFinTimeout` of sessions after a FIN; `None`: left as it is.
    pub tcp_fin_timeout: Option<Duration>,
    /// `udpTimeout`; `None`: left as it is.
    pub udp_timeout: Option<Duration>,
}

/// `nftables`: options of the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nftables {
    /// `masqueradeBit`: bit of the packet mark that asks for masquerading, 0–31.
    pub masquerade_bit: u8,
}

/// `winkernel`: options of mode kernelspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Winkernel {
    /// `networkName` of the HNS network; `None`: what the CNI plugin says, or the first.
    pub network_name: Option<String>,
    /// `sourceVip`: address that balanced traffic is sent from in an overlay network.
    pub source_vip: Option<IpAddr>,
    /// `enableDSR`: policies with direct server return.
    pub enable_dsr: bool,
    /// `rootHnsEndpointName`: HNS endpoint of the root network namespace on an l2bridge; on Windows never `None`.
    pub root_hns_endpoint_name: Option<String>,
    /// `forwardHealthCheckVip`: the health check port is forwarded on VIPs.
    pub forward_health_check_vip: bool,
}

/// `detectLocal`: how traffic of the node's own pods is told. What only other modes use is kept, so that it can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectLocal {
    /// `detectLocalMode`
    pub mode: DetectLocalMode,
    /// `bridgeInterface`: the bridge of the node's pods; never empty in mode `BridgeInterface`.
    pub bridge_interface: String,
    /// `interfaceNamePrefix`: how the names of the pods' interfaces begin; never empty in mode `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
    /// `clusterCIDRs`: those of all pods, at most one of each family. None: nothing is told in mode `ClusterCIDR`.
    pub cluster_cidrs: Vec<IpNet>,
}

/// `detectLocalMode`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DetectLocalMode {
    /// `ClusterCIDR`: the source is in `clusterCIDRs`.
    #[default]
    ClusterCidr,
    /// `NodeCIDR`: the source is in the Node's `spec.podCIDRs`.
    NodeCidr,
    /// `BridgeInterface`: it comes in through `bridgeInterface`.
    BridgeInterface,
    /// `InterfaceNamePrefix`: it comes in through an interface whose name begins with `interfaceNamePrefix`.
    InterfaceNamePrefix,
}

impl DetectLocalMode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ClusterCidr, Self::NodeCidr, Self::BridgeInterface, Self::InterfaceNamePrefix];

    /// As documents write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterCidr => "ClusterCIDR",
            Self::NodeCidr => "NodeCIDR",
            Self::BridgeInterface => "BridgeInterface",
            Self::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }
}

/// `nodePortAddresses`: which of the node's addresses answer NodePorts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All; an empty list, unless the mode is `nftables` by name: an empty mode is iptables to kube-proxy, whatever takes over.
    All,
    /// `primary`: the primary ones of the Node; an empty list where the mode is `nftables` by name.
    Primary,
    /// Those in one of these; a family without CIDR has all.
    Cidrs(Vec<IpNet>),
}

/// The word for [`NodePortAddresses::Primary`].
pub(crate) const PRIMARY: &str = "primary";
