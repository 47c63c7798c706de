//! Kills each program of a contestant with SIGKILL and starts it again, while a pod opens connections.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::change::Prober;
use crate::{
    contestants::Contestant,
    figures::Kills,
    packets::{Answer, ask},
    site::{Site, Team},
    statistics::Times,
};

/// Connections per second to a sample of the Services.
const RATE: f64 = 500.0;
/// How long a connection may take. A lost packet is sent again after a second, which counts as a failure.
const PATIENCE: Duration = Duration::from_millis(900);

/// Kills each program `kills` times. After each start, changes an endpoint, and waits until packets show the change.
pub(super) fn measure(site: &Site, contestant: &Contestant, team: &mut Team, kills: usize) -> anyhow::Result<Kills> {
    let sample = site.size.sample();
    let names: Vec<&str> = team.processes().map(|(name, _)| name).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| site.inside(|| connect(&sample, &stop)));
        let killed = Prober::with(site, |prober| {
            let mut took = Vec::new();
            for name in &names {
                for _ in 0..kills {
                    let restarted = site.restart(contestant, team, name)?;
                    took.extend(prober.change()?.map(|seen| seen.saturating_duration_since(restarted)));
                }
            }
            Ok(took)
        });
        stop.store(true, Ordering::Relaxed);
        let (connections, failed) = load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let (_, took) = killed?;
        Ok(Kills { kills: kills * names.len(), connections, failed, recovery: Times::of(took) })
    })
}

/// Opens connections at [`RATE`]. Returns their number, and how many were not accepted.
fn connect(to: &[SocketAddr], stop: &AtomicBool) -> anyhow::Result<(usize, usize)> {
    let (began, mut failed) = (Instant::now(), 0);
    for (count, to) in to.iter().cycle().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Ok((count, failed));
        }
        failed += usize::from(ask(*to, PATIENCE)? != Answer::Open);
        let due = Duration::from_secs_f64((count + 1) as f64 / RATE);
        thread::sleep(due.saturating_sub(began.elapsed()));
    }
    Ok((0, 0))
}
