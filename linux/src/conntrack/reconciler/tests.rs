//! Tables of changes, and the flows that a run deletes.

use std::net::{Ipv4Addr, SocketAddr};

use super::super::testing::{Fake, Stage, address, endpoints, flow, frontend};
use super::*;
use Protocol::{Sctp, Tcp, Udp};

const VIP: &str = "10.96.0.10:53";
const NODE_PORT: &str = "192.168.0.2:30053";
const A: &str = "10.244.0.2:5353";
const B: &str = "10.244.0.3:5353";

fn selection(protocol: Protocol) -> Selection {
    Selection { family: Family::V4, protocol, established: false }
}

fn numbered(flows: impl IntoIterator<Item = Flow>) -> Vec<Flow> {
    flows.into_iter().zip(1..).map(|(flow, id)| Flow { id, ..flow }).collect()
}

fn to(protocol: Protocol, stage: Stage, destination: &str, endpoint: &str) -> Flow {
    flow(protocol, stage, address(destination), address(endpoint))
}

/// A reconciler for which nothing is due.
fn settled(protocol: Protocol, all: &[&str]) -> Reconciler {
    let mut reconciler = Reconciler::new();
    reconciler.set(frontend(protocol, VIP), endpoints(all));
    let mut kernel = Fake::default();
    reconciler.run(&mut kernel).unwrap();
    reconciler.run(&mut kernel).unwrap();
    assert_eq!(reconciler.due(), Due::Nothing);
    reconciler
}

fn ids(kernel: &Fake) -> Vec<u32> {
    kernel.flows.iter().map(|flow| flow.id).collect()
}

#[test]
fn the_first_run_deletes_stale_flows_and_keeps_others() {
    let mut kernel = Fake::new(numbered([
        to(Udp, Stage::Answered, VIP, A),
        to(Udp, Stage::Answered, VIP, B),
        to(Tcp, Stage::Answered, VIP, B),
        to(Tcp, Stage::Unanswered, VIP, B),
        to(Udp, Stage::Answered, "198.51.100.9:53", "198.51.100.9:53"),
    ]));
    let mut reconciler = Reconciler::new();
    [Udp, Tcp].into_iter().for_each(|protocol| reconciler.set(frontend(protocol, VIP), endpoints(&[A])));
    let report = reconciler.run(&mut kernel).unwrap();
    assert_eq!((report.dumped, report.deleted), (4, 2));
    assert_eq!(ids(&kernel), [1, 3, 5]);
}

#[test]
fn a_run_before_the_first_state_does_not_count_as_the_first() {
    let mut kernel = Fake::new([to(Tcp, Stage::Unanswered, VIP, B)]);
    let mut reconciler = Reconciler::new();
    assert_eq!(reconciler.run(&mut kernel).unwrap(), Report::default());
    reconciler.set(frontend(Tcp, VIP), endpoints(&[A]));
    assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
}

#[test]
fn only_a_change_that_can_make_flows_stale_reads_the_table() {
    let none: &[&str] = &[];
    // protocol, endpoints before and after (`None`: no frontend), whether a run is due
    for (protocol, before, after, expected) in [
        (Udp, Some(&[A][..]), Some(&[A][..]), false),
        (Udp, Some(&[A]), Some(&[A, B]), false),
        (Udp, Some(&[A, B]), Some(&[A]), true),
        (Udp, Some(&[A]), Some(&[B]), true),
        (Udp, Some(&[A]), Some(none), true),
        (Udp, Some(&[A]), None, true),
        (Udp, Some(none), Some(&[A]), true),
        (Udp, Some(none), None, false),
        (Udp, None, Some(&[A]), true),
        (Udp, None, Some(none), true),
        (Tcp, Some(&[A]), Some(&[A, B]), false),
        (Tcp, Some(&[A, B]), Some(&[A]), true),
        (Tcp, Some(&[A]), None, true),
        (Tcp, Some(none), Some(&[A]), false),
        (Tcp, None, Some(&[A]), false),
        (Sctp, None, Some(&[A]), true),
        (Sctp, Some(&[A, B]), Some(&[B]), true),
    ] {
        let mut reconciler = settled(protocol, before.unwrap_or(&[A]));
        let frontend = frontend(protocol, VIP);
        if before.is_none() {
            reconciler.remove(&frontend);
            for _ in 0..2 {
                reconciler.run(&mut Fake::default()).unwrap();
            }
        }
        match after {
            Some(after) => reconciler.set(frontend, endpoints(after)),
            None => reconciler.remove(&frontend),
        }
        assert_eq!(reconciler.is_due(), expected, "{protocol:?} {before:?} {after:?}");
        let mut kernel = Fake::default();
        reconciler.run(&mut kernel).unwrap();
        let dumps: &[Selection] = if expected { &[selection(protocol)] } else { &[] };
        assert_eq!(kernel.dumps, dumps, "{protocol:?} {before:?} {after:?}");
        assert_eq!(reconciler.due(), if expected { Due::Later } else { Due::Nothing });
    }
}

