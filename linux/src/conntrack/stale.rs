//! [`is_stale`]: decides whether a flow is stale. Pure.

use localnet_core::Protocol;

use super::{Flow, Frontend, Frontends, Serving, Status, TcpState, Tuple};

/// Whether the flow goes to one of the frontends, but not to an endpoint that is eligible for it.
///
/// Once the entry of a stale flow is deleted, the rules see the flow's next packet and send it to an eligible endpoint. A flow
/// that the rules never translated is therefore stale only as long as its destination is a frontend. A TCP flow is stale only if
/// it is an unanswered connection attempt; an established connection lives until one of its ends closes it.
///
/// The kernel may also record a flow backwards. This happens if a client sends to a frontend while no rule translates
/// its packets, and the flow's entry is then deleted while a reply is in flight. The kernel takes that reply for the first
/// packet of a new flow *from* the frontend. The client's next packets belong to this flow and never meet the rules.
/// kube-proxy checks only the original destination, so such a client does not recover.
pub fn is_stale(flow: &Flow, frontends: &Frontends) -> bool {
    if flow.protocol == Protocol::Tcp && !is_unanswered_attempt(flow) {
        return false;
    }
    let rewritten = flow.status.has(Status::DESTINATION_NAT);
    // Software that uses zones, such as a virtual switch that passes each packet through several, tracks the same flow again
    // without translating it. Only a translated entry can be the work of our rules.
    if !flow.zone.is_default() && !rewritten {
        return false;
    }
    match frontends.find(&Frontend::new(flow.protocol, flow.original.destination)) {
        None => is_backwards(flow, frontends),
        Some(Serving::Now(endpoints)) => !endpoints.contains(&flow.reply.source),
        Some(Serving::Formerly) => rewritten,
    }
}

/// Whether neither direction of the flow was translated, and the flow comes from a frontend that is not itself an endpoint.
fn is_backwards(flow: &Flow, frontends: &Frontends) -> bool {
    let Tuple { source, destination } = flow.original;
    let untouched = flow.reply == Tuple { source: destination, destination: source };
    // A connection attempt from that address is not a reply.
    if !untouched || flow.protocol == Protocol::Tcp {
        return false;
    }
    match frontends.find(&Frontend::new(flow.protocol, source)) {
        Some(Serving::Now(endpoints)) => !endpoints.contains(&source),
        Some(Serving::Formerly) | None => false,
    }
}

/// Whether the flow is a TCP connection attempt without an answer. A connection that the kernel picked up in the middle has no
/// answer either, but it has a different TCP state.
fn is_unanswered_attempt(flow: &Flow) -> bool {
    !flow.status.has(Status::SEEN_REPLY) && flow.tcp_state.is_none_or(|state| state == TcpState::SYN_SENT)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::testing::{Stage, address, endpoints, flow, frontend};
    use super::super::{Endpoints, Zone};
    use super::*;
    use Protocol::{Sctp, Tcp, Udp};
    use Stage::{Answered, Unanswered};

    const PROTOCOLS: [Protocol; 3] = [Tcp, Udp, Sctp];

    /// The frontends of one Service: ClusterIP, load balancer IP, external IP and NodePort, in both families.
    const DESTINATIONS: [[&str; 2]; 4] = [
        ["10.96.0.10:53", "[fd00:96::10]:53"],
        ["203.0.113.4:53", "[2001:db8::4]:53"],
        ["192.0.2.77:53", "[2001:db8:1::77]:53"],
        ["192.168.0.2:30053", "[fd00:192::2]:30053"],
    ];

    /// The endpoint in the entry.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum At {
        Serving,
        /// Exists, but is not eligible.
        NotServing,
        /// Does not exist.
        Deleted,
        /// An eligible endpoint's address with the Service's former target port.
        OldTargetPort,
        /// None: the rules never translated the flow.
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

    /// All frontends of the Service for all protocols; `make` sets their status.
    fn frontends(make: impl Fn(&mut Frontends, Frontend)) -> Frontends {
        let mut frontends = Frontends::default();
        for destination in DESTINATIONS.as_flattened() {
            for protocol in PROTOCOLS {
                make(&mut frontends, frontend(protocol, destination));
            }
        }
        frontends
    }

    /// Checks each row for every kind of frontend and both families. A port beside the Service's is always foreign.
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
    fn a_flow_is_stale_unless_it_ends_at_an_eligible_endpoint() {
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

    /// kubernetes/kubernetes#139628: kube-proxy v1.36.3 keeps these flows.
    #[test]
    fn every_flow_to_a_service_without_endpoints_is_stale() {
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
    fn only_translated_flows_to_a_deleted_service_are_stale() {
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
    fn no_flow_is_stale_without_frontends() {
        let nothing = [false; 3];
        let rows = [Unanswered, Answered].into_iter().flat_map(|stage| {
            [At::Serving, At::NotServing, At::Deleted, At::OldTargetPort, At::Nowhere]
                .map(|at| (stage, at, PROTOCOLS, nothing))
        });
        check(&Frontends::default(), rows.collect::<Vec<_>>().try_into().unwrap());
    }

    /// kube-proxy compares only the port of a NodePort, not the address.
    #[test]
    fn a_node_port_counts_only_at_the_node_s_addresses() {
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
    fn a_frontend_covers_one_protocol() {
        let mut frontends = Frontends::default();
        frontends.set(frontend(Udp, "10.96.0.10:53"), endpoints(&[]));
        let to = |protocol| flow(protocol, Unanswered, address("10.96.0.10:53"), address("10.244.0.2:53"));
        assert_eq!(PROTOCOLS.map(|protocol| is_stale(&to(protocol), &frontends)), [false, true, false]);
    }

    #[test]
    fn a_connection_picked_up_in_the_middle_is_never_stale() {
        let mut frontends = Frontends::default();
        frontends.set(frontend(Tcp, "10.96.0.10:80"), endpoints(&[]));
        let unanswered = flow(Tcp, Unanswered, address("10.96.0.10:80"), address("10.244.0.2:80"));
        assert!(is_stale(&unanswered, &frontends));
        assert!(!is_stale(&Flow { tcp_state: Some(TcpState::ESTABLISHED), ..unanswered }, &frontends));
    }

    #[test]
    fn an_answered_connection_is_never_stale() {
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
    fn flows_in_other_zones_count_only_if_translated() {
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

    /// A reply that was in flight while its entry was deleted begins a new flow in the wrong direction.
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
    fn an_endpoint_may_have_the_frontend_s_own_address() {
        let mut frontends = Frontends::default();
        frontends.set(frontend(Udp, "192.168.0.2:30053"), endpoints(&["192.168.0.2:30053"]));
        let to = flow(Udp, Answered, address("192.168.0.2:30053"), address("192.168.0.2:30053"));
        assert!(!is_stale(&to, &frontends));
    }
}
