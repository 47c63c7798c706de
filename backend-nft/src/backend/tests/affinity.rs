//! Session affinity: verifies which clients keep their endpoint, by running the rules in the fake kernel.

mod history;

use localnet_client::route::{self, Origin, Outcome, Packet, Rules};
use localnet_client::vips::hashing;
use localnet_linux::nft::{
    AddressField, ElementKey, Expiry, Field, Generator, Name, Op, Set, Statement, Verdict as Then,
};

use super::*;
use crate::testing::FakeTable;

const POD: &str = "10.180.9.9";
const CLIENTS: [&str; 6] = [POD, "10.180.9.8", "203.0.113.7", "203.0.113.8", "fd00:10:180::99", "2001:db8::7"];
const VIPS: [(&str, u16); 6] = [
    ("172.30.0.1", 80),
    ("172.30.0.2", 80),
    ("192.168.99.1", 80),
    ("192.168.99.2", 80),
    ("fd00:172:30::1", 80),
    ("192.168.0.2", 30_001),
];

/// A process, the kernel, and the time that its sets of clients use.
struct World {
    backend: NftBackend<FakeKernel>,
    now: u64,
    /// The priority of the packet in progress.
    priority: u32,
    random: u64,
}

fn packet(client: &str, vip: (&str, u16)) -> Packet {
    let source: IpAddr = client.parse().unwrap();
    let pods: [ipnet::IpNet; 2] = ["10.180.0.0/16".parse().unwrap(), "fd00:10:180::/48".parse().unwrap()];
    let origin = if pods.iter().any(|pods| pods.contains(&source)) { Origin::Pod } else { Origin::Outside };
    Packet { source, destination: vip.0.parse().unwrap(), protocol: Protocol::Tcp, port: vip.1, origin }
}

impl World {
    fn new() -> Self {
        Self { backend: backend(), now: 0, priority: 0, random: 0x9e37_79b9_7f4a_7c15 }
    }

    fn apply(&mut self, state: &Snapshot) {
        self.backend.apply(state, &Changes::everything()).unwrap().whole().unwrap();
    }

    fn restart(&mut self) {
        self.backend = restarted(&self.backend);
    }

    fn wait(&mut self, seconds: u64) {
        self.now += seconds;
        let sets = self.backend.kernel.tables.values_mut().flat_map(|table| table.sets.values_mut());
        for (_, elements) in sets {
            elements.retain(|_, element| {
                let ElementData::Expires(expiry) = &mut element.data else { return true };
                expiry.left = expiry.left.saturating_sub(seconds * 1000);
                expiry.left > 0
            });
        }
    }

