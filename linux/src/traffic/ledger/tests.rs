//! Flows begin, end and repeat, and the ledger counts each packet once.

use super::*;
use crate::conntrack::testing::{Stage, address, endpoints, flow, frontend};

const VIP: &str = "10.96.0.10:53";
const A: &str = "10.244.0.2:53";
const B: &str = "10.244.0.3:53";

fn port(name: &str) -> PortName {
    PortName { service: ServiceKey::new("dns", name), port: "dns".into(), protocol: Protocol::Udp }
}

fn served(name: &str, vip: &str) -> Change {
    let endpoints = endpoints(&[A, B]);
    (frontend(Protocol::Udp, vip), Some(Served { port: port(name), eligible: endpoints.clone(), endpoints }))
}

/// The port `web`, whose eligible endpoints get new flows.
fn serving(protocol: Protocol, all: &[&str], eligible: &[&str]) -> Change {
    let served = Served { port: port("web"), endpoints: endpoints(all), eligible: endpoints(eligible) };
    (frontend(protocol, VIP), Some(served))
}

fn gone(vip: &str) -> Change {
    (frontend(Protocol::Udp, vip), None)
}

/// A flow that is unique by its ID.
fn to(vip: &str, endpoint: &str, id: u32) -> Flow {
    Flow { id, ..flow(Protocol::Udp, Stage::Answered, address(vip), address(endpoint)) }
}

/// The same number of packets in both directions, of 100 bytes from the client and 1,000 bytes to it.
fn packets(packets: u64) -> Counters {
    let volume = |bytes| Volume { packets, bytes: packets * bytes };
    Counters { original: volume(100), reply: volume(1_000) }
}

fn total(connections: u64, number: u64) -> Total {
    let Counters { original, reply } = packets(number);
    Total { connections, original, reply }
}

impl Ledger {
    fn dump(&mut self, flows: &[(Flow, Counters)]) {
        self.begin_dump();
        flows.iter().for_each(|(flow, counters)| self.seen(flow, Some(*counters)));
        self.end_dump(true);
    }

    fn end(&mut self, flow: Flow, counters: Counters) {
        self.ended(&flow, Some(counters));
    }

    /// The totals of each port, by the Service's name.
    fn totals(&self) -> Vec<(String, Total)> {
        self.traffic().ports.into_iter().map(|of| (of.port.service.name.to_string(), of.total)).collect()
    }

    fn of(&self, name: &str) -> Total {
        self.totals().into_iter().find(|(of, _)| of == name).map(|(_, total)| total).unwrap_or_default()
    }
}

/// The totals of endpoints.
fn ends(endpoints: &[(SocketAddr, Total, Drains)]) -> Vec<(SocketAddr, Total)> {
    endpoints.iter().map(|(endpoint, total, _)| (*endpoint, *total)).collect()
}

/// A ledger that counts a Service, and has begun before all flows.
fn counting() -> Ledger {
    let mut ledger = Ledger::new(2);
    ledger.change(served("web", VIP));
    ledger.dump(&[]);
    ledger
}

#[test]
fn a_flow_counts_once_however_the_ledger_learns_of_it() {
    let (one, all) = (to(VIP, A, 1), packets(5));
    type Row<'a> = (&'a str, &'a dyn Fn(&mut Ledger));
    let rows: [Row<'_>; 6] = [
        ("its end only", &|ledger| ledger.end(one, all)),
        ("a dump, then its end", &|ledger| {
            ledger.dump(&[(one, packets(2))]);
            ledger.end(one, all);
        }),
        ("several dumps, which may show it twice", &|ledger| {
            ledger.dump(&[(one, packets(2)), (one, packets(3))]);
            ledger.dump(&[(one, all)]);
        }),
        ("it ends while a dump still shows it", &|ledger| {
            ledger.begin_dump();
            ledger.end(one, all);
            ledger.seen(&one, Some(packets(4)));
            ledger.end_dump(true);
        }),
        ("it ends after the dump has shown it", &|ledger| {
            ledger.begin_dump();
            ledger.seen(&one, Some(packets(4)));
            ledger.end(one, all);
            ledger.end_dump(true);
        }),
        ("a dump that is not complete does not forget it", &|ledger| {
            ledger.dump(&[(one, packets(2))]);
            ledger.begin_dump();
            ledger.end_dump(false);
            ledger.dump(&[(one, packets(3))]);
            ledger.end(one, all);
        }),
    ];
    for (name, act) in rows {
        let mut ledger = counting();
        act(&mut ledger);
        assert_eq!(ledger.of("web"), total(1, 5), "{name}");
    }
}

