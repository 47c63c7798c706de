//! Laws of the clean-up, over small random worlds: what is foreign is never touched, what is stale never stays.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::Protocol::{Sctp, Tcp, Udp};
use super::fake::{Fake, Stage, flow};
use super::{Due, Endpoints, Flow, Frontend, Protocol, Reconciler, Status, is_stale};

/// A small world, so that flows and frontends meet.
fn address_of(pick: u8) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, pick % 5).into(), 53 + u16::from(pick / 5 % 2))
}

fn protocols() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Udp), Just(Tcp), Just(Sctp)]
}

fn worlds() -> impl Strategy<Value = HashMap<Frontend, Endpoints>> {
    let one = (protocols(), any::<u8>(), vec(any::<u8>(), 0..4)).prop_map(|(protocol, at, all)| {
        (Frontend::new(protocol, address_of(at)), all.into_iter().map(address_of).collect())
    });
    vec(one, 0..8).prop_map(|all| all.into_iter().collect())
}

fn tables() -> impl Strategy<Value = Vec<Flow>> {
    let stage = prop_oneof![Just(Stage::Unanswered), Just(Stage::Answered)];
    let one = (protocols(), stage, any::<u8>(), any::<u8>())
        .prop_map(|(protocol, stage, to, at)| flow(protocol, stage, address_of(to), address_of(at)));
    vec(one, 0..40).prop_map(|flows| flows.into_iter().zip(1..).map(|(flow, id)| Flow { id, ..flow }).collect())
}

proptest! {
    #[test]
    fn after_a_run_nothing_is_stale_and_nothing_else_was_touched(
        states in vec((worlds(), tables(), any::<bool>()), 1..6),
    ) {
        let mut reconciler = Reconciler::new();
        let mut ours = HashSet::new();
        for (desired, flows, fails) in states {
            ours.extend(desired.keys().copied());
            reconciler.desired(desired.clone());
            let due = reconciler.is_due();
            let mut kernel = Fake { dump_fails: fails, ..Fake::new(flows.clone()) };
            let ran = reconciler.run(&mut kernel);
            prop_assert!(ran.is_ok() || fails);
            let gone: Vec<_> = flows.iter().filter(|flow| !kernel.flows.contains(flow)).collect();
            for flow in gone {
                let frontend = Frontend::new(flow.protocol, flow.original.destination);
                prop_assert!(ours.contains(&frontend), "foreign: {}", flow);
                prop_assert!(!desired.get(&frontend).is_some_and(|all| all.contains(&flow.reply.source)), "{}", flow);
                prop_assert!(flow.protocol != Tcp || !flow.status.has(Status::SEEN_REPLY), "{}", flow);
            }
            if ran.is_ok() {
                for looked_at in kernel.dumps.clone() {
                    prop_assert!(
                        !kernel.flows.iter().any(|flow| looked_at.admits(flow) && is_stale(flow, reconciler.frontends()))
                    );
                }
                prop_assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 0);
                prop_assert_eq!(reconciler.due(), Due::Nothing);
            } else {
                prop_assert_eq!(reconciler.is_due(), due);
            }
        }
    }

    /// From an empty table, whatever changes: the flows of each moment are clean after a run that was wanted.
    #[test]
    fn a_run_that_is_not_wanted_would_have_found_nothing(before in worlds(), after in worlds()) {
        let mut reconciler = Reconciler::new();
        reconciler.desired(before.clone());
        for _ in 0..2 {
            reconciler.run(&mut Fake::default()).unwrap();
        }
        // All flows that the rules can have made before the change, and that passed by what was nobody's.
        let mut flows = Vec::new();
        for pick in 0..10 {
            for protocol in [Udp, Sctp] {
                let destination = address_of(pick);
                let made = |end| flow(protocol, Stage::Answered, destination, end);
                match before.get(&Frontend::new(protocol, destination)) {
                    Some(all) => flows.extend((0..10).map(address_of).filter(|end| all.contains(end)).map(made)),
                    None => flows.push(made(destination)),
                }
            }
        }
        let mut kernel = Fake::new(flows.into_iter().zip(1..).map(|(flow, id)| Flow { id, ..flow }));
        reconciler.desired(after);
        reconciler.run(&mut kernel).unwrap();
        let left = kernel.flows.clone();
        reconciler.recheck();
        reconciler.run(&mut kernel).unwrap();
        prop_assert_eq!(left, kernel.flows);
    }
}
