//! The differential test: random clusters and random packets, for which the oracle, our backend and kube-proxy v1.37.2 in the
//! same mode must agree. [`agree`] runs it for one [`Pair`]. The ipvs backend runs in a guest, and is compared with the oracle
//! alone. kube-proxy's mode ipvs also runs there: `localnet shadow` evaluates its rules, and no packet is compared. The ebpf backend
//! runs with the nft backend in its process, without kube-proxy.
//!
//! ```text
//!   seed ─▶ generate ─▶ write ─▶ API server ─┬─▶ brain ─▶ backend in network A ─▶ packets ─────┐
//!                                            │     └────▶ oracle ────────────────────────────┤─▶ judge ─▶ differences
//!                                            └─▶ kube-proxy in network B ─────────▶ packets ──┘
//! ```
//!
//! A cluster changes in steps: Services are added, changed and removed, slices move to other Services, the Node gets another
//! zone, addresses or pod CIDRs, and ServiceCIDRs are added and removed. Half-way, both proxies start again with other flags,
//! sometimes as the other node of the cluster. After each step, once both sides have reached the same state, the same random
//! packets are sent in both networks, and datagrams are sent on flows from earlier states (`open`). After most states, our
//! backend is killed or another program edits its rules, and the same packets are sent once more (`disturb`).
//!
//! [`agree_between_nodes`] does less on two nodes: it sends packets from node to node through random clusters, without disturbances
//! and open flows (`nodes`).
//!
//! Services and slices have annotations with hashes and weights, which kube-proxy ignores. For each answer of the nft backend, a model
//! predicts which of the permitted endpoints the hash chooses (`hashed`).
//!
//! Each run uses a new seed and prints it first. `SEED` repeats a run, and `N` is the minimum number of packets. For each packet,
//! `localnet explain` must report the oracle's outcome. Each difference must match an entry of `docs/differences.md`, or
//! of the list in `docs/backends/ipvs.md`. Any other difference fails the test; one of kube-proxy fails it only with `STRICT=1`.
//! `PAUSE` is the number of seconds to wait at each such difference, so that the node can be inspected.

mod alone;
mod ask;
mod between;
mod cluster;
mod describe;
mod differences;
mod disturb;
mod ebpf;
mod explained;
mod former;
mod generate;
mod hashed;
mod ipvs;
mod judge;
mod nodes;
mod open;
mod pair;
mod pools;
mod question;
mod random;
mod report;
mod run;
mod scene;
mod settle;
mod setup;
mod shadowed;
mod sticky;
mod world;
mod write;