    /// The destination after translation of a connection's first packet.
    fn connect(&mut self, client: &str, vip: (&str, u16)) -> Option<std::net::SocketAddr> {
        let packet = packet(client, vip);
        let table = plan::table(Family::of(packet.source));
        let mut held = self.backend.kernel.tables.remove(&table)?;
        self.priority = 0;
        let end = self.run(&mut held, "services", &packet);
        self.backend.kernel.tables.insert(table, held);
        match end {
            End::Dnat(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    fn run(&mut self, held: &mut FakeTable, chain: &str, packet: &Packet) -> End {
        let rules = held.chains.get(chain).unwrap_or_else(|| panic!("no chain {chain}")).rules.clone();
        'rules: for rule in &rules {
            for statement in &rule.statements {
                let verdict = match statement {
                    Statement::Verdict(verdict) => verdict.clone(),
                    Statement::VerdictMap(fields, map) => match find(held, map, &self.key(fields, packet)) {
                        Some(Element { data: ElementData::Verdict(verdict), .. }) => verdict,
                        _ => continue 'rules,
                    },
                    Statement::DnatMap(fields, map) => match find(held, map, &self.key(fields, packet)) {
                        Some(Element { data: ElementData::Value(value), .. }) => {
                            return End::Dnat(endpoint_of(&value));
                        }
                        _ => continue 'rules,
                    },
                    Statement::Update(fields, set, timeout) => {
                        let key = self.key(fields, packet);
                        let (declared, elements) = held.sets.get_mut(set).unwrap();
                        if !elements.contains_key(&key) && elements.len() >= declared.size.unwrap() as usize {
                            continue 'rules;
                        }
                        let timeout = u64::from(timeout.unwrap()) * 1000;
                        elements.insert(key.clone(), Element::expiring(key, Expiry { timeout, left: timeout }));
                        continue;
                    }
                    Statement::PriorityMap(fields, map) => match find(held, map, &self.key(fields, packet)) {
                        Some(Element { data: ElementData::Value(number), .. }) => {
                            self.priority = u32::from_ne_bytes(number.as_bytes().try_into().unwrap());
                            continue;
                        }
                        _ => continue 'rules,
                    },
                    Statement::PriorityNone => {
                        self.priority = 0;
                        continue;
                    }
                    statement if self.matches(held, statement, packet) => continue,
                    _ => continue 'rules,
                };
                match verdict {
                    Then::Accept | Then::Drop => return End::Untranslated,
                    Then::Return => return End::Fell,
                    Then::Goto(chain) => return self.run(held, &chain, packet),
                    Then::Jump(chain) => match self.run(held, &chain, packet) {
                        End::Fell => continue 'rules,
                        end => return end,
                    },
                }
            }
        }
        End::Fell
    }

    fn matches(&mut self, held: &FakeTable, statement: &Statement, packet: &Packet) -> bool {
        match statement {
            Statement::Lookup(fields, op, set) => {
                find(held, set, &self.key(fields, packet)).is_some() == (*op == Op::Eq)
            }
            Statement::Address(AddressField::Source, op, net) => net.contains(&packet.source) == (*op == Op::Eq),
            Statement::Local(AddressField::Source, op) => *op == Op::Ne,
            Statement::MarkOr(_) => true,
            other => panic!("unsupported statement {other:?}"),
        }
    }

    fn key(&mut self, fields: &[Field], packet: &Packet) -> ElementKey {
        let fields = fields.iter().fold(Tuple::new(), |key, field| match field {
            Field::SourceAddress => key.address(packet.source),
            Field::DestinationAddress => key.address(packet.destination),
            Field::Protocol => key.protocol(localnet_proto::Protocol::Tcp),
            Field::DestinationPort => key.port(packet.port),
            Field::Priority => key.priority(self.priority),
            Field::Index(Generator::Constant(value)) => key.index(*value),
            Field::Index(Generator::Hash(by, slots)) => {
                key.index(hashing::slot(*by, (packet.source, packet.port).into(), *slots))
            }
            Field::Index(Generator::Random(modulus)) => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                key.index(((self.random >> 32) % u64::from(*modulus)) as u32)
            }
            other => panic!("unsupported expression {other:?}"),
        });
        fields.into()
    }
}

/// How a chain ended.
#[derive(Debug)]
enum End {
    Dnat(std::net::SocketAddr),
    Untranslated,
    Fell,
}

fn find(table: &FakeTable, set: &Name, key: &ElementKey) -> Option<Element> {
    table.sets[set].1.get(key).cloned()
}

fn endpoint_of(value: &Tuple) -> std::net::SocketAddr {
    let (address, port) = value.as_bytes().split_last_chunk::<4>().unwrap();
    let address: IpAddr = match address.len() {
        4 => <[u8; 4]>::try_from(address).unwrap().into(),
        _ => <[u8; 16]>::try_from(address).unwrap().into(),
    };
    (address, u16::from_be_bytes([port[0], port[1]])).into()
}

/// The endpoints to which a packet may go.
fn choices(state: &Snapshot, packet: &Packet) -> (BTreeSet<std::net::SocketAddr>, Option<u32>) {
    let rules =
        Rules { detects_pods: true, node_port_addresses: node().addresses.into_iter().collect(), ..Rules::default() };
    match route::route(state, &rules, packet) {
        Outcome::Endpoints { choices, affinity, .. } => (choices, affinity.map(|of| of.seconds)),
        _ => (BTreeSet::new(), None),
    }
}

fn sticky(name: &str, cluster_ip: &str, endpoints: &[&str]) -> Service {
    Service { client_ip_affinity: Some(100.into()), ..service(name, cluster_ip, endpoints) }
}

fn web(endpoints: &[&str]) -> Snapshot {
    state([sticky("web", VIPS[0].0, endpoints)])
}

const FOUR: [&str; 4] = ["10.180.1.2", "10.180.1.4", "10.180.1.6", "10.180.1.8"];

/// The endpoints of that many clients.
fn crowd(world: &mut World, clients: u8) -> Vec<IpAddr> {
    let connect = |client| world.connect(&format!("10.180.7.{client}"), VIPS[0]).unwrap().ip();
    (0..clients).map(connect).collect()
}

#[test]
fn clients_stay_while_other_endpoints_change() {
    let mut world = World::new();
    world.apply(&web(&FOUR));
    let first = crowd(&mut world, 100);
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 4, "all endpoints are used");
    assert_eq!(crowd(&mut world, 100), first);

