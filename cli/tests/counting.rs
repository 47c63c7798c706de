//! Tests that `localnet explain` and `localnet doctor` know the rules with which the nft backend counts refused packets.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::net::SocketAddr;

use localnet::{
    configuration::Configuration,
    kernel::{Held, Kernel},
    path::Path,
    world::World,
};
use localnet_client::{
    route::{Origin, Packet},
    vips::Config,
};
use localnet_lab::{Network, Topology};
use localnet_linux::traffic::Counter;
use localnet_nft::{Netlink, NftBackend};
use localnet_proto::{Changes, Family, Protocol, Snapshot, traffic::TrafficReport};

/// Services that refuse packets: without endpoints, without local endpoints, and by their source ranges.
const STATE: &str = "node: {name: node-a, addresses: [192.168.0.2]}
services:
- {service: default/empty, type: ClusterIP, clusterIPs: [172.30.0.60], ports: [{name: a, protocol: TCP, port: 80}]}
- {service: default/elsewhere, type: LoadBalancer, clusterIPs: [172.30.0.61], loadBalancerIPs: [198.51.100.61], externalTrafficToLocal: true,
   ports: [{name: a, protocol: TCP, port: 80, whenEmptyIPv4: {internal: drop, external: drop}}],
   endpoints: [{address: 10.180.1.1, ports: [{name: a, port: 80}], scopes: {internal: true, shortCircuit: true}}]}
- {service: default/nowhere, type: ClusterIP, clusterIPs: [172.30.0.62],
   ports: [{name: a, protocol: TCP, port: 80, whenEmptyIPv4: {internal: drop, external: drop}}]}
- {service: default/fenced, type: LoadBalancer, clusterIPs: [172.30.0.63], loadBalancerIPs: [198.51.100.63],
   sourceFilters: [{targets: [198.51.100.63], sourceRanges: [203.0.113.128/25]}], ports: [{name: a, protocol: TCP, port: 80}],
   endpoints: [{address: 10.180.1.1, ports: [{name: a, port: 80}], scopes: {internal: true, external: true}}]}
";
/// Destinations, and the set that counts the packets to them.
const REFUSED: [(&str, &str); 4] = [
    ("172.30.0.60:80", "refused-no-endpoints"),
    ("198.51.100.61:80", "refused-no-local"),
    ("172.30.0.62:80", "refused-no-local"),
    ("198.51.100.63:80", "refused-source"),
];

fn packet(to: &str) -> Packet {
    let to: SocketAddr = to.parse().unwrap();
    let source = "203.0.113.2".parse().unwrap();
    Packet { source, destination: to.ip(), protocol: Protocol::Tcp, port: to.port(), origin: Origin::Outside }
}

/// Regression: on a node whose backend counts, `doctor` reported changed chains, and `explain` missing rules.
#[test]
fn explain_and_doctor_find_the_rules_of_a_backend_that_counts() {
    let network = Network::build(Topology::default()).unwrap();
    let state: Snapshot = localnet::source::read(STATE).unwrap();
    let program = |counts: bool| {
        let counter = || Counter::start(10, false, None, |_, _| TrafficReport::default());
        let mut backend = NftBackend::new(Config::default(), Netlink::open()?);
        if counts {
            backend = backend.counting(counter());
        }
        backend.apply(&state, &Changes::everything())?.whole()
    };
    for counts in [false, true] {
        let work = || {
            program(counts)?;
            let configuration = Configuration::chosen(Config::default());
            let facts = configuration.facts(&state.node, None);
            let mut world = World {
                state: state.clone(),
                configuration,
                facts,
                local: Vec::new(),
                is_here: true,
                has_ebpf: false,
                other: None,
                kernel: Kernel::open(),
                listings: Default::default(),
                dumped: None,
            };
            assert_eq!(world.counts_refused(), counts);
            let steps = REFUSED.map(|(to, set)| (to, set, world.judge(packet(to)).steps(&world)));
            let chains = Path::new(&world.facts, Family::V4, false, counts).chains().to_vec();
            let kernel = world.kernel.as_mut().unwrap();
            assert_eq!(kernel.damaged(Family::V4, &chains)?, Vec::<String>::new());
            for (to, set, steps) in steps {
                assert_eq!(steps.iter().any(|step| step.text.starts_with(&format!("update @{set} "))), counts, "{to}");
                let refuses = |text: &str| text.ends_with("drop") || text == "reject";
                assert!(steps.iter().any(|step| refuses(&step.text)), "{to}: {steps:#?}");
                for step in steps {
                    let held = kernel.holds(Family::V4, &step)?;
                    assert!(matches!(held, Held::Yes(_)), "{to}: {held:?} {step:#?}");
                }
            }
            Ok(())
        };
        network.node().run(work).unwrap();
    }
}
