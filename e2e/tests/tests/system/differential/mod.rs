//! The differential test: random clusters and random packets; the oracle, our backend and kube-proxy v1.36.3 in the same mode must
//! agree. There is one for each [`Pair`].
//!
//! ```text
//!   seed ─▶ generate ─▶ write ─▶ API server ─┬─▶ brain ─▶ backend in network A ─▶ packets ─────┐
//!                                            │     └────▶ oracle ────────────────────────────┤─▶ judge ─▶ differences
//!                                            └─▶ kube-proxy in network B ─────────▶ packets ──┘
//! ```
//!
//! A cluster grows in steps: Services come, change in place and go, slices get another owner, the Node gets another zone,
//! addresses or pod CIDRs, ServiceCIDRs come and go; and both sides follow. Half-way both are started again with other flags, sometimes as
//! the other node of the cluster. After each step, when both have come to the same state, the
//! same random packets are sent in both networks, and flows that were opened in earlier states are asked again ([`open`]).
//!
//! Each run takes a new seed and prints it first. `SEED` repeats a run; `N` is the least number of packets.
//! Of each packet `localnet explain` must say what the oracle says, asked as a person asks it.
//! What differs is either an entry of `docs/differences.md` or a failure.

mod alone;
mod ask;
mod cluster;
mod describe;
mod differences;
mod explained;
mod former;
mod generate;
mod judge;
mod open;
mod pair;
mod pools;
mod question;
mod random;
mod report;
mod run;
mod setup;
mod sticky;
mod world;
mod write;

use std::{env, io::Write as _, time::Instant};

use anyhow::Context as _;

use pair::Pair;

/// The chance that so many clients are all sent to the one of several endpoints that they had is below 10⁻¹².
const ENOUGH_RETURNED: usize = 40;
/// Packets of a run that is not told how many.
const PACKETS: usize = 2000;

#[test]
fn oracle_nft_backend_and_kube_proxy_agree() -> anyhow::Result<()> {
    agree(Pair::NFT, 1)
}

#[test]
fn oracle_iptables_backend_and_kube_proxy_agree() -> anyhow::Result<()> {
    Pair::IPTABLES.into_iter().try_for_each(|pair| agree(pair, Pair::IPTABLES.len()))
}

/// Of all packets of a run a pair has its part.
fn agree(pair: Pair, parts: usize) -> anyhow::Result<()> {
    let who = format!("differential: {:?} and kube-proxy {:?}", pair.backend, pair.mode);
    let started = Instant::now();
    let packets = setting("N")?.map_or(PACKETS, |packets| usize::try_from(packets).unwrap_or(usize::MAX));
    let packets = packets.div_ceil(parts);
    let seed = setting("SEED")?.map_or_else(new_seed, Ok)?;
    // First of all: whatever happens from here on can be repeated.
    say(&format!("{who}: {packets} packets from SEED={seed}"));
    let mut runs = run::Runs::new(world::World::build(pair)?);
    say(&format!("{who}: both sides run after {:.1?}", started.elapsed()));
    runs.run(seed, packets)?;
    let report = &runs.report;
    say(&format!("{who}: {report} in {:.1?}", started.elapsed()));
    // A fresh seed may meet what kube-proxy does and no entry explains yet: `make differential`, which says N, fails then; the
    // tests of each change print it, and fail for what is wrong with localnet.
    let tolerated = if setting("N")?.is_some() { 0 } else { report.of_kube_proxy };
    anyhow::ensure!(report.unexplained == tolerated, "{} unexplained differences, see above", report.unexplained);
    let sticky::Returned { count, elsewhere } = report.returned;
    let ends = count < ENOUGH_RETURNED || elsewhere > 0;
    anyhow::ensure!(ends, "{count} clients came back, and affinity never ended");
    Ok(())
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

/// Prints at once, also when the test passes.
fn say(line: &str) {
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
