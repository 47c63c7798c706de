//! The document `kubeproxy.config.k8s.io/v1alpha1`, as kube-proxy v1.36 reads it.

use serde::{Deserialize, Serialize};

use crate::{
    address,
    duration::GoDuration,
    sections::{ClientConnection, Conntrack, GROUP, Gates, KIND, Logging, Winkernel},
};

/// A `KubeProxyConfiguration` of v1alpha1. [`Default`] has kube-proxy's defaults that do not depend on other fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Document {
    /// Always `kubeproxy.config.k8s.io/v1alpha1`.
    pub api_version: String,
    /// Always `KubeProxyConfiguration`.
    pub kind: String,
    /// Feature gates, by name.
    pub feature_gates: Gates,
    /// How to connect to the API server.
    pub client_connection: ClientConnection,
    /// The options of logging.
    pub logging: Logging,
    /// The name of the Node. If empty, the host's name.
    pub hostname_override: String,
    /// The node's primary address. If unspecified, that of the Node object. No program binds to it.
    pub bind_address: String,
    /// The address that serves health checks, `IP:port` or `IP`.
    pub healthz_bind_address: String,
    /// The address that serves metrics, `IP:port` or `IP`.
    pub metrics_bind_address: String,
    /// Whether the program exits if it cannot bind to these addresses.
    pub bind_address_hard_fail: bool,
    /// Whether the metrics address also serves profiles.
    pub enable_profiling: bool,
    /// The version before this one, if the metrics that were hidden since then are shown.
    pub show_hidden_metrics_for_version: String,
    /// The mode: `iptables`, `ipvs`, `nftables`, `kernelspace`, or empty.
    pub mode: String,
    /// Options of the mode iptables. The mode ipvs and an empty mode use them, too.
    pub iptables: Iptables,
    /// Options of the mode ipvs.
    pub ipvs: Ipvs,
    /// Options of the mode nftables.
    pub nftables: Nftables,
    /// Options of the mode kernelspace.
    pub winkernel: Winkernel,
    /// How to recognize the node's own pods: `ClusterCIDR`, `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`, or empty.
    pub detect_local_mode: String,
    /// The values that `detectLocalMode` needs.
    pub detect_local: DetectLocal,
    /// The CIDRs of all pods, separated by commas.
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    /// The CIDRs of the addresses that answer NodePorts, or only `primary`.
    pub node_port_addresses: Vec<String>,
    /// The kernel's preference for ending the program when memory is short, from -1000 to 1000.
    #[serde(rename = "oomScoreAdj")]
    pub oom_score_adj: i32,
    /// The sysctls of connection tracking.
    pub conntrack: Conntrack,
    /// The interval of full comparisons with the API server.
    pub config_sync_period: GoDuration,
    /// Unused since kube-proxy removed the userspace mode.
    pub port_range: String,
    /// Whether the program runs as a Windows service.
    pub windows_run_as_service: bool,
}

/// The version of a [`Document`].
pub(crate) const VERSION: &str = "v1alpha1";

impl Default for Document {
    fn default() -> Self {
        Self {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            feature_gates: Gates::new(),
            client_connection: ClientConnection::default(),
            logging: Logging::default(),
            hostname_override: String::new(),
            bind_address: "0.0.0.0".to_owned(),
            healthz_bind_address: String::new(),
            metrics_bind_address: String::new(),
            bind_address_hard_fail: false,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: String::new(),
            iptables: Iptables::default(),
            ipvs: Ipvs::default(),
            nftables: Nftables::default(),
            winkernel: Winkernel::default(),
            detect_local_mode: String::new(),
            detect_local: DetectLocal::default(),
            cluster_cidr: String::new(),
            node_port_addresses: Vec::new(),
            oom_score_adj: -999,
            conntrack: Conntrack::default(),
            config_sync_period: GoDuration::from_secs(15 * 60),
            port_range: String::new(),
            windows_run_as_service: false,
        }
    }
}

