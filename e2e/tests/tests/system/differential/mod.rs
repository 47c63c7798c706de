//! The differential test: random clusters and random packets; the oracle, our nft backend and kube-proxy v1.36.3 (nftables mode)
//! must agree.
//!
//! ```text
//!   seed ─▶ generate ─▶ write ─▶ API server ─┬─▶ brain ─▶ nft backend in network A ─▶ packets ┐
//!                                            │     └────▶ oracle ────────────────────────────┤─▶ judge ─▶ differences
//!                                            └─▶ kube-proxy in network B ─────────▶ packets ──┘
//! ```
//!
//! A cluster grows in steps: Services come, change and go, the Node moves to another zone, and both sides follow; half-way both are
//! started again with other flags. After each step, when both have come to the same state, the same random packets are sent in
//! both networks. `N` packets at least, `SEED` for the same ones again.
//! What differs is either an entry of `docs/differences.md` or a failure.

mod alone;
mod ask;
mod cluster;
mod describe;
mod differences;
mod generate;
mod judge;
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

/// The chance that so many clients are all sent to the one of several endpoints that they had is below 10⁻¹².
const ENOUGH_RETURNED: usize = 40;
/// Packets of a run that is not told how many.
const PACKETS: usize = 2000;
/// The seed of the first half of a run that is not told one; the second half is new each time.
const SEED: u64 = 0x6c6f_6361_6c6e_6574;

#[test]
fn oracle_nft_backend_and_kube_proxy_agree() -> anyhow::Result<()> {
    let started = Instant::now();
    let packets = setting("N")?.map_or(PACKETS, |packets| usize::try_from(packets).unwrap_or(usize::MAX));
    let seeds = match setting("SEED")? {
        Some(seed) => vec![(seed, packets)],
        None => vec![(SEED, packets.div_ceil(2)), (new_seed()?, packets / 2)],
    };
    let mut runs = run::Runs::new(world::World::build()?);
    say(&format!("differential: both sides run after {:.1?}", started.elapsed()));
    for (seed, packets) in seeds {
        say(&format!("differential: {packets} packets from SEED={seed}"));
        runs.run(seed, packets)?;
    }
    let report = &runs.report;
    say(&format!("differential: {report} in {:.1?}", started.elapsed()));
    anyhow::ensure!(report.unexplained == 0, "{} unexplained differences, see above", report.unexplained);
    let sticky::Returned { count, elsewhere } = report.returned;
    anyhow::ensure!(count < ENOUGH_RETURNED || elsewhere > 0, "{count} clients came back, and affinity never ended");
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
