//! `localnet diff`.

use std::path::PathBuf;

use clap::Args;
use localnet_client::served::Lack;
use tokio::task::spawn_blocking;

use super::{Answered, Failure, Global, OfNode, Output, World, ask_status, not_saved, unreadable};
use crate::{
    diff, dumped,
    history::Differences,
    inspect::Inspected,
    kernel::Live,
    moment::{Moment, state_at},
    source::text_of,
};

/// Compare the backend's plan with the live state of the kernel, another backend's dump with the state, or two states with each
/// other
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet diff
  localnet diff --all -o json
  localnet diff --from 03:00 --to 03:15          # what changed in the brain's state between these times
  localnet diff --cluster-cidr 10.9.0.0/16       # what would change with another configuration
  localnet-ebpf dump | localnet diff --dump - --cannot-hold outside")]
pub(crate) struct Diff {
    /// List all differences, however many
    #[arg(long)]
    all: bool,
    /// Compare two states of the brain: the older revision or time
    #[arg(long, value_name = "REVISION|TIME")]
    from: Option<Moment>,
    /// The newer revision or time [default: the newest state]
    #[arg(long, value_name = "REVISION|TIME", requires = "from")]
    to: Option<Moment>,
    /// Compare the output of a backend's command dump with the state; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "all"])]
    dump: Option<PathBuf>,
    /// What the kernel of that backend cannot hold (docs/writing-a-backend.md)
    #[arg(
        long,
        value_enum,
        value_name = "LIMITS",
        value_delimiter = ',',
        requires = "dump",
        hide_possible_values = true
    )]
    cannot_hold: Vec<Lack>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

pub(super) async fn run(flags: &Diff, global: &Global) -> Answered {
    let brain = global.brain()?;
    if let Some(from) = flags.from {
        let brain = brain.ok_or_else(|| not_saved("has no earlier states"))?;
        let (newest, history) = (global.newest(Some(&brain)).await?, global.history(&brain).await?);
        let to = match flags.to {
            Some(to) => state_at(newest.clone(), &history, to)?,
            None => newest.clone(),
        };
        let differences = Differences::between(&state_at(newest, &history, from)?, &to);
        flags.output.print(global, &differences)?;
        return Ok(!differences.changes.is_empty());
    }
    if let Some(path) = &flags.dump {
        let state = global.snapshot(brain.as_ref()).await?;
        let compared = dumped::compare(&state, &flags.cannot_hold, &text_of(path)?);
        let compared = compared.map_err(|error| Failure::Usage(format!("--dump {}: {error}", path.display())))?;
        flags.output.print(global, &compared)?;
        return Ok(!compared.is_equal());
    }
    let most = if flags.all { usize::MAX } else { diff::MOST };
    let differences = of_kernel(most, &flags.node, global).await?;
    flags.output.print(global, &differences)?;
    Ok(differences.count > 0)
}

/// Compares the kernel with the plan. At most `most` differences are listed.
pub(super) async fn of_kernel(most: usize, node: &OfNode, global: &Global) -> Result<diff::Differences, Failure> {
    let brain = global.brain()?;
    let brain = brain.as_ref();
    // Read the kernel while the state arrives and is planned: with many Services, both tasks take long.
    let live = node.reads_kernel(global).then(|| spawn_blocking(Live::read));
    let state = global.snapshot(brain).await?;
    let status = ask_status(global, brain).await;
    let world = node.world(global, brain, &status, state).await?;
    let wrong = |error: &dyn std::fmt::Display| unreadable(global, &format!("the kernel: {error:#}"));
    // With ebpf, both the maps and the rules of another backend are compared.
    let mut differences = of_lines(&world, most).await.map_err(|error| wrong(&error))?;
    differences.configuration = world.configuration.origin.clone();
    if Inspected::of(&world).is_some() {
        return Ok(differences);
    }
    let World { state, local, kernel, configuration, .. } = world;
    let mut kernel = kernel.map_err(|error| wrong(&error))?;
    let mut plan = diff::plan(&state, &configuration.config, &local);
    let mut live = match live {
        Some(reading) => reading.await.map_err(anyhow::Error::from)?,
        None => kernel.live(),
    }
    .map_err(|error| wrong(&error))?;
    let mut tables = diff::differences(&mut plan, &live, most);
    // The backend may have programmed the state after the kernel was read.
    if tables.count > 0 && kernel.generation().map_err(|error| wrong(&error))? != live.generation {
        live = Live::read().map_err(|error| wrong(&error))?;
        tables = diff::differences(&mut plan, &live, most);
    }
    differences.append(tables, most);
    Ok(differences)
}

/// Compares the plans of backends other than nft with their live state. Without such a backend, nothing is compared.
pub(super) async fn of_lines(world: &World, most: usize) -> anyhow::Result<diff::Differences> {
    let mut differences = diff::Differences::default();
    for backend in Inspected::of(world).into_iter().chain(Inspected::beside(world)) {
        let mut listings = backend.read(world).await?;
        if listings.planned != listings.live {
            // The backend may have programmed the state after the kernel was read.
            listings = backend.read(world).await?;
        }
        differences.append(diff::of_listings(&listings.planned, &listings.live, most), most);
    }
    Ok(differences)
}
