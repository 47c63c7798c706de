//! Model → wire → model is the identity for any state, and no bytes make the reader panic.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod localnetv1;
mod v1;

use std::{net::IpAddr, sync::Arc};

use localnet_proto::{
    Endpoint, EndpointPort, HashBy, Node, Port, Protocol, Revision, Scopes, Service, ServiceKey, Snapshot,
    SourceFilter, Verdict, WhenEmpty,
};
use proptest::{collection::vec, prelude::*};

fn address() -> impl Strategy<Value = IpAddr> {
    // Endpoints may have the same address.
    let few = (0..3_u8).prop_map(|last| IpAddr::from([10, 1, 0, last]));
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from), few]
}

fn sorted(addresses: impl Strategy<Value = Vec<IpAddr>>) -> impl Strategy<Value = Vec<IpAddr>> {
    addresses.prop_map(|mut list| {
        list.sort_unstable();
        list.dedup();
        list
    })
}

fn when_empty() -> impl Strategy<Value = WhenEmpty> {
    let verdict = || prop_oneof![Just(Verdict::Reject), Just(Verdict::Drop)];
    (verdict(), verdict()).prop_map(|(internal, external)| WhenEmpty { internal, external })
}

fn port() -> impl Strategy<Value = Port> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    (("[a-z]{0,3}", protocol, 1..=u16::MAX), (prop::option::of(1..=u16::MAX), when_empty(), when_empty())).prop_map(
        |((name, protocol, port), (node_port, when_empty_v4, when_empty_v6))| Port {
            name: name.into(),
            protocol,
            port,
            node_port,
            when_empty_v4,
            when_empty_v6,
        },
    )
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    let port = ("[a-z]{0,3}", 1..=u16::MAX).prop_map(|(name, port)| EndpointPort { name: name.into(), port });
    let hostname = prop::option::of("[a-z]{1,5}".prop_map(Arc::from));
    (address(), vec(port, 0..3), any::<bool>(), hostname, any::<[bool; 4]>(), 0..4_u32).prop_map(
        |(address, ports, local, hostname, [internal, external, short_circuit, established], weight)| Endpoint {
            address,
            ports,
            local,
            hostname,
            scopes: Scopes { internal, external, short_circuit, established },
            weight: Endpoint::weighing(weight),
        },
    )
}

fn service() -> impl Strategy<Value = Service> {
    let key = ("[a-z]{1,4}", "[a-z]{1,4}").prop_map(|(namespace, name)| ServiceKey::new(namespace, name));
    let addresses = (sorted(vec(address(), 1..3)), sorted(vec(address(), 0..3)), sorted(vec(address(), 0..3)));
    let scheduler = prop::option::of("[a-z]{1,5}".prop_map(Arc::from));
    let affinity = prop::option::of(0..86_401_u32);
    let options = (any::<bool>(), any::<bool>(), affinity, prop::option::of(1..=u16::MAX), scheduler);
    let filters = vec(any::<[u8; 4]>(), 0..2);
    let endpoints = vec(endpoint(), 0..6).prop_map(|mut endpoints| {
        endpoints.sort_unstable();
        endpoints
    });
    (key, addresses, options, filters, vec(port(), 0..3), endpoints).prop_map(
        |(key, (cluster_ips, external_ips, load_balancer_ips), options, filters, ports, endpoints)| Service {
            key,
            kind: ["ClusterIP", "NodePort", "LoadBalancer"][options.3.map_or(0, usize::from) % 3].into(),
            cluster_ips,
            external_ips,
            load_balancer_ips,
            ports,
            internal_traffic_to_local: options.0,
            external_traffic_to_local: options.1,
            client_ip_affinity: options.2.map(Into::into),
            source_filters: filters
                .into_iter()
                .map(|ip| SourceFilter { targets: vec![ip.into()], source_ranges: vec!["10.0.0.0/8".parse().unwrap()] })
                .collect(),
            health_check_node_port: options.3,
            preserve_destination: options.4.is_some(),
            close_after: options.2.map(|seconds| seconds / 2),
            hash: options
                .2
                .and_then(|seconds| [None, Some(HashBy::Source), Some(HashBy::Connection)][seconds as usize % 3]),
            ipvs_scheduler: options.4,
            endpoints,
            facts: None,
        },
    )
}

pub(crate) fn snapshot() -> impl Strategy<Value = Snapshot> {
    (vec(service(), 0..5), "[a-z]{0,4}", any::<(u64, u64)>(), vec(any::<[u8; 4]>().prop_map(IpAddr::from), 0..3))
        .prop_map(|(services, zone, (instance, rev), addresses)| Snapshot {
            revision: Revision { instance, rev },
            node: Node {
                name: "node".to_owned(),
                addresses,
                zone,
                pod_cidrs: vec!["10.0.0.0/24".parse().unwrap()],
                ..Node::default()
            },
            services: services.into_iter().map(|service| (service.key.clone(), Arc::new(service))).collect(),
        })
}
