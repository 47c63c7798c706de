//! The level `life`: failures that a backend must survive. If the backend claims packets, the checks also send packets.

use anyhow::Context as _;
use rustix::process::Signal;

use super::{
    Level, Options, applied,
    bench::{Bench, Node},
    check,
    fixture::{Life, PodNetwork, command, serving},
    run_concurrently, spread,
    states::{service, state},
    traffic,
};
use crate::{
    backend::Backend,
    claims::Claim,
    outcome::{Outcome, Verdict},
};

type Check = fn(&mut Life<'_>) -> anyhow::Result<Verdict>;

const CHECKS: &[(&str, Check)] = &[
    ("starts-without-a-brain", starts_without_a_brain),
    ("exits-on-signal", exits_on_signal),
    ("exits-on-signal-without-a-brain", exits_on_signal_without_a_brain),
    ("exits-on-signal-in-the-middle-of-an-answer", exits_on_signal_in_an_answer),
    ("killed-and-restarted", killed_and_restarted),
    ("killed-and-restarted-after-changes", killed_and_changed),
    ("killed-in-the-middle-of-an-answer", killed_in_the_middle),
    ("stalled", stalled),
    ("brain-unavailable-and-back", brain_unavailable_and_back),
    ("brain-unavailable-keeps-everything", brain_unavailable_keeps_everything),
    ("exit-keeps-everything", exit_keeps_everything),
    ("two-instances", two_instances),
    ("flushed-by-another-program", flushed),
    ("cleaned-up", cleaned_up),
    ("restarted-with-half-an-answer", traffic::half_an_answer),
    ("token-comes-after-the-state", applied::token_after_state),
    ("continues-after-an-apply-that-failed", applied::apply_fails),
    ("changes-interrupt-nothing", traffic::changes_interrupt_nothing),
    ("affinity-with-several-endpoints", traffic::affinity),
    ("weights-with-several-endpoints", spread::weights),
    ("hash-with-several-endpoints", spread::hash),
    ("stale-udp-flows-end", traffic::stale_udp),
];

pub(super) fn run(options: &Options, report: &(impl Fn(&Outcome) + Sync)) -> anyhow::Result<Vec<Outcome>> {
    let requested: Vec<_> = CHECKS.iter().filter(|(name, _)| options.selects(Level::Life, name)).collect();
    let outcome = |(name, done): &&(&str, Check)| {
        check(Level::Life, name, report, || {
            options.isolated(|| {
                let lab = PodNetwork::build()?;
                let node = lab.as_ref().map_or(Node::Here, |lab| Node::Lent(lab.network.node()));
                let bench = Bench::new(options, node)?;
                done(&mut Life { bench, lab: lab.as_ref() })
            })
        })
    };
    Ok(run_concurrently(options, &requested, outcome))
}

/// Waits until the backend has repeatedly tried to reach a brain that refuses its connections.
fn await_refused_connections(life: &mut Life<'_>) -> anyhow::Result<()> {
    const ATTEMPTS: usize = 3;
    life.bench.refuse_connections()?;
    let what = format!("{ATTEMPTS} attempts to reach a brain that refuses connections");
    let patience = life.bench.options.patience;
    let Bench { brain, backend, .. } = &mut life.bench;
    let mut is_alive = || {
        let alive = backend.as_mut().map_or(Ok(()), Backend::is_alive);
        alive.context("the backend ended while the brain was unavailable; it must wait")
    };
    brain.wait_while(patience, &what, &mut is_alive, |log| (log.refused_connections >= ATTEMPTS).then_some(()))?;
    is_alive()
}

fn starts_without_a_brain(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.bench.start_backend()?;
    await_refused_connections(life)?;
    life.bench.start_brain()?;
    life.bench.apply(&serving(2))?;
    life.packets(2)?;
    Ok(life.bench.verdict())
}

fn stop_and_check_exit(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let options = life.bench.options;
    let backend = life.bench.backend()?;
    backend.is_alive()?;
    backend.signal(options.stop)?;
    let ended = backend.await_exit(options.patience / 2).with_context(|| format!("after signal {:?}", options.stop))?;
    anyhow::ensure!(
        ended.success(),
        "after signal {:?}, the backend exited with {ended} instead of exit code 0{}",
        options.stop,
        backend.log_tail()
    );
    // The check concerns only the exit, so the check passes even if nothing has shown the backend's state.
    Ok(Verdict::Passed)
}

fn exits_on_signal(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    stop_and_check_exit(life)
}

fn exits_on_signal_without_a_brain(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    life.bench.brain.stop();
    stop_and_check_exit(life)
}

fn exits_on_signal_in_an_answer(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    leave_in_an_answer(life)?;
    stop_and_check_exit(life)
}

/// Publishes a state, and stalls the answer after two items, so that the backend waits for the rest.
fn leave_in_an_answer(life: &mut Life<'_>) -> anyhow::Result<()> {
    life.bench.brain.faults([crate::brain::Fault::Hang(2)]);
    life.bench.brain.publish(&serving(2));
    life.bench.brain.wait(life.bench.options.patience, "an answer", |log| (log.hung > 0).then_some(()))
}

fn kill(life: &mut Life<'_>) -> anyhow::Result<()> {
    let patience = life.bench.options.patience;
    let backend = life.bench.backend()?;
    backend.signal(Signal::KILL)?;
    backend.await_exit(patience).map(drop)
}

fn killed_and_restarted(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    let revision = life.bench.apply(&serving(2))?;
    let written = life.listing()?;
    kill(life)?;
    if proxies_in_process(life).is_none() {
        life.is_unchanged(2, &written).context("while the backend is not running")?;
    }
    life.bench.start_backend()?;
    life.bench.await_state(revision, &serving(2))?;
    life.eventually(|life| life.is_unchanged(2, &written))?;
    Ok(life.bench.verdict())
}

fn killed_and_changed(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(2))?;
    kill(life)?;
    let revision = life.bench.brain.publish(&serving(1));
    life.bench.start_backend()?;
    life.bench.await_state(revision, &serving(1))?;
    life.await_packets(1)?;
    // The successor also removes the service that the killed process wrote.
    life.bench.apply(&state([service(2, 0)]))?;
    Ok(life.bench.verdict())
}

