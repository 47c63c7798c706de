//! Decides what DNS must know about a Service: the rules of the Kubernetes DNS specification and of CoreDNS about which Services have
//! names, and which endpoints these names stand for. How names are formed, and how questions are answered, is up to the DNS server.

use std::sync::Arc;

use localnet_core::{Code, Diagnostic};
use localnet_proto::{
    Protocol,
    v1::dns::{Endpoint, Port, Service},
};

use super::{Skips, candidates::MOST, facts::origin};
use crate::objects::{Parsed, ServiceObject, ServiceType, SliceEndpoint, SliceObject};

/// What DNS must know about a Service. `None` if the Service has no name yet: it needs a ClusterIP, and has none. The endpoints are those
/// that are ready: the EndpointSlice controller also marks the others as ready if the Service has `publishNotReadyAddresses`.
pub fn names<'a>(
    object: &ServiceObject,
    slices: impl IntoIterator<Item = &'a SliceObject>,
) -> (Option<Service>, Vec<Diagnostic>) {
    let mut skips = Skips::new(object);
    let is_external = object.kind == ServiceType::ExternalName;
    let mut cluster_ips: Vec<_> = object.cluster_ips.iter().filter_map(good).copied().collect();
    cluster_ips.sort_unstable();
    cluster_ips.dedup();
    if is_external || object.headless {
        cluster_ips.clear();
    } else if cluster_ips.is_empty() {
        return (None, skips.skipped);
    }
    let ports = object.ports.iter().filter_map(|of| port(&of.name, &of.protocol, of.port));
    let external_name = object.extensions.as_ref().and_then(|extensions| extensions.external_name.clone());
    let service = Service {
        key: object.key(),
        kind: object.kind.as_str().to_owned(),
        cluster_ips,
        external_name: external_name.filter(|_| is_external),
        ports: sorted(ports.collect()),
        endpoints: if is_external { Vec::new() } else { endpoints(slices, &mut skips) },
    };
    (Some(service), skips.skipped)
}

/// The ready endpoints of all slices, sorted. If they have too many ports, returns none of them, like the endpoints of a Service with too
/// many endpoints.
fn endpoints<'a>(slices: impl IntoIterator<Item = &'a SliceObject>, skips: &mut Skips<'_>) -> Vec<Endpoint> {
    let (mut endpoints, mut pairs) = (Vec::new(), 0);
    for slice in slices {
        let ports = slice.ports.iter().filter_map(|of| {
            let name = of.name.clone().unwrap_or_default();
            port(&name, &of.protocol, of.port?)
        });
        let ports: Arc<[Port]> = sorted(ports.collect()).into();
        pairs += slice.ports.len().max(1) * slice.endpoints.len();
        if pairs > MOST {
            let problem = format!("its endpoints have more than {MOST} ports in total");
            skips.service(Code::ServiceTooLarge, "spec.ports", problem, "split it into several Services");
            return Vec::new();
        }
        endpoints.extend(slice.endpoints.iter().filter_map(|of| endpoint(of, &ports)));
    }
    sorted(endpoints)
}

fn endpoint(of: &SliceEndpoint, ports: &Arc<[Port]>) -> Option<Endpoint> {
    let address = *of.address.as_ref().filter(|_| of.conditions.ready).and_then(good)?;
    Some(Endpoint { address, hostname: of.hostname.clone(), ports: Arc::clone(ports), origin: origin(of) })
}

/// `None` if the protocol or the number is invalid.
fn port(name: &Arc<str>, protocol: &Parsed<Protocol>, number: i32) -> Option<Port> {
    let number = u16::try_from(number).ok().filter(|number| *number != 0)?;
    Some(Port { name: Arc::clone(name), protocol: *good(protocol)?, number })
}

fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort_unstable();
    all.dedup();
    all
}

