//! The facts about this node.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use localnet_core::{Code, Diagnostic, Object, Subject};
use localnet_proto::{Family, Node};

use crate::objects::{NodeObject, Parsed, ServiceCidrObject};

/// Maximum length of each list. Readers limit the size of a message, and no real node needs more.
const MOST: usize = 1000;

/// The facts about the node that affect how Services are localized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Here {
    /// The name of the node.
    pub name: Arc<str>,
    /// The zone of the node. Empty if it is unknown.
    pub zone: Arc<str>,
    /// The addresses of the node. The first one of each family is its primary address.
    pub addresses: Vec<IpAddr>,
    /// The family of the node's first address; `None` if there is no address. The operator's addresses precede those of
    /// the Node object.
    pub primary: Option<Family>,
}

impl Here {
    /// A node of which only the name is known.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), zone: Arc::default(), addresses: Vec::new(), primary: None }
    }

    /// Combines the Node object with the addresses that the operator has configured.
    pub fn of(name: &str, node: Option<&NodeObject>, chosen: &NodeIps) -> Self {
        let zone = node.map(|node| Arc::clone(&node.zone)).unwrap_or_default();
        let mut addresses = addresses(node, chosen);
        let primary = addresses.first().map(|first| Family::of(*first));
        addresses.sort_by_key(IpAddr::is_ipv6);
        Self { name: name.into(), zone, addresses, primary }
    }

    /// The node's primary address of a family.
    pub fn primary_address(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| Family::of(*address) == family)
    }
}

/// The operator's choice of the node's addresses: `nodeIPOverride` and `ipFamilyPolicy` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIps {
    /// Addresses that precede those of the Node. The family of the first one becomes the node's primary family.
    pub first: Vec<IpAddr>,
    /// Whether only addresses of the primary family are used.
    pub single_stack: bool,
}

/// The facts that backends need. Without a Node object, these are only the facts that the operator has configured.
pub fn node<'a>(
    here: &Here,
    node: Option<&NodeObject>,
    service_cidrs: impl IntoIterator<Item = &'a ServiceCidrObject>,
) -> (Node, Vec<Diagnostic>) {
    let mut skipped = Vec::new();
    let mut skip = |code, object: &Subject, field: &str, problem: String, remedy: &str| {
        skipped.push(Diagnostic::new(code, object.clone(), problem).field(field).remedy(remedy));
    };
    let wrong = |text: &str| format!("{text:?} is invalid");
    let name = &here.name;
    let mut facts = Node { name: name.to_string(), addresses: here.addresses.clone(), ..Node::default() };
    let object = Subject::node(name);
    if let Some(node) = node {
        facts.zone = node.zone.to_string();
        for bad in node.addresses.iter().filter_map(bad) {
            skip(
                Code::AddressInvalid,
                &object,
                "status.addresses",
                wrong(bad),
                "correct the address in the Node's status",
            );
        }
        let mut seen = BTreeSet::new();
        facts.pod_cidrs = node.pod_cidrs.iter().filter_map(good).filter(|cidr| seen.insert(*cidr)).collect();
        for bad in node.pod_cidrs.iter().filter_map(bad) {
            skip(Code::CidrInvalid, &object, "spec.podCIDRs", wrong(bad), "write it as a CIDR, like 10.244.0.0/24");
        }
    }
    let mut cidrs: BTreeSet<IpNet> = BTreeSet::new();
    for object in service_cidrs {
        cidrs.extend(object.cidrs.iter().filter_map(good));
        for bad in object.cidrs.iter().filter_map(bad) {
            let object = Object::new("ServiceCIDR", "", Arc::clone(&object.name)).into();
            skip(Code::CidrInvalid, &object, "spec.cidrs", wrong(bad), "write it as a CIDR, like 10.96.0.0/16");
        }
    }
    facts.service_cidrs = cidrs.into_iter().collect();
    let mut limit = |object: &Subject, field: &str, length: usize| {
        if length > MOST {
            let problem = format!("has {length} entries; only the first {MOST} are used");
            skip(Code::ListTooLong, object, field, problem, "remove unused entries");
        }
    };
    limit(&object, "status.addresses", facts.addresses.len());
    limit(&object, "spec.podCIDRs", facts.pod_cidrs.len());
    limit(&Object::new("ServiceCIDRs", "", "").into(), "spec.cidrs", facts.service_cidrs.len());
    facts.addresses.truncate(MOST);
    facts.pod_cidrs.truncate(MOST);
    facts.service_cidrs.truncate(MOST);
    (facts, skipped)
}

/// The diagnostic for a deleted Node.
pub fn node_deleted(name: &str) -> Diagnostic {
    let problem = "was deleted; the brain keeps using its last addresses and zone";
    Diagnostic::new(Code::NodeGone, Subject::node(name), problem)
        .remedy("register the Node again, or stop localnet on the node")
}

fn good<T: Copy>(parsed: &Parsed<T>) -> Option<T> {
    match parsed {
        Parsed::Good(value) => Some(*value),
        Parsed::Bad(_) => None,
    }
}

fn bad<T>(parsed: &Parsed<T>) -> Option<&str> {
    match parsed {
        Parsed::Good(_) => None,
        Parsed::Bad(text) => Some(text),
    }
}

