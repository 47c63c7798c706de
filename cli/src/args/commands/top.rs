//! `localnet top`.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use localnet_client::{Snapshot, args::terminated, grpc::Brain};
use tokio::task::spawn_blocking;

use super::{
    Answered, ConfigurationArgs, Failure, Format, Global, OfNode, Output, When, ask_status, configured, explain,
    kernel, output, unreadable,
};
use crate::{
    configuration::Configuration,
    history::{self, History, Selection},
    inspect::Inspected,
    output::Show as _,
    peer::Peer,
    question::{At, To},
    status::Status,
    style::Style,
    top::{self, By, Sample, input::Question, live, seen::Seen},
};

/// The maximum number of rows of a table.
const MOST: usize = 20;

/// Show the Services with their rates and endpoints, live; or which Services, endpoints or clients have the most flows
///
/// On a terminal, this is a live view, unless a flag below selects a table.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet top                             # live, on a terminal; ? shows the keys
  localnet top --count 1                   # a table
  localnet top --by endpoint --most 5
  localnet top --draining --by endpoint    # may a node or pod be removed?
  localnet top --interval 2")]
pub(crate) struct Top {
    /// Object to count flows by [default: service]
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Count only flows to endpoints that get no new connections, because they terminate, are not ready or were removed
    #[arg(long)]
    draining: bool,
    /// Maximum number of rows [default: 20]
    #[arg(long, value_name = "NUMBER")]
    most: Option<usize>,
    /// Repeat at this interval, in seconds, and show rates, until Ctrl-C
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    interval: Option<u64>,
    /// Exit after this many samples, one second apart unless --interval is given
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    configuration: ConfigurationArgs,
}

impl Top {
    /// Whether to show the live view: on a terminal, with a brain, and without a flag that shapes a table.
    fn is_live(&self, global: &Global) -> bool {
        let is_plain = self.by.is_none() && !self.draining && self.most.is_none() && !self.output.no_headers;
        let is_once = self.interval.is_none() && self.count.is_none() && self.output.output == Format::Table;
        let has_terminal = || io::stdout().is_terminal() && io::stdin().is_terminal();
        let is_dumb = || std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        is_plain && is_once && global.state.is_none() && has_terminal() && !is_dumb()
    }
}

pub(super) async fn run(flags: &Top, global: &Global) -> Answered {
    if flags.is_live(global) {
        return live(flags, global, &global.live("does not change")?).await;
    }
    let by = flags.by.unwrap_or_default();
    let brain = global.brain()?;
    let mut state = global.snapshot(brain.as_ref()).await?;
    let status = ask_status(global, brain.as_ref()).await;
    if let Some(why) = status.as_ref().ok().and_then(Status::newest).and_then(|of| without_flows(&of.name)) {
        return Err(unreadable(global, why));
    }
    let configuration = configured(&flags.configuration, &status)?;
    let samples = flags.count.unwrap_or(if flags.interval.is_some() { u64::MAX } else { 1 });
    let mut ticks = tokio::time::interval(Duration::from_secs(flags.interval.unwrap_or(1)));
    let mut before: Option<Sample> = None;
    for number in 0..samples {
        ticks.tick().await;
        if number > 0 && brain.is_some() {
            state = global.snapshot(brain.as_ref()).await?;
        }
        let local = kernel::addresses().await.unwrap_or_default();
        let facts = configuration.facts(&state.node, Some(&local));
        let flows = kernel::counted_flows().map_err(|error| unreadable(global, &error.to_string()))?;
        let sample = Sample { at: Instant::now(), flows };
        let mut top = top::count(&state, &facts, &sample, before.as_ref(), (by, flags.draining));
        top.rows.truncate(flags.most.unwrap_or(MOST));
        // The counted rates include connections to other endpoints.
        if !flags.draining
            && let Some(rates) = global.rates(brain.as_ref()).await
        {
            top.set_rates(&rates, by);
        }
        (top.time, top.counts_bytes) = (output::utc(Timestamp::now()), kernel::counts_bytes());
        top.configuration = configuration.origin.clone();
        print(global, &flags.output, &top, samples)?;
        before = Some(sample);
    }
    Ok(false)
}

