//! Describes the difference between two versions of a Service or of the Node, for people. Pure.

use std::{
    collections::BTreeMap,
    fmt::{Display, Write as _},
    net::IpAddr,
    num::NonZeroU32,
};

use crate::model::{Endpoint, HashBy, Node, Port, Service};

/// Maximum number of endpoints that one part of a description lists. The others are only counted.
const MAX_NAMED: usize = 8;

/// Describes how `now` differs from `before`. The parts of the description, such as `endpoints added: 10.0.0.1,
/// 10.0.0.2`, are joined by `; `.
pub fn difference(before: &Service, now: &Service) -> String {
    let mut parts = Vec::new();
    endpoints(&before.endpoints, &now.endpoints, &mut parts);
    field("type", &before.kind, &now.kind, &mut parts);
    lists("clusterIPs", &before.cluster_ips, &now.cluster_ips, &mut parts);
    lists("externalIPs", &before.external_ips, &now.external_ips, &mut parts);
    lists("loadBalancerIPs", &before.load_balancer_ips, &now.load_balancer_ips, &mut parts);
    lists("ports", &ports(&before.ports), &ports(&now.ports), &mut parts);
    let policy = |is_local: bool| if is_local { "Local" } else { "Cluster" };
    let internal = [before, now].map(|service| policy(service.internal_traffic_to_local));
    field("internalTrafficPolicy", internal[0], internal[1], &mut parts);
    let external = [before, now].map(|service| policy(service.external_traffic_to_local));
    field("externalTrafficPolicy", external[0], external[1], &mut parts);
    let affinity = |service: &Service| {
        service.client_ip_affinity.map_or("None".to_owned(), |affinity| format!("ClientIP {affinity}"))
    };
    field("sessionAffinity", &affinity(before), &affinity(now), &mut parts);
    let hash = |service: &Service| service.hash.map_or("none", HashBy::as_str);
    field("hash", hash(before), hash(now), &mut parts);
    let close = |service: &Service| service.close_after.map_or("never".to_owned(), |seconds| format!("{seconds}s"));
    field("closeConnectionsAfter", &close(before), &close(now), &mut parts);
    let scheduler = |service: &Service| service.ipvs_scheduler.clone().unwrap_or_default();
    field("ipvsScheduler", &scheduler(before), &scheduler(now), &mut parts);
    let port = |service: &Service| service.health_check_node_port.map_or("none".to_owned(), |port| port.to_string());
    field("healthCheckNodePort", &port(before), &port(now), &mut parts);
    if before.source_filters != now.source_filters {
        parts.push("source ranges".to_owned());
    }
    if parts.is_empty() {
        parts.push("other fields".to_owned());
    }
    parts.join("; ")
}

/// Describes how the facts about the Node differ, in the same form as [`difference`].
pub fn node_difference(before: &Node, now: &Node) -> String {
    let mut parts = Vec::new();
    lists("addresses", &before.addresses, &now.addresses, &mut parts);
    field("zone", &before.zone, &now.zone, &mut parts);
    lists("podCIDRs", &before.pod_cidrs, &now.pod_cidrs, &mut parts);
    lists("serviceCIDRs", &before.service_cidrs, &now.service_cidrs, &mut parts);
    field("name", &before.name, &now.name, &mut parts);
    parts.join("; ")
}

/// Describes the endpoints that differ, grouped by the kind of change.
fn endpoints(before: &[Endpoint], now: &[Endpoint], parts: &mut Vec<String>) {
    let by_address = |endpoints: &[Endpoint]| {
        let mut map: BTreeMap<IpAddr, Vec<Endpoint>> = BTreeMap::new();
        for endpoint in endpoints {
            map.entry(endpoint.address).or_default().push(endpoint.clone());
        }
        map
    };
    let (before, now) = (by_address(before), by_address(now));
    let mut of: [(&str, Vec<IpAddr>); 5] =
        ["added", "removed", "serving", "no longer serving", "changed"].map(|what| (what, Vec::new()));
    let mut weighted = Vec::new();
    for (address, is) in &now {
        let place = match before.get(address) {
            None => 0,
            Some(was) if was == is => continue,
            Some(was) => match (serves(was), serves(is)) {
                (false, true) => 2,
                (true, false) => 3,
                _ => {
                    let [old, new] = [was, is].map(|of| weights(of));
                    if old != new {
                        weighted.push(format!("{address} {old} -> {new}"));
                    }
                    if without_weights(was) == without_weights(is) {
                        continue;
                    }
                    4
                }
            },
        };
        of[place].1.push(*address);
    }
    of[1].1.extend(before.keys().filter(|address| !now.contains_key(*address)));
    for (what, addresses) in of.iter().filter(|(_, addresses)| !addresses.is_empty()) {
        parts.push(format!("endpoints {what}: {}", limited(addresses)));
    }
    if !weighted.is_empty() {
        parts.push(format!("weights: {}", limited(&weighted)));
    }
}

/// Lists the first items, and counts the others.
fn limited<T: Display>(items: &[T]) -> String {
    let named: Vec<String> = items.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let mut text = named.join(", ");
    if items.len() > MAX_NAMED {
        _ = write!(text, " and {} more", items.len() - MAX_NAMED);
    }
    text
}

