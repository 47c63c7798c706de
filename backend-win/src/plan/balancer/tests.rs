//! One Service in many shapes, on a node with an L2Bridge or overlay network, and the resulting load balancers and endpoints.

use localnet_client::vips::Config;
use localnet_proto::{Changes, Scopes, Service, Snapshot};

use super::*;
use crate::{
    desired::Desired,
    hcn::{Kind, Version},
    testing::FakeHcn,
};

/// The node with `SERVICE`. Pod 10.0.0.1 is on this node, 10.0.1.1 on another.
struct Node {
    network: &'static str,
    version: Version,
    options: Options,
    service: Service,
}

const SERVICE: &str =
    "{service: ns/a, type: LoadBalancer, clusterIPs: [172.30.0.1], externalIPs: [1.1.1.1], loadBalancerIPs: [5.5.5.5],
    ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}], endpoints: [
    {address: 10.0.0.1, local: true, ports: [{name: http, port: 8080}], scopes: {internal: true, external: true}},
    {address: 10.0.1.1, ports: [{name: http, port: 8080}], scopes: {internal: true, external: true}}]}";

fn node() -> Node {
    Node {
        network: "L2Bridge",
        version: Version::new(13, 3),
        options: Options::default(),
        service: serde_saphyr::from_str(SERVICE).unwrap(),
    }
}

/// Sets external traffic policy Local, as the brain expresses it.
fn local(mut node: Node) -> Node {
    node.service.external_traffic_to_local = true;
    node.service.endpoints[0].scopes.short_circuit = true;
    node.service.endpoints[1].scopes = Scopes { internal: true, short_circuit: true, ..Scopes::default() };
    node
}

impl Node {
    fn plan(&self) -> Plan {
        let mut fake = FakeHcn::with_network("cbr0", self.network, &[("10.0.1.0/24", "192.168.0.3")], &["10.0.0.1"]);
        let gateway = fake.add_pod("cbr0", "10.0.0.254");
        fake.objects.get_mut(&(Kind::Endpoint, gateway)).unwrap()["Name"] = "gw".into();
        let mut inventory = Inventory::default();
        inventory.refresh(&mut fake, Some("cbr0"), Some("gw")).unwrap();
        let node = localnet_proto::Node { addresses: vec![[192, 168, 0, 2].into()], ..Default::default() };
        let service = std::sync::Arc::new(self.service.clone());
        let state = Snapshot { node, services: [(self.service.key.clone(), service)].into(), ..Snapshot::default() };
        let mut desired = Desired::new(Config::default());
        desired.update(&state, &Changes::everything());
        let host = Host { address: [192, 168, 0, 2].into(), mac: "00-15-5d-00-00-02".to_owned() };
        let surroundings = Surroundings {
            inventory: &inventory,
            options: &self.options,
            features: Features::of(self.version),
            host: (self.network == "Overlay").then_some(&host),
            local: desired.local(),
        };
        plan(desired.wants(), &surroundings)
    }

    /// Returns each load balancer in short: frontend, endpoints (L local, R remote, G the way to the node), port, flags.
    fn balancers(&self) -> Vec<String> {
        let plan = self.plan();
        let line = |(frontend, planned): (&Frontend, &Planned)| {
            let document = &planned.document;
            let mapping = document.port_mappings[0];
            let name = |id: &Guid| match id.number() {
                3 => "L".to_owned(),
                4 => "G".to_owned(),
                _ if *id == Guid::of_remote_endpoint([10, 0, 1, 1].into()) => "R".to_owned(),
                _ => id.to_string(),
            };
            let mut endpoints: Vec<String> = document.host_compute_endpoints.iter().map(name).collect();
            endpoints.sort();
            let mut line = format!(
                "{frontend} {} {} lb{} port{}",
                endpoints.concat(),
                mapping.internal_port,
                document.flags.0,
                mapping.flags.0
            );
            if mapping.distribution_type != Distribution::CONNECTION {
                line += &format!(" by{}", mapping.distribution_type.0);
            }
            document.source_vip.iter().for_each(|source| line += &format!(" from {source}"));
            line
        };
        plan.balancers.iter().map(line).collect()
    }

    fn skipped(&self) -> Vec<String> {
        self.plan().skipped.into_iter().map(|skipped| skipped.problem).collect()
    }
}

