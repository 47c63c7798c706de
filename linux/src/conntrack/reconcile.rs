//! Whether a flow is stale. Pure.

use super::{Flow, Frontend, Frontends, Protocol, Serving, Status, TcpState, Tuple};

/// Whether the flow goes to one of our frontends but not, or no longer, to an endpoint that may answer for it.
///
/// What is stale would be looked at by the rules again if its entry were gone, and go elsewhere: so a flow that the
/// rules never rewrote is stale as long as the frontend is ours, and is not once it is not. TCP counts only while a
/// connection is being asked for; an established one lives until one of its ends closes it.
///
/// A flow may also be entered backwards: a client asks a frontend while no rule rewrites its packets, its entry is
/// deleted, and then a reply arrives that was on its way. The kernel takes that reply for the first packet of a new flow
/// *from* the frontend. What the client sends afterwards belongs to it and never meets the rules. kube-proxy looks only
/// at the original destination, and such a client is lost to it.
pub fn is_stale(flow: &Flow, frontends: &Frontends) -> bool {
    if flow.protocol == Protocol::Tcp && !is_unanswered_attempt(flow) {
        return false;
    }
    let rewritten = flow.status.has(Status::DESTINATION_NAT);
    // Whoever chose a zone, such as a virtual switch that passes each packet through several, tracks the same flow
    // there without rewriting it. Only an entry that was rewritten there can be of our rules.
    if !flow.zone.is_default() && !rewritten {
        return false;
    }
    match frontends.find(&Frontend::new(flow.protocol, flow.original.destination)) {
        None => is_backwards(flow, frontends),
        Some(Serving::Now(endpoints)) => !endpoints.contains(&flow.reply.source),
        Some(Serving::Formerly) => rewritten,
    }
}

/// Whether the flow comes from one of our frontends, where no endpoint is, and was rewritten in neither direction.
fn is_backwards(flow: &Flow, frontends: &Frontends) -> bool {
    let Tuple { source, destination } = flow.original;
    let untouched = flow.reply == Tuple { source: destination, destination: source };
    // An attempt to connect from there is nobody's answer.
    if !untouched || flow.protocol == Protocol::Tcp {
        return false;
    }
    match frontends.find(&Frontend::new(flow.protocol, source)) {
        Some(Serving::Now(endpoints)) => !endpoints.contains(&source),
        Some(Serving::Formerly) | None => false,
    }
}

