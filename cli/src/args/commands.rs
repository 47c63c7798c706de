//! The implementation of each command: read, compute, print.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use localnet_client::{Snapshot, grpc::Brain};
use localnet_proto::{ByFamily, Family, Service, ServiceKey, reasons::Reasons};
use tokio::task::spawn_blocking;

use super::{Answered, Diff, Doctor, Explain, Get, OfNode, Output, Top, Watch, When};
use crate::{
    answer::Answer,
    configuration::{Configuration, ConfigurationArgs},
    diff,
    doctor::{self, Evidence as NodeEvidence, Findings},
    evidence::Evidence,
    explain::{self, Many},
    failure::Failure,
    get::{Endpoints, Kind, NodeFacts, Services},
    kernel::{self, Kernel, Live},
    output::{self, Format, Show},
    path::{self, Path as Way},
    question::{self, From as Sender, To},
    source::{Global, text_of},
    status::{Status, Versions},
    style::Style,
    top::{self, Sample},
    watch, why_not,
    world::World,
};

fn print(global: &Global, format: &Output, answer: &impl Show) -> Result<(), Failure> {
    Ok(output::print(|out| output::write(answer, format.output, style(global, format), out))?)
}

/// Returns the style of tables for this standard output.
fn style(global: &Global, output: &Output) -> Style {
    Style {
        wide: output.output == Format::Wide,
        colour: output::is_coloured(global.colour),
        width: output::terminal_width(),
        no_headings: output.no_headers,
    }
}

pub(super) async fn get(global: &Global, arguments: Get) -> Answered {
    let brain = global.brain()?;
    if arguments.kind == Kind::Revision {
        let brain = brain.ok_or_else(|| not_saved("has no revision"))?;
        print(global, &arguments.output, &global.status(&brain).await?)?;
        return Ok(false);
    }
    let state = global.snapshot(brain.as_ref()).await?;
    let filter = arguments.filter;
    match arguments.kind {
        Kind::Services => {
            print(global, &arguments.output, &Services { services: filter.services(&state).collect() })?;
        }
        Kind::Endpoints => {
            // The format `name` prints only endpoints of the state, so the brain's conditions are not needed.
            let brain = brain.as_ref().filter(|_| arguments.output.output != Format::Name);
            let reasons = conditions(brain, filter.services(&state)).await;
            print(global, &arguments.output, &Endpoints::of(filter.services(&state), &reasons))?;
        }
        Kind::Node => print(global, &arguments.output, &NodeFacts(&state.node))?,
        Kind::State | Kind::Revision => print(global, &arguments.output, &state)?,
    }
    let is_of_services = matches!(arguments.kind, Kind::Services | Kind::Endpoints);
    match filter.missing(&state) {
        missing if is_of_services && !missing.is_empty() => Err(Failure::Missing(format!(
            "this node has no Service {}; localnet explain --why-not shows the cause",
            missing.join(", ")
        ))),
        _ => Ok(false),
    }
}

/// The maximum number of Services about which the brain is queried. Each needs a call of its own.
const MAX_QUERIED: usize = 1000;

