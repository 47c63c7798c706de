//! What cannot be seen in a configuration alone: whether it fits the node. kube-proxy says it when it starts, as "may be
//! incomplete or incorrect".

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::config::{Config, DetectLocalMode, IpFamilyPolicy, NodePortAddresses};

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// What is known of a node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// The family of its first primary address.
    pub primary: Family,
    /// Whether it can do both families.
    pub dual_stack: bool,
    /// Whether it has addresses of both families.
    pub has_both: bool,
    /// Its `spec.podCIDRs`.
    pub pod_cidrs: &'a [IpNet],
}

/// Something about a configuration that does not fit the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// What, and what can be done.
    pub text: String,
    /// Whether the program cannot go on.
    pub fatal: bool,
}

/// How bad it is.
enum Weight {
    /// It works, and could be better.
    Advice,
    /// It works perhaps: with `configHardFail` it is fatal.
    Error,
    /// It cannot work.
    Fatal,
}

impl Config {
    /// What does not fit a node, most of it in the words of kube-proxy.
    pub fn complaints(&self, node: &Node<'_>) -> Vec<Complaint> {
        let mut found = Vec::new();
        self.node_ports(node, &mut found);
        self.families(node, &mut found);
        if self.ip_family_policy == Some(IpFamilyPolicy::RequireDualStack) && !node.has_both {
            let text = "ipFamilyPolicy is RequireDualStack but the node has addresses of one family only; give it both, or use PreferDualStack";
            found.push((Weight::Fatal, text.to_owned()));
        }
        let fatal = |weight: &Weight| match weight {
            Weight::Advice => false,
            Weight::Error => self.config_hard_fail,
            Weight::Fatal => true,
        };
        found.into_iter().map(|(weight, text)| Complaint { fatal: fatal(&weight), text }).collect()
    }

    /// NodePorts that answer on more addresses than was meant.
    fn node_ports(&self, node: &Node<'_>, found: &mut Vec<(Weight, String)>) {
        let cidrs = match &self.node_port_addresses {
            NodePortAddresses::Primary => return,
            NodePortAddresses::All => {
                let text = "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. Consider using `--nodeport-addresses primary`";
                return found.push((Weight::Advice, text.to_owned()));
            }
            NodePortAddresses::Cidrs(cidrs) => cidrs,
        };
        let (primary, other) = (node.primary.as_str(), node.primary.other().as_str());
        let lists = [&self.detect_local.cluster_cidrs, cidrs, &self.ipvs.exclude_cidrs];
        let dual = lists.into_iter().map(Vec::as_slice).chain([node.pod_cidrs]).any(is_dual);
        let of_primary = cidrs.iter().filter(|cidr| Family::of(cidr.addr()) == node.primary).count();
        if dual && of_primary == cidrs.len() {
            let text = format!(
                "cluster appears to be dual-stack but nodePortAddresses contains only {primary} addresses; NodePort connections will be accepted on all local {other} IPs"
            );
            found.push((Weight::Error, text));
        } else if of_primary == 0 {
            let text = format!(
                "cluster appears to be {primary}-primary but nodePortAddresses contains only {other} addresses; NodePort connections will be accepted on all local {primary} IPs"
            );
            found.push((Weight::Error, text));
        }
    }

    /// Addresses that are all of the wrong family.
    fn families(&self, node: &Node<'_>, found: &mut Vec<(Weight, String)>) {
        let wrong = node.primary.other();
        let all_wrong =
            |cidrs: &[IpNet]| !cidrs.is_empty() && cidrs.iter().all(|cidr| Family::of(cidr.addr()) == wrong);
        let cluster = format!("{}-{}", node.primary.as_str(), if node.dual_stack { "primary" } else { "only" });
        let mut complain = |weight, what: &str| {
            found.push((weight, format!("cluster is {cluster} but {what} {}", wrong.as_str())));
        };
        let mode = self.detect_local.mode;
        if all_wrong(&self.detect_local.cluster_cidrs) {
            let fatal = mode == DetectLocalMode::ClusterCidr && !node.dual_stack;
            complain(if fatal { Weight::Fatal } else { Weight::Error }, "clusterCIDRs contains only addresses of");
        }
        if all_wrong(node.pod_cidrs) {
            let fatal = mode == DetectLocalMode::NodeCidr;
            complain(
                if fatal { Weight::Fatal } else { Weight::Error },
                "node.spec.podCIDRs contains only addresses of",
            );
        }
        if self.winkernel.source_vip.is_some_and(|ip| Family::of(ip) == wrong) {
            complain(Weight::Error, "winkernel.sourceVip is");
        }
        if node.dual_stack {
            return;
        }
        if all_wrong(&self.ipvs.exclude_cidrs) {
            complain(Weight::Error, "ipvs.excludeCIDRs contains only addresses of");
        }
        let bound = |at: SocketAddr| Family::of(at.ip()) == wrong && !at.ip().is_unspecified();
        if self.healthz_bind_address.is_some_and(bound) {
            complain(Weight::Error, "healthzBindAddress is");
        }
        if bound(self.metrics_bind_address) {
            complain(Weight::Error, "metricsBindAddress is");
        }
    }
}

/// Whether there are CIDRs of both families.
fn is_dual(cidrs: &[IpNet]) -> bool {
    let of = |family| cidrs.iter().any(|cidr| Family::of(cidr.addr()) == family);
    of(Family::V4) && of(Family::V6)
}