#[test]
fn flows_of_a_frontend_that_is_handed_over_stay() {
    for before in [&[A][..], &[B], &[]] {
        let mut reconciler = settled(Udp, before);
        reconciler.set(frontend(Udp, NODE_PORT), endpoints(&[A]));
        // Whatever the reconciler had to check, the other proxy now decides about the flow.
        reconciler.set(frontend(Udp, VIP), endpoints(&[]));
        reconciler.hand_over(&frontend(Udp, VIP));
        let mut kernel = Fake::new(numbered([
            to(Udp, Stage::Answered, VIP, A),
            to(Udp, Stage::Answered, VIP, B),
            to(Udp, Stage::Answered, NODE_PORT, B),
        ]));
        reconciler.recheck();
        reconciler.run(&mut kernel).unwrap();
        assert_eq!(ids(&kernel), [1, 2], "{before:?}");
        reconciler.set(frontend(Udp, VIP), endpoints(&[A]));
        reconciler.run(&mut kernel).unwrap();
        assert_eq!(ids(&kernel), [1], "{before:?}");
    }
}

#[test]
fn changes_of_tcp_alone_are_less_urgent() {
    let changed = |protocols: &[Protocol]| {
        let mut reconciler = settled(Tcp, &[A]);
        for protocol in protocols {
            reconciler.set(frontend(*protocol, VIP), endpoints(&[B]));
        }
        reconciler.due()
    };
    assert_eq!([changed(&[Tcp]), changed(&[Udp]), changed(&[Tcp, Sctp])], [Due::Soon, Due::Now, Due::Now]);
    let mut first = Reconciler::new();
    first.set(frontend(Tcp, VIP), endpoints(&[A]));
    assert_eq!(first.due(), Due::Now, "the first run checks all flows");
}

#[test]
fn a_change_that_is_reverted_makes_no_run_due() {
    for all in [&[A][..], &[]] {
        let mut reconciler = settled(Udp, all);
        reconciler.set(frontend(Udp, VIP), endpoints(&[B]));
        assert!(reconciler.is_due());
        reconciler.set(frontend(Udp, VIP), endpoints(all));
        assert_eq!(reconciler.due(), Due::Nothing);
    }
}

/// A Service was deleted and created again with the same endpoints before the next run. Flows that had begun in between stayed
/// untranslated.
#[test]
fn flows_that_began_while_a_frontend_was_away_are_deleted() {
    for all in [&[A][..], &[]] {
        let mut reconciler = settled(Udp, all);
        reconciler.remove(&frontend(Udp, VIP));
        reconciler.set(frontend(Udp, VIP), endpoints(all));
        let mut kernel = Fake::new([to(Udp, Stage::Answered, VIP, VIP)]);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1, "{all:?}");
    }
}

#[test]
fn a_failed_run_stays_due() {
    let flows = numbered([to(Udp, Stage::Answered, VIP, A), to(Udp, Stage::Answered, NODE_PORT, A)]);
    for (dump_fails, delete_fails) in [(true, false), (false, true)] {
        let mut reconciler = settled(Udp, &[A]);
        reconciler.set(frontend(Udp, VIP), endpoints(&[B]));
        let mut kernel = Fake { dump_fails, delete_fails, ..Fake::new(flows.clone()) };
        for _ in 0..3 {
            reconciler.run(&mut kernel).unwrap_err();
            assert!(reconciler.is_due());
        }
        kernel = Fake::new(kernel.flows);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
        assert!(!reconciler.is_due());
        assert_eq!(ids(&kernel), [2]);
    }
}

#[test]
fn flows_of_a_state_between_two_commits_are_deleted() {
    // The run after the commit of B failed. In the second row B was added and never checked, as additions need no run.
    for (between, fails) in [(&[B][..], true), (&[A, B], false)] {
        let mut reconciler = settled(Udp, &[A]);
        reconciler.set(frontend(Udp, VIP), endpoints(between));
        assert_eq!(reconciler.run(&mut Fake { dump_fails: fails, ..Fake::default() }).is_err(), fails);
        reconciler.set(frontend(Udp, VIP), endpoints(&[A]));
        assert!(reconciler.is_due());
        let mut kernel = Fake::new([to(Udp, Stage::Answered, VIP, B)]);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
    }
    let mut reconciler = settled(Udp, &[A]);
    let fleeting = frontend(Udp, NODE_PORT);
    reconciler.set(fleeting, endpoints(&[A]));
    reconciler.run(&mut Fake { dump_fails: true, ..Fake::default() }).unwrap_err();
    reconciler.remove(&fleeting);
    let mut kernel = Fake::new([to(Udp, Stage::Answered, NODE_PORT, A)]);
    assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
}

