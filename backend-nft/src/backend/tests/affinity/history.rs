//! Properties that hold for all histories of states, connections and restarts.

use proptest::prelude::*;

use super::{super::any_state::any_scopes, *};

/// For each service: whether external traffic goes to local endpoints, the affinity, and the endpoints.
type ServiceParts = (bool, Option<u32>, Vec<(u8, Scopes)>);
type Services = Vec<ServiceParts>;

/// One step of a history.
#[derive(Clone, Debug)]
enum Step {
    State(Services),
    Denied(Services),
    Restart,
    /// Services change while no process runs.
    RestartWith(Services),
    Wait(u64),
    Connect(usize, usize),
}

fn any_services() -> impl Strategy<Value = Services> {
    let affinity = proptest::option::weighted(0.8, prop::sample::select(vec![10_u32, 60]));
    let endpoints = proptest::collection::btree_map(1..9_u8, any_scopes(), 0..7);
    let service = (any::<bool>(), affinity, endpoints);
    proptest::collection::vec(
        service.prop_map(|(local, affinity, endpoints)| (local, affinity, endpoints.into_iter().collect())),
        0..3,
    )
}

fn state_of(services: &[ServiceParts]) -> Snapshot {
    state(services.iter().enumerate().map(|(index, (to_local, affinity, endpoints))| {
        let number = index + 1;
        let mut service = service(&format!("s{number}"), &format!("172.30.0.{number}"), &[]);
        if number == 1 {
            service.cluster_ips.push("fd00:172:30::1".parse().unwrap());
            service.ports[0].node_port = Some(30_001);
        }
        service.external_ips = vec![format!("192.168.99.{number}").parse().unwrap()];
        service.external_traffic_to_local = *to_local;
        service.client_ip_affinity = affinity.map(Into::into);
        let of = |prefix: &str| {
            endpoints.iter().map(|(host, scopes)| endpoint(&format!("{prefix}{host}"), *scopes)).collect::<Vec<_>>()
        };
        service.endpoints = of("10.180.0.").into_iter().chain(of("fd00:10:180::")).collect();
        service
    }))
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any_services().prop_map(Step::State),
        1 => any_services().prop_map(Step::Denied),
        1 => Just(Step::Restart),
        1 => any_services().prop_map(Step::RestartWith),
        1 => (1..15_u64).prop_map(Step::Wait),
        12 => (0..CLIENTS.len(), 0..VIPS.len()).prop_map(|(client, vip)| Step::Connect(client, vip)),
    ]
}

/// The service port of each VIP. Clients are remembered by port and family, as in kube-proxy.
const PORTS: [usize; 6] = [0, 1, 0, 1, 2, 0];

/// The endpoints of each client at each port, and when the client was last sent there.
type Remembered = BTreeMap<(usize, usize), BTreeMap<std::net::SocketAddr, u64>>;

/// Removes the endpoints that must be forgotten: those that no VIP with affinity uses any more on this port, and those
/// whose timeout has passed. The present timeout counts, not the timeout at the time of the connection.
fn retain_valid(remembered: &mut Remembered, state: &Snapshot, now: u64) {
    for ((_, port), ends) in remembered.iter_mut() {
        let service = state.services.get(&ServiceKey::new("default", if *port == 1 { "s2" } else { "s1" }));
        let seconds = service.and_then(|service| service.client_ip_affinity).unwrap_or_default().seconds;
        ends.retain(|_, last| *last + u64::from(seconds) > now);
        let vips = VIPS.into_iter().zip(PORTS).filter(|(_, of)| of == port).map(|(vip, _)| vip);
        let usable: Vec<_> = vips
            .flat_map(|vip| {
                let clients = if vip.0.contains(':') { [CLIENTS[4], CLIENTS[5]] } else { [CLIENTS[0], CLIENTS[2]] };
                clients.map(|client| choices(state, &packet(client, vip)))
            })
            .collect();
        ends.retain(|end, _| usable.iter().any(|(ends, affinity)| affinity.is_some() && ends.contains(end)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn clients_always_keep_eligible_endpoints(steps in proptest::collection::vec(any_step(), 1..60)) {
        let mut world = World::new();
        let mut applied = state([]);
        world.apply(&applied);
        let mut remembered = Remembered::new();
        for step in steps {
            match step {
                Step::State(services) => {
                    applied = state_of(&services);
                    world.apply(&applied);
                    assert_new_plan_equals_kernel(&applied, world.backend.kernel());
                    retain_valid(&mut remembered, &applied, world.now);
                }
                Step::Denied(services) => {
                    world.backend.kernel.denied = true;
                    let result = world.backend.apply(&state_of(&services), &Changes::everything());
                    world.backend.kernel.denied = false;
                    if result.and_then(Synced::whole).is_ok() {
                        applied = state_of(&services);
                        retain_valid(&mut remembered, &applied, world.now);
                    }
                }
                Step::Restart => {
                    world.restart();
                    world.apply(&applied);
                    assert_new_plan_equals_kernel(&applied, world.backend.kernel());
                }
                Step::RestartWith(services) => {
                    applied = state_of(&services);
                    world.restart();
                    world.apply(&applied);
                    assert_new_plan_equals_kernel(&applied, world.backend.kernel());
                    retain_valid(&mut remembered, &applied, world.now);
                }
                Step::Wait(seconds) => {
                    world.wait(seconds);
                    retain_valid(&mut remembered, &applied, world.now);
                }
                Step::Connect(client, vip) => {
                    let packet = packet(CLIENTS[client], VIPS[vip]);
                    if Family::of(packet.source) != Family::of(packet.destination) {
                        continue;
                    }
                    let (choices, affinity) = choices(&applied, &packet);
                    let end = world.connect(CLIENTS[client], VIPS[vip]);
                    let Some(end) = end else {
                        prop_assert!(choices.is_empty(), "no endpoint is eligible for {packet:?}");
                        continue;
                    };
                    prop_assert!(choices.contains(&end), "{end} is not eligible for {packet:?}");
                    if affinity.is_none() {
                        continue;
                    }
                    let kept_ends = remembered.entry((client, PORTS[vip])).or_default();
                    let kept = kept_ends.keys().any(|kept_ends| choices.contains(kept_ends));
                    prop_assert!(!kept || kept_ends.contains_key(&end), "{packet:?} went to {end}, not to {kept_ends:?}");
                    kept_ends.insert(end, world.now);
                }
            }
        }
        // The slots of endpoints may differ, but the same endpoints are served, and slots without an endpoint have no
        // clients.
        let mut fresh = backend();
        world.apply(&applied);
        fresh.apply(&applied, &Changes::everything()).unwrap().whole().unwrap();
        prop_assert_eq!(normal(world.backend.kernel()), normal(fresh.kernel()));
        prop_assert_eq!(world.backend.desired.chores(), vec![]);
    }
}
