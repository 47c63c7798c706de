//! Which state a backend holds: those of all Cases, one after the other, to one backend. So each Case is also a change from
//! another one.

use localnet_lab::case::read_cases;

use super::{Level, Options, bench::Bench, check, states::of_case};
use crate::outcome::Outcome;

pub(super) fn run(options: &Options, tell: &impl Fn(&Outcome)) -> anyhow::Result<Vec<Outcome>> {
    let cases = read_cases(&options.cases)?;
    let mut bench = Bench::started(options)?;
    let mut outcomes = Vec::new();
    for case in cases.iter().filter(|case| options.asks_for(Level::State, &case.name)) {
        outcomes.push(check(Level::State, &case.name, tell, || {
            let state = of_case(&case.cluster(), &case.flows.node.name)?;
            // The next Case begins with a backend that runs, whatever became of this one.
            if bench.backend()?.is_alive().is_err() {
                bench.start_backend()?;
            }
            bench.apply(&state)?;
            Ok(bench.verdict())
        }));
    }
    Ok(outcomes)
}