    world.apply(&web(&[&FOUR[..], &["10.180.1.1", "10.180.1.5"]].concat()));
    assert_eq!(crowd(&mut world, 100), first, "one more endpoint moves no client");
    world.restart();
    world.apply(&web(&[&FOUR[..], &["10.180.1.1", "10.180.1.5"]].concat()));
    assert_eq!(crowd(&mut world, 100), first, "a restart moves no client");

    let gone: IpAddr = FOUR[1].parse().unwrap();
    world.apply(&web(&[FOUR[0], FOUR[2], FOUR[3], "10.180.1.7"]));
    let then = crowd(&mut world, 100);
    for (before, after) in first.iter().zip(&then) {
        assert!(before == after || *before == gone && *after != gone, "{before} {after}");
    }
    world.apply(&web(&FOUR));
    let moved = first.iter().zip(crowd(&mut world, 100)).filter(|(before, after)| **before != gone && *before != after);
    assert_eq!(moved.count(), 0, "clients whose endpoint stayed stay with it");
}

/// kube-proxy remembers a client for each port of a Service, so the client has one endpoint for all addresses of the
/// port.
#[test]
fn a_client_has_one_endpoint_for_all_addresses_of_a_port() {
    let mut world = World::new();
    let mut web = sticky("web", VIPS[0].0, &FOUR);
    web.external_ips = vec![VIPS[2].0.parse().unwrap()];
    web.ports[0].node_port = Some(VIPS[5].1);
    let mut other = sticky("other", VIPS[1].0, &FOUR);
    other.ports.push(port("more", 81, None));
    other.endpoints.iter_mut().for_each(|endpoint| {
        endpoint.ports.push(EndpointPort { name: "more".into(), port: 8081 });
    });
    let both = state([web, other]);
    world.apply(&both);
    let client = |number: u8| format!("10.180.7.{number}");
    let connect = |world: &mut World, number, vip| world.connect(&client(number), vip).unwrap();
    let ends: Vec<_> = (0..100).map(|number| connect(&mut world, number, VIPS[usize::from(number % 2) * 2])).collect();
    world.restart();
    world.apply(&both);
    for vip in [VIPS[0], VIPS[2], VIPS[5]] {
        let same: Vec<_> = (0..100).map(|number| connect(&mut world, number, vip)).collect();
        assert_eq!(same, ends, "{vip:?}");
    }
    for vip in [VIPS[1], (VIPS[1].0, 81)] {
        let elsewhere =
            (0..100).filter(|number| connect(&mut world, *number, vip).ip() != ends[usize::from(*number)].ip());
        assert!(elsewhere.count() > 30, "another port is another matter: {vip:?}");
    }
}