#[test]
fn each_kind_of_address_has_its_flags() {
    let cluster = [
        "1.1.1.1:80/tcp LR 8080 lb0 port16",
        "5.5.5.5:80/tcp LR 8080 lb0 port16",
        "172.30.0.1:80/tcp LR 8080 lb0 port0",
        "NodePort 30080/tcp of IPv4 LR 8080 lb0 port18",
    ];
    assert_eq!(node().balancers(), cluster);
    let mut dsr = node();
    dsr.options.dsr = true;
    assert_eq!(dsr.balancers()[2], "172.30.0.1:80/tcp LR 8080 lb1 port0");
    assert_eq!(dsr.balancers()[..2], cluster[..2]);
    dsr.version = Version::new(10, 0);
    assert_eq!(dsr.balancers(), cluster, "this HNS does not support direct server return");
}

#[test]
fn local_policies_use_local_endpoints_and_direct_server_return() {
    let expected = [
        "1.1.1.1:80/tcp L 8080 lb1 port16",
        "5.5.5.5:80/tcp L 8080 lb1 port16",
        "172.30.0.1:80/tcp LR 8080 lb0 port0",
        "NodePort 30080/tcp of IPv4 L 8080 lb1 port18",
    ];
    assert_eq!(local(node()).balancers(), expected);
    let mut elsewhere = local(node());
    elsewhere.service.endpoints.remove(0);
    assert_eq!(elsewhere.balancers(), ["172.30.0.1:80/tcp R 8080 lb0 port0"]);
    let mut internal = node();
    internal.service.internal_traffic_to_local = true;
    internal.service.endpoints[1].scopes.internal = false;
    assert_eq!(internal.balancers()[2], "172.30.0.1:80/tcp L 8080 lb0 port0");
}

#[test]
fn an_annotation_preserves_the_destination_of_load_balancer_traffic() {
    let mut kept = node();
    kept.service.preserve_destination = true;
    let expected = [
        "1.1.1.1:80/tcp LR 8080 lb0 port16",
        "5.5.5.5:80/tcp L 8080 lb1 port28",
        "172.30.0.1:80/tcp LR 8080 lb0 port0",
        "NodePort 30080/tcp of IPv4 L 8080 lb0 port18",
    ];
    assert_eq!(kept.balancers(), expected);
    kept.version = Version::new(9, 2);
    assert_eq!(kept.balancers(), node().balancers());
}

#[test]
fn load_balancer_health_checks_can_be_forwarded_to_the_node() {
    let mut world = node();
    world.options.forward_health_check_vip = true;
    let check = |node: &Node| node.balancers().into_iter().filter(|line| line.contains(" G ")).collect::<Vec<_>>();
    assert_eq!(check(&world), ["5.5.5.5:10256/tcp G 10256 lb0 port0"]);
    // There is one health check, however many ports the Service has, and it is TCP.
    world.service.ports.push(localnet_proto::Port {
        name: "dns".into(),
        protocol: Protocol::Udp,
        port: 53,
        ..world.service.ports[0].clone()
    });
    for endpoint in &mut world.service.endpoints {
        endpoint.ports.insert(0, localnet_proto::EndpointPort { name: "dns".into(), port: 53 });
    }
    assert_eq!(check(&world), ["5.5.5.5:10256/tcp G 10256 lb0 port0"]);
    world.service.preserve_destination = true;
    assert_eq!(check(&world), ["5.5.5.5:10256/tcp G 10256 lb0 port12"]);
    world.service.health_check_node_port = Some(31_000);
    assert_eq!(check(&world), ["5.5.5.5:31000/tcp G 31000 lb0 port12"]);
    world.service.health_check_node_port = Some(80);
    assert_eq!(check(&world), [] as [&str; 0], "the Service itself uses the port");
    world.service.health_check_node_port = None;
    world.service.endpoints.clear();
    assert_eq!(world.balancers(), [] as [&str; 0], "a Service without endpoints is not healthy");
}

#[test]
fn session_affinity_is_used_if_hns_supports_it() {
    let mut node = node();
    node.service.client_ip_affinity = Some(60.into());
    assert!(node.balancers().iter().all(|line| line.ends_with(" by2")), "{:?}", node.balancers());
    node.version = Version::new(11, 11);
    assert!(node.balancers().iter().all(|line| !line.contains(" by")));
    assert!(node.skipped().iter().all(|why| why.contains("has no session affinity")) && node.skipped().len() == 4);
}

