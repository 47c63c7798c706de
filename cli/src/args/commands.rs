//! The commands, and the flags that several of them share. Each file in `commands/` defines the flags of one command, and runs
//! the command: read, compute, print.

mod canary;
mod completion;
mod diff;
mod doctor;
mod explain;
mod get;
mod history;
mod record;
mod replay;
mod shadow;
mod status;
mod sysdump;
mod takeover;
mod top;
mod ui;
mod version;
mod watch;

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use localnet_client::Snapshot;
use localnet_win::Recording;

use crate::{
    configuration::{Configuration, ConfigurationArgs},
    failure::Failure,
    inspect::{self, Inspected},
    kernel::{self, Kernel, Observed},
    listings,
    output::{self, Format, Show},
    peer::Peer,
    source::Global,
    status::{Backend, Status},
    style::Style,
    world::World,
};

/// The commands, in the order of the help.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Get(get::Get),
    Watch(watch::Watch),
    Explain(explain::Explain),
    Diff(diff::Diff),
    Top(top::Top),
    Ui(ui::Ui),
    Doctor(doctor::Doctor),
    Shadow(shadow::Shadow),
    Canary(canary::Canary),
    Takeover(takeover::Takeover),
    GiveBack(takeover::GiveBack),
    Sysdump(sysdump::Sysdump),
    Status(status::Status),
    History(history::History),
    Record(record::Record),
    Replay(replay::Replay),
    Version(version::Version),
    Completion(completion::Completion),
}

/// `Ok`: whether a command found a problem, which determines the exit code. `Err`: why the command has no answer.
type Answered = Result<bool, Failure>;

impl Command {
    pub(super) async fn run(self, global: &Global) -> Answered {
        if global.at.is_some() && !matches!(self, Self::Get(_) | Self::Explain(_) | Self::Diff(_)) {
            return Err(Failure::Usage("--at applies only to get, explain and diff".to_owned()));
        }
        match self {
            Self::Get(flags) => get::run(flags, global).await,
            Self::Watch(flags) => watch::run(flags, global).await,
            Self::Explain(flags) => explain::run(flags, global).await,
            Self::Diff(flags) => diff::run(&flags, global).await,
            Self::Top(flags) => top::run(&flags, global).await,
            Self::Ui(flags) => ui::run(flags, global).await,
            Self::Sysdump(flags) => sysdump::run(flags, global).await,
            Self::Doctor(flags) => doctor::run(&flags, global).await,
            Self::Shadow(flags) => shadow::run(&flags, global).await,
            Self::Canary(flags) => canary::run(flags).await,
            Self::Takeover(flags) => takeover::run(&flags).await,
            Self::GiveBack(flags) => takeover::run_back(&flags).await,
            Self::History(flags) => history::run(flags, global).await,
            Self::Record(flags) => record::run(&flags, global).await,
            Self::Replay(flags) => replay::run(&flags).await,
            Self::Status(flags) => status::run(&flags, global).await,
            Self::Version(flags) => version::run(&flags, global).await,
            Self::Completion(flags) => completion::run(&flags),
        }
    }
}

#[derive(Debug, Args)]
struct Output {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    /// Omit the headings of tables
    #[arg(long)]
    no_headers: bool,
}

impl Output {
    fn print(&self, global: &Global, answer: &impl Show) -> Result<(), Failure> {
        Ok(output::print(|out| output::write(answer, self.output, self.style(global), out))?)
    }

    /// Returns the style of tables, which also depends on the terminal.
    fn style(&self, global: &Global) -> Style {
        Style {
            wide: self.output == Format::Wide,
            colour: output::is_coloured(global.colour),
            width: output::terminal_width(),
            no_headings: self.no_headers,
        }
    }
}

/// When to read the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum When {
    /// If the state comes from a unix socket, and therefore describes this node
    #[default]
    Auto,
    /// Always
    Yes,
    /// Never
    No,
}

#[derive(Debug, Args)]
struct OfNode {
    /// When to read the kernel of this machine
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    kernel: When,
    /// Read HNS from a file instead of a kernel: the output of `localnet-win inspect` on a Windows node
    #[arg(long, value_name = "FILE", conflicts_with = "kernel")]
    hns: Option<PathBuf>,
    #[command(flatten)]
    configuration: ConfigurationArgs,
}

impl OfNode {
    fn reads_kernel(&self, global: &Global) -> bool {
        self.hns.is_none() && (self.kernel == When::Yes || (self.kernel == When::Auto && global.is_of_this_node()))
    }