/// Regression: after a timeout of hours was changed to seconds, its clients stayed for hours. In kube-proxy's iptables
/// mode the new timeout counts from the client's last connection. In kube-proxy's nftables mode, and
/// formerly in localnet, the new timeout counts from the next connection.
#[test]
fn a_changed_timeout_counts_from_the_last_connection() {
    let with = |seconds: u32| {
        let web = Service { client_ip_affinity: Some(seconds.into()), ..sticky("web", VIPS[0].0, &FOUR) };
        state([web, sticky("other", VIPS[1].0, &FOUR)])
    };
    let stay = |first: &[IpAddr], then: &[IpAddr]| first.iter().zip(then).filter(|(one, other)| one == other).count();
    let mut world = World::new();
    world.apply(&with(10_800));
    let first = crowd(&mut world, 100);
    let other = world.connect(POD, VIPS[1]).unwrap();
    world.wait(8);
    world.apply(&with(10));
    world.wait(1);
    assert_eq!(crowd(&mut world, 100), first, "their timeout has not passed");
    world.wait(8);
    world.apply(&with(5));
    let second = crowd(&mut world, 100);
    assert!(stay(&first, &second) < 60, "their timeout had passed at once");
    assert_eq!(world.connect(POD, VIPS[1]), Some(other), "other clients stay");

    world.wait(4);
    world.backend.kernel.blind = true;
    world.apply(&with(100));
    world.backend.kernel.blind = false;
    // The process ends before it changes the clients.
    world.restart();
    world.apply(&with(100));
    assert_eq!(world.backend.desired.chores(), vec![]);
    world.wait(90);
    assert_eq!(crowd(&mut world, 100), second, "a longer timeout counts at once, too");
    let dumps = world.backend.kernel.dumps;
    world.apply(&with(100));
    world.restart();
    world.apply(&with(100));
    assert_eq!(world.backend.kernel.dumps, dumps, "nothing is read if no timeout changes");
}

#[test]
fn a_slot_is_reused_only_after_its_clients_are_forgotten() {
    let mut world = World::new();
    world.apply(&web(&FOUR));
    crowd(&mut world, 100);
    let dumps = world.backend.kernel.dumps;
    world.apply(&web(&FOUR[..3]));
    assert_eq!(world.backend.kernel.dumps, dumps + 1, "one slot was left");
    let slot = &world.backend.kernel.tables[&plan::table(Family::V4)].sets["affinity-3"].1;
    assert_eq!(slot.len(), 0);
    let then = crowd(&mut world, 100);
    world.apply(&web(&[FOUR[0], FOUR[1], FOUR[2], "10.180.1.9"]));
    assert_eq!(crowd(&mut world, 100), then, "no client moves to the slot's new endpoint");
    assert_eq!(world.backend.kernel.dumps, dumps + 1, "nothing is read if no endpoint left");
}

#[test]
fn a_client_is_forgotten_a_timeout_after_its_last_connection() {
    let mut world = World::new();
    world.apply(&web(&FOUR));
    let mut ends = BTreeSet::new();
    for _ in 0..40 {
        let end = world.connect(POD, VIPS[0]).unwrap();
        world.wait(99);
        assert_eq!(world.connect(POD, VIPS[0]), Some(end));
        world.wait(99);
        assert_eq!(world.connect(POD, VIPS[0]), Some(end));
        world.wait(100);
        ends.insert(end);
    }
    assert!(ends.len() > 1);
}

#[test]
fn traffic_flows_even_if_no_client_can_be_remembered() {
    let mut world = World::new();
    world.apply(&web(&FOUR));
    for (set, _) in world.backend.kernel.tables.get_mut(&plan::table(Family::V4)).unwrap().sets.values_mut() {
        if set.flags.dynamic {
            *set = Arc::new(Set { size: Some(0), ..Set::clone(set) });
        }
    }
    assert!(crowd(&mut world, 100).iter().collect::<BTreeSet<_>>().len() == 4);
}

#[test]
fn new_clients_are_spread_evenly_despite_empty_slots() {
    let mut world = World::new();
    let many: Vec<String> = (0..24).map(|host| format!("10.180.3.{host}")).collect();
    world.apply(&web(&many.iter().map(String::as_str).collect::<Vec<_>>()));
    world.apply(&web(&[&many[3], &many[17], &many[23]]));
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for end in crowd(&mut world, 240) {
        *counts.entry(end).or_default() += 1;
    }
    assert!(counts.len() == 3 && counts.values().all(|count| (50..120).contains(count)), "{counts:?}");
}

