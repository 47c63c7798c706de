//! Compares on this node: with kube-proxy's rules as they are now, once or again and again.

use std::{convert::Infallible, pin::pin, time::Duration};

use anyhow::Context as _;
use localnet_client::{Snapshot, Source, route::Packet};
use localnet_linux::conntrack::{self, Flow};
use localnet_proto::{Family, Revision};
use tokio::{
    select,
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{Shadow, read::Rules};
use crate::{failure::Failure, kernel, top, world::World};

/// How often differences are checked again, because kube-proxy or the brain may be busy with a change.
const ATTEMPTS: usize = 3;
/// How long to wait for the first state.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait if the source does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// Compares once.
///
/// `world` is the evidence, `with_flows` is whether to read connection tracking, and `listed` returns the packets to compare; `None` means
/// those to all destinations.
///
/// # Errors
/// Returns the error of `world` or `listed`, or an error if the rules or connection tracking cannot be read.
pub async fn compare(
    world: impl Future<Output = Result<World, Failure>>,
    with_flows: bool,
    listed: impl AsyncFnOnce(&World) -> Result<Option<Vec<Packet>>, Failure>,
) -> Result<Shadow, Failure> {
    let bound = kernel::ipvs_addresses().await?;
    let reading = spawn_blocking(move || Rules::read(&bound));
    let flows = with_flows.then(|| spawn_blocking(flows_of_node));
    let world = world.await?;
    let rules = reading.await.context("reading the rules has crashed")??;
    let flows = match flows {
        Some(flows) => flows.await.context("reading the flows has crashed")?.map_err(anyhow::Error::from)?,
        None => Vec::new(),
    };
    let packets = listed(&world).await?;
    // On a large node, this takes seconds.
    let comparing = spawn_blocking(move || {
        let packets = packets.unwrap_or_else(|| super::packets(&world, &rules));
        let mut shadow = super::compare(&world, &rules, packets);
        (shadow.flows, shadow.flows_elsewhere) = top::stale(&world.state, &world.facts, &flows);
        shadow
    });
    Ok(comparing.await.context("the comparison has crashed")?)
}

fn flows_of_node() -> Result<Vec<Flow>, conntrack::Error> {
    let mut flows = kernel::flows(Family::V4, |_| true)?;
    flows.extend(kernel::flows(Family::V6, |_| true)?);
    Ok(flows)
}

/// Compares. If packets differ, repeats this after `settle`, and keeps the differences that stay.
///
/// # Errors
/// Returns the first error of `compare`.
pub async fn settled(settle: Duration, compare: &impl AsyncFn() -> Result<Shadow, Failure>) -> Result<Shadow, Failure> {
    let mut shadow = compare().await?;
    for _ in 1..ATTEMPTS {
        if shadow.unexplained() == 0 {
            break;
        }
        sleep(settle).await;
        shadow.retain(&compare().await?);
    }
    Ok(shadow)
}

/// When to compare.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    /// The pause after a comparison.
    pub every: Duration,
    /// See [`settled`].
    pub settle: Duration,
}

/// What [`repeat`] has to show.
#[derive(Debug)]
pub enum News<'a> {
    /// A result whose differences are not those of the result before.
    Result(&'a Shadow),
    /// Why there is no result, or why the brain does not have it.
    Problem(String),
}

/// Compares again and again until `ended`, and reports each result to the source, as a backend does. Returns the last result.
///
/// `world` adds the rest of the evidence to a state.
///
/// # Errors
/// Returns the first error of `show`.
pub async fn repeat(
    source: &impl Source,
    Rhythm { every, settle }: Rhythm,
    with_flows: bool,
    world: impl AsyncFn(Snapshot) -> Result<World, Failure>,
    mut show: impl FnMut(News<'_>) -> Result<(), Failure>,
    ended: impl Future<Output = ()>,
) -> Result<Option<Shadow>, Failure> {
    let (states, newest) = watch::channel(Snapshot::default());
    let (mut following, mut ended) = (pin!(follow(source, &states)), pin!(ended));
    let compare_newest = async || {
        let mut newest = newest.clone();
        let evidence = async {
            let first = timeout(PATIENCE, newest.wait_for(|state| state.revision != Revision::default()));
            let state = match first.await {
                Ok(Ok(state)) => state.clone(),
                Ok(Err(_)) | Err(_) => {
                    let problem = format!("{} has sent no state in {PATIENCE:?}", source.describe());
                    return Err(Failure::Unreadable(anyhow::Error::msg(problem)));
                }
            };
            world(state).await
        };
        compare(evidence, with_flows, async |_: &World| Ok(None)).await
    };
    let mut last: Option<Shadow> = None;
    loop {
        let compared = select! {
            compared = settled(settle, &compare_newest) => compared,
            never = &mut following => match never {},
            () = &mut ended => break,
        };
        // kube-proxy or the brain may be restarting.
        match compared {
            Ok(shadow) => {
                if let Err(error) = source.report(&shadow.report()).await {
                    show(News::Problem(format!("the report failed: {error}")))?;
                }
                if last.as_ref().is_none_or(|last| last.differences != shadow.differences) {
                    show(News::Result(&shadow))?;
                }
                last = Some(shadow);
            }
            Err(failure) => show(News::Problem(failure.to_string()))?,
        }
        select! {
            () = sleep(every) => {}
            never = &mut following => match never {},
            () = &mut ended => break,
        }
    }
    Ok(last)
}

/// Reads every state, as a backend does. Otherwise, the brain would report that no backend reads its states.
async fn follow(source: &impl Source, states: &watch::Sender<Snapshot>) -> Infallible {
    loop {
        let have = states.borrow().revision;
        match source.next(have, have != Revision::default()).await {
            Ok(update) => states.send_modify(|state| _ = state.apply(update)),
            Err(_) => sleep(RETRY).await,
        }
    }
}