#[test]
fn a_follow_up_deletes_flows_that_the_run_missed() {
    let mut reconciler = settled(Udp, &[A]);
    reconciler.remove(&frontend(Udp, VIP));
    let mut kernel = Fake::default();
    reconciler.run(&mut kernel).unwrap();
    assert_eq!(reconciler.due(), Due::Later);
    kernel.flows.push(to(Udp, Stage::Answered, VIP, A));
    assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
    assert_eq!(reconciler.due(), Due::Later, "it found a stale flow");
    assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 0);
    assert_eq!(reconciler.due(), Due::Nothing);
    kernel.flows.push(to(Udp, Stage::Answered, VIP, A));
    reconciler.recheck();
    reconciler.run(&mut kernel).unwrap();
    assert_eq!(ids(&kernel), [1], "the frontend is foreign by now");
}

/// A client that receives answers without a pause: whenever its entry is deleted, a reply is in flight.
#[test]
fn follow_ups_continue_while_they_find_stale_flows_up_to_a_limit() {
    for (returns, follow_ups) in [(0, 1), (3, 4), (MAX_FOLLOW_UPS, MAX_FOLLOW_UPS), (u32::MAX, MAX_FOLLOW_UPS)] {
        let mut reconciler = settled(Udp, &[]);
        let backwards = to(Udp, Stage::Answered, VIP, VIP).reversed();
        reconciler.set(frontend(Udp, VIP), endpoints(&[A]));
        let mut kernel = Fake::new([backwards]);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
        let mut later = 0;
        while reconciler.due() == Due::Later {
            kernel.flows = if later < returns { vec![backwards] } else { Vec::new() };
            reconciler.run(&mut kernel).unwrap();
            later += 1;
        }
        assert_eq!((reconciler.due(), later), (Due::Nothing, follow_ups), "{returns}");
    }
}

#[test]
fn each_removal_of_a_frontend_gets_a_follow_up() {
    let mut reconciler = settled(Udp, &[A]);
    for _ in 0..2 {
        reconciler.set(frontend(Udp, VIP), endpoints(&[A]));
        reconciler.remove(&frontend(Udp, VIP));
        reconciler.recheck();
        reconciler.run(&mut Fake::default()).unwrap();
    }
    let mut kernel = Fake::new([to(Udp, Stage::Answered, VIP, A)]);
    assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);

    for _ in 0..2 {
        reconciler.remember(frontend(Udp, NODE_PORT));
        reconciler.run(&mut Fake::default()).unwrap();
    }
    let mut kernel = Fake::new([to(Udp, Stage::Answered, NODE_PORT, A)]);
    assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
}

#[test]
fn former_frontends_are_forgotten_while_others_change() {
    let mut reconciler = settled(Udp, &[A]);
    for port in 1..100 {
        let fleeting = Frontend::new(Udp, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
        reconciler.set(fleeting, endpoints(&[A]));
        reconciler.run(&mut Fake::default()).unwrap();
        reconciler.remove(&fleeting);
        reconciler.run(&mut Fake::default()).unwrap();
        assert!(reconciler.frontends.former().count() <= 2);
    }
}

#[test]
fn flows_to_a_remembered_frontend_are_deleted_unless_it_is_desired() {
    let flows = [to(Udp, Stage::Answered, NODE_PORT, A), to(Udp, Stage::Answered, VIP, A)];
    let mut reconciler = Reconciler::new();
    reconciler.remember(frontend(Udp, NODE_PORT));
    reconciler.set(frontend(Sctp, VIP), endpoints(&[A]));
    assert_eq!(reconciler.run(&mut Fake::new(numbered(flows))).unwrap().deleted, 1);

    let mut reconciler = settled(Udp, &[A]);
    reconciler.remember(frontend(Udp, VIP));
    reconciler.remember(frontend(Udp, NODE_PORT));
    assert!(reconciler.is_due());
    let mut kernel = Fake::new(numbered(flows));
    assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
    assert_eq!(ids(&kernel), [2], "the desired frontend keeps its flow");
}

#[test]
fn a_flow_that_is_dumped_twice_counts_once() {
    let mut kernel = Fake { shows_twice: true, ..Fake::new([to(Udp, Stage::Answered, VIP, A)]) };
    let mut reconciler = Reconciler::new();
    reconciler.set(frontend(Udp, VIP), endpoints(&[]));
    assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
}

#[test]
fn more_stale_flows_than_one_batch_are_all_deleted() {
    let many = (0..BATCH + 10).map(|_| to(Udp, Stage::Answered, VIP, B));
    let mut reconciler = settled(Udp, &[A, B]);
    reconciler.set(frontend(Udp, VIP), endpoints(&[A]));
    // All entries have one name, because the fake compares each with each.
    let mut kernel = Fake::new(many);
    assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, BATCH + 10);
    assert_eq!(kernel.dumps.len(), 2);
}
