//! Another program repeatedly deletes the rules of a backend. Measures the time until packets are answered as before.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::{contestants::Contestant, packets::await_all, site::Site, statistics::Times};

/// The number of flushes before a pause of [`CALM`]. A backend slows its repairs down after 50 of them without a pause, or earlier
/// if they take more than 3 s together. The benchmark avoids this, because a single flush is the realistic case.
const IN_A_ROW: usize = 20;
const CALM: Duration = Duration::from_secs(11);

/// From the end of each flush until the first and the last Service answer again, for at most `rounds` flushes that begin within
/// `repairing`. `None` if one of the Services did not answer in time.
pub(super) fn measure(
    site: &Site,
    contestant: &Contestant,
    rounds: usize,
    repairing: Duration,
    give_up: Duration,
) -> anyhow::Result<Option<Times>> {
    let vips = site.size.sample();
    let ends = [*vips.first().context("there are Services")?, *vips.last().context("there are Services")?];
    let (mut took, deadline) = (Vec::with_capacity(rounds), Instant::now() + repairing);
    for round in 1..=rounds {
        let (program, arguments) = match contestant.iptables() {
            Some(iptables) => (iptables, ["-t", "nat", "-F"].as_slice()),
            None => ("nft", ["delete", "table", "ip", "localnet"].as_slice()),
        };
        site.on_node(Command::new(program).args(arguments))?;
        let flushed = Instant::now();
        let Some(answered) = site.inside(|| await_all(&ends, true, flushed + give_up))? else { return Ok(None) };
        took.push(answered.saturating_duration_since(flushed));
        if Instant::now() >= deadline {
            break;
        }
        if round % IN_A_ROW == 0 && round < rounds {
            thread::sleep(CALM);
        }
    }
    Ok(Times::of(took))
}
