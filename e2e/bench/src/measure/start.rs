//! Measures the time from the start of the programs until every Service answers.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    figures::Start,
    packets::await_all,
    site::{Site, Team},
    statistics::millis,
};

/// `None` if a Service did not answer before the time limit.
pub(crate) fn measure(site: &Site, team: &mut Team, give_up: Duration) -> anyhow::Result<Option<Start>> {
    let deadline = team.started + give_up;
    let sample = site.size.sample();
    let Some(mut complete) = site.inside(|| await_all(&sample, true, deadline))? else {
        team.check_alive(site)?;
        return Ok(None);
    };
    let cpu = team.cpu()?;
    // Connecting to all VIPs takes longer than some contestants need. So this time counts only if a VIP did not answer at once.
    let all = site.vips();
    let looked = Instant::now();
    let missing = site.inside(|| all_open(&all, deadline))?;
    if let Some(late) = missing {
        let Some(late) = late else { return Ok(None) };
        complete = late.max(looked);
    }
    // Wait for the release of memory that only the start needed.
    thread::sleep(Duration::from_secs(1));
    let memory = super::memory(team)?;
    Ok(Some(Start { took: millis(complete - team.started), cpu: millis(cpu), memory }))
}

/// `None` if all VIPs answer at once. Otherwise, the time at which the last of the others answered.
fn all_open(all: &[std::net::SocketAddr], deadline: Instant) -> anyhow::Result<Option<Option<Instant>>> {
    let mut late = None;
    for to in all {
        let patience = Duration::from_secs(1);
        if crate::packets::ask(*to, patience)? != crate::packets::Answer::Open {
            late = Some(await_all(&[*to], true, deadline)?);
            if late == Some(None) {
                break;
            }
        }
    }
    Ok(late)
}
