//! Measures the change of one endpoint while many other Services change.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use super::change::Prober;
use crate::{
    api,
    figures::UnderLoad,
    options::Lengths,
    site::{Site, Team},
};

/// How long the load runs before the first measured change.
const WARM: Duration = Duration::from_secs(1);
/// The pause between two measured changes.
const PAUSE: Duration = Duration::from_millis(250);

pub(super) fn measure(site: &Site, team: &Team, lengths: &Lengths) -> anyhow::Result<UnderLoad> {
    let (cpu, surroundings, started) = (team.cpu()?, super::surroundings(site)?, Instant::now());
    let load = site.runtime.spawn(api::load(site.client(), site.size, lengths.rate, lengths.load, 0));
    let (change, ()) = Prober::with(site, |prober| {
        thread::sleep(WARM);
        while started.elapsed() < lengths.load.saturating_sub(PAUSE) {
            prober.change()?;
            thread::sleep(PAUSE.mul_f64(rand::random_range(0.8..1.2)));
        }
        Ok(())
    })?;
    let load = site.runtime.block_on(load).context("the task that loads")??;
    let (lasted, spent) = (started.elapsed().as_secs_f64(), (team.cpu()? - cpu).as_secs_f64());
    let surroundings = (super::surroundings(site)? - surroundings).as_secs_f64();
    Ok(UnderLoad {
        change,
        rate: load.changes as f64 / load.took.as_secs_f64(),
        seconds: load.took.as_secs_f64(),
        cpu_per_second: spent / lasted,
        surroundings_per_second: surroundings / lasted,
        memory: super::memory(team)?,
    })
}
