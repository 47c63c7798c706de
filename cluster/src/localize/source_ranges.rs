//! The clients that may connect to a Service's load balancer addresses (`spec.loadBalancerSourceRanges`).
//!
//! Source ranges do not restrict ClusterIPs, external IPs or NodePorts. They restrict each family separately: if a family
//! has no range, or a /0 range, all clients of this family may connect.

use std::net::IpAddr;

use ipnet::IpNet;
use localnet_core::Code;
use localnet_proto::{Family, SourceFilter};

use super::{Here, Skips};
use crate::objects::{Parsed, ServiceObject};

/// The source filters for the load balancer addresses of a Service.
pub(super) fn filters(
    object: &ServiceObject,
    load_balancer_ips: &[IpAddr],
    here: &Here,
    skips: &mut Skips<'_>,
) -> Vec<SourceFilter> {
    let mut ranges = Vec::new();
    for (position, range) in object.source_ranges.iter().enumerate() {
        match range {
            Parsed::Good(range) => ranges.push(*range),
            Parsed::Bad(text) if text.trim().is_empty() => {}
            Parsed::Bad(text) => skips.service(
                Code::CidrInvalid,
                format!("spec.loadBalancerSourceRanges[{position}]"),
                format!("{text:?} is not a CIDR"),
                "write it like 203.0.113.0/24 or 2001:db8::/32",
            ),
        }
    }
    Family::BOTH.into_iter().filter_map(|family| filter(family, &ranges, load_balancer_ips, here)).collect()
}

fn filter(family: Family, ranges: &[IpNet], load_balancer_ips: &[IpAddr], here: &Here) -> Option<SourceFilter> {
    let targets: Vec<IpAddr> = load_balancer_ips.iter().copied().filter(|ip| Family::of(*ip) == family).collect();
    let ranges = ranges.iter().copied().filter(|range| Family::of(range.addr()) == family);
    let mut source_ranges: Vec<IpNet> = ranges.collect();
    if targets.is_empty() || source_ranges.is_empty() || source_ranges.iter().any(|range| range.prefix_len() == 0) {
        return None;
    }
    // If the load balancer's address is also an address of the node, packets from the node to this address have the same
    // source and destination address.
    let node = here.primary_address(family);
    if node.is_some_and(|node| source_ranges.iter().any(|range| range.contains(&node))) {
        source_ranges.extend(targets.iter().map(|target| IpNet::from(*target)));
    }
    source_ranges.sort_unstable();
    source_ranges.dedup();
    Some(SourceFilter { targets, source_ranges })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        objects::reduce::parsed_cidr,
        testing::{ips, service},
    };

    /// Checks which ranges may connect to which addresses. Arguments: load balancer addresses, source ranges, and the node's
    /// addresses.
    #[track_caller]
    fn check(targets: &[&str], ranges: &[&str], node: &[&str], expected: &[(&[&str], &[&str])]) {
        let mut object = service("10.96.0.1", &[(80, "TCP")]);
        object.source_ranges = ranges.iter().map(|range| parsed_cidr(range)).collect();
        let here = Here { addresses: ips(node), ..Here::new("node-1") };
        let mut skips = Skips::new(&object);
        let filters = filters(&object, &ips(targets), &here, &mut skips);
        let expected = expected.iter().map(|(targets, ranges)| SourceFilter {
            targets: ips(targets),
            source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        });
        assert_eq!(filters, expected.collect::<Vec<_>>());
    }

    #[test]
    fn ranges_apply_to_the_load_balancer_addresses_of_their_family() {
        check(&["192.0.2.1"], &["203.0.113.0/25"], &[], &[(&["192.0.2.1"], &["203.0.113.0/25"])]);
        check(&["192.0.2.1"], &[" 203.0.113.0/25 "], &[], &[(&["192.0.2.1"], &["203.0.113.0/25"])]);
        check(
            &["192.0.2.1", "2001:db8::1"],
            &["203.0.113.0/25", "2001:db8:1::/64"],
            &[],
            &[(&["192.0.2.1"], &["203.0.113.0/25"]), (&["2001:db8::1"], &["2001:db8:1::/64"])],
        );
    }

    #[test]
    fn a_family_without_ranges_or_with_all_is_open() {
        check(&["192.0.2.1"], &[], &[], &[]);
        check(&[], &["203.0.113.0/25"], &[], &[]);
        check(&["192.0.2.1"], &["2001:db8:1::/64"], &[], &[]);
        check(&["192.0.2.1"], &["203.0.113.0/25", "0.0.0.0/0"], &[], &[]);
        check(&["192.0.2.1"], &["203.0.113.0/25", "::/0"], &[], &[(&["192.0.2.1"], &["203.0.113.0/25"])]);
        check(&["192.0.2.1"], &["nonsense"], &[], &[]);
    }

    #[test]
    fn invalid_ranges_are_reported_and_empty_ones_are_not() {
        let mut object = service("10.96.0.1", &[(80, "TCP")]);
        object.source_ranges = ["", "nonsense", " "].iter().map(|range| parsed_cidr(range)).collect();
        let mut skips = Skips::new(&object);
        filters(&object, &ips(&["192.0.2.1"]), &Here::new("node-1"), &mut skips);
        let found: Vec<&str> = skips.skipped.iter().map(|skipped| &*skipped.field).collect();
        assert_eq!(found, ["spec.loadBalancerSourceRanges[1]"]);
    }

    #[test]
    fn an_allowed_node_may_also_connect_from_the_address_itself() {
        check(
            &["192.0.2.1"],
            &["192.168.0.0/24"],
            &["192.168.0.2", "fd00::2"],
            &[(&["192.0.2.1"], &["192.0.2.1/32", "192.168.0.0/24"])],
        );
        check(&["192.0.2.1"], &["192.168.0.0/24"], &["192.168.1.2"], &[(&["192.0.2.1"], &["192.168.0.0/24"])]);
        check(
            &["192.0.2.1"],
            &["192.168.0.0/24"],
            &["10.0.0.1", "192.168.0.2"],
            &[(&["192.0.2.1"], &["192.168.0.0/24"])],
        );
    }
}
