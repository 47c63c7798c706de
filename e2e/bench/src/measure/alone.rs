//! Measures the brain alone: one reader, no backend. The sizes are larger than those of the contestants.

use std::{
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use localnet_client::{Source as _, grpc::Brain};
use localnet_proto::{Address, Revision};
use tokio::runtime::Handle;

use crate::{
    api,
    cluster::{Probe, Size},
    contestants::{self, ALONE},
    figures::{Alone, Memory},
    options::Lengths,
    plane, print_progress,
    site::Site,
    statistics::{Times, millis},
    usage,
};

/// The pause before each change.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum time to wait for a change.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures the brain at one size, in a new environment.
pub(crate) fn run(runtime: &Handle, size: Size, lengths: &Lengths, cache: &std::path::Path) -> anyhow::Result<Alone> {
    let data = runtime.block_on(plane::filled(size, cache))?;
    let site = Site::build(runtime, size, plane::options(None, Some(data)))?;
    lengths.await_idle()?;
    print_progress(&format!("the brain alone at {size}"));
    let team = site.start(&ALONE)?;
    let (_, process) = team.processes().next().context("the brain runs")?;
    let address: Address = contestants::api(&site.place()).parse().context("reading the brain's address")?;
    let _entered = runtime.enter();
    let brain = Brain::new(address, None)?;
    let mut have = runtime.block_on(first_state(&brain, team.started + lengths.give_up))?;
    let start = millis(team.started.elapsed());
    let (cpu, (resident, peak)) = (millis(team.cpu()?), usage::memory(process)?);

    let (tell, events) = channel();
    let client = site.client();
    let watch = runtime.spawn(async move { api::watch_probe(client, |at, probe| _ = tell.send((at, probe))).await });
    let (_, mut now) = events.recv_timeout(PATIENCE).context("the probe's slice is not there")?;
    let mut times = Vec::with_capacity(lengths.changes);
    for _ in 0..lengths.changes {
        thread::sleep(PAUSE);
        now = now.other();
        let (client, slice) = (site.client(), now.slice());
        let (write, next) = (api::replace(&client, &slice), brain.next(have, true));
        let both = async {
            let written = async { write.await.map(|()| Instant::now()) };
            let read = async { anyhow::Ok((next.await?.revision(), Instant::now())) };
            tokio::try_join!(written, read)
        };
        let (answered, (revision, read)) = runtime.block_on(both)?;
        have = revision;
        times.push(read.saturating_duration_since(answered.min(reported(&events, now)?)));
    }
    watch.abort();
    let change = Times::of(times).context("nothing was changed")?;
    Ok(Alone {
        services: size.services,
        endpoints: size.endpoints,
        start,
        cpu,
        memory: Memory { resident, peak },
        change,
    })
}

/// Waits until a reader has the whole state.
async fn first_state(brain: &Brain, deadline: Instant) -> anyhow::Result<Revision> {
    loop {
        match brain.next(Revision::default(), true).await {
            Ok(update) => return Ok(update.revision()),
            // The socket does not exist yet.
            Err(error) => ensure!(Instant::now() < deadline, "the brain has no state: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// When the API server reported the probe's new slice to another watcher.
fn reported(events: &Receiver<(Instant, Probe)>, expected: Probe) -> anyhow::Result<Instant> {
    loop {
        let (at, probe) = events.recv_timeout(PATIENCE).context("no event reports a change of the probe's slice")?;
        if probe == expected {
            return Ok(at);
        }
    }
}