#[test]
fn traffic_is_counted_by_endpoint() {
    let mut ledger = counting();
    ledger.dump(&[(to(VIP, A, 1), packets(1)), (to(VIP, B, 2), packets(10))]);
    ledger.end(to(VIP, B, 3), packets(100));
    let [of] = &ledger.traffic().ports[..] else { panic!("one port") };
    assert_eq!(of.total, total(3, 111));
    assert_eq!(ends(&of.endpoints), [(address(A), total(1, 1)), (address(B), total(2, 110))]);
}

#[test]
fn flows_of_others_do_not_count() {
    let mut ledger = counting();
    let foreign = to("10.96.0.99:53", A, 1);
    let untranslated = to(VIP, VIP, 2);
    ledger.dump(&[(foreign, packets(1)), (untranslated, packets(1))]);
    ledger.end(foreign, packets(1));
    ledger.end(untranslated, packets(1));
    assert_eq!(ledger.traffic(), Traffic::default());
}

/// A restarted backend must not count again what the run before it has counted.
#[test]
fn flows_older_than_the_ledger_count_from_its_beginning() {
    let mut ledger = Ledger::new(2);
    ledger.change(served("web", VIP));
    let (lasting, ending) = (to(VIP, A, 1), to(VIP, A, 2));
    ledger.begin_dump();
    ledger.end(ending, packets(1_000));
    ledger.seen(&lasting, Some(packets(1_000)));
    ledger.end_dump(true);
    assert_eq!(ledger.of("web"), Total::default());
    ledger.end(lasting, packets(1_002));
    assert_eq!(ledger.of("web"), total(0, 2));
}

#[test]
fn counts_never_shrink_and_never_count_twice_if_events_are_lost() {
    let mut ledger = counting();
    ledger.dump(&[(to(VIP, A, 1), packets(5))]);
    // The event of its end was lost: what it sent after the dump is missing.
    ledger.lost(1);
    ledger.dump(&[]);
    assert_eq!((ledger.of("web"), ledger.traffic().lost), (total(1, 5), 1));
    // The kernel may give the next flow of the client the same ID.
    ledger.dump(&[(to(VIP, A, 1), packets(3))]);
    assert_eq!(ledger.of("web"), total(2, 8));
    ledger.dump(&[(to(VIP, A, 1), packets(1))]);
    assert_eq!(ledger.of("web"), total(2, 9), "`conntrack -Z` sets counters to zero");
}

#[test]
fn the_first_ports_with_traffic_have_totals_of_their_own() {
    let mut ledger = counting();
    for (name, vip) in [("idle", "10.96.0.9:53"), ("api", "10.96.0.11:53"), ("late", "10.96.0.12:53")] {
        ledger.change(served(name, vip));
    }
    ledger.end(to(VIP, A, 1), packets(1));
    ledger.dump(&[(to("10.96.0.11:53", A, 2), packets(2)), (to("10.96.0.12:53", A, 3), packets(4))]);
    ledger.end(to("10.96.0.12:53", A, 3), packets(5));
    assert_eq!(ledger.totals(), [("api".to_owned(), total(1, 2)), ("web".to_owned(), total(1, 1))]);
    assert_eq!(ledger.traffic().rest, total(1, 5));
    // A deleted Service makes room once its flows have ended. What was counted together stays so.
    ledger.change(gone(VIP));
    ledger.dump(&[]);
    ledger.dump(&[]);
    ledger.end(to("10.96.0.12:53", A, 4), packets(1));
    assert_eq!(ledger.totals(), [("api".to_owned(), total(1, 2)), ("late".to_owned(), total(1, 1))]);
    assert_eq!(ledger.traffic().rest, total(1, 5));
}

