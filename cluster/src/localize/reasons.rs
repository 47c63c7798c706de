//! Explains which endpoints of a Service are not eligible, and which rule excludes each of them.
//!
//! This module explains what [`super::service`] decides, and decides nothing itself. On request, it calls the same
//! modules again for one Service.

use std::{net::IpAddr, sync::Arc};

use localnet_proto::{
    Family, Port, Scopes,
    reasons::{EndpointConditions, Ineligible, Reasons},
};

use super::{
    Here, Lost, Rule, Skips, Standing,
    candidates::{self, Candidates},
    categorize::{self, Policy, Usage},
    front::{self, Front},
    ports, proxied, special,
};
use crate::objects::{Parsed, ServiceObject, ServiceType, SliceEndpoint, SliceObject, reduce::WEIGHT};

/// Maximum number of ineligible endpoints that are listed. Any further ones are only counted.
const MOST: usize = 1000;

/// Explains how a Service is localized on this node. `proxy_name` is the name of this proxy, if it has one.
pub fn reasons<'a>(
    object: &ServiceObject,
    slices: impl IntoIterator<Item = &'a SliceObject>,
    here: &Here,
    lost: &[Lost],
    proxy_name: Option<&str>,
) -> Reasons {
    let slices: Vec<&SliceObject> = slices.into_iter().collect();
    let endpoints = slices.iter().map(|slice| slice.endpoints.len()).sum();
    let reasons = Reasons { slices: slices.len(), endpoints, unready: unready(&slices), ..Reasons::default() };
    if !proxied::is_proxied(object, proxy_name) {
        return Reasons { standing: not_proxied(object), ..reasons };
    }
    let (served, findings) = super::service(object, slices.iter().copied(), here, lost);
    let standing = if served.is_some() { Standing::Served } else { Standing::Unusable };
    let reasons = Reasons { standing, findings, ..reasons };
    // These diagnostics were already collected.
    let mut skips = Skips::new(object);
    let front = front::front(object, here, lost, &mut skips);
    let ports = ports::ports(object, lost, &mut skips);
    let families: Vec<Family> = front.cluster_ips.iter().map(|ip| Family::of(*ip)).collect();
    let Some(candidates) = candidates::merge(&ports, &families, slices.iter().copied(), here, &mut skips) else {
        return reasons;
    };
    let explained =
        Explained { object, here, front: &front, families: &families, ports: &ports, candidates: &candidates };
    let mut found = Found::default();
    for position in 0..ports.len() {
        explained.port(position, &slices, &mut found);
    }
    found.named.sort_by(|a, b| order(a).cmp(&order(b)));
    let topology = super::topology(object, slices.iter().copied(), here, lost);
    let topology = topology.iter().map(Into::into).collect();
    Reasons { ineligible: found.named, ineligible_count: found.count, topology, ..reasons }
}

fn unready(slices: &[&SliceObject]) -> Vec<EndpointConditions> {
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
    let unready = endpoints.filter(|of| !of.conditions.ready || of.conditions.terminating);
    let each = unready.filter_map(|of| match of.address {
        Some(Parsed::Good(address)) => Some(of.conditions.of(address)),
        _ => None,
    });
    each.take(MOST).collect()
}

fn not_proxied(object: &ServiceObject) -> Standing {
    if object.kind == ServiceType::ExternalName {
        Standing::ExternalName
    } else if object.headless {
        Standing::Headless
    } else if object.cluster_ips.is_empty() {
        Standing::WithoutClusterIp
    } else {
        Standing::OfAnotherProxy
    }
}

fn order(of: &Ineligible) -> (&str, Option<IpAddr>, &str, Rule) {
    (&of.port_name, of.address.parse().ok(), &of.slice, of.rule)
}

/// The endpoints that are not eligible, listed up to the maximum.
#[derive(Debug, Default)]
struct Found {
    named: Vec<Ineligible>,
    count: usize,
}

impl Found {
    fn push(&mut self, one: impl FnOnce() -> Ineligible) {
        self.count += 1;
        if self.named.len() < MOST {
            self.named.push(one());
        }
    }
}

/// A Service, and the decisions about it that are to be explained.
struct Explained<'a> {
    object: &'a ServiceObject,
    here: &'a Here,
    front: &'a Front,
    families: &'a [Family],
    ports: &'a [Port],
    candidates: &'a Candidates<'a>,
}

/// One endpoint of a slice.
#[derive(Clone, Copy)]
struct At<'a> {
    slice: &'a SliceObject,
    position: usize,
    endpoint: &'a SliceEndpoint,
}

/// The reason for an exclusion.
#[derive(Clone)]
struct Why {
    rule: Rule,
    field: String,
    problem: String,
    remedy: &'static str,
}