/// Returns the brain's reasons about each Service. The result is empty without a brain or for too many Services.
async fn conditions(brain: Option<&Brain>, services: impl Iterator<Item = &Service>) -> BTreeMap<ServiceKey, Reasons> {
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

fn not_saved(what: &str) -> Failure {
    Failure::Usage(format!("a saved state {what}; query a brain with --api"))
}

fn unreadable(global: &Global, why: &str) -> Failure {
    Failure::Unreadable(anyhow::anyhow!("{}: {why}", global.describe()))
}

pub(super) async fn watch(global: &Global, arguments: Watch) -> Answered {
    let brain = global.brain()?.ok_or_else(|| not_saved("does not change"))?;
    let options = watch::Options {
        filter: arguments.filter,
        format: arguments.output.output,
        style: style(global, &arguments.output),
        count: arguments.count,
    };
    watch::run(global, &brain, &options).await?;
    Ok(false)
}

/// Whether the command reads the kernel of this machine.
fn reads_kernel(global: &Global, node: &OfNode) -> bool {
    match node.kernel {
        When::Auto => global.is_of_this_node(),
        When::Yes => true,
        When::No => false,
    }
}

/// Returns the status of the brain and its backends, or why it is unknown.
async fn ask_status(global: &Global, brain: Option<&Brain>) -> Result<Status, String> {
    match brain {
        Some(brain) => global.status(brain).await.map_err(|error| format!("{error:#}")),
        None => Err("a saved state has no reports of backends".to_owned()),
    }
}

/// Selects the configuration that the answer is computed with.
fn configured(args: &ConfigurationArgs, status: &Result<Status, String>) -> Result<Configuration, Failure> {
    Configuration::of(args, status.as_ref().map_err(String::as_str))
}

/// Gathers the state, the configuration, and the kernel if the command reads it.
async fn world(
    global: &Global,
    node: &OfNode,
    status: &Result<Status, String>,
    state: Snapshot,
) -> Result<World, Failure> {
    let configuration = configured(&node.configuration, status)?;
    let is_here = reads_kernel(global, node);
    let local = match is_here {
        true => kernel::addresses().await.unwrap_or_default(),
        false => state.node.addresses.clone(),
    };
    let newest = status.as_ref().ok().and_then(Status::newest).map(|backend| &backend.name);
    let kernel = match newest.filter(|name| *name != "nft" && node.kernel == When::Auto) {
        _ if !is_here => {
            Err(kernel::unread("the state may describe another node (--kernel yes reads this node's kernel anyway)"))
        }
        Some(other) => {
            Err(kernel::unread(format!("the node's backend is {other}; this command reads only the rules of nft")))
        }
        None => Kernel::open(),
    };
    let facts = configuration.facts(&state.node, is_here.then_some(&local));
    Ok(World { state, configuration, facts, local, is_here, kernel })
}

pub(super) async fn explain(global: &Global, arguments: Explain) -> Answered {
    let brain = global.brain()?;
    let brain = brain.as_ref();
    if let Some(why_not) = arguments.why_not {
        let question =
            why_not::Question::new(why_not, arguments.from, arguments.to.as_ref()).map_err(Failure::Usage)?;
        let evidence = match global.snapshot(brain).await {
            Ok(state) => {
                let status = ask_status(global, brain).await;
                let mut world = world(global, &arguments.node, &status, state).await?;
                why_not::gather(&mut world, &question, brain, status.ok()).await
            }
            Err(failure) => Evidence {
                service: question.service,
                port: question.port,
                no_state: Some(failure.to_string()),
                status: match brain {
                    Some(brain) => global.status(brain).await.ok(),
                    None => return Err(failure),
                },
                ..Evidence::default()
            },
        };
        let answer = Answer::of(&evidence);
        print(global, &arguments.output, &answer)?;
        return Ok(!answer.causes.is_empty());
    }
    let state = global.snapshot(brain).await?;
    let mut world = world(global, &arguments.node, &ask_status(global, brain).await, state).await?;
    if let Some(path) = &arguments.packets {
        let many = many(&world, &text_of(path)?).await?;
        print(global, &arguments.output, &many)?;
        return Ok(many.0.iter().any(|one| one.outcome != "endpoints"));
    }
    let (Some(from), Some(to)) = (arguments.from, &arguments.to) else {
        return Err(Failure::Usage("--from and --to are both required".to_owned()));
    };
    let (packet, has_source) = packet(&world, from, to).await?;
    let explanation = explain::explain(&mut world, brain, packet, has_source).await;
    print(global, &arguments.output, &explanation)?;
    Ok(!explanation.arrives())
}

/// Returns the packet of a question, and whether its source is known.
async fn packet(world: &World, from: Sender, to: &To) -> Result<(localnet_client::route::Packet, bool), Failure> {
    let destination = question::destination(to, from.address().map(Family::of), &world.state);
    let destination =
        destination.map_err(|no| Failure::Missing(format!("{no}; localnet explain --why-not shows the cause")))?;
    if let Some(source) = from.address().filter(|source| source.is_ipv4() != destination.0.is_ipv4()) {
        return Err(Failure::Usage(format!(
            "the sender {source} and the destination {} are of different address families",
            destination.0
        )));
    }
    let packet = world.packet(from, destination).await;
    Ok((packet, from.address().is_some() || from == Sender::Node))
}

/// Computes the outcome for each packet of a text.
async fn many(world: &World, text: &str) -> Result<Many, Failure> {
    let mut explanations = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let wrong = |why: String| Failure::Usage(format!("line {number}: {why}"));
        let (from, to) = match words[..] {
            [] => continue,
            [from, to] => (from.parse::<Sender>().map_err(wrong)?, to.parse::<To>().map_err(wrong)?),
            _ => return Err(wrong("expected a sender and a destination".to_owned())),
        };
        let (packet, has_source) = packet(world, from, &to).await?;
        let mut one = explain::from_state(world, &world.judge(packet));
        if !has_source {
            one.from = String::new();
        }
        explanations.push(one);
    }
    Ok(Many(explanations))
}