#[test]
fn flows_outlive_their_service_and_their_endpoint() {
    let mut ledger = counting();
    ledger.dump(&[(to(VIP, A, 1), packets(1))]);
    ledger.change(serving(Protocol::Udp, &[B], &[B]));
    ledger.dump(&[(to(VIP, A, 1), packets(2))]);
    assert_eq!(ends(&ledger.traffic().ports[0].endpoints), [(address(A), total(1, 2))]);
    // The Service is deleted, and its VIP is assigned to another one.
    ledger.change(gone(VIP));
    ledger.change(served("next", VIP));
    ledger.dump(&[(to(VIP, A, 1), packets(3)), (to(VIP, B, 2), packets(7))]);
    assert_eq!(ledger.totals(), [("next".to_owned(), total(1, 7)), ("web".to_owned(), total(1, 3))]);
    ledger.dump(&[(to(VIP, B, 2), packets(7))]);
    assert_eq!(ledger.totals(), [("next".to_owned(), total(1, 7))]);
    // Events of flows that end together with the Service come after its deletion.
    ledger.change(gone(VIP));
    ledger.end(to(VIP, B, 3), packets(1));
    assert_eq!(ledger.of("next"), total(2, 8));
}

#[test]
fn endpoints_without_flows_leave_with_the_plan() {
    let mut ledger = counting();
    ledger.dump(&[(to(VIP, A, 1), packets(1)), (to(VIP, B, 2), packets(2))]);
    ledger.end(to(VIP, A, 1), packets(1));
    ledger.dump(&[(to(VIP, B, 2), packets(2))]);
    assert_eq!(ledger.traffic().ports[0].endpoints.len(), 2, "both endpoints are eligible");
    ledger.change(serving(Protocol::Udp, &[B], &[B]));
    ledger.dump(&[(to(VIP, B, 2), packets(2))]);
    let [of] = &ledger.traffic().ports[..] else { panic!("one port") };
    assert_eq!((of.total, ends(&of.endpoints)), (total(2, 3), vec![(address(B), total(1, 2))]));
}

/// The totals of a port are complete, although only so many flows and endpoints are known at a time.
#[test]
fn memory_is_bounded() {
    let mut ledger = counting();
    let flow = |id: u32| {
        let mut flow = to(VIP, A, id);
        flow.reply.source.set_port((id % 6_000) as u16);
        flow
    };
    ledger.begin_dump();
    let number = MAX_FLOWS as u32 + 10;
    (0..number).for_each(|id| ledger.seen(&flow(id), Some(packets(1))));
    ledger.end_dump(true);
    assert_eq!((ledger.flows.len(), ledger.endpoints), (MAX_FLOWS, MAX_ENDPOINTS));
    (0..number).for_each(|id| ledger.end(flow(id), packets(2)));
    assert_eq!(ledger.of("web"), total(number.into(), 2 * u64::from(number)));
    assert!(ledger.flows.is_empty());
}