/// The node's addresses, in order of precedence.
fn addresses(node: Option<&NodeObject>, chosen: &NodeIps) -> Vec<IpAddr> {
    let own = node.into_iter().flat_map(|node| node.addresses.iter().filter_map(good));
    let mut seen = BTreeSet::new();
    let mut addresses: Vec<IpAddr> = chosen.first.iter().copied().chain(own).filter(|ip| seen.insert(*ip)).collect();
    if let Some(first) = addresses.first().copied().filter(|_| chosen.single_stack) {
        addresses.retain(|address| address.is_ipv4() == first.is_ipv4());
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        objects::reduce::parsed_cidr,
        testing::{addresses, ips},
    };

    #[test]
    fn the_facts_come_from_node_and_service_cidrs() {
        let object = NodeObject {
            name: "n".into(),
            zone: "z".into(),
            addresses: addresses(&["fd00::1", "192.168.0.2", "x", "192.168.0.1", "fd00::1"]),
            pod_cidrs: ["10.1.0.0/24", "y"].map(parsed_cidr).into(),
            taints: [].into(),
            deleting: false,
            version: None,
        };
        let cidrs = [["10.96.0.0/16", "fd00:96::/112"], ["10.95.0.0/16", "w"]];
        let cidrs = cidrs.map(|cidrs| ServiceCidrObject { name: "c".into(), cidrs: cidrs.map(parsed_cidr).into() });
        let here = Here::of("n", Some(&object), &NodeIps::default());
        let (facts, skipped) = node(&here, Some(&object), &cidrs);
        let text = |cidrs: &[IpNet]| cidrs.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(facts.addresses, ips(&["192.168.0.2", "192.168.0.1", "fd00::1"]), "IPv4 first, each in its order");
        assert_eq!(text(&facts.pod_cidrs), ["10.1.0.0/24"]);
        assert_eq!(text(&facts.service_cidrs), ["10.95.0.0/16", "10.96.0.0/16", "fd00:96::/112"]);
        assert_eq!((&*facts.name, &*facts.zone), ("n", "z"));
        let fields: Vec<_> = skipped.iter().map(|skipped| format!("{} {}", skipped.subject, skipped.field)).collect();
        assert_eq!(fields, ["Node n status.addresses", "Node n spec.podCIDRs", "ServiceCIDR c spec.cidrs"]);
    }

    #[test]
    fn excessively_long_lists_are_cut() {
        let cidrs = |count: usize| -> Box<[_]> {
            (0..count).map(|number| parsed_cidr(&format!("10.{}.{}.0/24", number / 256, number % 256))).collect()
        };
        let ips = |count: usize| -> Vec<String> {
            (0..count).map(|number| format!("10.0.{}.{}", number / 256, number % 256)).collect()
        };
        let cut = |count: usize| {
            let object = NodeObject {
                name: "n".into(),
                zone: "".into(),
                addresses: addresses(&ips(count).iter().map(String::as_str).collect::<Vec<_>>()),
                pod_cidrs: cidrs(count),
                taints: [].into(),
                deleting: false,
                version: None,
            };
            let service_cidrs = [ServiceCidrObject { name: "c".into(), cidrs: cidrs(count) }];
            let here = Here::of("n", Some(&object), &NodeIps::default());
            let (facts, skipped) = node(&here, Some(&object), &service_cidrs);
            let lengths = [facts.addresses.len(), facts.pod_cidrs.len(), facts.service_cidrs.len()];
            let skips = skipped.iter().map(|skip| format!("{} {}: {}", skip.subject, skip.field, skip.problem));
            (lengths, skips.collect::<Vec<_>>())
        };
        assert_eq!(cut(MOST), ([MOST; 3], vec![]));
        let too_many = ["Node n status.addresses", "Node n spec.podCIDRs", "ServiceCIDRs spec.cidrs"];
        let too_many = too_many.map(|of| format!("{of}: has 1001 entries; only the first 1000 are used"));
        assert_eq!(cut(MOST + 1), ([MOST; 3], too_many.to_vec()));
    }

    #[test]
    fn a_brain_without_a_node_knows_its_name() {
        assert_eq!(node(&Here::new("n"), None, []).0, Node { name: "n".into(), ..Node::default() });
    }

    #[test]
    fn node_ip_override_selects_the_addresses_of_the_node() {
        let object = |texts: &[&str]| NodeObject {
            name: "n".into(),
            zone: "z".into(),
            addresses: addresses(texts),
            pod_cidrs: [].into(),
            taints: [].into(),
            deleting: false,
            version: None,
        };
        let both = &["192.168.0.1", "192.168.0.2", "fd00::1"][..];
        let v6_first = &["fd00::1", "192.168.0.1"][..];
        for (addresses, first, single_stack, expected) in [
            (Some(both), &[][..], false, both),
            (Some(both), &["192.168.0.2"], false, &["192.168.0.2", "192.168.0.1", "fd00::1"]),
            (
                Some(both),
                &["10.0.0.9", "fd00::9"],
                false,
                &["10.0.0.9", "192.168.0.1", "192.168.0.2", "fd00::9", "fd00::1"],
            ),
            (Some(both), &[], true, &["192.168.0.1", "192.168.0.2"]),
            (Some(v6_first), &[], false, &["192.168.0.1", "fd00::1"]),
            (Some(v6_first), &[], true, &["fd00::1"]),
            (Some(v6_first), &["10.0.0.9"], true, &["10.0.0.9", "192.168.0.1"]),
            (None, &["10.0.0.9"], false, &["10.0.0.9"]),
            (None, &[], true, &[]),
        ] {
            let chosen = NodeIps { first: ips(first), single_stack };
            let here = Here::of("n", addresses.map(object).as_ref(), &chosen);
            assert_eq!(here.addresses, ips(expected), "{addresses:?} {chosen:?}");
            let first = ips(first).first().copied().or_else(|| ips(addresses.unwrap_or_default()).first().copied());
            assert_eq!(here.primary, first.map(Family::of), "{addresses:?} {chosen:?}");
        }
    }
}
