//! The level `wire`: how a backend reads streams. Each check has a brain and a backend of its own.

use std::time::Duration;

use localnet_proto::{Facts, Protocol, Revision, Service, ServiceKey, Snapshot};
use tonic::Code;

use super::{
    Level, Options,
    bench::Bench,
    check, run_concurrently,
    states::{dual_stack, endpoint, named, pod, port, service, state},
};
use crate::{
    brain::{Edit, Fault, Log, Package},
    outcome::{Outcome, Verdict},
};

/// How many connections an idle backend may have open.
const MAX_IDLE_CONNECTIONS: u16 = 4;

type Check = fn(&mut Bench<'_>) -> anyhow::Result<()>;

const CHECKS: &[(&str, Check)] = &[
    ("first-state", |bench| step(bench, &[state([service(1, 2)])])),
    ("empty-state", |bench| step(bench, &[state([])])),
    ("starts-without-a-token", starts_without_a_token),
    ("continues-with-the-token-of-the-last-answer", continues_with_the_token),
    ("connections-do-not-accumulate", connections_do_not_accumulate),
    ("service-added", |bench| step(bench, &[state([service(1, 1)]), state([service(1, 1), service(2, 1)])])),
    ("service-changed", |bench| step(bench, &[state([service(1, 1)]), state([at_port(service(1, 1), 81)])])),
    ("service-removed", |bench| step(bench, &[state([service(1, 1), service(2, 1)]), state([service(2, 1)])])),
    ("service-removed-and-back", |bench| {
        let with = || state([service(1, 1), service(2, 1)]);
        step(bench, &[with(), state([service(2, 1)]), with()])
    }),
    ("service-renamed", |bench| {
        step(bench, &[state([named("old", 1, "http", 1)]), state([named("new", 1, "http", 1)])])
    }),
    ("everything-removed", |bench| step(bench, &[state([service(1, 1), service(2, 3)]), state([])])),
    ("one-removed-of-many", |bench| {
        let many = |without: u16| state((1..=300).filter(|number| *number != without).map(|number| service(number, 2)));
        step(bench, &[many(0), many(150)])
    }),
    ("endpoint-added", |bench| step(bench, &[state([service(1, 1)]), state([service(1, 2)])])),
    ("endpoint-removed", |bench| step(bench, &[state([service(1, 3)]), state([service(1, 2)])])),
    ("endpoint-replaced", |bench| {
        let other = Service { endpoints: vec![endpoint(pod(9), "http", 8080)], ..service(1, 1) };
        step(bench, &[state([service(1, 1)]), state([other])])
    }),
    ("last-endpoint-removed", |bench| step(bench, &[state([service(1, 1)]), state([service(1, 0)])])),
    ("endpoint-on-another-port", |bench| {
        let other = Service { endpoints: vec![endpoint(pod(0), "http", 9090)], ..service(1, 1) };
        step(bench, &[state([service(1, 1)]), state([other])])
    }),
    ("endpoint-in-another-scope", |bench| {
        let mut other = service(1, 2);
        other.endpoints[0].scopes.internal = false;
        step(bench, &[state([service(1, 2)]), state([other])])
    }),
    ("port-added", |bench| {
        let mut other = service(1, 1);
        other.ports.push(port("metrics", Protocol::Tcp, 9000));
        step(bench, &[state([service(1, 1)]), state([other])])
    }),
    ("address-changed", |bench| {
        let other = Service { cluster_ips: vec![super::states::vip(77).into()], ..service(1, 1) };
        step(bench, &[state([service(1, 1)]), state([other])])
    }),
    ("node-changed", |bench| {
        let mut other = state([service(1, 1)]);
        other.node.zone = "zone-b".to_owned();
        step(bench, &[state([service(1, 1)]), other])
    }),
    ("port-without-a-name", |bench| step(bench, &[state([named("web", 1, "", 2)])])),
    ("both-families", |bench| step(bench, &[state([dual_stack(1)])])),
    ("one-name-in-two-namespaces", |bench| {
        let other = Service { key: ServiceKey::new("shop", "web-1"), ..service(2, 1) };
        step(bench, &[state([service(1, 1), other.clone()]), state([other])])
    }),
    ("session-affinity", |bench| {
        step(
            bench,
            &[state([Service { client_ip_affinity: Some(600.into()), ..service(1, 2) }]), state([service(1, 2)])],
        )
    }),
    ("udp-and-tcp-on-one-port", |bench| {
        let mut both = service(1, 1);
        both.ports = vec![port("dns", Protocol::Udp, 53), port("dns-tcp", Protocol::Tcp, 53)];
        both.endpoints = vec![endpoint(pod(0), "dns", 53)];
        step(bench, &[state([both])])
    }),
    ("cut-before-anything", |bench| cut(bench, Fault::Cut(0, Code::Unavailable))),
    ("cut-after-the-token", |bench| cut(bench, Fault::Cut(1, Code::Unavailable))),
    ("cut-after-the-node", |bench| cut(bench, Fault::Cut(2, Code::Unavailable))),
    ("cut-in-the-middle", |bench| cut(bench, Fault::Cut(3, Code::Unavailable))),
    ("cut-after-the-last-item", |bench| cut(bench, Fault::Cut(usize::MAX, Code::Unavailable))),
    ("continues-after-aborted", |bench| cut(bench, Fault::Cut(3, Code::Aborted))),
    ("continues-after-internal", |bench| cut(bench, Fault::Cut(3, Code::Internal))),
    ("continues-after-resource-exhausted", |bench| cut(bench, Fault::Cut(3, Code::ResourceExhausted))),
    ("continues-after-permission-denied", |bench| cut(bench, Fault::Cut(0, Code::PermissionDenied))),
    ("continues-after-unknown", |bench| cut(bench, Fault::Cut(3, Code::Unknown))),
    ("connection-lost-in-an-answer", connection_lost),
    ("connection-lost-while-waiting", connection_lost_while_waiting),
    ("another-brain-with-the-same-state", |bench| {
        let same = || state([service(1, 1), service(2, 1)]);
        another_brain(bench, &same(), &same())
    }),
    ("another-brain-with-less", |bench| {
        another_brain(bench, &state([service(1, 1), service(2, 1)]), &state([service(2, 1)]))
    }),
    ("another-brain-with-nothing", |bench| another_brain(bench, &state([service(1, 1)]), &state([]))),
    ("full-state-instead-of-a-delta", |bench| {
        bench.apply(&state([service(1, 1), service(2, 1)]))?;
        bench.brain.faults([Fault::Full]);
        bench.apply(&state([service(2, 1)]))?;
        bench.apply(&state([service(2, 2)])).map(drop)
    }),
    ("wrong-digest", |bench| loses_something(bench, Edit::WrongDigest)),
    ("wrong-digest-of-a-full-state", wrong_full_state),
    ("wrong-base", |bench| loses_something(bench, Edit::WrongBase)),
    ("keeps-the-sum-of-digests", keeps_the_sum),
    ("no-commit", no_commit),
    ("service-replaced", service_replaced),
    ("unknown-fields", |bench| edited(bench, Edit::UnknownFields, &state([service(1, 2)]))),
    ("unknown-items", |bench| edited(bench, Edit::UnknownItems, &state([service(1, 2)]))),
    ("unknown-protocol", |bench| edited(bench, Edit::UnknownProtocol, &state([service(1, 2)]))),
    ("unknown-verdict", |bench| edited(bench, Edit::UnknownVerdict, &state([service(1, 0)]))),
    ("service-in-several-items", |bench| step(bench, &[state([service(1, 2500)]), state([service(1, 3)])])),
    ("many-services", |bench| {
        let many = |count: u16| state((1..=count).map(|number| service(number, 3)));
        step(bench, &[many(2000), many(1999)])
    }),
    ("large-item", |bench| {
        // Each package has only one of these texts.
        let text = "x".repeat(3_500_000);
        let facts = Facts { app_protocols: [("http".into(), text.as_str().into())].into(), ..Facts::default() };
        let large = Service { kind: text.into(), facts: Some(facts.into()), ..service(1, 1) };
        step(bench, &[state([large]), state([service(1, 1)])])
    }),
    ("slow-answer", |bench| {
        bench.brain.faults([Fault::Slow(Duration::from_millis(300))]);
        step(bench, &[state([service(1, 1), service(2, 1)])])
    }),
    ("a-hundred-changes", |bench| {
        bench.apply(&state([service(1, 1)]))?;
        for count in 2..=100 {
            bench.brain.publish(&state([service(1, count % 7), service(2, count)]));
        }
        bench.apply(&state([service(1, 3)])).map(drop)
    }),
];

/// The checks that need only the backend's requests. The other checks also need to observe the backend's state.
const BY_CALLS: &[&str] = &[
    "starts-without-a-token",
    "continues-with-the-token-of-the-last-answer",
    "connections-do-not-accumulate",
    "connection-lost-while-waiting",
    "cut-before-anything",
    "continues-after-permission-denied",
];

/// The checks of what only `localnet.v1` has.
const OF_V1: &[&str] = &[
    "wrong-digest",
    "wrong-digest-of-a-full-state",
    "wrong-base",
    "keeps-the-sum-of-digests",
    "no-commit",
    "service-replaced",
];

pub(super) fn run(options: &Options, report: &(impl Fn(&Outcome) + Sync)) -> anyhow::Result<Vec<Outcome>> {
    let requested: Vec<_> = CHECKS.iter().filter(|(name, _)| options.selects(Level::Wire, name)).collect();
    let outcome = |(name, done): &&(&str, Check)| {
        check(Level::Wire, name, report, || {
            options.isolated(|| {
                let mut bench = Bench::started(options)?;
                if OF_V1.contains(name) && package(&mut bench)? == Package::Localnetv1 {
                    return Ok(Verdict::NotClaimed("the backend reads localnetv1, not localnet.v1".to_owned()));
                }
                done(&mut bench)?;
                bench.backend()?.is_alive()?;
                Ok(if BY_CALLS.contains(name) { Verdict::Passed } else { bench.verdict() })
            })
        })
    };
    Ok(run_concurrently(options, &requested, outcome))
}

/// Publishes the states in order. After each state, waits until the backend holds it.
fn step(bench: &mut Bench<'_>, states: &[Snapshot]) -> anyhow::Result<()> {
    states.iter().try_for_each(|state| bench.apply(state).map(drop))
}

fn at_port(mut service: Service, number: u16) -> Service {
    service.ports[0].port = number;
    service
}

fn starts_without_a_token(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.apply(&state([service(1, 1)]))?;
    let first = bench.brain.wait(bench.options.patience, "a request for a state", |log| log.calls.first().copied())?;
    anyhow::ensure!(
        first.held == Some(Revision::default()),
        "the backend had not received a state yet, but its first request was one of {first}"
    );
    Ok(())
}

fn continues_with_the_token(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for count in 1..=3 {
        let revision = bench.apply(&state([service(1, count)]))?;
        await_token(bench, revision)?;
    }
    Ok(())
}

/// A backend needs one connection for `Next` and one for reports. A backend that opens a connection for each call must close it.
fn connections_do_not_accumulate(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for count in 1..=2 * MAX_IDLE_CONNECTIONS {
        let revision = bench.apply(&state([service(1, count)]))?;
        await_token(bench, revision)?;
    }
    let what = format!("at most {MAX_IDLE_CONNECTIONS} open connections after {} calls", 2 * MAX_IDLE_CONNECTIONS);
    bench.brain.wait(bench.options.patience, &what, |log| (log.open <= MAX_IDLE_CONNECTIONS.into()).then_some(()))
}

/// Waits for a request with the token of this state, and returns its index.
fn await_token(bench: &Bench<'_>, revision: Revision) -> anyhow::Result<usize> {
    let what = format!("a request with the token of the last answer, {revision}");
    bench.brain.wait(bench.options.patience, &what, |log| log.calls.iter().position(|call| call.held == Some(revision)))
}

/// A stream that is cut has no effect: the backend requests the answer again, and applies no part of the incomplete answer.
fn cut(bench: &mut Bench<'_>, fault: Fault) -> anyhow::Result<()> {
    let before = state([service(1, 1), service(2, 1), service(3, 1)]);
    let held = bench.apply(&before)?;
    await_token(bench, held)?;
    bench.brain.faults([fault, Fault::Hold]);
    let after = state([service(2, 2), service(3, 2), service(4, 1)]);
    let revision = bench.brain.publish(&after);
    await_repeated_request(bench, held, revision)?;
    bench.brain.release();
    bench.await_state(revision, &after)
}

/// Waits until the backend repeats its request after a cut answer. Checks that the request has the token
/// of `held` or no token, and that the backend does not report the incomplete state `cut` as applied. Returns the state that the
/// request identifies.
fn await_repeated_request(bench: &mut Bench<'_>, held: Revision, cut: Revision) -> anyhow::Result<Revision> {
    bench
        .brain
        .wait(bench.options.patience, "another request after the stream was cut", |log| (log.held > 0).then_some(()))?;
    let last = bench.brain.wait(bench.options.patience, "a request", |log| log.calls.last().copied())?;
    anyhow::ensure!(
        [Some(held), Some(Revision::default())].contains(&last.held),
        "after a stream of {cut} was cut, the backend sent a request of {last}, instead of one with the token of {held}"
    );
    bench.ensure_not_applied(cut)?;
    Ok(last.held.unwrap_or_default())
}

fn connection_lost(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let held = bench.apply(&state([service(1, 1), service(2, 1)]))?;
    await_token(bench, held)?;
    bench.brain.faults([Fault::Hang(2), Fault::Hold]);
    let after = state([service(2, 2)]);
    let revision = bench.brain.publish(&after);
    bench.brain.wait(bench.options.patience, "an answer", |log| (log.hung > 0).then_some(()))?;
    bench.start_brain()?;
    await_repeated_request(bench, held, revision)?;
    bench.brain.release();
    bench.await_state(revision, &after)
}

fn connection_lost_while_waiting(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let held = bench.apply(&state([service(1, 1)]))?;
    await_token(bench, held)?;
    let calls = bench.brain.calls();
    bench.start_brain()?;
    bench.brain.wait(bench.options.patience, "another request after the connection was lost", |log| {
        (log.calls.len() > calls).then_some(())
    })?;
    bench.apply(&state([service(1, 2)])).map(drop)
}

/// The package that the backend reads.
fn package(bench: &mut Bench<'_>) -> anyhow::Result<Package> {
    let call = bench.brain.wait(bench.options.patience, "a request for a state", |log| log.calls.first().copied())?;
    Ok(call.package)
}

/// A backend that has lost something calls again without a token, and applies no part of the answer.
fn loses_something(bench: &mut Bench<'_>, edit: Edit) -> anyhow::Result<()> {
    let held = bench.apply(&state([service(1, 1), service(2, 1)]))?;
    await_token(bench, held)?;
    bench.brain.faults([Fault::Edit(edit), Fault::Hold]);
    let after = state([service(2, 2), service(3, 1)]);
    let revision = bench.brain.publish(&after);
    let requested = await_repeated_request(bench, held, revision)?;
    anyhow::ensure!(
        requested == Revision::default(),
        "the answer did not match state {held}; expected a request without a token, got one with the token of that state"
    );
    bench.brain.release();
    bench.await_state(revision, &after)
}

/// A backend reads a full state with a wrong sum again, and applies no part of it.
fn wrong_full_state(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.brain.faults([Fault::Edit(Edit::WrongDigest), Fault::Hold]);
    let first = state([service(1, 1), service(2, 1)]);
    let revision = bench.brain.publish(&first);
    await_repeated_request(bench, Revision::default(), revision)?;
    bench.brain.release();
    bench.await_state(revision, &first)
}

/// A backend whose sum is wrong gets the full state again, which costs as much as the whole state.
fn keeps_the_sum(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut zone = state([service(1, 1), service(3, 2)]);
    zone.node.zone = "zone-b".to_owned();
    let states = [
        state([service(1, 3), service(2, 1)]),
        state([service(1, 2), service(2, 1)]),
        state([at_port(service(1, 2), 81), service(2, 1)]),
        state([service(1, 1)]),
        state([service(1, 1), service(3, 2)]),
        zone,
    ];
    for state in &states {
        let revision = bench.apply(state)?;
        await_token(bench, revision)?;
    }
    let without_token = |log: &Log| log.calls.iter().filter(|call| call.held == Some(Revision::default())).count();
    let full = bench.brain.wait(bench.options.patience, "requests", |log| Some(without_token(log)))?;
    anyhow::ensure!(full == 1, "the backend sent {full} requests without a token, although it has lost nothing");
    Ok(())
}

/// An answer without its end never happened, even if the stream ends with OK.
fn no_commit(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    cut(bench, Fault::Edit(Edit::NoCommit))
}

/// The brain sends a Service that was deleted and created again completely, and none of its former endpoints.
fn service_replaced(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let held = bench.apply(&state([service(1, 3), service(2, 1)]))?;
    await_token(bench, held)?;
    bench.brain.faults([Fault::Hold]);
    bench.brain.publish(&state([service(2, 1)]));
    bench.brain.wait(bench.options.patience, "a request", |log| (log.held > 0).then_some(()))?;
    let other = Service { endpoints: vec![endpoint(pod(9), "http", 8080)], ..service(1, 1) };
    let after = state([other, service(2, 1)]);
    let revision = bench.brain.publish(&after);
    bench.brain.release();
    bench.await_state(revision, &after)
}

/// Another brain counts revisions from 1 again, so a lower revision can be newer.
fn another_brain(bench: &mut Bench<'_>, before: &Snapshot, after: &Snapshot) -> anyhow::Result<()> {
    bench.apply(&state([service(9, 1)]))?;
    let held = bench.apply(before)?;
    await_token(bench, held)?;
    bench.brain.stop();
    bench.brain.forget();
    let revision = bench.brain.publish(after);
    bench.start_brain()?;
    bench.await_state(revision, after)?;
    await_token(bench, revision).map(drop)
}

/// `edit` modifies the first answer. A backend that ignores unknown content still reads `state`.
fn edited(bench: &mut Bench<'_>, edit: Edit, state: &Snapshot) -> anyhow::Result<()> {
    bench.brain.faults([Fault::Edit(edit)]);
    bench.apply(state)?;
    bench.apply(&super::states::state([service(1, 1), service(2, 1)])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = CHECKS.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), CHECKS.len());
        assert!(BY_CALLS.iter().chain(OF_V1).all(|name| names.contains(name)));
    }
}
