//! When a backend may say that it has a state: these checks of the level `life` look at its tokens and reports beside what it holds.

use anyhow::Context as _;
use localnet_proto::wire::NextFilter;

use super::life::{Life, command, serving};
use crate::outcome::Verdict;

/// Whoever asks for what comes after a state holds it already, or has kept it to try again.
pub(super) fn token_after_state(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    for pods in [1, 2, 1] {
        let revision = life.bench.brain.publish(&serving(pods));
        let what = format!("a call of Next with the token {revision}");
        life.bench.brain.wait(life.bench.options.patience, &what, |log| {
            let names = |call: &NextFilter| (call.instance_id, call.rev) == (revision.instance, revision.rev);
            log.calls.iter().any(names).then_some(())
        })?;
        // It may have kept the state and write it at this moment; without another change it has to come to it.
        life.bench.holds(revision, &serving(pods))?;
        life.await_packets(pods)?;
    }
    Ok(life.bench.verdict())
}

/// What cannot be written now is tried again, without another change; until then nobody says that it is there.
pub(super) fn apply_fails(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let (Some(obstruct), Some(clear)) = (life.bench.options.obstruct.clone(), life.bench.options.clear.clone()) else {
        return Ok(Verdict::NotClaimed("no --obstruct was given".to_owned()));
    };
    life.start()?;
    life.bench.apply(&serving(1))?;
    command(life, &obstruct)?;
    let begun = life.bench.brain.begun();
    let revision = life.bench.brain.publish(&serving(2));
    let what =
        "another attempt after one that failed: an answer asked for again, or a report with an error or of success";
    life.bench.brain.wait(life.bench.options.patience, what, |log| {
        let reported =
            log.reports.iter().any(|report| (report.instance_id, report.rev) == (revision.instance, revision.rev));
        let names = |call: &NextFilter| (call.instance_id, call.rev) == (revision.instance, revision.rev);
        (log.begun >= begun + 2 || reported || log.calls.iter().any(names)).then_some(())
    })?;
    life.bench.has_not(revision).context("while it cannot write")?;
    command(life, &clear)?;
    life.bench.holds(revision, &serving(2)).context("once it can write again")?;
    life.await_packets(2)?;
    Ok(life.bench.verdict())
}
