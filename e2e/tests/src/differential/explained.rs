//! Runs `localnet explain` on our node for the packets that are sent.

use std::{collections::BTreeSet, fs, net::SocketAddr, process::Command};

use crate::program;
use anyhow::Context as _;
use localnet_client::route::Outcome;
use serde::Deserialize;

use super::{ask::Asked, pair::Side, question::Question, setup::Setup, world::World};

/// The fields of an answer that determine the outcome.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    outcome: String,
    endpoints: BTreeSet<SocketAddr>,
    masquerade: bool,
    hairpin: BTreeSet<SocketAddr>,
    affinity_seconds: Option<u32>,
}

impl TryFrom<Answer> for Outcome {
    type Error = anyhow::Error;

    fn try_from(answer: Answer) -> anyhow::Result<Self> {
        let Answer { outcome, endpoints, masquerade, hairpin, affinity_seconds } = answer;
        Ok(match outcome.as_str() {
            "endpoints" => {
                Self::Endpoints { choices: endpoints, masquerade, hairpin, affinity: affinity_seconds.map(Into::into) }
            }
            "reject" => Self::Reject,
            "drop" => Self::Drop,
            "notOurs" => Self::NotOurs,
            other => anyhow::bail!("{other:?} is not an outcome"),
        })
    }
}

/// The line of a packet in the file that the commands read.
pub(super) fn line(question: &Question) -> String {
    format!("{} {}/{}\n", question.source(), question.to, question.protocol.as_lowercase())
}

/// The outcome of each packet according to the command, with the backend's flags.
pub(crate) fn outcomes(world: &World, setup: &Setup, asked: &[Asked]) -> anyhow::Result<Vec<Outcome>> {
    let file = world.folder().join("packets.txt");
    fs::write(&file, asked.iter().map(|asked| line(&asked.question)).collect::<String>())?;
    let mut command = Command::new(program("localnet")?);
    command.args(["explain", "-o", "json", "--api", &world.api(), "--packets"]).arg(&file).args(setup.flags());
    let output = world.network(Side::Ours).node().run(|| command.output().context("running localnet"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    let answers: Vec<Answer> =
        serde_json::from_slice(&output.stdout).with_context(|| format!("localnet explain: {error}"))?;
    anyhow::ensure!(answers.len() == asked.len(), "{} answers to {} packets: {error}", answers.len(), asked.len());
    answers.into_iter().map(Outcome::try_from).collect()
}
