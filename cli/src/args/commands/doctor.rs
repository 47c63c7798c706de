//! `localnet doctor`.

use clap::Args;
use localnet_proto::{ByFamily, Family};

use super::{Answered, Failure, Global, OfNode, Output, Snapshot, ask_status, diff};
use crate::{
    diff::MOST,
    doctor::{self, Evidence, Findings},
    inspect::Inspected,
    kernel,
    path::{self, Path},
    peer::Peer,
};

/// Check the health of the whole node
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet doctor
  localnet doctor -o json")]
pub(crate) struct Doctor {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

pub(super) async fn run(flags: &Doctor, global: &Global) -> Answered {
    if matches!(global.brain()?, Some(Peer::Sysdump(_))) {
        return Err(Failure::Usage(
            "doctor checks the running node; the file doctor.txt of the sysdump contains its result".to_owned(),
        ));
    }
    let findings = findings(&flags.node, global).await?;
    flags.output.print(global, &findings)?;
    Ok(findings.fail())
}

/// Checks the node.
pub(super) async fn findings(node: &OfNode, global: &Global) -> Result<Findings, Failure> {
    let brain = global.brain()?;
    let brain = brain.as_ref();
    let mut evidence = Evidence { api: global.describe(), ..Evidence::default() };
    let status = ask_status(global, brain).await;
    evidence.status = brain.map(|_| status.clone());
    let state = global.snapshot(brain).await;
    let (state, error) = match state {
        Ok(state) => (state, None),
        Err(failure) => (Snapshot::default(), Some(failure.to_string())),
    };
    evidence.state = Some(error.clone().map_or_else(|| Ok(doctor::count(&state)), Err));
    if error.is_some() {
        // The check of the state already reports that the brain is unavailable.
        evidence.status = evidence.status.filter(Result::is_ok);
    }
    let mut world = node.world(global, brain, &status, state).await?;
    evidence.configuration = Some(world.configuration.origin.clone());
    // Without a state there is no plan.
    if error.is_none() && Inspected::of(&world).or(Inspected::beside(&world)).is_some() {
        let found = diff::of_lines(&world, MOST).await;
        evidence.lines = Some(found.map_err(|error| kernel::unread(format!("{error:#}"))));
    }
    if Inspected::of(&world).is_some() {
        if world.is_here {
            doctor::read_settings(&mut evidence);
        }
        if let Ok(kernel) = &mut world.kernel {
            evidence.others = kernel.other_tables().unwrap_or_default();
        }
        return Ok(Findings::of(&evidence));
    }
    let affinity = ByFamily::from_fn(|family| path::has_affinity(&world.state, &world.facts, family));
    let counts = world.counts_refused();
    let planned = |family: Family| match error {
        // Without a state there is no plan.
        Some(_) => Vec::new(),
        None => Path::new(&world.facts, family, affinity[family], counts).chains().to_vec(),
    };
    doctor::read_kernel(&mut world.kernel, &mut evidence, planned);
    Ok(Findings::of(&evidence))
}
