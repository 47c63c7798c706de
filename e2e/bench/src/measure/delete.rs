//! Deletes everything, and measures the time until no VIP answers.

use std::{
    thread,
    time::{Duration, Instant},
};

use futures::future::try_join;

use crate::{
    api::{self, Kind},
    figures::Delete,
    packets::await_all,
    site::{Site, Team},
    statistics::millis,
};

/// Maximum time for the API server.
const API: Duration = Duration::from_secs(600);

pub(super) fn measure(site: &Site, team: &Team, give_up: Duration) -> anyhow::Result<Delete> {
    let cpu = team.cpu()?;
    let sample = site.size.sample();
    let started = Instant::now();
    thread::scope(|scope| {
        let looking = scope.spawn(|| site.inside(|| await_all(&sample, false, started + API + give_up)));
        let client = site.client();
        let deleting = try_join(
            api::delete(&client, Kind::Services, site.size.services()),
            api::delete(&client, Kind::EndpointSlices, site.size.slices()),
        );
        site.runtime.block_on(deleting)?;
        let answered = Instant::now();
        let gone = looking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(Delete {
            api: millis(answered - started),
            after: gone.map(|gone| millis(gone.saturating_duration_since(answered))),
            cpu: millis(team.cpu()? - cpu),
        })
    })
}
