//! The main job on screen: brain, nft backend and answering pods in a throw-away network namespace.
//!
//! ```text
//! examples/*.yaml ─► localnet-brain ─unix socket─► localnet-nft ─netlink─► node namespace ◄─ real connections ─ table
//! ```
//!
//! The demo itself is one more reader of the brain: what it shows as Services is what the stream says, and what it shows as
//! answers is what packets found. Edit the YAML while it runs.

mod screen;
mod targets;
mod world;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::Parser;
use localnet_client::{Revision, Snapshot, Source as _, args, grpc::Brain};
use localnet_proto::Address;
use tokio::{sync::watch, task::spawn_blocking, time::timeout};

use crate::{screen::Screen, world::World};

/// Connections to each address of a service in a round.
const CONNECTIONS: usize = 30;
const STARTUP: Duration = Duration::from_secs(20);

#[derive(Parser)]
#[command(about = "Show Services reached by real connections, in a throw-away network namespace")]
struct Arguments {
    /// One round; the exit code is 1 if any connection failed
    #[arg(long)]
    once: bool,
    /// The Services to show: a file or folder of Kubernetes YAML
    #[arg(long, value_name = "PATH", default_value = "examples")]
    services: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    args::exit(demo(&arguments).await)
}

async fn demo(arguments: &Arguments) -> anyhow::Result<()> {
    let services = arguments.services.canonicalize();
    let services = services.with_context(|| format!("finding {}", arguments.services.display()))?;
    let world = Arc::new(spawn_blocking(move || World::build(&services)).await??);
    let (sender, mut states) = watch::channel(Snapshot::default());
    let reader = tokio::spawn(read_states(Brain::new(Address::Unix(world.socket()), None)?, sender));
    let first = states.wait_for(|state| state.revision.rev > 0);
    timeout(STARTUP, first).await.context("waiting for the brain's first state")?.context("reading the brain")?;
    let mut screen = Screen::new(arguments.once, &arguments.services);
    let result = tokio::select! {
        result = rounds(arguments.once, &world, &mut states, &mut screen) => result,
        () = args::terminated() => Ok(()),
    };
    reader.abort();
    drop(Arc::into_inner(world));
    result
}

/// Keeps the newest state at hand.
async fn read_states(brain: Brain, states: watch::Sender<Snapshot>) {
    let mut held = Revision::default();
    loop {
        match brain.next(held, held.rev > 0).await {
            Ok(update) => {
                held = update.revision();
                states.send_modify(|state| _ = state.apply(update));
            }
            Err(_) => {
                held = Revision::default();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn rounds(
    once: bool,
    world: &Arc<World>,
    states: &mut watch::Receiver<Snapshot>,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let state = states.borrow_and_update().clone();
    let programmed = Arc::clone(world);
    spawn_blocking(move || programmed.await_programmed(&state, STARTUP)).await??;
    loop {
        let before = states.borrow_and_update().clone();
        let (probed, state) = (Arc::clone(world), before.clone());
        let answers = spawn_blocking(move || targets::probe_all(&probed, &state, CONNECTIONS)).await??;
        let after = states.borrow().clone();
        let failed = screen.show(&before, &after, &answers);
        if once {
            anyhow::ensure!(failed == 0, "{failed} connections failed");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