fn good<T>(parsed: &Parsed<T>) -> Option<&T> {
    match parsed {
        Parsed::Good(value) => Some(value),
        Parsed::Bad(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        objects::{Conditions, Extensions},
        testing::{addresses, endpoint, ips, service, slice},
    };

    fn headless() -> ServiceObject {
        ServiceObject { headless: true, cluster_ips: [].into(), ..service("10.96.0.1", &[(80, "TCP")]) }
    }

    /// The endpoints of a headless Service with these slices: `address hostname name:number …`.
    fn texts(slices: &[SliceObject]) -> Vec<String> {
        let endpoints = names(&headless(), slices).0.unwrap().endpoints.into_iter();
        let text = endpoints.map(|Endpoint { address, hostname, ports, .. }| {
            let ports = ports.iter().map(|port| format!(" {}:{}", port.name, port.number));
            format!("{address} {}{}", hostname.as_deref().unwrap_or("-"), ports.collect::<String>())
        });
        text.collect()
    }

    #[test]
    fn services_have_cluster_ips_or_endpoints_or_another_name() {
        let web = || service("10.96.0.1", &[(80, "TCP")]);
        let slices = [slice("web-1", &[("p80", 8080)], vec![endpoint("10.1.0.1")])];
        let dual = ServiceObject { cluster_ips: addresses(&["fd00::1", "10.96.0.1"]), ..web() };
        let named =
            || Some(Extensions { external_name: Some("db.example.com".into()), ..Extensions::default() }.into());
        let external =
            ServiceObject { kind: ServiceType::ExternalName, extensions: named(), cluster_ips: [].into(), ..web() };
        // The field is only used for this type.
        let misplaced = ServiceObject { extensions: named(), ..web() };
        let rows = [
            (web(), vec!["10.96.0.1"], None, 1),
            (dual, vec!["10.96.0.1", "fd00::1"], None, 1),
            (headless(), vec![], None, 1),
            (external, vec![], Some("db.example.com"), 0),
            (misplaced, vec!["10.96.0.1"], None, 1),
        ];
        for (object, cluster_ips, external_name, endpoints) in rows {
            let (service, skipped) = names(&object, &slices);
            let service = service.unwrap();
            assert_eq!(service.cluster_ips, ips(&cluster_ips), "{object:?}");
            assert_eq!((service.external_name.as_deref(), service.endpoints.len()), (external_name, endpoints));
            assert_eq!((service.ports[0].number, skipped), (80, vec![]));
        }
        let without = ServiceObject { cluster_ips: [].into(), ..web() };
        assert_eq!(names(&without, &slices), (None, vec![]), "the API server has not allocated the ClusterIP yet");
    }

    #[test]
    fn ready_endpoints_of_all_slices_are_listed_once() {
        let named =
            |address: &str, hostname: &str| SliceEndpoint { hostname: Some(hostname.into()), ..endpoint(address) };
        let unready = Conditions { ready: false, ..Conditions::READY };
        let slices = [
            slice("b", &[("p80", 80), ("p81", 81)], vec![named("10.1.0.2", "web-1"), named("10.1.0.1", "web-0")]),
            slice("a", &[("p80", 80), ("p81", 81)], vec![named("10.1.0.1", "web-0"), endpoint("10.1.0.1")]),
            slice("c", &[], vec![endpoint("10.1.0.3"), endpoint("no address")]),
            slice("d", &[("p80", 0), ("p81", 70_000)], vec![endpoint("fd00::1")]),
            slice("e", &[("p80", 80)], vec![SliceEndpoint { conditions: unready, ..endpoint("10.1.0.4") }]),
        ];
        let expected = [
            "10.1.0.1 - p80:80 p81:81",
            "10.1.0.1 web-0 p80:80 p81:81",
            "10.1.0.2 web-1 p80:80 p81:81",
            "10.1.0.3 -",
            "fd00::1 -",
        ];
        assert_eq!(texts(&slices), expected);
    }

    /// Everyone who may create EndpointSlices could otherwise fill the memory of every node.
    #[test]
    fn too_many_ports_are_reported_instead_of_listed() {
        let ports: Vec<(&str, i32)> = (1..=20_000).map(|number| ("p", number)).collect();
        let endpoints: Vec<_> = (0..=MOST / ports.len()).map(|_| endpoint("10.1.0.1")).collect();
        let (service, skipped) = names(&headless(), &[slice("a", &ports, endpoints)]);
        assert_eq!(service.unwrap().endpoints, []);
        assert_eq!(skipped.iter().map(|found| found.code).collect::<Vec<_>>(), [Code::ServiceTooLarge]);
    }
}
