//! Compares a configuration with the facts about the node, to find problems that the configuration does not show without
//! these facts. kube-proxy logs such problems as "may be incomplete or incorrect" when it starts.

use std::net::SocketAddr;

use ipnet::IpNet;
use localnet_core::{Code, Diagnostic, Family, Severity, Subject};

use crate::{
    model::{DetectLocalMode, IpFamilyPolicy, NodePortAddress, NodePortAddresses},
    table::Config,
};

/// The facts about a node.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// The family of the node's first primary address.
    pub primary: Family,
    /// Whether the node's kernel supports both families.
    pub dual_stack: bool,
    /// Whether the node has addresses of both families.
    pub has_both: bool,
    /// The Node's `spec.podCIDRs`.
    pub pod_cidrs: &'a [IpNet],
}

impl Config {
    /// Returns the problems of this configuration on a node, mostly in kube-proxy's words. If one of the problems is an
    /// error, the program cannot start.
    pub fn complaints(&self, node: &Node<'_>) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        found.extend(self.node_ports(node));
        self.families(node, &mut found);
        if self.ip_family_policy == Some(IpFamilyPolicy::RequireDualStack) && !node.has_both {
            let problem = "ipFamilyPolicy is RequireDualStack but the node has addresses of one family only";
            found.push(
                about(Code::DualStackMissing, problem)
                    .remedy("give the node addresses of both families, or use PreferDualStack"),
            );
        }
        found
    }

    /// The severity of a value that may not work: with `configHardFail` an error, which keeps the program from starting;
    /// otherwise a warning.
    fn doubtful(&self) -> Severity {
        if self.config_hard_fail { Severity::Error } else { Severity::Warning }
    }

    /// Returns a warning if NodePorts answer on more addresses than intended.
    fn node_ports(&self, node: &Node<'_>) -> Option<Diagnostic> {
        let NodePortAddresses(items) = &self.node_port_addresses;
        if items.is_empty() {
            let problem = "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. Consider using `--nodeport-addresses primary`";
            return Some(about(Code::NodePortsEverywhere, problem));
        }
        // The keywords `primary`, `localhost` and `all` each cover both families.
        if items.iter().any(|item| !matches!(item, NodePortAddress::Cidr(_))) {
            return None;
        }
        let cidrs = &self.node_port_addresses.cidrs();
        let (primary, other) = (node.primary.as_str(), node.primary.other().as_str());
        let lists = [&self.detect_local.cluster_cidrs, cidrs, &self.ipvs.exclude_cidrs];
        let dual = lists.into_iter().map(Vec::as_slice).chain([node.pod_cidrs]).any(is_dual);
        let of_primary = cidrs.iter().filter(|cidr| Family::of(cidr.addr()) == node.primary).count();
        let problem = if dual && of_primary == cidrs.len() {
            format!(
                "cluster appears to be dual-stack but nodePortAddresses contains only {primary} addresses; NodePort connections will be accepted on all local {other} IPs"
            )
        } else if of_primary == 0 {
            format!(
                "cluster appears to be {primary}-primary but nodePortAddresses contains only {other} addresses; NodePort connections will be accepted on all local {primary} IPs"
            )
        } else {
            return None;
        };
        Some(about(Code::NodePortsOfOneFamily, problem).severity(self.doubtful()))
    }

    /// Adds a problem for each field whose addresses all have the wrong family.
    fn families(&self, node: &Node<'_>, found: &mut Vec<Diagnostic>) {
        let wrong = node.primary.other();
        let all_wrong =
            |cidrs: &[IpNet]| !cidrs.is_empty() && cidrs.iter().all(|cidr| Family::of(cidr.addr()) == wrong);
        let cluster = format!("{}-{}", node.primary.as_str(), if node.dual_stack { "primary" } else { "only" });
        let mut complain = |is_fatal, what: &str| {
            let problem = format!("cluster is {cluster} but {what} {}", wrong.as_str());
            let severity = if is_fatal { Severity::Error } else { self.doubtful() };
            found.push(about(Code::FamilyMismatch, problem).severity(severity));
        };
        let mode = self.detect_local.mode;
        if all_wrong(&self.detect_local.cluster_cidrs) {
            let fatal = mode == DetectLocalMode::ClusterCidr && !node.dual_stack;
            complain(fatal, "clusterCIDRs contains only addresses of");
        }
        if all_wrong(node.pod_cidrs) {
            let fatal = mode == DetectLocalMode::NodeCidr;
            complain(fatal, "node.spec.podCIDRs contains only addresses of");
        }
        if self.winkernel.source_vip.is_some_and(|ip| Family::of(ip) == wrong) {
            complain(false, "winkernel.sourceVip is");
        }
        if node.dual_stack {
            return;
        }
        if all_wrong(&self.ipvs.exclude_cidrs) {
            complain(false, "ipvs.excludeCIDRs contains only addresses of");
        }
        let bound = |at: SocketAddr| Family::of(at.ip()) == wrong && !at.ip().is_unspecified();
        if self.healthz_bind_address.is_some_and(bound) {
            complain(false, "healthzBindAddress is");
        }
        if bound(self.metrics_bind_address) {
            complain(false, "metricsBindAddress is");
        }
    }
}

fn about(code: Code, problem: impl Into<String>) -> Diagnostic {
    Diagnostic::new(code, Subject::Program, problem)
}

/// Whether the CIDRs include both families.
fn is_dual(cidrs: &[IpNet]) -> bool {
    let of = |family| cidrs.iter().any(|cidr| Family::of(cidr.addr()) == family);
    of(Family::V4) && of(Family::V6)
}