use std::{
    env,
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_vm::{HostSide, relay::is_guest};

use crate::{
    Backend,
    api_server::{self, Kept},
};

pub use pair::Pair;

/// With this many returning clients, the chance that all of them get their previous endpoint again, out of several, is below
/// 10⁻¹².
const ENOUGH_RETURNED: usize = 40;
/// The default number of packets of a run, and of a run on an emulated processor.
const PACKETS: usize = 2000;
const PACKETS_IN_GUEST: usize = 500;
/// The time limit of a run in a guest: for its start, and for each packet.
const START_IN_GUEST: Duration = Duration::from_secs(600);
const PACKET_IN_GUEST: Duration = Duration::from_secs(2);

/// Runs one pair, which sends its part of all packets of a run.
///
/// # Errors
/// Returns an error if a difference of localnet is unexplained (with `STRICT=1`, also one of kube-proxy), or if a program fails.
pub fn agree(pair: Pair, parts: usize) -> anyhow::Result<()> {
    let who = format!("differential: {pair}");
    let started = Instant::now();
    let packets = packets(if is_guest() { PACKETS_IN_GUEST } else { PACKETS })?.div_ceil(parts);
    let seed = seed()?;
    // Print this first, so that the run can be repeated whatever happens.
    print_line(&format!("{who}: {packets} packets from SEED={seed}"));
    let pause = Duration::from_secs(setting("PAUSE")?.unwrap_or_default());
    let mut runs = run::Runs::new(world::World::build(pair)?, pause);
    print_line(&format!("{who}: both sides run after {:.1?}", started.elapsed()));
    runs.run(seed, packets)?;
    let report = &runs.report;
    print_line(&format!("{who}: {report} in {:.1?}", started.elapsed()));
    // A change of localnet does not fail because a new seed meets a fault of kube-proxy that no entry describes yet.
    let is_strict = setting("STRICT")?.is_some_and(|strict| strict > 0);
    let excused = if is_strict { 0 } else { report.unexplained_of_kube_proxy };
    let unexplained = &report.unexplained;
    anyhow::ensure!(
        unexplained.len() == excused,
        "{} unexplained differences, SEED={seed}:\n{}",
        unexplained.len(),
        unexplained.join("\n")
    );
    let sticky::Returned { count, elsewhere } = report.returned;
    // With IPVS, a client keeps its endpoint until its connections are forgotten, too.
    let ends = pair.backend == Backend::Ipvs || count < ENOUGH_RETURNED || elsewhere > 0;
    anyhow::ensure!(ends, "{count} clients came back, and affinity never ended");
    Ok(())
}

/// Runs a pair that the seed chooses on two nodes, with a part of the packets of a run.
///
/// # Errors
/// As [`agree`].
pub fn agree_between_nodes(parts: usize) -> anyhow::Result<()> {
    let started = Instant::now();
    let (packets, seed) = (packets(PACKETS)?.div_ceil(parts), seed()?);
    let pair = *random::Random::new(seed).pick(&Pair::WITH_KUBE_PROXY);
    let who = format!("differential between nodes: {pair}");
    print_line(&format!("{who}: {packets} packets from SEED={seed}"));
    let summary = nodes::agree(pair, seed, packets)?;
    print_line(&format!("{who}: {summary} in {:.1?}", started.elapsed()));
    let is_strict = setting("STRICT")?.is_some_and(|strict| strict > 0);
    let is_right = summary.ours == 0 && (summary.kube_proxys == 0 || !is_strict);
    anyhow::ensure!(is_right, "unexplained differences, see above");
    Ok(())
}

/// Starts what a run of the pair in a guest needs on the host: an API server, and the seed. It prints the seed at once, because the
/// output of the guest appears only at its end.
///
/// # Errors
/// Returns an error if the API server does not start.
pub fn host_side(pair: Pair) -> anyhow::Result<(HostSide, Kept)> {
    let (packets, seed) = (packets(PACKETS_IN_GUEST)?, seed()?);
    print_line(&format!("differential: {pair} in a guest: {packets} packets from SEED={seed}"));
    let limit = START_IN_GUEST + PACKET_IN_GUEST * u32::try_from(packets).unwrap_or(u32::MAX);
    let (mut host_side, kept) = api_server::host_side(pair.sides().count(), true, limit)?;
    host_side.variables.push(("SEED", seed.to_string().into()));
    Ok((host_side, kept))
}

fn packets(default: usize) -> anyhow::Result<usize> {
    Ok(setting("N")?.map_or(default, |packets| usize::try_from(packets).unwrap_or(usize::MAX)))
}

fn seed() -> anyhow::Result<u64> {
    setting("SEED")?.map_or_else(new_seed, Ok)
}

fn setting(name: &str) -> anyhow::Result<Option<u64>> {
    let Ok(text) = env::var(name) else { return Ok(None) };
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).with_context(|| format!("reading {name}={text:?}: a number is expected"))
}

fn new_seed() -> anyhow::Result<u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).context("reading the clock")?;
    Ok(random::Random::new(now.as_secs() ^ u64::from(now.subsec_nanos())).number() >> 32)
}

/// Prints at once, even if the test passes.
fn print_line(line: &str) {
    // A closed standard error is not a failure.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
