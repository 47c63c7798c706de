//! Measures a contestant step by step. The steps are the same for all contestants, and observe packets from outside.

pub(crate) mod alone;
mod change;
mod connect;
mod delete;
mod kills;
mod load;
mod readers;
mod repair;
pub(crate) mod start;
mod traffic;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use tokio::runtime::Handle;

use crate::{
    cluster::Size,
    contestants::{Contestant, EBPF, Role},
    figures::{Memory, Run},
    options::{Lengths, MAIN},
    plane, print_progress,
    quiet::settle,
    site::{Site, Team},
    usage,
};

/// The maximum sizes for which everything is deleted at the end: for contestants in the goals for large sizes, and for all
/// others. Above these, the API server alone needs minutes.
const DELETED_UP_TO: u32 = 10_000;
const ALL_DELETED_UP_TO: u32 = 1_000;

/// Measures one contestant at one size, in a new environment.
pub(crate) fn run(
    runtime: &Handle,
    contestant: &Contestant,
    size: Size,
    lengths: &Lengths,
    cache: &std::path::Path,
) -> anyhow::Result<Run> {
    let data = runtime.block_on(plane::filled(size, cache))?;
    let site = Site::build(runtime, size, plane::options(None, Some(data)))?;
    lengths.await_idle()?;
    print_progress(&format!("{} at {size}", contestant.name));
    let others = Others::begin(&site)?;
    let mut run = Run {
        contestant: contestant.name.to_owned(),
        services: size.services,
        endpoints: size.endpoints,
        affinity: size.affinity,
        ..Run::default()
    };
    let bare = connect::bare(&site, lengths.connections)?;
    let mut team = site.start(contestant)?;
    run.start = start::measure(&site, &mut team, lengths.give_up)?;
    if run.start.is_some() {
        settle()?;
        run.connect = Some(connect::measure(&site, bare, lengths.connections)?);
        run.traffic = Some(traffic::measure(&site, lengths.traffic, lengths.give_up)?);
        run.change = change::measure(&site, contestant.rest, lengths)?;
        run.load = Some(load::measure(&site, &team, lengths)?);
        if let Some(change) = &run.change
            && contestant.role == Role::Ours
            && size.services >= MAIN
        {
            settle()?;
            run.readers = Some(readers::measure(&site, &team, change, lengths)?);
        }
        let is_first = contestant.role == Role::Ours;
        // The ebpf backend checks its pins only every 10 s.
        if contestant.role != Role::Peer && contestant.name != EBPF {
            let repairs = if is_first { lengths.repairs } else { lengths.repairs_of_others };
            settle()?;
            run.repair = repair::measure(&site, contestant, repairs, lengths.repairing, lengths.give_up)?;
        }
        if size.services == MAIN || lengths.patience.is_none() {
            let kills = if is_first { lengths.kills } else { lengths.kills_of_others };
            settle()?;
            run.kills = Some(kills::measure(&site, contestant, &mut team, kills)?);
        }
        let deleted_up_to = if contestant.iptables().is_some() { ALL_DELETED_UP_TO } else { DELETED_UP_TO };
        if size.services <= deleted_up_to {
            settle()?;
            run.delete = Some(delete::measure(&site, &team, lengths.give_up)?);
        }
        team.check_alive(&site)?;
    }
    run.others_percent = others.end(&site, &team)?;
    Ok(run)
}

/// The memory of each process.
pub(crate) fn memory(team: &Team) -> anyhow::Result<BTreeMap<String, Memory>> {
    let of = |(name, process): (&str, u32)| {
        let (resident, peak) = usage::memory(process)?;
        Ok((name.to_owned(), Memory { resident, peak }))
    };
    team.processes().map(of).collect()
}

/// CPU time of programs that do not belong to the benchmark, and that the kernel does not spend in its own threads.
pub(crate) struct Others {
    began: Instant,
    busy: Duration,
    known: Duration,
    kernel: Duration,
}

impl Others {
    pub(crate) fn begin(site: &Site) -> anyhow::Result<Self> {
        let known = surroundings(site)? + orphans(site, &[])?;
        Ok(Self { began: Instant::now(), busy: usage::busy()?, known, kernel: usage::kernel_threads()? })
    }

    /// Returns this time in percent of all processors.
    pub(crate) fn end(self, site: &Site, team: &Team) -> anyhow::Result<f64> {
        let programs: Vec<u32> = team.processes().map(|(_, process)| process).collect();
        let known = (surroundings(site)? + team.cpu()? + orphans(site, &programs)?).saturating_sub(self.known);
        // A kernel thread that ends takes its time with it.
        let kernel = usage::kernel_threads()?.saturating_sub(self.kernel);
        let others = (usage::busy()? - self.busy).saturating_sub(known + kernel);
        let processors = std::thread::available_parallelism()?.get() as f64;
        Ok(others.as_secs_f64() / (self.began.elapsed().as_secs_f64() * processors) * 100.0)
    }
}

/// CPU time of what the killed programs of a contestant had started. kube-proxy's `nft`, for example, runs on for ten seconds.
fn orphans(site: &Site, programs: &[u32]) -> anyhow::Result<Duration> {
    let known: Vec<u32> = site.control_plane().chain(programs.iter().copied()).collect();
    usage::orphans(&known)
}

/// CPU time of the control plane and of this program.
pub(crate) fn surroundings(site: &Site) -> anyhow::Result<Duration> {
    let mut all = usage::own()?;
    for process in site.control_plane() {
        all += usage::cpu(process)?;
    }
    Ok(all)
}