pub(super) async fn differ(global: &Global, arguments: Diff) -> Answered {
    let brain = global.brain()?;
    // The kernel is read while the state arrives. Both take long with many Services.
    let live = reads_kernel(global, &arguments.node).then(|| spawn_blocking(Live::read));
    let state = global.snapshot(brain.as_ref()).await?;
    let status = ask_status(global, brain.as_ref()).await;
    let World { state, local, kernel, configuration, .. } = world(global, &arguments.node, &status, state).await?;
    let wrong = |error: &dyn std::fmt::Display| unreadable(global, &format!("the kernel: {error}"));
    let mut kernel = kernel.map_err(|error| wrong(&error))?;
    let most = if arguments.all { usize::MAX } else { diff::MOST };
    let compare = |live: &Live| diff::differences(&state, &configuration.config, &local, live, most);
    let mut live = match live {
        Some(reading) => reading.await.map_err(anyhow::Error::from)?,
        None => Live::read(),
    }
    .map_err(|error| wrong(&error))?;
    let mut differences = compare(&live);
    // The backend may have programmed the state after the kernel was read.
    if differences.count > 0 && kernel.generation().map_err(|error| wrong(&error))? != live.generation {
        live = Live::read().map_err(|error| wrong(&error))?;
        differences = compare(&live);
    }
    differences.configuration = configuration.origin;
    print(global, &arguments.output, &differences)?;
    Ok(differences.count > 0)
}

pub(super) async fn top(global: &Global, arguments: Top) -> Answered {
    let brain = global.brain()?;
    let mut state = global.snapshot(brain.as_ref()).await?;
    let configuration = configured(&arguments.configuration, &ask_status(global, brain.as_ref()).await)?;
    let samples = arguments.count.unwrap_or(if arguments.interval.is_some() { u64::MAX } else { 1 });
    let mut ticks = tokio::time::interval(Duration::from_secs(arguments.interval.unwrap_or(1)));
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
        let mut top = top::count(&state, &facts, &sample, before.as_ref(), arguments.by);
        top.rows.truncate(arguments.most);
        (top.time, top.counts_bytes) = (output::utc(Timestamp::now()), kernel::counts_bytes());
        top.configuration = configuration.origin.clone();
        print_sample(global, &arguments.output, &top, samples)?;
        before = Some(sample);
    }
    Ok(false)
}

/// Prints one sample. If there are several, each table follows its time, and each YAML document a separator.
fn print_sample(global: &Global, format: &Output, top: &top::Top, samples: u64) -> Result<(), Failure> {
    Ok(output::print(|out| {
        match format.output {
            _ if samples == 1 => {}
            Format::Table | Format::Wide => writeln!(out, "{}", top.time)?,
            Format::Yaml => writeln!(out, "---")?,
            Format::Json | Format::Name => {}
        }
        output::write(top, format.output, style(global, format), out)
    })?)
}

pub(super) async fn status(global: &Global, output: &Output) -> Answered {
    let brain = global.brain()?.ok_or_else(|| not_saved("has no status"))?;
    let status = global.status(&brain).await?;
    print(global, output, &status)?;
    Ok(!status.is_well())
}

pub(super) async fn version(global: &Global, output: &Output) -> Answered {
    let brain = match global.brain()? {
        Some(brain) => Some(global.status(&brain).await.map(|status| status.version)),
        None => None,
    };
    let (brain, error) = match brain.transpose() {
        Ok(version) => (version, None),
        Err(error) => (None, Some(error)),
    };
    // The version of this command is known even if the brain does not answer.
    print(global, output, &Versions { localnet: env!("CARGO_PKG_VERSION"), brain })?;
    error.map_or(Ok(false), |error| Err(error.into()))
}

pub(super) async fn examine(global: &Global, arguments: Doctor) -> Answered {
    let brain = global.brain()?;
    let brain = brain.as_ref();
    let mut evidence = NodeEvidence { api: global.describe(), ..NodeEvidence::default() };
    let status = ask_status(global, brain).await;
    evidence.status = brain.map(|_| status.clone());
    let state = global.snapshot(brain).await;
    let (state, error) = match state {
        Ok(state) => (state, None),
        Err(failure) => (Snapshot::default(), Some(failure.to_string())),
    };
    evidence.state = Some(error.clone().map_or_else(|| Ok(doctor::count(&state)), Err));
    if error.is_some() {
        // An unavailable brain is reported only once.
        evidence.status = evidence.status.filter(Result::is_ok);
    }
    let mut world = world(global, &arguments.node, &status, state).await?;
    evidence.configuration = Some(world.configuration.origin.clone());
    let affinity = ByFamily::from_fn(|family| path::has_affinity(&world.state, &world.facts, family));
    let planned = |family: Family| match error {
        // Without a state there is no plan.
        Some(_) => Vec::new(),
        None => Way::new(&world.facts, family, affinity[family]).chains().to_vec(),
    };
    doctor::read_kernel(&mut world.kernel, &mut evidence, planned);
    let findings = Findings::of(&evidence);
    print(global, &arguments.output, &findings)?;
    Ok(findings.fail())
}
