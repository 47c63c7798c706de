//! `kubeproxy.config.k8s.io/v1alpha1` as a document says it: what kube-proxy v1.36 reads.

use serde::{Deserialize, Serialize};

use crate::{
    address,
    duration::GoDuration,
    sections::{ClientConnection, Conntrack, GROUP, Gates, KIND, Logging, Winkernel},
};

/// A `KubeProxyConfiguration` of v1alpha1. [`Default`] is what kube-proxy's default is, before what depends on other fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Document {
    /// Always `kubeproxy.config.k8s.io/v1alpha1`.
    pub api_version: String,
    /// Always `KubeProxyConfiguration`.
    pub kind: String,
    /// Feature gates.
    pub feature_gates: Gates,
    /// How the API server is spoken to.
    pub client_connection: ClientConnection,
    /// Logging.
    pub logging: Logging,
    /// Name of the node; empty: the host's.
    pub hostname_override: String,
    /// The node's primary address; unspecified: the Node object's. Nothing is bound to it.
    pub bind_address: String,
    /// Where health is told, `IP:port` or `IP`.
    pub healthz_bind_address: String,
    /// Where metrics are told, `IP:port` or `IP`.
    pub metrics_bind_address: String,
    /// Whether it ends when it cannot bind to those.
    pub bind_address_hard_fail: bool,
    /// Whether profiles can be had where metrics are.
    pub enable_profiling: bool,
    /// The version before this one, to show the metrics that are hidden since.
    pub show_hidden_metrics_for_version: String,
    /// `iptables`, `ipvs`, `nftables`, `kernelspace`, or empty.
    pub mode: String,
    /// Options of mode iptables; ipvs and an empty mode use them too.
    pub iptables: Iptables,
    /// Options of mode ipvs.
    pub ipvs: Ipvs,
    /// Options of mode nftables.
    pub nftables: Nftables,
    /// Options of mode kernelspace.
    pub winkernel: Winkernel,
    /// How the node's own pods are told: `ClusterCIDR`, `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`, or empty.
    pub detect_local_mode: String,
    /// What `detectLocalMode` needs.
    pub detect_local: DetectLocal,
    /// CIDRs of all pods, with commas between them.
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    /// CIDRs of addresses with NodePorts, or only `primary`.
    pub node_port_addresses: Vec<String>,
    /// How readily the kernel ends it when memory is short, -1000 to 1000.
    #[serde(rename = "oomScoreAdj")]
    pub oom_score_adj: i32,
    /// Connection tracking.
    pub conntrack: Conntrack,
    /// How often everything is compared with the API server.
    pub config_sync_period: GoDuration,
    /// Unused since the userspace mode went.
    pub port_range: String,
    /// Whether it runs as a Windows service.
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
    /// Fills in what depends on other fields, and the defaults of what is zero or empty: kube-proxy cannot tell that from what is
    /// not there.
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

/// The port that health is told on.
pub(crate) const HEALTHZ_PORT: u16 = 10256;
/// The port that metrics are told on.
pub(crate) const METRICS_PORT: u16 = 10249;

/// The default address where there is none, and the default port where there is only an address.
pub(crate) fn complete_address(address: &mut String, default: &str, port: u16) {
    if address.is_empty() {
        default.clone_into(address);
    }
    *address = address::with_port(address, port);
}

/// `iptables`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Iptables {
    /// Bit of the packet mark that asks for masquerading, 0–31.
    pub masquerade_bit: i32,
    /// Masquerade everything sent to ClusterIPs.
    pub masquerade_all: bool,
    /// Whether NodePorts answer on 127.0.0.1.
    pub localhost_node_ports: bool,
    /// How often everything is looked at again.
    pub sync_period: GoDuration,
    /// How long there is at least between two syncs.
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

/// `ipvs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ipvs {
    /// How often everything is looked at again.
    pub sync_period: GoDuration,
    /// How long there is at least between two syncs.
    pub min_sync_period: GoDuration,
    /// Scheduler; empty: `rr`.
    pub scheduler: String,
    /// CIDRs of virtual servers that are not touched.
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    /// `arp_ignore` 1 and `arp_announce` 2.
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    /// Idle TCP sessions; 0: left alone.
    pub tcp_timeout: GoDuration,
    /// TCP sessions after a FIN; 0: left alone.
    pub tcp_fin_timeout: GoDuration,
    /// UDP; 0: left alone.
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

/// `nftables`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nftables {
    /// Bit of the packet mark that asks for masquerading, 0–31.
    pub masquerade_bit: i32,
    /// Masquerade everything sent to ClusterIPs.
    pub masquerade_all: bool,
    /// How often everything is looked at again.
    pub sync_period: GoDuration,
    /// How long there is at least between two syncs.
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

/// `detectLocal`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocal {
    /// For `BridgeInterface`.
    pub bridge_interface: String,
    /// For `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
}
