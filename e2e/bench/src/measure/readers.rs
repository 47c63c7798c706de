//! Adds many readers to the contestant's brain, some of which stall, and measures their cost and their effect on other readers.
//!
//! A reader is like a backend: it has its own connection and requests changes. A stalled reader requests the full state through
//! small windows, and reads only its beginning.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use localnet_client::{Source as _, grpc::Brain};
use localnet_proto::{Address, Revision, encode, wire::endpoints_client::EndpointsClient};
use tokio::{net::UnixStream, task::JoinSet, time::timeout};
use tonic::transport::{Endpoint, Uri};

use super::change;
use crate::{
    contestants::{BRAIN, api},
    figures::{Change, Readers},
    options::Lengths,
    site::{Site, Team},
    statistics::Times,
    usage,
};

const READERS: usize = 256;
const STALLED: usize = 32;
/// Maximum time until all readers have the first state.
const PATIENCE: Duration = Duration::from_secs(120);
/// The number of readers that start at a time. Decoding their first states costs this program's time, not the brain's.
const BEGINNING: usize = 8;

/// Measures with the readers. `without` contains the changes without further readers.
pub(super) fn measure(site: &Site, team: &Team, without: &Change, lengths: &Lengths) -> anyhow::Result<Readers> {
    let brain = team.processes().find(|(name, _)| *name == BRAIN).context("the contestant runs no brain")?.1;
    let address: Address = api(&site.place()).parse().context("reading the brain's address")?;
    let before = usage::memory(brain)?.0;
    let seen = Arc::new(Seen::default());
    let _readers = site.runtime.block_on(connect(&address, &seen))?;
    let change = change::measure(site, Duration::from_millis(200), lengths)?.context("no change arrived")?;
    let after = usage::memory(brain)?.0;
    Ok(Readers {
        readers: READERS,
        stalled: STALLED,
        memory: [before, after],
        change: [without.event, change.event],
        spread: seen.spread().context("no reader saw a change")?,
    })
}

async fn connect(address: &Address, seen: &Arc<Seen>) -> anyhow::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    for _ in 0..STALLED {
        tasks.spawn(stall(address.clone()));
    }
    let ready = Arc::new(AtomicUsize::new(0));
    let deadline = Instant::now() + PATIENCE;
    for reader in STALLED..READERS {
        let (brain, seen, ready) = (Brain::new(address.clone(), None)?, Arc::clone(seen), Arc::clone(&ready));
        let began = Arc::clone(&ready);
        tasks.spawn(async move { read(&brain, &seen, &ready).await });
        while began.load(Ordering::Relaxed) + BEGINNING <= reader - STALLED {
            ensure!(Instant::now() < deadline, "readers have no state after {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    while ready.load(Ordering::Relaxed) < READERS - STALLED {
        ensure!(Instant::now() < deadline, "readers have no state after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(tasks)
}

/// Reads every change, and records only when it arrived.
async fn read(brain: &Brain, seen: &Seen, ready: &AtomicUsize) {
    let mut have = Revision::default();
    while let Ok(update) = brain.next(have, true).await {
        if have == Revision::default() {
            ready.fetch_add(1, Ordering::Relaxed);
        } else {
            seen.at(update.revision(), Instant::now());
        }
        have = update.revision();
    }
}

/// Requests the full state repeatedly, and never reads more than its first item.
async fn stall(address: Address) {
    const WINDOW: u32 = 65_535;
    let Address::Unix(path) = address else { return };
    let endpoint =
        Endpoint::from_static("http://brain").initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let connect = move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
    };
    let channel = endpoint.connect_with_connector_lazy(tower::service_fn(connect));
    let mut held = Vec::new();
    loop {
        let mut client = EndpointsClient::new(channel.clone());
        let requested = timeout(PATIENCE, client.next(encode::next_filter(Revision::default(), false))).await;
        let Ok(Ok(answer)) = requested else { return };
        let mut answer = answer.into_inner();
        if answer.message().await.is_err() {
            return;
        }
        held.push(answer);
        // The brain disconnects the reader at some time. Then the reader starts again.
        tokio::time::sleep(PATIENCE).await;
        held.clear();
    }
}

/// When the readers saw each revision.
#[derive(Default)]
struct Seen(Mutex<std::collections::BTreeMap<u64, (Instant, Instant, usize)>>);

impl Seen {
    fn at(&self, revision: Revision, now: Instant) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, last, count) = seen.entry(revision.rev).or_insert((now, now, 0));
        (*last, *count) = (now, *count + 1);
    }

    /// From the first reader to the last one, for revisions that all readers have seen.
    fn spread(&self) -> Option<Times> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let complete = seen.values().filter(|(_, _, count)| *count == READERS - STALLED);
        Times::of(complete.map(|(first, last, _)| *last - *first).collect())
    }
}