    /// Gathers the evidence: the state, the configuration, and access to the kernel if the command reads it.
    async fn world(
        &self,
        global: &Global,
        brain: Option<&Peer>,
        status: &Result<Status, String>,
        state: Snapshot,
    ) -> Result<World, Failure> {
        let configuration = configured(&self.configuration, status)?;
        let newest = status.as_ref().ok().and_then(Status::newest);
        // The sysdump contains the lists that belong to its newest state.
        let mut listings = match brain {
            Some(Peer::Sysdump(sysdump)) if self.kernel == When::Auto && global.at.is_none() => {
                listings::recorded(sysdump)
            }
            _ => BTreeMap::new(),
        };
        let win = Inspected::Win.name();
        let is_win = newest.is_some_and(|backend| backend.name == win) || listings.contains_key(win);
        // The brain of a Windows node runs on another machine, also if this machine has the brain's socket.
        let is_windows = self.hns.is_some() || is_win && self.kernel == When::Auto;
        let is_here = !is_windows && self.reads_kernel(global);
        // The sysdump contains the kernel that belongs to its newest state.
        let dumped = match brain {
            Some(Peer::Sysdump(sysdump)) if self.kernel == When::Auto && global.at.is_none() => sysdump.kernel.as_ref(),
            _ => None,
        };
        let local = match (is_here, dumped) {
            (true, _) => kernel::addresses().await.unwrap_or_default(),
            (false, Some(dumped)) => dumped.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
            (false, None) => state.node.addresses.clone(),
        };
        let is_local = is_here || dumped.is_some();
        // For iptables and ipvs, only the rules of other programs are read from nf_tables.
        let uses_kernel = |backend: &Backend| {
            let translator = Inspected::named(&backend.name).filter(|_| is_local);
            backend.has_nft_tables() || matches!(translator, Some(Inspected::Iptables | Inspected::Ipvs))
        };
        let mut kernel = match newest.filter(|backend| !uses_kernel(backend) && self.kernel == When::Auto) {
            _ if self.hns.is_some() => Err(kernel::unread("Windows has no nf_tables")),
            _ if is_windows && dumped.is_none() => Err(kernel::unread(
                "the node runs Windows: run localnet-win inspect there, and pass its output with --hns",
            )),
            _ if !is_local && global.at.is_some() => Err(kernel::unread(
                "the state is an earlier one (--kernel yes compares it with the kernel as it is now)",
            )),
            _ if !is_local => Err(kernel::unread(
                "the state may describe another node (--kernel yes reads this node's kernel anyway)",
            )),
            Some(other) => Err(kernel::unread(format!(
                "the node's backend is {}, whose rules this command does not read",
                other.name
            ))),
            None => dumped.map_or_else(Kernel::open, Kernel::of_sysdump),
        };
        if let Some(path) = &self.hns {
            let recording = fs::read(path).map_err(anyhow::Error::from).and_then(|bytes| Recording::parse(&bytes));
            let recording = recording.with_context(|| format!("--hns {}", path.display()))?;
            match inspect::of_recording(recording, configuration.config.clone(), &state).await {
                Ok(of_hns) => listings = BTreeMap::from([(win.to_owned(), of_hns)]),
                Err(error) => kernel = Err(kernel::unread(format!("{error:#}"))),
            }
        }
        let is_read = |name: &str| is_here || listings.contains_key(name);
        let other = newest.filter(|backend| !backend.has_nft_tables() && is_read(&backend.name));
        let other = match self.hns.is_some() || listings.contains_key(win) {
            true => Some(win.to_owned()),
            false => other.map(|backend| backend.name.clone()),
        };
        let dumped = dumped.filter(|_| !is_here).map(Observed::of_sysdump);
        // The settings of this machine are not those of the node.
        let dumped = dumped.or_else(|| is_windows.then(Observed::default));
        let facts = configuration.facts(&state.node, is_local.then_some(&local));
        let has_ebpf = status.as_ref().is_ok_and(Status::has_ebpf);
        Ok(World { state, configuration, facts, local, is_here, has_ebpf, other, kernel, listings, dumped })
    }
}

/// Returns the status of the brain and its backends, or why it is unknown.
async fn ask_status(global: &Global, brain: Option<&Peer>) -> Result<Status, String> {
    match brain {
        Some(brain) => global.status(brain).await.map_err(|error| format!("{error:#}")),
        None => Err("a saved state has no reports of backends".to_owned()),
    }
}

/// Selects the configuration that the answer is computed with.
fn configured(args: &ConfigurationArgs, status: &Result<Status, String>) -> Result<Configuration, Failure> {
    Configuration::of(args, status.as_ref().map_err(String::as_str))
}

fn not_saved(what: &str) -> Failure {
    Failure::Usage(format!("a saved state {what}; query a brain with --api"))
}

fn unreadable(global: &Global, why: &str) -> Failure {
    Failure::Unreadable(anyhow::anyhow!("{}: {why}", global.describe()))
}
