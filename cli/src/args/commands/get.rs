//! `localnet get`.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
};

use clap::Args;
use localnet_proto::{Service, ServiceKey, reasons::Reasons};

use super::{Answered, Failure, Format, Global, Output, not_saved};
use crate::{
    get::{Endpoints, Filter, Kind, NodeFacts, Services},
    peer::Peer,
};

/// List the Services, endpoints or facts in the state of the node
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet get services
  localnet get endpoints web -n shop -o wide
  localnet get services -o name | head
  localnet get endpoints web -n shop --at 03:12     # as they were at that time
  localnet get state -o yaml > state.yaml        # and later: localnet --state state.yaml explain …
  localnet --api tcp://10.0.0.7:12090 get node")]
pub(crate) struct Get {
    /// Kind of object to list
    kind: Kind,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(flags: Get, global: &Global) -> Answered {
    let brain = global.brain()?;
    if flags.kind == Kind::Revision {
        let brain = brain.ok_or_else(|| not_saved("has no revision"))?;
        if global.at.is_some() {
            return Err(Failure::Usage("--at does not apply to get revision; use localnet history".to_owned()));
        }
        flags.output.print(global, &global.status(&brain).await?)?;
        return Ok(false);
    }
    let state = global.snapshot(brain.as_ref()).await?;
    let filter = flags.filter;
    let rates = match flags.output.output {
        Format::Wide => global.rates(brain.as_ref()).await,
        _ => None,
    };
    match flags.kind {
        Kind::Services => {
            flags.output.print(global, &Services { services: filter.services(&state).collect(), rates })?;
        }
        Kind::Endpoints => {
            // The format `name` prints only endpoints of the state, so the brain's conditions are not needed.
            let brain = global.reasoning(brain.as_ref()).filter(|_| flags.output.output != Format::Name);
            let reasons = conditions(brain, filter.services(&state)).await;
            flags.output.print(global, &Endpoints { rates, ..Endpoints::of(filter.services(&state), &reasons) })?;
        }
        Kind::Node => flags.output.print(global, &NodeFacts(&state.node))?,
        Kind::State | Kind::Revision => flags.output.print(global, &state)?,
    }
    let is_of_services = matches!(flags.kind, Kind::Services | Kind::Endpoints);
    match filter.missing(&state) {
        missing if is_of_services && !missing.is_empty() => Err(Failure::Missing(format!(
            "this node has no Service {}; localnet explain --why-not shows the cause",
            missing.join(", ")
        ))),
        _ => Ok(false),
    }
}

/// The maximum number of Services about which the brain is queried. Each Service needs a call of its own.
const MAX_QUERIED: usize = 1000;

/// Returns the brain's reasons about each Service. The result is empty without a brain or for too many Services.
async fn conditions(brain: Option<&Peer>, services: impl Iterator<Item = &Service>) -> BTreeMap<ServiceKey, Reasons> {
    let mut reasons = BTreeMap::new();
    let services: Vec<&Service> = services.take(MAX_QUERIED + 1).collect();
    let Some(brain) = brain else { return reasons };
    if services.len() > MAX_QUERIED {
        let note = format!(
            "note: STATE and endpoints that are not ready are shown for at most {MAX_QUERIED} Services; select Services or a namespace\n"
        );
        // The note is optional, so a failed write is no error.
        _ = io::stderr().write_all(note.as_bytes());
        return reasons;
    }
    for service in services {
        // An older brain does not know this call.
        let Ok(why) = brain.why(&service.key).await else { break };
        reasons.insert(service.key.clone(), why);
    }
    reasons
}