#[test]
fn connections_drain_while_their_endpoint_gets_no_new_ones() {
    let mut ledger = Ledger::new(2);
    ledger.change(serving(Protocol::Tcp, &[A, B], &[A, B]));
    ledger.dump(&[]);
    let connection = |endpoint, id, state| {
        let answered = flow(Protocol::Tcp, Stage::Answered, address(VIP), address(endpoint));
        (Flow { id, tcp_state: Some(state), ..answered }, packets(1))
    };
    let (established, closing) = (TcpState::ESTABLISHED, TcpState::SYN_SENT);
    let all = [connection(A, 1, established), connection(A, 2, established), connection(A, 3, closing)];
    let more = connection(B, 4, established);
    let drains = |ledger: &Ledger| {
        let port = ledger.traffic().ports.remove(0);
        let of = |drains: Drains| (drains.open, drains.closed);
        (
            of(port.drains),
            port.endpoints.iter().map(|(endpoint, _, drains)| (*endpoint, of(*drains))).collect::<Vec<_>>(),
        )
    };
    ledger.dump(&[&all[..], &[more]].concat());
    assert_eq!(drains(&ledger), ((0, 0), vec![(address(A), (0, 0)), (address(B), (0, 0))]));
    // A terminates.
    ledger.change(serving(Protocol::Tcp, &[A, B], &[B]));
    ledger.dump(&[&all[..], &[more]].concat());
    assert_eq!(drains(&ledger), ((2, 0), vec![(address(A), (2, 0)), (address(B), (0, 0))]));
    // A is removed. One connection is deleted, and one ends by itself.
    ledger.change(serving(Protocol::Tcp, &[B], &[B]));
    ledger.ended(&all[0].0, Some(packets(1)));
    ledger.dump(&[connection(A, 2, established), more]);
    assert_eq!(drains(&ledger), ((1, 1), vec![(address(A), (1, 1)), (address(B), (0, 0))]));
    ledger.ended(&connection(A, 2, closing).0, Some(packets(1)));
    ledger.dump(&[more]);
    assert_eq!(drains(&ledger), ((0, 1), vec![(address(A), (0, 1)), (address(B), (0, 0))]), "it is reported once more");
    ledger.dump(&[more]);
    assert_eq!(drains(&ledger), ((0, 1), vec![(address(B), (0, 0))]));
}

#[test]
fn refused_packets_count_for_their_port_or_for_the_rest() {
    let mut ledger = counting();
    ledger.change(served("api", "10.96.0.11:53"));
    ledger.change(served("late", "10.96.0.12:53"));
    let refuse = |ledger: &mut Ledger, vip, reason, packets| {
        ledger.refused(frontend(Protocol::Udp, vip), reason, packets);
    };
    refuse(&mut ledger, VIP, Reason::NoEndpoints, 2);
    refuse(&mut ledger, VIP, Reason::NoEndpoints, 3);
    refuse(&mut ledger, VIP, Reason::SourceRanges, 1);
    refuse(&mut ledger, "10.96.0.11:53", Reason::NoLocalEndpoint, 4);
    refuse(&mut ledger, "10.96.0.12:53", Reason::NoEndpoints, 5);
    refuse(&mut ledger, "10.96.0.99:53", Reason::NoEndpoints, 6);
    ledger.dump(&[]);
    let Traffic { ports, rest_refused, .. } = ledger.traffic();
    let refused: Vec<_> = ports.into_iter().map(|of| (of.port.service.name.to_string(), of.refused)).collect();
    let api = Refused::from([(Reason::NoLocalEndpoint, 4)]);
    let web = Refused::from([(Reason::NoEndpoints, 5), (Reason::SourceRanges, 1)]);
    assert_eq!(refused, [("api".to_owned(), api), ("web".to_owned(), web)]);
    assert_eq!(rest_refused, Refused::from([(Reason::NoEndpoints, 11)]));
}

#[test]
fn traffic_of_virtual_servers_counts_if_the_frontend_is_known() {
    let mut ledger = counting();
    ledger.balanced(frontend(Protocol::Udp, VIP), address(A), total(2, 5));
    ledger.balanced(frontend(Protocol::Udp, VIP), address(B), total(1, 1));
    ledger.balanced(frontend(Protocol::Udp, "10.96.0.99:53"), address(B), total(1, 1));
    ledger.dump(&[]);
    let Traffic { ports, rest, .. } = ledger.traffic();
    assert_eq!((ports[0].total, ends(&ports[0].endpoints).len(), rest), (total(3, 6), 2, Total::default()));
}
