//! The VIPs of a Service, and which clients may connect to them.
//!
//! A Service exists only in the families of its ClusterIPs. Its addresses of other families are skipped.

use std::{collections::BTreeSet, net::IpAddr};

use localnet_core::Code;
use localnet_proto::{Family, SourceFilter};

use super::{Here, Lost, Skips, source_ranges, special};
use crate::objects::{Parsed, ServiceObject};

const CLUSTER_IPS: &str = "spec.clusterIPs";
const EXTERNAL_IPS: &str = "spec.externalIPs";
const LOAD_BALANCER_IPS: &str = "status.loadBalancer.ingress";

/// The VIPs of a Service. Each list is sorted.
#[derive(Debug, Default)]
pub(super) struct Front {
    pub(super) cluster_ips: Vec<IpAddr>,
    pub(super) external_ips: Vec<IpAddr>,
    pub(super) load_balancer_ips: Vec<IpAddr>,
    pub(super) source_filters: Vec<SourceFilter>,
}

impl Front {
    /// Whether the Service has an external IP or load balancer IP in the family.
    pub(super) fn is_external(&self, family: Family) -> bool {
        self.external_ips.iter().chain(&self.load_balancer_ips).any(|ip| Family::of(*ip) == family)
    }
}

/// The addresses that the Service would have if no other Service claimed them, each with the field that contains it.
pub fn wanted(object: &ServiceObject) -> Vec<(IpAddr, &'static str)> {
    let mut skips = Skips::new(object);
    let front = front(object, &Here::new(""), &[], &mut skips);
    let of = |addresses: Vec<IpAddr>, field| addresses.into_iter().map(move |address| (address, field));
    let mut wanted: Vec<_> = of(front.cluster_ips, CLUSTER_IPS).collect();
    wanted.extend(of(front.external_ips, EXTERNAL_IPS).chain(of(front.load_balancer_ips, LOAD_BALANCER_IPS)));
    wanted
}

/// Decides which addresses of a Service are served.
pub(super) fn front(object: &ServiceObject, here: &Here, lost: &[Lost], skips: &mut Skips<'_>) -> Front {
    let cluster_ips = cluster_ips(object, lost, skips);
    let mut front = Front { cluster_ips: cluster_ips.iter().copied().collect(), ..Front::default() };
    let mut others = |field, addresses| -> Vec<IpAddr> {
        let mut served = BTreeSet::new();
        for (position, ip) in usable(field, addresses, lost, skips) {
            let exists = cluster_ips.iter().any(|own| Family::of(*own) == Family::of(ip));
            if exists && !cluster_ips.contains(&ip) && served.insert(ip) && here.addresses.contains(&ip) {
                warn_of_node_address(format!("{field}[{position}]"), ip, object, skips);
            }
        }
        served.into_iter().collect()
    };
    let external_ips = others(EXTERNAL_IPS, &object.external_ips);
    let load_balancer_ips = others(LOAD_BALANCER_IPS, &object.load_balancer_ips);
    (front.external_ips, front.load_balancer_ips) = (external_ips, load_balancer_ips);
    front.source_filters = source_ranges::filters(object, &front.load_balancer_ips, here, skips);
    front
}

/// One ClusterIP for each family that `ipFamilies` lists. If `ipFamilies` is empty, the first ClusterIP of each family.
fn cluster_ips(object: &ServiceObject, lost: &[Lost], skips: &mut Skips<'_>) -> BTreeSet<IpAddr> {
    let named = !object.families.is_empty();
    let mut found: BTreeSet<IpAddr> = BTreeSet::new();
    for (position, address) in usable(CLUSTER_IPS, &object.cluster_ips, lost, skips) {
        let family = Family::of(address);
        if named && object.families.get(position) != Some(&family) {
            let field = format!("spec.clusterIPs[{position}]");
            let problem = format!("{address} does not have the family that spec.ipFamilies names at this position");
            let remedy = "give spec.ipFamilies and spec.clusterIPs the same order";
            skips.service(Code::AddressFamilyMismatch, field, problem, remedy);
        } else if found.iter().all(|other| Family::of(*other) != family) {
            found.insert(address);
        }
    }
    found
}

/// Warns about a VIP that is also an address of the node. On such an address, the Service takes precedence over the node:
/// for example, a Service with port 22 replaces the node's SSH server. kube-proxy serves such a VIP without a warning.
fn warn_of_node_address(field: String, address: IpAddr, object: &ServiceObject, skips: &mut Skips<'_>) {
    let ports = object.ports.iter().filter_map(|port| match &port.protocol {
        Parsed::Good(protocol) => Some(format!("{}/{protocol}", port.port)),
        Parsed::Bad(_) => None,
    });
    let ports: Vec<String> = ports.collect();
    let problem = format!(
        "{address} is an address of this node: the Service takes over port {} of this address, so clients cannot reach the node's own programs there",
        ports.join(", ")
    );
    let remedy = "if this is not intended, give the Service an address of its own";
    skips.service(Code::AddressOfNode, field, problem, remedy);
}

