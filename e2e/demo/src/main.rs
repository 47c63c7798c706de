//! The demo: brain, nft backend and pods in temporary network namespaces, with live results of real connections.
//!
//! ```text
//! examples/*.yaml ─► localnet-brain ─unix socket─► localnet-nft ─netlink─► node namespace ◄─ real connections ─ table
//!                          │ rates: how many connections the backend has counted ─────────────────────────────────┘
//! ```
//!
//! The demo is a reader of the brain, too: it shows the Services from the stream, their rates, and the endpoints that answered its
//! connections. You can edit the YAML while it runs.

mod rates;
mod screen;
mod setup;
mod targets;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Parser;
use localnet_client::{Revision, Snapshot, Source as _, args, grpc::Brain};
use localnet_proto::Address;
use tokio::{sync::watch, task::spawn_blocking, time::timeout};

use crate::{
    rates::{Rates, rates},
    screen::Screen,
    setup::Setup,
};

/// Connections to each address of a Service per round.
const CONNECTIONS: usize = 30;
const STARTUP: Duration = Duration::from_secs(20);
/// How long `--once` waits for rates. The backend counts every 5 s, and a rate needs two counts.
const COUNTED: Duration = Duration::from_secs(20);

#[derive(Parser)]
#[command(about = "Show Services and which endpoints answer real connections, in temporary network namespaces")]
struct Arguments {
    /// Print one round and exit, with code 1 if a connection failed
    #[arg(long)]
    once: bool,
    /// Also serve the page of `localnet ui`, and print its address
    #[arg(long)]
    ui: bool,
    /// The Services to show: a file or a folder of Kubernetes YAML
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
    let with_page = arguments.ui;
    let setup = Arc::new(spawn_blocking(move || Setup::build(&services, with_page)).await??);
    let (sender, mut states) = watch::channel(Snapshot::default());
    let brain = || Brain::new(Address::Unix(setup.socket()), None);
    let (reader, brain) = (tokio::spawn(read_states(brain()?, sender)), brain()?);
    let first = states.wait_for(|state| state.revision.rev > 0);
    timeout(STARTUP, first).await.context("waiting for the brain's first state")?.context("reading the brain")?;
    let mut screen = Screen::new(arguments.once, &arguments.services);
    let result = tokio::select! {
        result = rounds(arguments.once, &setup, &brain, &mut states, &mut screen) => result,
        () = args::terminated() => Ok(()),
    };
    reader.abort();
    drop(Arc::into_inner(setup));
    result
}

/// Receives states and publishes the newest.
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
    setup: &Arc<Setup>,
    brain: &Brain,
    states: &mut watch::Receiver<Snapshot>,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let state = states.borrow_and_update().clone();
    let programmed = Arc::clone(setup);
    spawn_blocking(move || programmed.await_programmed(&state, STARTUP)).await??;
    let page = match setup.page {
        Some(_) => {
            let serving = Arc::clone(setup);
            spawn_blocking(move || serving.await_page(STARTUP)).await?.map(Some)?
        }
        None => None,
    };
    let began = Instant::now();
    loop {
        let before = states.borrow_and_update().clone();
        let (probed, state) = (Arc::clone(setup), before.clone());
        let answers = spawn_blocking(move || targets::probe_all(&probed.network, &state, CONNECTIONS)).await??;
        let after = states.borrow().clone();
        let counted: Option<Rates> = rates(&brain.traffic().await.context("reading the rates")?);
        if once && counted.as_ref().is_none_or(Rates::is_empty) {
            anyhow::ensure!(began.elapsed() < COUNTED, "the backend has counted no connection in {COUNTED:?}");
            continue;
        }
        let failed = screen.show((&before, &after), &counted.unwrap_or_default(), &answers, page.as_deref());
        if once {
            anyhow::ensure!(failed == 0, "{failed} connections failed");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