fn killed_in_the_middle(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    leave_in_an_answer(life)?;
    kill(life)?;
    let revision = life.bench.brain.publish(&serving(2));
    life.bench.start_backend()?;
    life.bench.await_state(revision, &serving(2))?;
    life.await_packets(2)?;
    Ok(life.bench.verdict())
}

fn stalled(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    life.bench.backend()?.signal(Signal::STOP)?;
    for pods in 0..50 {
        life.bench.brain.publish(&serving(pods % 3));
    }
    let revision = life.bench.brain.publish(&serving(2));
    life.bench.backend()?.signal(Signal::CONT)?;
    life.bench.await_state(revision, &serving(2))?;
    life.await_packets(2)?;
    Ok(life.bench.verdict())
}

fn brain_unavailable_and_back(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    life.bench.apply(&serving(1))?;
    for pods in [2, 1, 2] {
        await_refused_connections(life)?;
        let revision = life.bench.brain.publish(&serving(pods));
        life.bench.start_brain()?;
        life.bench.await_state(revision, &serving(pods))?;
    }
    life.await_packets(2)?;
    Ok(life.bench.verdict())
}

fn brain_unavailable_keeps_everything(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    let revision = life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    let written = life.listing()?;
    await_refused_connections(life)?;
    if life.bench.backend()?.dumps() {
        life.bench.await_state(revision, &serving(2)).context("while the brain is unavailable")?;
    }
    life.is_unchanged(2, &written).context("while the brain is unavailable")?;
    Ok(life.bench.verdict())
}

/// "Not claimed" for a backend that proxies in its own process, because nothing remains in the kernel when it exits.
fn proxies_in_process(life: &Life<'_>) -> Option<Verdict> {
    let claims = &life.bench.options.claims;
    let itself = claims.has(Claim::Answers) && !claims.has(Claim::Source);
    itself.then(|| Verdict::NotClaimed("the backend proxies in its own process".to_owned()))
}

fn exit_keeps_everything(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    if let Some(itself) = proxies_in_process(life) {
        return Ok(itself);
    }
    life.start()?;
    life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    let written = life.listing()?;
    stop_and_check_exit(life)?;
    life.is_unchanged(2, &written).context("after its exit")?;
    Ok(life.bench.verdict())
}

/// Two backends run at the same time, as during a rolling update.
fn two_instances(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    if let Some(itself) = proxies_in_process(life) {
        return Ok(itself);
    }
    life.start()?;
    let revision = life.bench.apply(&serving(2))?;
    let first = life.bench.backend.take();
    life.bench.start_backend()?;
    life.bench.await_state(revision, &serving(2))?;
    drop(first);
    life.packets(2)?;
    life.bench.apply(&serving(1))?;
    life.await_packets(1)?;
    Ok(life.bench.verdict())
}

fn flushed(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let Some(flush) = life.bench.options.flush.clone() else {
        return Ok(Verdict::NotClaimed("no --flush was given".to_owned()));
    };
    if let Some(reason) = life.cannot_observe() {
        return Ok(reason);
    }
    life.start()?;
    life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    let written = life.listing()?;
    command(life, &flush)?;
    life.eventually(|life| life.is_unchanged(2, &written)).context("after another program removed all rules")?;
    Ok(life.bench.verdict())
}

fn cleaned_up(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let Some(cleanup) = life.bench.options.cleanup.clone() else {
        return Ok(Verdict::NotClaimed("no --cleanup was given".to_owned()));
    };
    if let Some(reason) = life.cannot_observe() {
        return Ok(reason);
    }
    let before = life.listing()?;
    life.start()?;
    life.bench.apply(&serving(2))?;
    life.await_packets(2)?;
    stop_and_check_exit(life)?;
    command(life, &cleanup)?;
    // The kernel may detach programs a few milliseconds after a backend has removed them.
    life.eventually(|life| {
        let blocked = life.claims_packets(2).is_none() || life.packets(2).is_err();
        anyhow::ensure!(blocked, "the backend's rules still work after --cleanup");
        Ok(())
    })?;
    let left = life.listing()?;
    anyhow::ensure!(left == before, "the listing was {before:#?} at first, and is {left:#?} after --cleanup");
    Ok(life.bench.verdict())
}