/// The valid addresses of a field, with their positions.
fn usable(
    field: &'static str,
    addresses: &[Parsed<IpAddr>],
    lost: &[Lost],
    skips: &mut Skips<'_>,
) -> Vec<(usize, IpAddr)> {
    let mut usable = Vec::new();
    for (position, address) in addresses.iter().enumerate() {
        let mut skip =
            |code, problem: String, remedy: &str| skips.service(code, format!("{field}[{position}]"), problem, remedy);
        let address = match address {
            Parsed::Good(address) => *address,
            Parsed::Bad(text) => {
                let problem = format!("{text:?} is not an IP address");
                skip(Code::AddressInvalid, problem, "write it like 10.0.0.1 or 2001:db8::1");
                continue;
            }
        };
        if let Some(reserved) = special::reserved_for(address) {
            let problem = format!("{address} is {reserved}");
            skip(Code::AddressReserved, problem, "use an address that is routed to the node");
        } else if let Some(Lost { front: (_, protocol, port), to, .. }) =
            lost.iter().find(|lost| lost.field == field && lost.front.0 == address)
        {
            let problem = format!("{address} port {port}/{protocol} belongs to {to}");
            skip(Code::AddressTaken, problem, "change the address or port of one of the two Services");
        } else {
            usable.push((position, address));
        }
    }
    usable
}

#[cfg(test)]
mod tests {
    use localnet_core::Severity;

    use super::*;
    use crate::testing::{addresses, ips, service};

    /// Checks the addresses of a Service: each field after a change, and the diagnostics.
    #[track_caller]
    fn check(change: impl FnOnce(&mut ServiceObject), expected: [&[&str]; 3], problems: &[&str]) {
        let mut object = service("10.96.0.1", &[(80, "TCP")]);
        change(&mut object);
        let mut skips = Skips::new(&object);
        let front = front(&object, &Here::new("node-1"), &[], &mut skips);
        assert_eq!([front.cluster_ips, front.external_ips, front.load_balancer_ips], expected.map(ips));
        let fields: Vec<&str> = skips.skipped.iter().map(|skipped| skipped.field.as_str()).collect();
        assert_eq!(fields, problems);
    }

    #[test]
    fn a_service_exists_in_the_families_of_its_cluster_ips() {
        let externals = addresses(&["203.0.113.1", "2001:db8::1"]);
        let both = |service: &mut ServiceObject| {
            service.external_ips = externals.clone();
            service.load_balancer_ips = addresses(&["192.0.2.1", "2001:db8::2"]);
        };
        check(both, [&["10.96.0.1"], &["203.0.113.1"], &["192.0.2.1"]], &[]);
        check(
            |service| {
                both(service);
                service.cluster_ips = addresses(&["fd00::1"]);
            },
            [&["fd00::1"], &["2001:db8::1"], &["2001:db8::2"]],
            &[],
        );
        check(
            |service| {
                both(service);
                service.cluster_ips = addresses(&["fd00::1", "10.96.0.1"]);
                service.families = [Family::V6, Family::V4].into();
            },
            [&["10.96.0.1", "fd00::1"], &["203.0.113.1", "2001:db8::1"], &["192.0.2.1", "2001:db8::2"]],
            &[],
        );
    }

    #[test]
    fn ip_families_name_the_cluster_ips() {
        check(|service| service.families = [Family::V4].into(), [&["10.96.0.1"], &[], &[]], &[]);
        check(|service| service.families = [Family::V6].into(), [&[], &[], &[]], &["spec.clusterIPs[0]"]);
        check(|service| service.cluster_ips = addresses(&["10.96.0.2", "10.96.0.1"]), [&["10.96.0.2"], &[], &[]], &[]);
    }

    #[test]
    fn invalid_and_special_addresses_are_skipped() {
        check(
            |service| {
                service.external_ips = addresses(&["203.0.113.9", "x", "127.0.0.1", "203.0.113.1", "203.0.113.9"]);
            },
            [&["10.96.0.1"], &["203.0.113.1", "203.0.113.9"], &[]],
            &["spec.externalIPs[1]", "spec.externalIPs[2]"],
        );
        check(
            |service| service.load_balancer_ips = addresses(&["fe80::1", "y"]),
            [&["10.96.0.1"], &[], &[]],
            &["status.loadBalancer.ingress[0]", "status.loadBalancer.ingress[1]"],
        );
    }

    #[test]
    fn an_address_of_the_node_is_served_with_a_warning() {
        let mut object = service("10.96.0.1", &[(80, "TCP")]);
        object.external_ips = addresses(&["203.0.113.1", "192.168.0.1", "2001:db8::1"]);
        object.load_balancer_ips = addresses(&["192.168.0.2"]);
        let here = Here { addresses: ips(&["192.168.0.1", "192.168.0.2", "2001:db8::1"]), ..Here::new("node-1") };
        let mut skips = Skips::new(&object);
        let front = front(&object, &here, &[], &mut skips);
        assert_eq!(front.external_ips, ips(&["192.168.0.1", "203.0.113.1"]));
        assert_eq!(front.load_balancer_ips, ips(&["192.168.0.2"]));
        let found: Vec<_> = skips.skipped.iter().map(|skip| (skip.severity, &*skip.field)).collect();
        assert_eq!(
            found,
            [(Severity::Warning, "spec.externalIPs[1]"), (Severity::Warning, "status.loadBalancer.ingress[0]")]
        );
        let expected = "192.168.0.1 is an address of this node: the Service takes over port 80/TCP of this address, so clients cannot reach the node's own programs there";
        assert_eq!(skips.skipped[0].problem, expected);
    }

    #[test]
    fn a_cluster_ip_is_not_external_too() {
        check(|service| service.external_ips = addresses(&["10.96.0.1"]), [&["10.96.0.1"], &[], &[]], &[]);
    }
}
