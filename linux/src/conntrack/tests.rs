//! Properties of the clean-up over small random states: it never touches a foreign flow, and leaves no stale one.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};

use localnet_core::Protocol::{self, Sctp, Tcp, Udp};
use proptest::collection::vec;
use proptest::prelude::*;

use super::testing::{Fake, Stage, flow};
use super::{Due, Endpoints, Flow, Frontend, Reconciler, Status, is_stale};

/// One of ten addresses and ports. There are few, so that flows and frontends meet.
fn address_of(pick: u8) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, pick % 5).into(), 53 + u16::from(pick / 5 % 2))
}

fn protocols() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Udp), Just(Tcp), Just(Sctp)]
}

fn desired_states() -> impl Strategy<Value = HashMap<Frontend, Endpoints>> {
    let one = (protocols(), any::<u8>(), vec(any::<u8>(), 0..4)).prop_map(|(protocol, at, all)| {
        (Frontend::new(protocol, address_of(at)), all.into_iter().map(address_of).collect())
    });
    vec(one, 0..8).prop_map(|all| all.into_iter().collect())
}

fn tables() -> impl Strategy<Value = Vec<Flow>> {
    let stage = prop_oneof![Just(Stage::Unanswered), Just(Stage::Answered)];
    let one = (protocols(), stage, any::<u8>(), any::<u8>(), any::<bool>()).prop_map(
        |(protocol, stage, to, at, reversed)| {
            let flow = flow(protocol, stage, address_of(to), address_of(at));
            if reversed { flow.reversed() } else { flow }
        },
    );
    vec(one, 0..40).prop_map(|flows| flows.into_iter().zip(1..).map(|(flow, id)| Flow { id, ..flow }).collect())
}

/// Replaces the frontends of a reconciler, which are `current`.
fn replace(
    reconciler: &mut Reconciler,
    current: &mut HashMap<Frontend, Endpoints>,
    desired: &HashMap<Frontend, Endpoints>,
) {
    current.keys().filter(|frontend| !desired.contains_key(frontend)).for_each(|frontend| reconciler.remove(frontend));
    desired.iter().for_each(|(frontend, endpoints)| reconciler.set(*frontend, endpoints.clone()));
    current.clone_from(desired);
}

proptest! {
    #[test]
    fn after_a_run_nothing_is_stale_and_nothing_else_was_touched(
        states in vec((desired_states(), tables(), any::<bool>()), 1..6),
    ) {
        let mut reconciler = Reconciler::new();
        let (mut ours, mut current) = (HashSet::new(), HashMap::new());
        for (desired, flows, fails) in states {
            ours.extend(desired.keys().copied());
            replace(&mut reconciler, &mut current, &desired);
            let due = reconciler.is_due();
            let mut kernel = Fake { dump_fails: fails, ..Fake::new(flows.clone()) };
            let ran = reconciler.run(&mut kernel);
            prop_assert!(ran.is_ok() || fails);
            let deleted: Vec<_> = flows.iter().filter(|flow| !kernel.flows.contains(flow)).collect();
            for flow in deleted {
                let (to, from) = (flow.original.destination, flow.original.source);
                let of_ours = |at| ours.contains(&Frontend::new(flow.protocol, at));
                prop_assert!(of_ours(to) || of_ours(from), "foreign: {}", flow);
                let served = |at, end| {
                    let endpoints: Option<&Endpoints> = desired.get(&Frontend::new(flow.protocol, at));
                    endpoints.is_some_and(|all| all.contains(end))
                };
                let serves = if of_ours(to) { served(to, &flow.reply.source) } else { served(from, &from) };
                prop_assert!(!serves, "{}", flow);
                prop_assert!(flow.protocol != Tcp || !flow.status.has(Status::SEEN_REPLY), "{}", flow);
            }
            if ran.is_ok() {
                for checked in kernel.dumps.clone() {
                    prop_assert!(
                        !kernel.flows.iter().any(|flow| checked.admits(flow) && is_stale(flow, reconciler.frontends()))
                    );
                }
                prop_assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 0);
                prop_assert_eq!(reconciler.due(), Due::Nothing);
            } else {
                prop_assert_eq!(reconciler.is_due(), due);
            }
        }
    }

    /// If a run does not read the table, no flow was stale. Later runs make up for a failed one.
    #[test]
    fn no_stale_flow_survives_whatever_failed_before(
        history in vec((desired_states(), any::<bool>()), 1..6), last in desired_states(),
    ) {
        let mut reconciler = Reconciler::new();
        let mut kernel = Fake::default();
        let (mut ours, mut current) = (HashSet::new(), HashMap::new());
        for (desired, fails) in history.into_iter().chain([(last.clone(), false)]) {
            ours.extend(desired.keys().copied());
            replace(&mut reconciler, &mut current, &desired);
            make_flows(&desired, &mut kernel);
            (kernel.dump_fails, kernel.delete_fails) = (fails, false);
            prop_assert!(reconciler.run(&mut kernel).is_ok() || fails);
            make_flows(&desired, &mut kernel);
        }
        for flow in &kernel.flows {
            let frontend = Frontend::new(flow.protocol, flow.original.destination);
            match last.get(&frontend) {
                Some(all) => prop_assert!(all.contains(&flow.reply.source), "{}", flow),
                None => prop_assert!(!flow.status.has(Status::DESTINATION_NAT), "{}", flow),
            }
        }
    }
}

/// Adds every flow that can begin while the rules for `desired` are in force, unless one like it exists. Where a frontend has
/// no endpoints, the rules let no flow begin. Flows to foreign destinations pass untranslated.
fn make_flows(desired: &HashMap<Frontend, Endpoints>, kernel: &mut Fake) {
    for destination in (0..10).map(address_of) {
        for protocol in [Udp, Sctp] {
            let ends: Vec<_> = match desired.get(&Frontend::new(protocol, destination)) {
                Some(all) => (0..10).map(address_of).filter(|end| all.contains(end)).collect(),
                None => vec![destination],
            };
            for end in ends {
                let id = kernel.flows.iter().map(|flow| flow.id).max().unwrap_or(0) + 1;
                let made = Flow { id, ..flow(protocol, Stage::Answered, destination, end) };
                if !kernel
                    .flows
                    .iter()
                    .any(|flow| (flow.protocol, flow.original, flow.reply) == (protocol, made.original, made.reply))
                {
                    kernel.flows.push(made);
                }
            }
        }
    }
}