impl Explained<'_> {
    fn is_external(&self, port: &Port, family: Family) -> bool {
        port.node_port.is_some() || self.front.is_external(family)
    }

    fn usage(&self, position: usize, family: Family) -> Usage {
        let of_family = self.candidates[position].iter().filter(|((address, _), _)| Family::of(*address) == family);
        let external = self.is_external(&self.ports[position], family);
        categorize::categorize(of_family.map(|(_, candidate)| candidate), Policy::of(self.object), external, self.here)
    }

    /// Finds all endpoints that are not eligible for a port.
    fn port(&self, position: usize, slices: &[&SliceObject], found: &mut Found) {
        let usages = Family::BOTH.map(|family| self.usage(position, family));
        let usage = |family: Family| &usages[family as usize];
        for slice in slices {
            let family = match &slice.family {
                Parsed::Good(family) => *family,
                Parsed::Bad(_) => Family::V4,
            };
            let numbers = match self.numbers(position, slice, family) {
                Ok(numbers) => numbers,
                Err(why) => {
                    for at in each(slice) {
                        found.push(|| self.ineligible(position, at, None, usage(family).traffic(), why.clone()));
                    }
                    continue;
                }
            };
            for at in each(slice) {
                let address = match address(at, family) {
                    Ok(address) => address,
                    Err(why) => {
                        found.push(|| self.ineligible(position, at, None, usage(family).traffic(), why));
                        continue;
                    }
                };
                for number in &numbers {
                    self.endpoint(position, at, (address, *number), usage(family), found);
                }
            }
        }
    }

    fn endpoint(&self, position: usize, at: At<'_>, to: (IpAddr, u16), usage: &Usage, found: &mut Found) {
        let Some(candidate) = self.candidates[position].get(&to) else { return };
        if !candidate.is_of(&at.slice.name, at.position) {
            let other = candidate.slice().to_owned();
            found.push(|| self.ineligible(position, at, Some(to.1), usage.traffic(), duplicate(at, &other)));
            return;
        }
        for (rule, from) in usage.exclusions(candidate, self.here) {
            found.push(|| self.ineligible(position, at, Some(to.1), from, self.why(rule, at)));
        }
    }

    fn ineligible(&self, position: usize, at: At<'_>, number: Option<u16>, from: Scopes, why: Why) -> Ineligible {
        let node = at.endpoint.node.as_deref().unwrap_or_default();
        let address = match &at.endpoint.address {
            Some(Parsed::Good(address)) => address.to_string(),
            Some(Parsed::Bad(text)) => text.to_string(),
            None => String::new(),
        };
        let Why { rule, field, problem, remedy } = why;
        Ineligible {
            slice: at.slice.name.to_string(),
            address,
            port_name: self.ports[position].name.to_string(),
            number: number.unwrap_or_default(),
            node: node.to_owned(),
            local: !node.is_empty() && *node == *self.here.name,
            from,
            rule,
            field,
            problem,
            remedy: remedy.to_owned(),
        }
    }

    /// The port numbers of a Service's port in a slice, or the reason why the slice has none.
    fn numbers(&self, position: usize, slice: &SliceObject, family: Family) -> Result<Vec<u16>, Why> {
        let why = |rule, field: &str, problem, remedy| Why { rule, field: field.to_owned(), problem, remedy };
        if let Parsed::Bad(text) = &slice.family {
            let problem = format!("the slice contains endpoints of type {text:?}, not IP addresses");
            return Err(why(Rule::AddressType, "addressType", problem, "use a slice of type IPv4 or IPv6"));
        }
        if slice.headless {
            let problem = "a label assigns the slice to a headless Service".to_owned();
            let field = "metadata.labels[service.kubernetes.io/headless]";
            return Err(why(
                Rule::HeadlessSlice,
                field,
                problem,
                "remove the label, or delete the slice so that the controller creates it again",
            ));
        }
        if !self.families.contains(&family) {
            let problem = format!("the Service has no {family} ClusterIP");
            let remedy = "add the family to spec.ipFamilies, with spec.ipFamilyPolicy PreferDualStack";
            return Err(why(Rule::Family, "addressType", problem, remedy));
        }
        let port = &self.ports[position];
        let named = || slice.ports.iter().filter(|of| of.name.as_deref() == Some(&*port.name));
        if named().next().is_none() {
            let names: Vec<String> =
                slice.ports.iter().map(|of| format!("{:?}", of.name.as_deref().unwrap_or_default())).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let problem = format!("the slice has no port named {:?}; it has {has}", &*port.name);
            let remedy =
                "set both the name and the targetPort of the Service's port to the name of the container's port";
            return Err(why(Rule::PortName, "ports[].name", problem, remedy));
        }
        let mut numbers = Vec::new();
        let mut wrong = None;
        for of in named() {
            match (&of.protocol, of.port.map(u16::try_from)) {
                (Parsed::Good(protocol), _) if *protocol != port.protocol => {
                    let problem =
                        format!("the slice's port {:?} is {protocol}, the Service's is {}", &*port.name, port.protocol);
                    wrong = Some((Rule::PortProtocol, "ports[].protocol", problem, "give both the same protocol"));
                }
                (Parsed::Bad(text), _) => {
                    let problem = format!("the slice's port {:?} has the protocol {text:?}", &*port.name);
                    wrong = Some((Rule::PortProtocol, "ports[].protocol", problem, "use TCP, UDP or SCTP"));
                }
                (_, Some(Ok(number @ 1..))) => numbers.push(number),
                (_, number) => {
                    let has = match number {
                        None => "no number, which means all ports".to_owned(),
                        Some(_) => format!("the number {}", of.port.unwrap_or_default()),
                    };
                    let problem = format!("the slice's port {:?} has {has}", &*port.name);
                    wrong = Some((Rule::PortNumber, "ports[].port", problem, "use a number from 1 to 65535"));
                }
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        match wrong {
            Some((rule, field, problem, remedy)) if numbers.is_empty() => Err(why(rule, field, problem, remedy)),
            _ => Ok(numbers),
        }
    }

    fn why(&self, rule: Rule, at: At<'_>) -> Why {
        let of = |field: &str| format!("endpoints[{}].{field}", at.position);
        let list = |names: &[Arc<str>]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let on = at.endpoint.node.as_deref().filter(|node| !node.is_empty());
        let on = on.map_or_else(|| "on no node".to_owned(), |node| format!("on node {node}"));
        let (field, problem, remedy) = match rule {
            Rule::OtherNode => (
                of("hints.forNodes"),
                format!("it is hinted for {}, and this node is {}", list(&at.endpoint.node_hints), self.here.name),
                "spec.trafficDistribution of the Service requests hints; without it, all endpoints are eligible",
            ),
            Rule::OtherZone => (
                of("hints.forZones"),
                format!("it is hinted for {}, and this node is in {}", list(&at.endpoint.zone_hints), self.here.zone),
                "spec.trafficDistribution of the Service requests hints; without it, all endpoints are eligible",
            ),
            Rule::InternalLocal => (
                "spec.internalTrafficPolicy".to_owned(),
                format!("the Service keeps internal traffic on the node, but the endpoint is {on}"),
                "run an endpoint on each node with clients, or set internalTrafficPolicy: Cluster",
            ),
            Rule::ExternalLocal => (
                "spec.externalTrafficPolicy".to_owned(),
                format!("the Service keeps external traffic on the node, but the endpoint is {on}"),
                "send external traffic to nodes with an endpoint, or set externalTrafficPolicy: Cluster",
            ),
            Rule::Weight => (
                // Either annotation may be the reason; the Service's is the less likely one.
                match at.slice.weight {
                    Some(Parsed::Good(0)) => format!("metadata.annotations[{WEIGHT}]"),
                    _ => of("zone"),
                },
                "its weight is 0, and other endpoints have a weight".to_owned(),
                "give the endpoint a weight: localnet.dev/weight of its EndpointSlice, localnet.dev/zone-weights of the Service",
            ),
            // A rule about conditions. The callers explain all other rules.
            _ => {
                let (condition, problem, remedy) = at.endpoint.conditions.why(rule);
                (of(&format!("conditions.{condition}")), problem.to_owned(), remedy)
            }
        };
        Why { rule, field, problem, remedy }
    }
}

fn each(slice: &SliceObject) -> impl Iterator<Item = At<'_>> {
    slice.endpoints.iter().enumerate().map(move |(position, endpoint)| At { slice, position, endpoint })
}