/// Why a node with this backend has no flows that can be read.
fn without_flows(backend: &str) -> Option<&'static str> {
    (backend == Inspected::Win.name())
        .then_some("the node runs Windows, where HNS counts neither connections nor packets: top cannot show them")
}

/// Prints one sample. If there are several samples, prints the time before each table, and a separator before each YAML
/// document.
fn print(global: &Global, format: &Output, top: &top::Top, samples: u64) -> Result<(), Failure> {
    Ok(output::print(|out| {
        match format.output {
            _ if samples == 1 => {}
            Format::Table | Format::Wide => writeln!(out, "{}", top.time)?,
            Format::Yaml => writeln!(out, "---")?,
            Format::Json | Format::Name => {}
        }
        output::write(top, format.output, format.style(global), out)
    })?)
}

/// Shows the live view.
async fn live(flags: &Top, global: &Global, brain: &Brain) -> Answered {
    let peer = global.brain()?;
    // Fails if the brain does not answer, before the view covers the terminal.
    let state = global.snapshot(peer.as_ref()).await?;
    let configuration = configured(&flags.configuration, &ask_status(global, peer.as_ref()).await)?;
    let mut sampler = Sampler::new(configuration);
    let style = Style { colour: output::is_coloured(global.colour), ..Style::default() };
    let node = OfNode { kernel: When::Auto, hns: None, configuration: flags.configuration.clone() };
    let explain = async |Question { from, to, protocol }: Question| {
        let to = To { at: At::Address(to), protocol: Some(protocol) };
        let explained = explain::packet_explained(&node, global, peer.as_ref(), from.question(), &to).await;
        let style = Style { width: output::terminal_width(), ..style };
        explained.map(|explanation| explanation.human(style)).map_err(|failure| failure.to_string())
    };
    let history = before(global, peer.as_ref(), state).await;
    let sample = async |state: &Snapshot| sampler.sample(global, peer.as_ref(), state).await;
    live::run(brain, history, style.colour, sample, explain, terminated()).await?;
    Ok(false)
}

/// The changes that led to a state; `None` if the brain does not record them.
async fn before(global: &Global, peer: Option<&Peer>, state: Snapshot) -> Option<History> {
    let entries = global.history(peer?).await.ok()?;
    Some(history::rows(state, &entries, &Selection::default()))
}

/// Reads the traffic of the node again and again.
pub(super) struct Sampler {
    configuration: Configuration,
    before: Option<Sample>,
    /// Why the node has no flows that can be read.
    without_flows: Option<&'static str>,
}

impl Sampler {
    /// A sampler that has read nothing yet.
    pub(super) fn new(configuration: Configuration) -> Self {
        let without_flows = configuration.origin.backend.as_deref().and_then(without_flows);
        Self { configuration, before: None, without_flows }
    }

    /// Reads the traffic of the Services of a state. Reads connection tracking only if the state describes this machine.
    pub(super) async fn sample(&mut self, global: &Global, peer: Option<&Peer>, state: &Snapshot) -> Seen {
        let rates = global.rates(peer).await;
        let local = kernel::addresses().await.unwrap_or_default();
        let facts = self.configuration.facts(&state.node, Some(&local));
        let sample = match (self.without_flows, global.is_of_this_node()) {
            (Some(why), _) => Err(why.to_owned()),
            (None, true) => flows().await.map_err(|error| format!("{error:#}")),
            (None, false) => Err("the state may describe another node".to_owned()),
        };
        let seen = Seen::of(state, &facts, sample.as_ref().map_err(Clone::clone), self.before.as_ref(), rates.as_ref());
        self.before = sample.ok();
        seen
    }
}

/// Reads the flows. On a node with many, this takes long.
async fn flows() -> anyhow::Result<Sample> {
    let read = spawn_blocking(|| (kernel::counted_flows(), Instant::now()));
    let (flows, at) = read.await.context("reading the flows has crashed")?;
    Ok(Sample { at, flows: flows? })
}