/// The weights of the endpoints of one address: one number if they are equal.
fn weights(endpoints: &[Endpoint]) -> String {
    let mut all: Vec<u32> = endpoints.iter().map(|endpoint| endpoint.weight.map_or(1, NonZeroU32::get)).collect();
    all.dedup();
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("/")
}

fn without_weights(endpoints: &[Endpoint]) -> Vec<Endpoint> {
    endpoints.iter().map(|endpoint| Endpoint { weight: None, ..endpoint.clone() }).collect()
}

/// Whether new connections can reach any of these endpoints.
fn serves(endpoints: &[Endpoint]) -> bool {
    endpoints.iter().any(|endpoint| endpoint.scopes.internal || endpoint.scopes.external)
}

fn ports(ports: &[Port]) -> Vec<String> {
    let text = |port: &Port| {
        let name = if port.name.is_empty() { String::new() } else { format!("{} ", port.name) };
        let node_port = port.node_port.map(|number| format!(":{number}")).unwrap_or_default();
        format!("{name}{} {}{node_port}", port.protocol, port.port)
    };
    ports.iter().map(text).collect()
}

fn field(name: &str, before: &(impl Display + ?Sized), now: &(impl Display + ?Sized), parts: &mut Vec<String>) {
    let (before, now) = (before.to_string(), now.to_string());
    if before != now {
        let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
        parts.push(format!("{name}: {} -> {}", or_none(before), or_none(now)));
    }
}

fn lists<T: Display>(name: &str, before: &[T], now: &[T], parts: &mut Vec<String>) {
    let text = |list: &[T]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    field(name, &text(before), &text(now), parts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Scopes, ServiceKey};

    fn endpoint(last: u8, scopes: Scopes) -> Endpoint {
        Endpoint {
            address: [10, 0, 0, last].into(),
            ports: Vec::new(),
            local: false,
            hostname: None,
            scopes,
            weight: None,
        }
    }

    #[test]
    fn a_difference_lists_endpoints_by_change_and_fields_with_both_values() {
        let serving = Scopes { internal: true, external: true, ..Scopes::default() };
        let draining = Scopes { established: true, ..Scopes::default() };
        let mut before = Service::new(ServiceKey::new("shop", "web"), vec!["10.96.0.1".parse().unwrap()]);
        before.endpoints = vec![endpoint(1, serving), endpoint(2, serving), endpoint(3, draining)];
        let mut now = before.clone();
        assert_eq!(difference(&before, &now), "other fields");
        now.endpoints = vec![endpoint(2, draining), endpoint(3, serving)];
        now.endpoints.extend((10..20).map(|last| endpoint(last, serving)));
        now.external_ips = vec!["192.0.2.1".parse().unwrap()];
        now.external_traffic_to_local = true;
        now.client_ip_affinity = Some(60.into());
        assert_eq!(
            difference(&before, &now),
            "endpoints added: 10.0.0.10, 10.0.0.11, 10.0.0.12, 10.0.0.13, 10.0.0.14, 10.0.0.15, 10.0.0.16, 10.0.0.17 and 2 more; \
             endpoints removed: 10.0.0.1; endpoints serving: 10.0.0.3; endpoints no longer serving: 10.0.0.2; \
             externalIPs: none -> 192.0.2.1; externalTrafficPolicy: Cluster -> Local; sessionAffinity: None -> ClientIP 60s"
        );
    }

    #[test]
    fn weights_hash_and_closing_of_connections_have_names() {
        let serving = Scopes { internal: true, ..Scopes::default() };
        let weighted = |last, weight| Endpoint { weight: NonZeroU32::new(weight), ..endpoint(last, serving) };
        let mut service = Service::new(ServiceKey::new("shop", "web"), vec!["10.96.0.1".parse().unwrap()]);
        service.endpoints = vec![weighted(1, 0), weighted(2, 4), weighted(3, 4)];
        let check = |change: &dyn Fn(&mut Service), expected: &str| {
            let mut now = service.clone();
            change(&mut now);
            assert_eq!(difference(&service, &now), expected);
        };
        let endpoints = |all: Vec<Endpoint>| move |service: &mut Service| service.endpoints.clone_from(&all);
        let (one, two, three) = (weighted(1, 0), weighted(2, 4), weighted(3, 4));
        check(
            &endpoints(vec![weighted(1, 6), weighted(2, 1), three.clone()]),
            "weights: 10.0.0.1 1 -> 6, 10.0.0.2 4 -> 1",
        );
        let local = Endpoint { local: true, ..weighted(2, 9) };
        check(
            &endpoints(vec![one.clone(), local, three.clone()]),
            "endpoints changed: 10.0.0.2; weights: 10.0.0.2 4 -> 9",
        );
        check(
            &endpoints(vec![one.clone(), two.clone(), weighted(3, 4), weighted(3, 8)]),
            "endpoints changed: 10.0.0.3; weights: 10.0.0.3 4 -> 4/8",
        );
        check(&endpoints(vec![one, endpoint(2, Scopes::default()), three]), "endpoints no longer serving: 10.0.0.2");
        check(&|service| service.hash = Some(HashBy::Source), "hash: none -> source");
        check(&|service| service.close_after = Some(30), "closeConnectionsAfter: never -> 30s");
        check(&|service| service.ipvs_scheduler = Some("lc".into()), "ipvsScheduler: none -> lc");
    }
}