/// The address of an endpoint, or the reason why it has no usable one.
fn address(at: At<'_>, family: Family) -> Result<IpAddr, Why> {
    let field = format!("endpoints[{}].addresses[0]", at.position);
    let (rule, problem) = match &at.endpoint.address {
        None => (Rule::Address, "it has no address".to_owned()),
        Some(Parsed::Bad(text)) => (Rule::Address, format!("{text:?} is not an IP address")),
        Some(Parsed::Good(address)) if Family::of(*address) != family => {
            (Rule::Address, format!("{address} is not an {family} address, but addressType is {family}"))
        }
        Some(Parsed::Good(address)) => match special::reserved_for(*address) {
            Some(reserved) => (Rule::Reserved, format!("{address} is {reserved}, which no endpoint may have")),
            None => return Ok(*address),
        },
    };
    Err(Why { rule, field, problem, remedy: "correct the address in the EndpointSlice" })
}

fn duplicate(at: At<'_>, other: &str) -> Why {
    let problem = match *at.slice.name == *other {
        true => "the slice contains the same address and port again; the other entry applies".to_owned(),
        false => format!("EndpointSlice {other} contains the same address and port; the other entry applies"),
    };
    Why {
        rule: Rule::Duplicate,
        field: format!("endpoints[{}]", at.position),
        problem,
        remedy: "remove one of the two, unless the endpoint is moving between slices",
    }
}

#[cfg(test)]
mod tests;
