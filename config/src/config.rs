//! Values that programs derive from a [`Config`].

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use crate::{
    gates::LOCALHOST_NODE_PORTS,
    model::Mode,
    table::{Config, Logging},
};

impl Config {
    /// The minimum time between two syncs for a backend whose syncs take time in proportion to the changes.
    ///
    /// This is `minSyncPeriod` if the configuration sets it explicitly. Otherwise it is zero, and not kube-proxy's
    /// default of one second: kube-proxy needs that default only for syncs whose duration grows with the cluster.
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

    /// Whether the configuration asks for NodePorts on 127.0.0.1 in a mode, by kube-proxy's rules.
    pub fn node_ports_on_localhost(&self, mode: Mode) -> bool {
        let mut cidrs = self.node_port_addresses.cidrs();
        cidrs.retain(|cidr| cidr.addr().is_ipv4());
        let names_loopback = cidrs.iter().any(|cidr| cidr.network().is_loopback());
        match mode {
            Mode::Iptables => {
                let all = cidrs.is_empty() && !self.node_port_addresses.primary();
                let contains = cidrs.iter().any(|cidr| cidr.contains(&IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0))));
                self.iptables.localhost_node_ports && (all || contains || names_loopback)
            }
            Mode::Nftables => names_loopback && self.feature_gates.enabled(LOCALHOST_NODE_PORTS),
            Mode::Ipvs | Mode::Kernelspace => false,
        }
    }
}

impl Logging {
    /// The log level for `verbosity`. As in kube-proxy, values below 4 log only the usual lines, and values from 6 on log
    /// everything.
    pub fn level(&self) -> &'static str {
        match self.verbosity {
            0..4 => "info",
            4..6 => "debug",
            _ => "trace",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check::Reader, model::Platform};

    #[test]
    fn node_ports_answer_on_localhost_if_the_configuration_allows_it() {
        const GATE: &str = "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}\n";
        for (version, lines, expected) in [
            // The default of v1alpha1 is that of kube-proxy; v1alpha2 has another one.
            ("v1alpha1", "", "iptables"),
            ("v1alpha2", "", ""),
            ("v1alpha1", "nodePortAddresses: [primary]", ""),
            ("v1alpha1", "nodePortAddresses: [primary, localhost]", "iptables"),
            ("v1alpha1", "nodePortAddresses: [127.0.0.0/8]", "iptables"),
            ("v1alpha1", "nodePortAddresses: [0.0.0.0/0]", "iptables"),
            ("v1alpha1", "nodePortAddresses: [all]", "iptables"),
            ("v1alpha1", "nodePortAddresses: ['::1/128', 10.0.0.0/8]", ""),
            ("v1alpha1", "nodePortAddresses: ['::1/128']", "iptables"),
            ("v1alpha1", "iptables: {localhostNodePorts: false}\nnodePortAddresses: [localhost]", ""),
            ("v1alpha2", "iptables: {localhostNodePorts: true}\nnodePortAddresses: [localhost]", "iptables"),
            ("v1alpha2", &format!("{GATE}nodePortAddresses: [localhost]"), "nftables"),
            ("v1alpha2", &format!("{GATE}nodePortAddresses: [127.0.0.1/32, primary]"), "nftables"),
            ("v1alpha2", &format!("{GATE}nodePortAddresses: [all]"), ""),
            ("v1alpha2", &format!("{GATE}nodePortAddresses: ['::1/128']"), ""),
            ("v1alpha1", "featureGates: {AllAlpha: true}\nnodePortAddresses: [all, localhost]", "iptables nftables"),
        ] {
            let text =
                format!("apiVersion: kubeproxy.config.k8s.io/{version}\nkind: KubeProxyConfiguration\n{lines}\n");
            let config = Reader::kube_proxy(Platform::Linux).read(&text).unwrap().config;
            let modes = Mode::ALL.iter().filter(|mode| config.node_ports_on_localhost(**mode));
            let modes: Vec<_> = modes.map(|mode| mode.as_str()).collect();
            assert_eq!(modes.join(" "), expected, "{text}");
        }
    }
}
