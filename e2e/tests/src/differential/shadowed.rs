//! Runs `localnet shadow` on kube-proxy's node for the packets that are sent.

use std::{
    collections::BTreeMap,
    fmt, fs,
    net::{IpAddr, SocketAddr},
    process::Command,
};

use crate::program;
use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use super::{ask::Asked, explained::line, pair::Side, question::Question, setup::Setup, world::World};

#[derive(Debug, Deserialize)]
struct Answer {
    compared: usize,
    differences: Vec<Difference>,
}

/// A packet for which the command finds other verdicts.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Difference {
    from: IpAddr,
    pub(crate) to: SocketAddr,
    protocol: String,
    localnet: Value,
    kube_proxy: Value,
    /// The entry of `docs/differences.md`.
    pub(crate) entry: Option<usize>,
    unknown: Option<String>,
}

/// The differences by the number of the packet.
pub(crate) fn differences(
    world: &World,
    setup: &Setup,
    asked: &[Asked],
) -> anyhow::Result<BTreeMap<usize, Difference>> {
    let found = evaluated(world, setup, asked.iter().map(|asked| &asked.question))?;
    let is = |question: &Question, difference: &Difference| {
        question.source() == difference.from
            && question.to == difference.to
            && question.protocol.as_str() == difference.protocol
    };
    let numbered = asked.iter().enumerate().filter_map(|(number, asked)| {
        Some((number, found.iter().find(|difference| is(&asked.question, difference))?.clone()))
    });
    Ok(numbered.collect())
}

/// What the command finds.
fn evaluated<'a>(
    world: &World,
    setup: &Setup,
    questions: impl ExactSizeIterator<Item = &'a Question>,
) -> anyhow::Result<Vec<Difference>> {
    let (file, count) = (world.folder().join("shadowed.txt"), questions.len());
    fs::write(&file, questions.map(line).collect::<String>())?;
    let mut command = Command::new(program("localnet")?);
    command.args(["shadow", "-o", "json", "--settle", "0", "--api", &world.api(), "--packets"]).arg(&file);
    command.args(setup.flags());
    let output = world.network(Side::KubeProxy).node().run(|| command.output().context("running localnet"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    let answer: Answer = serde_json::from_slice(&output.stdout).with_context(|| format!("localnet shadow: {error}"))?;
    anyhow::ensure!(answer.compared == count, "{} of {count} packets compared: {error}", answer.compared);
    Ok(answer.differences)
}

/// The contradiction between the command and the packets, if there is one. `by_packets` is the difference that the packets showed,
/// with the entry that explains it. `has_past`: the state does not say why kube-proxy differs: an earlier one does, or another
/// Service that claims the address.
pub(crate) fn contradiction(
    by_packets: Option<Option<usize>>,
    shadow: Option<&Difference>,
    has_past: impl Fn() -> bool,
) -> Option<&'static str> {
    match (by_packets, shadow) {
        (_, Some(Difference { unknown: Some(_), .. })) => Some("cannot evaluate a rule"),
        (Some(_), None) => Some("misses a difference"),
        (None, Some(Difference { entry: None, .. })) if !has_past() => Some("finds a difference that no packet shows"),
        (Some(Some(_)), Some(Difference { entry: None, .. })) if !has_past() => Some("does not know the entry"),
        _ => None,
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, protocol, localnet, kube_proxy, entry, unknown } = self;
        write!(
            f,
            "{from} to {to}/{protocol}: localnet {localnet}, kube-proxy {kube_proxy}, entry {entry:?}, unknown {unknown:?}"
        )
    }
}