/// A connection that the kernel picked up in the middle was not answered yet either, but is in another state.
fn is_unanswered_attempt(flow: &Flow) -> bool {
    !flow.status.has(Status::SEEN_REPLY) && flow.tcp_state.is_none_or(|state| state == TcpState::SYN_SENT)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::fake::{Stage, address, endpoints, flow, frontend};
    use super::super::{Endpoints, Zone};
    use super::*;
    use Protocol::{Sctp, Tcp, Udp};
    use Stage::{Answered, Unanswered};

    const PROTOCOLS: [Protocol; 3] = [Tcp, Udp, Sctp];

    /// Where one service is reached: cluster address, load balancer, external address, node port, in both families.
    const DESTINATIONS: [[&str; 2]; 4] = [
        ["10.96.0.10:53", "[fd00:96::10]:53"],
        ["203.0.113.4:53", "[2001:db8::4]:53"],
        ["192.0.2.77:53", "[2001:db8:1::77]:53"],
        ["192.168.0.2:30053", "[fd00:192::2]:30053"],
    ];

    /// What the entry says about where the flow ends.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum At {
        Serving,
        /// It exists and does not serve.
        NotServing,
        /// It does not exist.
        Deleted,
        /// The address of one that serves, at a port that the service had before.
        OldTargetPort,
        /// The rules never rewrote it.
        Nowhere,
    }

    fn end(at: At, destination: SocketAddr) -> SocketAddr {
        let (v4, v6) = match at {
            At::Serving => ("10.244.0.2:5353", "[fd00:10::2]:5353"),
            At::NotServing => ("10.244.0.3:5353", "[fd00:10::3]:5353"),
            At::Deleted => ("10.244.0.4:5353", "[fd00:10::4]:5353"),
            At::OldTargetPort => ("10.244.0.2:53", "[fd00:10::2]:53"),
            At::Nowhere => return destination,
        };
        address(if destination.is_ipv4() { v4 } else { v6 })
    }

    fn serving(v4: bool) -> Endpoints {
        endpoints(if v4 { &["10.244.0.2:5353", "10.244.0.7:5353"] } else { &["[fd00:10::2]:5353"] })
    }

    /// All frontends of the service, for all protocols; `make` decides what they are.
    fn frontends(make: impl Fn(&mut Frontends, Frontend)) -> Frontends {
        let mut frontends = Frontends::default();
        for destination in DESTINATIONS.as_flattened() {
            for protocol in PROTOCOLS {
                make(&mut frontends, frontend(protocol, destination));
            }
        }
        frontends
    }

    /// Each row is checked for every kind of frontend and both families; a port next to the service's is foreign.
    #[track_caller]
    fn check(frontends: &Frontends, rows: [(Stage, At, [Protocol; 3], [bool; 3]); 10]) {
        for (stage, at, protocols, expected) in rows {
            for (protocol, expected) in protocols.into_iter().zip(expected) {
                for destination in DESTINATIONS.as_flattened() {
                    let destination = address(destination);
                    let flow_to = |destination| flow(protocol, stage, destination, end(at, destination));
                    let to = flow_to(destination);
                    assert_eq!(is_stale(&to, frontends), expected, "{protocol:?} {stage:?} {at:?}: {to}");
                    let beside = SocketAddr::new(destination.ip(), destination.port() + 1);
                    assert!(
                        !is_stale(&flow_to(beside), frontends),
                        "{protocol:?} {stage:?} {at:?}: {}",
                        flow_to(beside)
                    );
                }
            }
        }
    }

    #[test]
    fn a_flow_must_end_at_an_endpoint_that_serves() {
        let frontends = frontends(|frontends, frontend| {
            frontends.set(frontend, serving(frontend.address.is_ipv4()));
        });
        check(
            &frontends,
            [
                (Unanswered, At::Serving, PROTOCOLS, [false, false, false]),
                (Unanswered, At::NotServing, PROTOCOLS, [true, true, true]),
                (Unanswered, At::Deleted, PROTOCOLS, [true, true, true]),
                (Unanswered, At::OldTargetPort, PROTOCOLS, [true, true, true]),
                (Unanswered, At::Nowhere, PROTOCOLS, [true, true, true]),
                (Answered, At::Serving, PROTOCOLS, [false, false, false]),
                (Answered, At::NotServing, PROTOCOLS, [false, true, true]),
                (Answered, At::Deleted, PROTOCOLS, [false, true, true]),
                (Answered, At::OldTargetPort, PROTOCOLS, [false, true, true]),
                (Answered, At::Nowhere, PROTOCOLS, [false, true, true]),
            ],
        );
    }

    /// kubernetes/kubernetes#139628: kube-proxy v1.36.3 keeps all of these.
    #[test]
    fn nothing_may_answer_for_a_service_without_endpoints() {
        let frontends = frontends(|frontends, frontend| {
            frontends.set(frontend, endpoints(&[]));
        });
        check(
            &frontends,
            [
                (Unanswered, At::Serving, PROTOCOLS, [true, true, true]),
                (Unanswered, At::NotServing, PROTOCOLS, [true, true, true]),
                (Unanswered, At::Deleted, PROTOCOLS, [true, true, true]),
                (Unanswered, At::OldTargetPort, PROTOCOLS, [true, true, true]),
                (Unanswered, At::Nowhere, PROTOCOLS, [true, true, true]),
                (Answered, At::Serving, PROTOCOLS, [false, true, true]),
                (Answered, At::NotServing, PROTOCOLS, [false, true, true]),
                (Answered, At::Deleted, PROTOCOLS, [false, true, true]),
                (Answered, At::OldTargetPort, PROTOCOLS, [false, true, true]),
                (Answered, At::Nowhere, PROTOCOLS, [false, true, true]),
            ],
        );
    }

    #[test]
    fn a_deleted_service_leaves_only_what_somebody_else_answers() {
        let frontends = frontends(|frontends, frontend| {
            frontends.retire(&frontend);
        });
        check(
            &frontends,
            [
                (Unanswered, At::Serving, PROTOCOLS, [true, true, true]),
                (Unanswered, At::NotServing, PROTOCOLS, [true, true, true]),
                (Unanswered, At::Deleted, PROTOCOLS, [true, true, true]),
                (Unanswered, At::OldTargetPort, PROTOCOLS, [true, true, true]),
                (Unanswered, At::Nowhere, PROTOCOLS, [false, false, false]),
                (Answered, At::Serving, PROTOCOLS, [false, true, true]),
                (Answered, At::NotServing, PROTOCOLS, [false, true, true]),
                (Answered, At::Deleted, PROTOCOLS, [false, true, true]),
                (Answered, At::OldTargetPort, PROTOCOLS, [false, true, true]),
                (Answered, At::Nowhere, PROTOCOLS, [false, false, false]),
            ],
        );
    }

    #[test]
    fn no_flow_is_stale_where_nothing_is_ours() {
        let nothing = [false; 3];
        let rows = [Unanswered, Answered].into_iter().flat_map(|stage| {
            [At::Serving, At::NotServing, At::Deleted, At::OldTargetPort, At::Nowhere]
                .map(|at| (stage, at, PROTOCOLS, nothing))
        });
        check(&Frontends::default(), rows.collect::<Vec<_>>().try_into().unwrap());
    }

    /// kube-proxy compares the port of a node port alone.
    #[test]
    fn a_node_port_is_one_of_the_node_s_addresses() {
        let mut frontends = Frontends::default();
        frontends.set(frontend(Udp, "192.168.0.2:30053"), endpoints(&["10.244.0.2:5353"]));
        let elsewhere = flow(Udp, Answered, address("198.51.100.1:30053"), address("198.51.100.1:30053"));
        assert!(!is_stale(&elsewhere, &frontends));
        let old_node_port = flow(Udp, Answered, address("192.168.0.2:30054"), address("10.244.0.2:5353"));
        assert!(!is_stale(&old_node_port, &frontends));
        frontends.retire(&frontend(Udp, "192.168.0.2:30054"));
        assert!(is_stale(&old_node_port, &frontends));
    }

    #[test]
    fn a_frontend_is_of_one_protocol() {
        let mut frontends = Frontends::default();
        frontends.set(frontend(Udp, "10.96.0.10:53"), endpoints(&[]));
        let to = |protocol| flow(protocol, Unanswered, address("10.96.0.10:53"), address("10.244.0.2:53"));
        assert_eq!(PROTOCOLS.map(|protocol| is_stale(&to(protocol), &frontends)), [false, true, false]);
    }

    #[test]
    fn a_connection_picked_up_in_the_middle_is_not_cut() {
        let mut frontends = Frontends::default();
        frontends.set(frontend(Tcp, "10.96.0.10:80"), endpoints(&[]));
        let asked = flow(Tcp, Unanswered, address("10.96.0.10:80"), address("10.244.0.2:80"));
        assert!(is_stale(&asked, &frontends));
        assert!(!is_stale(&Flow { tcp_state: Some(TcpState::ESTABLISHED), ..asked }, &frontends));
    }

    #[test]
    fn a_connection_that_was_answered_is_not_cut_whatever_its_state() {
        let mut frontends = Frontends::default();
        frontends.set(frontend(Tcp, "10.96.0.10:80"), endpoints(&[]));
        for (stage, expected) in [(Unanswered, true), (Answered, false)] {
            let flow = flow(Tcp, stage, address("10.96.0.10:80"), address("10.244.0.2:80"));
            for tcp_state in [None, Some(TcpState::SYN_SENT)] {
                assert_eq!(is_stale(&Flow { tcp_state, ..flow }, &frontends), expected, "{stage:?} {tcp_state:?}");
            }
        }
    }

    #[test]
    fn a_zone_counts_where_the_flow_was_rewritten() {
        let mut frontends = Frontends::default();
        frontends.set(frontend(Udp, "10.96.0.10:53"), endpoints(&["10.244.0.2:53"]));
        let passing = flow(Udp, Answered, address("10.96.0.10:53"), address("10.96.0.10:53"));
        let elsewhere = flow(Udp, Answered, address("10.96.0.10:53"), address("10.244.0.3:53"));
        for (zone, expected) in [
            (Zone::Both(0), [true, true]),
            (Zone::Both(7), [false, true]),
            (Zone::Original(7), [false, true]),
            (Zone::Reply(7), [false, true]),
        ] {
            assert_eq!(
                [passing, elsewhere].map(|flow| is_stale(&Flow { zone, ..flow }, &frontends)),
                expected,
                "{zone:?}"
            );
        }
    }

    /// A reply that was on its way when the entry of its flow was deleted begins a new flow, the wrong way round.
    #[test]
    fn an_untouched_flow_from_a_frontend_is_stale() {
        let (vip, elsewhere) = ("203.0.113.4:53", "203.0.113.5:53");
        let mut served = Frontends::default();
        served.set(frontend(Udp, vip), endpoints(&["10.244.0.2:5353"]));
        let mut unserved = Frontends::default();
        unserved.set(frontend(Udp, vip), endpoints(&[]));
        let mut own = Frontends::default();
        own.set(frontend(Udp, vip), endpoints(&["10.244.0.2:5353", vip]));
        let mut former = Frontends::default();
        former.retire(&frontend(Udp, vip));
        let from = |protocol, source: &str| flow(protocol, Answered, address(source), address(source)).reversed();
        let unanswered = flow(Udp, Unanswered, address(vip), address(vip)).reversed();
        let masqueraded =
            Flow { reply: Tuple { destination: address("192.0.2.1:4000"), ..from(Udp, vip).reply }, ..from(Udp, vip) };
        let translated = Flow {
            reply: Tuple { source: address("10.244.0.9:1"), ..from(Udp, vip).reply },
            status: Status::DESTINATION_NAT,
            ..from(Udp, vip)
        };
        for (what, flow, frontends, expected) in [
            ("served", from(Udp, vip), &served, true),
            ("not answered yet", unanswered, &served, true),
            ("nothing serves", from(Udp, vip), &unserved, true),
            ("an endpoint's own address", from(Udp, vip), &own, false),
            ("no frontend any more", from(Udp, vip), &former, false),
            ("another address", from(Udp, elsewhere), &served, false),
            ("another protocol", from(Sctp, vip), &served, false),
            ("TCP", from(Tcp, vip), &served, false),
            ("masqueraded", masqueraded, &served, false),
            ("translated", translated, &served, false),
            ("another zone", Flow { zone: Zone::Both(7), ..from(Udp, vip) }, &served, false),
        ] {
            assert_eq!(is_stale(&flow, frontends), expected, "{what}: {flow}");
        }
    }

    #[test]
    fn an_endpoint_on_the_frontend_s_own_address_serves() {
        let mut frontends = Frontends::default();
        frontends.set(frontend(Udp, "192.168.0.2:30053"), endpoints(&["192.168.0.2:30053"]));
        let to = flow(Udp, Answered, address("192.168.0.2:30053"), address("192.168.0.2:30053"));
        assert!(!is_stale(&to, &frontends));
    }
}
