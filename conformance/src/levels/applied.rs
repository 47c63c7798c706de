//! Checks of the level `life`: a backend must not send the token of a state, or report it as applied, too early.

use anyhow::Context as _;

use super::fixture::{Life, command, serving};
use crate::outcome::Verdict;

/// When a backend sends the token of a state, it has applied that state, or will apply it without waiting for another
/// change.
pub(super) fn token_after_state(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    life.start()?;
    for pods in [1, 2, 1] {
        let revision = life.bench.brain.publish(&serving(pods));
        let what = format!("a request with the token of {revision}");
        life.bench.brain.wait(life.bench.options.patience, &what, |log| {
            log.calls.iter().any(|call| call.held == Some(revision)).then_some(())
        })?;
        // The backend may still be writing the state; it must finish even if no further change arrives.
        life.bench.await_state(revision, &serving(pods))?;
        life.await_packets(pods)?;
    }
    Ok(life.bench.verdict())
}

/// The backend retries a failed change without a further change from the brain. Until the retry succeeds, the backend does not
/// report the change as applied.
pub(super) fn apply_fails(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let (Some(obstruct), Some(clear)) = (life.bench.options.obstruct.clone(), life.bench.options.clear.clone()) else {
        return Ok(Verdict::NotClaimed("no --obstruct was given".to_owned()));
    };
    life.start()?;
    life.bench.apply(&serving(1))?;
    command(life, &obstruct)?;
    let answers_started = life.bench.brain.answers_started();
    let revision = life.bench.brain.publish(&serving(2));
    let what = "a retry after a failed change: the same request again, or a report of the error or of success";
    life.bench.brain.wait(life.bench.options.patience, what, |log| {
        let reported =
            log.reports.iter().any(|report| (report.instance_id, report.rev) == (revision.instance, revision.rev));
        let continued = log.calls.iter().any(|call| call.held == Some(revision));
        (log.answers_started >= answers_started + 2 || reported || continued).then_some(())
    })?;
    life.bench.ensure_not_applied(revision).context("while the kernel refuses changes")?;
    command(life, &clear)?;
    life.bench.await_state(revision, &serving(2)).context("once the kernel accepts changes again")?;
    life.await_packets(2)?;
    Ok(life.bench.verdict())
}
