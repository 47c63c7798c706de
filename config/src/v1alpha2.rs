//! The document `kubeproxy.config.k8s.io/v1alpha2`, as KEP-784 specifies it.

use serde::{Deserialize, Serialize};

use crate::{
    address,
    duration::GoDuration,
    sections::{ClientConnection, Conntrack, GROUP, Gates, KIND, Logging, Winkernel},
    v1alpha1::{HEALTHZ_PORT, METRICS_PORT, complete_address},
};

/// A `KubeProxyConfiguration` of v1alpha2. [`Default`] has the defaults that do not depend on other fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Document {
    /// Always `kubeproxy.config.k8s.io/v1alpha2`.
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
    /// The node's primary addresses, at most one per family. If empty, those of the Node object.
    #[serde(rename = "nodeIPOverride")]
    pub node_ip_override: Vec<String>,
    /// The families of the node's primary addresses: `SingleStack`, `PreferDualStack`, `RequireDualStack` or empty.
    #[serde(rename = "ipFamilyPolicy")]
    pub ip_family_policy: String,
    /// Whether the program exits on configuration errors that otherwise are only warnings.
    pub config_hard_fail: bool,
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
    /// Options for Linux in every mode.
    pub linux: Linux,
    /// Options for Windows.
    pub windows: Windows,
    /// Options of the mode iptables.
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
    /// The CIDRs of the addresses that answer NodePorts, or only `primary`.
    pub node_port_addresses: Vec<String>,
    /// The interval of full syncs.
    pub sync_period: GoDuration,
    /// The minimum time between two syncs.
    pub min_sync_period: GoDuration,
    /// The interval of full comparisons with the API server.
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
    /// Fills in the values that depend on other fields, and the defaults of values that are empty, or zero where zero is not
    /// valid. Zero is valid for `minSyncPeriod`.
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

    /// Adds the addresses that are missing, and the ports of those that have none.
    pub(crate) fn complete_addresses(&mut self) {
        // v1alpha1 uses bindAddress for this, which nodeIPOverride replaces.
        let first = self.node_ip_override.first().and_then(|first| address::ip(first));
        let v4 = first.is_none_or(|ip| ip.is_ipv4());
        complete_address(&mut self.healthz_bind_address, if v4 { "0.0.0.0" } else { "::" }, HEALTHZ_PORT);
        complete_address(&mut self.metrics_bind_address, if v4 { "127.0.0.1" } else { "::1" }, METRICS_PORT);
    }
}

/// The section `linux`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Linux {
    /// The sysctls of connection tracking.
    pub conntrack: Conntrack,
    /// Whether all traffic to ClusterIPs is masqueraded.
    #[serde(rename = "masqueradeAll")]
    pub masquerade_all: bool,
    /// The kernel's preference for ending the program when memory is short, from -1000 to 1000.
    #[serde(rename = "oomScoreAdj")]
    pub oom_score_adj: i32,
}

impl Default for Linux {
    fn default() -> Self {
        Self { conntrack: Conntrack::default(), masquerade_all: false, oom_score_adj: -999 }
    }
}

/// The section `windows`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Windows {
    /// Whether the program runs as a Windows service.
    pub run_as_service: bool,
}

/// The section `iptables`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Iptables {
    /// The bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: i32,
    /// Whether NodePorts answer on 127.0.0.1.
    pub localhost_node_ports: bool,
}

impl Default for Iptables {
    fn default() -> Self {
        Self { masquerade_bit: 14, localhost_node_ports: false }
    }
}

/// The section `ipvs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ipvs {
    /// The bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: i32,
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

/// The section `nftables`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nftables {
    /// The bit of the packet mark that requests masquerading, 0–31.
    pub masquerade_bit: i32,
}

impl Default for Nftables {
    fn default() -> Self {
        Self { masquerade_bit: 14 }
    }
}

/// The section `detectLocal`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocal {
    /// The bridge of the node's pods, for the mode `BridgeInterface`.
    pub bridge_interface: String,
    /// The CIDRs of all pods, at most one per family, for the mode `ClusterCIDR`.
    #[serde(rename = "clusterCIDRs")]
    pub cluster_cidrs: Vec<String>,
    /// The prefix of the pods' interface names, for the mode `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
}
