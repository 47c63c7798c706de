//! Whether the machine is idle, which decides whether figures are published.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};

use crate::{machine::Machine, print_progress, usage};

/// The share of all processors' time in percent that other programs may use during a measurement.
const OTHERS: f64 = 5.0;
/// The number of busy processors at which the machine counts as idle.
const IDLE: f64 = 0.1;

/// Waits until the machine is idle, because other programs may use it, too. Goes on after ten seconds. Returns the number of busy processors.
pub(crate) fn settle() -> anyhow::Result<f64> {
    const LOOK: Duration = Duration::from_millis(500);
    const LOOKS: u32 = 20;
    let mut processors = f64::MAX;
    for _ in 0..LOOKS {
        let (busy, began) = (usage::busy()?, Instant::now());
        thread::sleep(LOOK);
        processors = (usage::busy()? - busy).as_secs_f64() / began.elapsed().as_secs_f64();
        if processors < IDLE {
            break;
        }
    }
    Ok(processors)
}

/// Waits until the machine is idle. Fails if it is still not idle after `patience`.
pub(crate) fn wait(patience: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let processors = settle()?;
        if processors < IDLE {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "other programs keep {processors:.1} processors busy, so the times would be too long: end these programs, or run \
             `make bench QUICK=1`, which publishes nothing"
        );
        print_progress(&format!("waiting for an idle machine: {processors:.1} processors are busy"));
    }
}

/// Writes figures with `write`: to `to`, or to `instead` if there is an objection, which is then the error.
pub(crate) fn publish(
    objection: Option<String>,
    [to, instead]: [&Path; 2],
    write: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Some(objection) = objection else { return write(to) };
    write(instead)?;
    bail!("the figures are in {}, and not published: {objection}", instead.display())
}

/// Why the figures must not be published. Each run has a description, and the share of all processors' time in percent that other
/// programs used.
pub(crate) fn objection(machine: &Machine, mut runs: impl Iterator<Item = (String, f64)>) -> Option<String> {
    let revision = &machine.revision;
    if revision.ends_with("-dirty") || revision == "unknown" {
        return Some(format!("no one can check out the measured revision, {revision}: commit the changes first"));
    }
    let (run, others) = runs.find(|(_, others)| *others > OTHERS)?;
    Some(format!(
        "other programs used {others:.0} % of the processors while {run} was measured; the limit is {OTHERS} %"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_figures_of_an_idle_machine_and_a_commit_are_published() {
        for (revision, others, expected) in [
            ("6ec08c261dec", 1.0, None),
            ("6ec08c261dec-dirty", 1.0, Some("commit the changes")),
            ("unknown", 1.0, Some("check out")),
            ("6ec08c261dec", 11.0, Some("11 % of the processors while localnet-nft at 10x3 was measured")),
        ] {
            let machine = Machine { revision: revision.to_owned(), ..Machine::default() };
            let objection = objection(&machine, [("localnet-nft at 10x3".to_owned(), others)].into_iter());
            assert_eq!(objection.is_some(), expected.is_some(), "{objection:?}");
            assert!(
                expected.is_none_or(|part| objection.as_ref().is_some_and(|text| text.contains(part))),
                "{objection:?}"
            );
        }
    }
}