#[test]
fn each_family_has_its_own_load_balancers() {
    let mut node = node();
    node.service.cluster_ips.push("fd00:30::1".parse().unwrap());
    node.service.load_balancer_ips.push("fd05::5".parse().unwrap());
    node.service
        .endpoints
        .push(localnet_proto::Endpoint { address: "fd00::1:1".parse().unwrap(), ..node.service.endpoints[1].clone() });
    let v6 = |node: &Node| node.balancers().into_iter().filter(|line| line.contains("lb2")).count();
    assert_eq!(v6(&node), 3, "{:?}", node.balancers());
    node.version = Version::new(11, 9);
    assert_eq!(v6(&node), 0);
    node.version = Version::new(13, 3);
    node.network = "Overlay";
    node.options.source_vip = Some([10, 0, 0, 250].into());
    assert_eq!(v6(&node), 0);
}

#[test]
fn in_an_overlay_network_vips_and_the_source_vip_are_endpoints() {
    let mut node = node();
    node.network = "Overlay";
    node.options.source_vip = Some([10, 0, 0, 250].into());
    let lines = node.balancers();
    assert!(lines.iter().all(|line| line.ends_with(" from 10.0.0.250")), "{lines:?}");
    let plan = node.plan();
    let endpoint = |id| &plan.endpoints[&id];
    let provider = |address: [u8; 4]| endpoint(Guid::of_remote_endpoint(address.into())).provider();
    assert_eq!(provider([10, 0, 1, 1]), Some([192, 168, 0, 3].into()));
    assert_eq!(provider([172, 30, 0, 1]), Some([192, 168, 0, 2].into()));
    let source = endpoint(Guid::of_source_vip([10, 0, 0, 250].into()));
    assert_eq!((source.is_remote(), &*source.mac_address), (false, "00-15-5d-00-00-02"));
    assert_eq!(plan.endpoints.len(), 3);
    // An endpoint on no subnet of the network sees the node's own address.
    node.service.endpoints[1].address = [11, 0, 0, 1].into();
    assert!(node.balancers().iter().all(|line| line.ends_with(" from 192.168.0.2")));
}

#[test]
fn unsupported_features_are_skipped_with_a_diagnostic() {
    let mut ranges = node();
    let targets = vec!["5.5.5.5".parse().unwrap()];
    ranges.service.source_filters = vec![localnet_proto::SourceFilter {
        targets: targets.clone(),
        source_ranges: vec!["10.0.0.0/8".parse().unwrap()],
    }];
    assert_eq!(ranges.balancers(), node().balancers());
    assert_eq!(ranges.skipped(), ["5.5.5.5:80/tcp admits all sources: HNS does not support loadBalancerSourceRanges"]);
    ranges.service.source_filters = vec![localnet_proto::SourceFilter { targets, source_ranges: vec![] }];
    assert_eq!((ranges.balancers().len(), ranges.skipped().len()), (3, 0), "no client may reach it, and none does");

    let mut ports = node();
    ports.service.endpoints[0].ports[0].port = 9090;
    ports
        .service
        .endpoints
        .push(localnet_proto::Endpoint { address: [10, 0, 1, 2].into(), ..ports.service.endpoints[1].clone() });
    assert!(
        ports.balancers().iter().all(|line| line.contains("R 8080") || line.contains("8080 lb")),
        "{:?}",
        ports.balancers()
    );
    assert!(
        ports.skipped()[0].contains("HNS supports one port for all endpoints, so 10.0.0.1:9090 are skipped"),
        "{:?}",
        ports.skipped()
    );
    ports.service.endpoints.pop();
    assert!(
        ports.balancers().iter().all(|line| line.contains(" R 8080 ")),
        "the lowest of equally frequent ports: {:?}",
        ports.balancers()
    );

    let mut late = node();
    late.service.endpoints[0].address = [10, 0, 0, 9].into();
    assert!(late.balancers().iter().all(|line| line.contains(" R 8080")), "{:?}", late.balancers());
    assert!(late.skipped()[0].contains("waits for HNS endpoints of local pods (10.0.0.9)"), "{:?}", late.skipped());
}
