//! The level `state`: one backend receives the states of all Cases, one after the other. Each Case therefore also tests the
//! change from the previous Case.

use localnet_lab::case::read_cases;

use super::{Level, Options, bench::Bench, check, states::state_of_case};
use crate::outcome::Outcome;

pub(super) fn run(options: &Options, report: &(impl Fn(&Outcome) + Sync)) -> anyhow::Result<Vec<Outcome>> {
    options.isolated(|| one_after_the_other(options, report))
}

fn one_after_the_other(options: &Options, report: &impl Fn(&Outcome)) -> anyhow::Result<Vec<Outcome>> {
    let cases = read_cases(&options.cases)?;
    let mut bench = Bench::started(options)?;
    let mut outcomes = Vec::new();
    for case in cases.iter().filter(|case| options.selects(Level::State, &case.name)) {
        outcomes.push(check(Level::State, &case.name, report, || {
            let state = state_of_case(&case.cluster(), &case.flows.node.name)?;
            // The next Case needs a running backend, even if the previous Case made the backend exit.
            if bench.backend()?.is_alive().is_err() {
                bench.start_backend()?;
            }
            bench.apply(&state)?;
            Ok(bench.verdict())
        }));
    }
    Ok(outcomes)
}