impl Document {
    /// Fills in the values that depend on other fields, and the defaults of values that are zero or empty. kube-proxy treats
    /// those as missing.
    #[must_use]
    pub fn complete(mut self) -> Self {
        let default = Self::default();
        self.client_connection.complete();
        self.logging.complete();
        if self.bind_address.is_empty() {
            self.bind_address = default.bind_address;
        }
        let v4 = address::ip(&self.bind_address).is_some_and(|ip| ip.is_ipv4());
        complete_address(&mut self.healthz_bind_address, if v4 { "0.0.0.0" } else { "::" }, HEALTHZ_PORT);
        complete_address(&mut self.metrics_bind_address, if v4 { "127.0.0.1" } else { "::1" }, METRICS_PORT);
        for (period, default) in [
            (&mut self.iptables.sync_period, default.iptables.sync_period),
            (&mut self.iptables.min_sync_period, default.iptables.min_sync_period),
            (&mut self.ipvs.sync_period, default.ipvs.sync_period),
            (&mut self.nftables.sync_period, default.nftables.sync_period),
            (&mut self.nftables.min_sync_period, default.nftables.min_sync_period),
            (&mut self.config_sync_period, default.config_sync_period),
        ] {
            if period.is_zero() {
                *period = default;
            }
        }
        self
    }
}

/// The default port for health checks.
pub(crate) const HEALTHZ_PORT: u16 = 10256;
/// The default port for metrics.
pub(crate) const METRICS_PORT: u16 = 10249;

/// Fills in the default address if it is empty, and the default port if there is only an address.
pub(crate) fn complete_address(address: &mut String, default: &str, port: u16) {
    if address.is_empty() {
        default.clone_into(address);
    }
    *address = address::with_port(address, port);
}

/// The section `iptables`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Iptables {
    /// The bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: i32,
    /// Whether all traffic to ClusterIPs is masqueraded.
    pub masquerade_all: bool,
    /// Whether NodePorts answer on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// The interval of full syncs.
    pub sync_period: GoDuration,
    /// The minimum time between two syncs.
    pub min_sync_period: GoDuration,
}

impl Default for Iptables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            localhost_node_ports: true,
            sync_period: GoDuration::from_secs(30),
            min_sync_period: GoDuration::from_secs(1),
        }
    }
}

/// The section `ipvs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ipvs {
    /// The interval of full syncs.
    pub sync_period: GoDuration,
    /// The minimum time between two syncs.
    pub min_sync_period: GoDuration,
    /// The scheduler. If empty, `rr`.
    pub scheduler: String,
    /// The CIDRs of virtual servers that are not changed.
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    /// Whether to set `arp_ignore` to 1 and `arp_announce` to 2.
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    /// The timeout of idle TCP sessions; 0 means unchanged.
    pub tcp_timeout: GoDuration,
    /// The timeout of TCP sessions after a FIN; 0 means unchanged.
    pub tcp_fin_timeout: GoDuration,
    /// The timeout of UDP sessions; 0 means unchanged.
    pub udp_timeout: GoDuration,
}

impl Default for Ipvs {
    fn default() -> Self {
        Self {
            sync_period: GoDuration::from_secs(30),
            min_sync_period: GoDuration::ZERO,
            scheduler: String::new(),
            exclude_cidrs: Vec::new(),
            strict_arp: false,
            tcp_timeout: GoDuration::ZERO,
            tcp_fin_timeout: GoDuration::ZERO,
            udp_timeout: GoDuration::ZERO,
        }
    }
}

/// The section `nftables`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nftables {
    /// The bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: i32,
    /// Whether all traffic to ClusterIPs is masqueraded.
    pub masquerade_all: bool,
    /// The interval of full syncs.
    pub sync_period: GoDuration,
    /// The minimum time between two syncs.
    pub min_sync_period: GoDuration,
}

impl Default for Nftables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            sync_period: GoDuration::from_secs(30),
            min_sync_period: GoDuration::from_secs(1),
        }
    }
}

/// The section `detectLocal`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocal {
    /// The bridge of the node's pods, for the mode `BridgeInterface`.
    pub bridge_interface: String,
    /// The prefix of the pods' interface names, for the mode `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
}
