//! `kubeproxy.config.k8s.io/v1alpha2` as a document says it: KEP-784's next version.

use serde::{Deserialize, Serialize};

use crate::{
    address,
    duration::GoDuration,
    sections::{ClientConnection, Conntrack, GROUP, Gates, KIND, Logging, Winkernel},
    v1alpha1::{HEALTHZ_PORT, METRICS_PORT, complete_address},
};

/// A `KubeProxyConfiguration` of v1alpha2. [`Default`] is the default, before what depends on other fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Document {
    /// Always `kubeproxy.config.k8s.io/v1alpha2`.
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
    /// The node's primary addresses, at most one of each family; empty: the Node object's.
    #[serde(rename = "nodeIPOverride")]
    pub node_ip_override: Vec<String>,
    /// `SingleStack`, `PreferDualStack`, `RequireDualStack` or empty: which of the node's addresses are its primary ones.
    #[serde(rename = "ipFamilyPolicy")]
    pub ip_family_policy: String,
    /// Whether it ends on errors of the configuration that are otherwise only said.
    pub config_hard_fail: bool,
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
    /// What concerns Linux, whatever the mode.
    pub linux: Linux,
    /// What concerns Windows.
    pub windows: Windows,
    /// Options of mode iptables.
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
    /// CIDRs of addresses with NodePorts, or only `primary`.
    pub node_port_addresses: Vec<String>,
    /// How often everything is looked at again.
    pub sync_period: GoDuration,
    /// How long there is at least between two syncs.
    pub min_sync_period: GoDuration,
    /// How often everything is compared with the API server.
    pub config_sync_period: GoDuration,
}

/// The version of a [`Document`].
pub(crate) const VERSION: &str = "v1alpha2";

impl Default for Document {
    fn default() -> Self {
        Self {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            feature_gates: Gates::new(),
            client_connection: ClientConnection::default(),
            logging: Logging::default(),
            hostname_override: String::new(),
            node_ip_override: Vec::new(),
            ip_family_policy: String::new(),
            config_hard_fail: true,
            healthz_bind_address: String::new(),
            metrics_bind_address: String::new(),
            bind_address_hard_fail: true,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: String::new(),
            linux: Linux::default(),
            windows: Windows::default(),
            iptables: Iptables::default(),
            ipvs: Ipvs::default(),
            nftables: Nftables::default(),
            winkernel: Winkernel::default(),
            detect_local_mode: String::new(),
            detect_local: DetectLocal::default(),
            node_port_addresses: Vec::new(),
            sync_period: GoDuration::from_secs(30),
            min_sync_period: GoDuration::from_secs(1),
            config_sync_period: GoDuration::from_secs(15 * 60),
        }
    }
}

impl Document {
    /// Fills in what depends on other fields, and the defaults of what is empty, or zero where zero is no value. A
    /// `minSyncPeriod` of zero is one.
    #[must_use]
    pub fn complete(mut self) -> Self {
        let default = Self::default();
        self.client_connection.complete();
        self.logging.complete();
        self.complete_addresses();
        for (period, default) in
            [(&mut self.sync_period, default.sync_period), (&mut self.config_sync_period, default.config_sync_period)]
        {
            if period.is_zero() {
                *period = default;
            }
        }
        self
    }

    /// Addresses where there are none, and ports where there are only addresses.
    pub(crate) fn complete_addresses(&mut self) {
        // As v1alpha1 does it by bindAddress, in favour of which nodeIPOverride is.
        let first = self.node_ip_override.first().and_then(|first| address::ip(first));
        let v4 = first.is_none_or(|ip| ip.is_ipv4());
        complete_address(&mut self.healthz_bind_address, if v4 { "0.0.0.0" } else { "::" }, HEALTHZ_PORT);
        complete_address(&mut self.metrics_bind_address, if v4 { "127.0.0.1" } else { "::1" }, METRICS_PORT);
    }
}

/// `linux`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Linux {
    /// Connection tracking.
    pub conntrack: Conntrack,
    /// Masquerade everything sent to ClusterIPs.
    #[serde(rename = "masqueradeAll")]
    pub masquerade_all: bool,
    /// How readily the kernel ends it when memory is short, -1000 to 1000.
    #[serde(rename = "oomScoreAdj")]
    pub oom_score_adj: i32,
}

impl Default for Linux {
    fn default() -> Self {
        Self { conntrack: Conntrack::default(), masquerade_all: false, oom_score_adj: -999 }
    }
}

/// `windows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Windows {
    /// Whether it runs as a Windows service.
    pub run_as_service: bool,
}

/// `iptables`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Iptables {
    /// Bit of the packet mark that asks for masquerading, 0–31.
    pub masquerade_bit: i32,
    /// Whether NodePorts answer on 127.0.0.1.
    pub localhost_node_ports: bool,
}

impl Default for Iptables {
    fn default() -> Self {
        Self { masquerade_bit: 14, localhost_node_ports: false }
    }
}

/// `ipvs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ipvs {
    /// Bit of the packet mark that asks for masquerading, 0–31.
    pub masquerade_bit: i32,
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
            masquerade_bit: 14,
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
}

impl Default for Nftables {
    fn default() -> Self {
        Self { masquerade_bit: 14 }
    }
}

/// `detectLocal`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocal {
    /// For `BridgeInterface`.
    pub bridge_interface: String,
    /// For `ClusterCIDR`: CIDRs of all pods, at most one of each family.
    #[serde(rename = "clusterCIDRs")]
    pub cluster_cidrs: Vec<String>,
    /// For `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
}