/// Of 12,000 clients, an endpoint gets 800 more or fewer than its share with a probability below 1e-45 (Hoeffding).
#[test]
fn clients_with_and_without_affinity_are_spread_by_weight_with_few_and_many_slots() {
    for scale in [1, 30] {
        for affinity in [None, Some(60.into())] {
            let mut web = Service { client_ip_affinity: affinity, ..service("web", VIPS[0].0, &FOUR[..3]) };
            for (endpoint, weight) in web.endpoints.iter_mut().zip([5 * scale, 3 * scale, 2 * scale - 1]) {
                endpoint.weight = Endpoint::weighing(weight);
            }
            let sum: u32 = web.endpoints.iter().map(|one| one.weight.map_or(1, std::num::NonZeroU32::get)).sum();
            let mut world = World::new();
            world.apply(&state([web.clone()]));
            let mut counts: BTreeMap<IpAddr, u32> = BTreeMap::new();
            for _ in 0..12_000 {
                *counts.entry(world.connect(POD, VIPS[0]).unwrap().ip()).or_default() += 1;
                world.wait(60);
            }
            for endpoint in &web.endpoints {
                let share = 12_000 * endpoint.weight.map_or(1, std::num::NonZeroU32::get) / sum;
                assert!(counts[&endpoint.address].abs_diff(share) < 800, "{scale} {affinity:?}: {counts:?}");
            }
        }
    }
}

#[test]
fn the_number_of_objects_is_independent_of_the_services() {
    let objects = |services: u8| {
        let mut backend = backend();
        let services = (1..=services).map(|i| sticky(&format!("s{i}"), &format!("172.30.0.{i}"), &FOUR));
        backend.apply(&state(services), &Changes::everything()).unwrap().whole().unwrap();
        let table = &backend.kernel.tables[&plan::table(Family::V4)];
        let rules: usize = table.chains.values().map(|chain| chain.rules.len()).sum();
        (table.chains.len(), rules, table.sets.len())
    };
    assert_eq!(objects(1), objects(200));
    let mut plain = backend();
    plain.apply(&state([service("web", "172.30.0.1", &FOUR)]), &Changes::everything()).unwrap().whole().unwrap();
    let table = &plain.kernel.tables[&plan::table(Family::V4)];
    assert!(!table.sets.keys().any(|name| name.contains("affinity")), "no affinity sets without affinity");
}

#[test]
fn affinity_comes_and_goes() {
    let with = web(&FOUR);
    let without = state([service("web", VIPS[0].0, &FOUR)]);
    let fresh = |state: &Snapshot| {
        let mut backend = backend();
        backend.apply(state, &Changes::everything()).unwrap().whole().unwrap();
        normal(backend.kernel())
    };
    let mut world = World::new();
    for state in [&without, &with, &without, &with] {
        world.apply(state);
        assert_eq!(normal(world.backend.kernel()), fresh(state));
    }
    let ends = crowd(&mut world, 100);
    world.apply(&without);
    world.apply(&with);
    assert!(crowd(&mut world, 100) != ends, "clients are forgotten when affinity is switched off");
    let v6 = &world.backend.kernel.tables[&plan::table(Family::V6)];
    assert!(!v6.sets.contains_key("affinity-vips"), "only in the family that has affinity");
}

#[test]
fn growth_keeps_the_clients() {
    let mut world = World::new();
    world.apply(&web(&FOUR));
    let ends = crowd(&mut world, 100);
    let crowded = |prefix: &str, sticky_too: bool| {
        let many = (0..2200_u16).map(|i| {
            let affinity = (sticky_too && i % 2 == 0).then(|| 7.into());
            let other = service(&format!("{prefix}{i}"), &format!("172.31.{}.{}", i / 250, i % 250), &FOUR[..2]);
            Service { client_ip_affinity: affinity, ..other }
        });
        state(many.chain([sticky("web", VIPS[0].0, &FOUR)]))
    };
    for state in [crowded("p", false), crowded("q", true)] {
        let from = world.backend.kernel.log.len();
        world.apply(&state);
        let sent = &world.backend.kernel.log[from..];
        let deletes = |change: &Change| matches!(change, Change::DeleteTable(_));
        assert!(!sent.iter().flat_map(Transaction::changes).any(deletes));
        assert_eq!(crowd(&mut world, 100), ends);
        let mut fresh = backend();
        fresh.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
        assert_eq!(normal(world.backend.kernel()), normal(fresh.kernel()));
    }
    let from = world.backend.kernel.log.len();
    world.restart();
    world.apply(&crowded("q", true));
    assert_eq!(world.backend.kernel.log.len(), from, "a grown table is adopted");
}

#[test]
fn clients_of_endpoints_removed_while_no_backend_ran_are_forgotten_at_the_start() {
    let mut world = World::new();
    world.apply(&web(&FOUR));
    let first = crowd(&mut world, 100);
    world.restart();
    let replaced = web(&[FOUR[0], FOUR[1], FOUR[2], "10.180.1.3"]);
    world.apply(&replaced);
    let second = crowd(&mut world, 100);
    let gone: IpAddr = FOUR[3].parse().unwrap();
    for (before, after) in first.iter().zip(&second) {
        assert!(before == after || *before == gone);
    }
    world.apply(&web(&[FOUR[0], FOUR[1], FOUR[2], "10.180.1.3", FOUR[3]]));
    assert_eq!(crowd(&mut world, 100), second);
}

#[test]
fn a_slot_stays_empty_until_its_clients_are_forgotten() {
    let mut world = World::new();
    world.apply(&web(&FOUR));
    let first = crowd(&mut world, 100);
    world.backend.kernel.blind = true;
    world.apply(&web(&FOUR[..3]));
    let other = "10.180.1.9";
    let with_other = web(&[FOUR[0], FOUR[1], FOUR[2], other]);
    world.apply(&with_other);
    let second = crowd(&mut world, 100);
    for (before, after) in first.iter().zip(&second) {
        assert!(before == after || before.to_string() == FOUR[3], "{before} {after}");
    }
    let clients = |world: &World, slot: &str| {
        let sets = &world.backend.kernel.tables[&plan::table(Family::V4)].sets;
        sets.get(slot).map_or(0, |(_, clients)| clients.len())
    };
    assert!(
        clients(&world, "affinity-3") > 0 && clients(&world, "affinity-4") > 0,
        "the other endpoint has its own slot"
    );
    // The process ends before it changes the clients.
    world.restart();
    world.backend.kernel.blind = false;
    world.apply(&with_other);
    assert_eq!(clients(&world, "affinity-3"), 0);
    assert_eq!(crowd(&mut world, 100), second);
    assert_eq!(world.backend.desired.chores(), vec![]);
}

#[test]
fn a_client_that_expires_before_its_deletion_is_no_error() {
    let mut world = World::new();
    world.apply(&web(&FOUR));
    let gone = crowd(&mut world, 100)[0].to_string();
    world.backend.kernel.expiring = 3;
    let others: Vec<&str> = FOUR.into_iter().filter(|endpoint| *endpoint != gone).collect();
    world.apply(&web(&others));
    assert_eq!(world.backend.kernel.expiring, 0);
    assert_eq!(world.backend.desired.chores(), vec![]);
}

#[test]
fn only_the_refused_service_with_affinity_is_skipped() {
    for vague in [false, true] {
        let mut world = World::new();
        world.backend.kernel.vague = vague;
        let bad = Tuple::new()
            .address(VIPS[1].0.parse().unwrap())
            .protocol(localnet_proto::Protocol::Tcp)
            .port(80)
            .index(100);
        world.backend.kernel.hated.insert(bad.into());
        let services = || [sticky("bad", VIPS[1].0, &FOUR), sticky("web", VIPS[0].0, &FOUR)];
        world.apply(&state(services()));
        let ends = crowd(&mut world, 20);
        assert_eq!(world.connect(POD, VIPS[1]), None);
        world.backend.kernel.hated.clear();
        world.backend.apply(&state(services()), &changed(&["bad"])).unwrap().whole().unwrap();
        let end = world.connect(POD, VIPS[1]);
        assert!(end.is_some() && world.connect(POD, VIPS[1]) == end);
        assert_eq!(crowd(&mut world, 20), ends);
    }
}
