//! The command line: what there is, its help, and what the exit codes mean.

use std::{
    ffi::OsString,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use localnet_client::{
    Snapshot,
    grpc::Brain,
    vips::{Facts, flags::ConfigArgs},
};
use localnet_config::Mode;
use localnet_proto::Family;

use crate::{
    causes::{Answer, Evidence},
    diff::{self, Held},
    doctor::{self, Findings, Known},
    explain::{self, Many, World},
    get::{Endpoints, Filter, Kind, NodeFacts, Services, State},
    kernel::{self, Kernel},
    output::{self, Format, Print},
    path::{self, Path as Way},
    question::{self, From as Sender, To},
    source::Global,
    top::{self, By},
    watch, why_not,
};

const EXIT_CODES: &str = "\
Exit codes:
  0  done; nothing is wrong
  1  something is wrong: explain: the packet reaches no endpoint; --why-not: there is a cause; diff: the kernel differs;
     doctor: something fails
  2  the command line is wrong
  3  brain, file or kernel cannot be read
  4  what was asked for does not exist";

/// Ask a node about its Services
#[derive(Debug, Parser)]
#[command(name = "localnet", version, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List what the state of the node says
    #[command(after_help = "Examples:
  localnet get services
  localnet get endpoints web -n shop -o wide
  localnet get services -o name | head
  localnet get state -o yaml > state.yaml        # and later: localnet --state state.yaml explain …
  localnet --api tcp://10.0.0.7:12090 get node")]
    Get(Get),
    /// Show the changes of Services as they come
    #[command(after_help = "Examples:
  localnet watch -n shop
  localnet watch -o json | jq -c '[.type, .service.service]'")]
    Watch(Watch),
    /// Say what becomes of a packet, and why: brain, rules in the kernel, flows; or why a Service does not answer
    #[command(after_help = "Examples:
  localnet explain --from 10.244.0.7 --to shop/web:http
  localnet explain --from outside:203.0.113.9 --to 192.0.2.10:443
  localnet explain --from node --to 10.96.0.10:53/udp -o json
  localnet explain --why-not shop/web:80
  localnet explain --why-not shop/web:80 --from outside:203.0.113.9 --to 192.0.2.10:443

--from: an address, pod, pod:ADDRESS, node, outside or outside:ADDRESS
--to:   ADDRESS:PORT or NAMESPACE/SERVICE:PORT, each with /tcp, /udp or /sctp behind it if it is not TCP
The configuration is that of the backend: give both the same --config or --cluster-cidr.")]
    Explain(Explain),
    /// Compare what the nft backend plans with what the kernel holds
    #[command(after_help = "Examples:
  localnet diff --cluster-cidr 10.244.0.0/16
  localnet diff --config /var/lib/kube-proxy/config.conf -o json")]
    Diff(Diff),
    /// Show which Services, endpoints or clients have the most flows
    #[command(after_help = "Examples:
  localnet top
  localnet top --by endpoint --most 5")]
    Top(Top),
    /// Look whether the node as a whole is well
    #[command(after_help = "Examples:
  localnet doctor --config /var/lib/kube-proxy/config.conf
  localnet doctor -o json")]
    Doctor(Doctor),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:
  localnet completion bash > /etc/bash_completion.d/localnet
  localnet completion zsh > \"${fpath[1]}/_localnet\"")]
    Completion {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
struct Output {
    /// How the answer is printed
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

#[derive(Debug, Args)]
struct Get {
    /// What to list
    kind: Kind,
    /// Only these Services: NAME or NAMESPACE/NAME
    names: Vec<String>,
    /// Only Services of this namespace
    #[arg(short, long)]
    namespace: Option<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Watch {
    /// Only these Services: NAME or NAMESPACE/NAME
    names: Vec<String>,
    /// Only Services of this namespace
    #[arg(short, long)]
    namespace: Option<String>,
    /// End after so many states
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    #[command(flatten)]
    output: Output,
}

/// Whether to look at the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum When {
    /// If the state comes over a unix socket, and so is of this node
    #[default]
    Auto,
    /// Always
    Yes,
    /// Never
    No,
}

#[derive(Debug, Args)]
struct OfNode {
    /// Whether to look at the kernel of this machine
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    kernel: When,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Args)]
struct Explain {
    /// Who sends [default: a pod of this node to ClusterIPs, somebody outside to other addresses]
    #[arg(long, value_name = "SENDER", required_unless_present_any = ["why_not", "packets"])]
    from: Option<Sender>,
    /// Where to
    #[arg(long, value_name = "DESTINATION", required_unless_present_any = ["why_not", "packets"])]
    to: Option<To>,
    /// Say why this port of a Service does not answer: the causes, the likeliest first
    #[arg(long, value_name = "SERVICE:PORT", conflicts_with = "packets")]
    why_not: Option<To>,
    /// Say what becomes of each packet of a file, by the state alone: lines of SENDER and DESTINATION; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to"])]
    packets: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

#[derive(Debug, Args)]
struct Diff {
    /// Name every difference, however many there are
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

#[derive(Debug, Args)]
struct Top {
    /// What flows are counted by
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// How many rows
    #[arg(long, default_value_t = 20, value_name = "NUMBER")]
    most: usize,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

#[derive(Debug, Args)]
struct Doctor {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line asks for what makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Brain, file or kernel cannot be read.
    #[error("{0:#}")]
    Unreadable(#[from] anyhow::Error),
    /// What was asked for does not exist.
    #[error("{0}")]
    Missing(String),
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Unreadable(_) => 3,
            Self::Missing(_) => 4,
        }
    }
}

/// Whether something is wrong.
type Answered = Result<bool, Failure>;

/// Runs the program.
pub async fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let parsed = command(arguments.first()).try_get_matches_from(&arguments);
    let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nobody to read it: the exit code says it too.
            _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(arguments).await {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(1),
        Err(failure) => {
            _ = writeln!(io::stderr(), "error: {}", failure.to_string().replace('\n', " "));
            ExitCode::from(failure.code())
        }
    }
}

/// The command as it was called: as a plugin it is `kubectl localnet`.
fn command(called: Option<&OsString>) -> clap::Command {
    let name = called.map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
    let command = Arguments::command();
    if name.starts_with("kubectl-") { command.bin_name("kubectl localnet") } else { command }
}

async fn run(arguments: Arguments) -> Answered {
    let Arguments { global, command } = arguments;
    match command {
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "localnet", &mut script);
            output::print(|out| Ok(out.write_all(&script)?))?;
            Ok(false)
        }
        Command::Get(arguments) => get(&global, arguments).await,
        Command::Watch(arguments) => watch(&global, arguments).await,
        Command::Explain(arguments) => explain(&global, arguments).await,
        Command::Diff(arguments) => differ(&global, arguments).await,
        Command::Top(arguments) => top(&global, arguments).await,
        Command::Doctor(arguments) => examine(&global, arguments).await,
    }
}

fn print(global: &Global, output: &Output, answer: &impl Print) -> Result<(), Failure> {
    let colour = output::is_coloured(global.colour);
    Ok(output::print(|out| answer.print(output.output, colour, out))?)
}

async fn get(global: &Global, arguments: Get) -> Answered {
    let brain = global.brain()?;
    if arguments.kind == Kind::Revision {
        let Some(brain) = brain else {
            return Err(Failure::Usage("a saved state has no revision: ask a brain (--api)".to_owned()));
        };
        print(global, &arguments.output, &global.status(&brain).await?)?;
        return Ok(false);
    }
    let state = global.snapshot(brain.as_ref()).await?;
    let filter = Filter { namespace: arguments.namespace, names: arguments.names };
    match arguments.kind {
        Kind::Services => {
            print(global, &arguments.output, &Services { services: filter.services(&state).collect() })?;
        }
        Kind::Endpoints => print(global, &arguments.output, &Endpoints::of(filter.services(&state)))?,
        Kind::Node => print(global, &arguments.output, &NodeFacts(&state.node))?,
        Kind::State | Kind::Revision => print(global, &arguments.output, &State::of(&state))?,
    }
    let is_of_services = matches!(arguments.kind, Kind::Services | Kind::Endpoints);
    match filter.missing(&state) {
        missing if is_of_services && !missing.is_empty() => Err(Failure::Missing(format!(
            "this node serves no Service {}; localnet explain --why-not says why",
            missing.join(", ")
        ))),
        _ => Ok(false),
    }
}

fn unreadable(global: &Global, why: &str) -> Failure {
    Failure::Unreadable(anyhow::anyhow!("{}: {why}", global.describe()))
}

async fn watch(global: &Global, arguments: Watch) -> Answered {
    let Some(brain) = global.brain()? else {
        return Err(Failure::Usage("a saved state does not change: ask a brain (--api)".to_owned()));
    };
    let options = watch::Options {
        filter: Filter { namespace: arguments.namespace, names: arguments.names },
        format: arguments.output.output,
        colour: output::is_coloured(global.colour),
        count: arguments.count,
    };
    watch::run(global, &brain, &options).await?;
    Ok(false)
}

/// Whether the kernel of this machine is to be asked.
fn asks_kernel(global: &Global, node: &OfNode) -> bool {
    match node.kernel {
        When::Auto => global.is_of_this_node(),
        When::Yes => true,
        When::No => false,
    }
}

/// The state, the node's configuration, and the kernel if it is to be asked.
async fn world(global: &Global, node: &OfNode, brain: Option<&Brain>, state: Snapshot) -> Result<World, Failure> {
    let config = configured(node)?;
    let asked = asks_kernel(global, node);
    let local = match asked {
        true => kernel::addresses().await.unwrap_or_default(),
        false => state.node.addresses.clone(),
    };
    let kernel = match other_backend(global, brain).await.filter(|_| node.kernel == When::Auto) {
        _ if !asked => {
            Err("the state may be another node's (--kernel yes looks at this one's all the same)".to_owned())
        }
        Some(other) => Err(format!("the node's backend is {other}; only the rules of nft are looked at")),
        None => Kernel::open().map_err(|error| error.to_string()),
    };
    let facts = Facts::new(&config, &state.node, &local);
    Ok(World { state, facts, local, is_here: asked, kernel })
}

fn configured(node: &OfNode) -> Result<localnet_client::vips::Config, Failure> {
    let running = node.config.begin(Mode::Nftables)?;
    let running = running.ok_or_else(|| Failure::Usage("this command writes no configuration".to_owned()))?;
    Ok(node.config.config(running.config()))
}

/// The backend that reports, unless it is nft.
async fn other_backend(global: &Global, brain: Option<&Brain>) -> Option<String> {
    let status = global.status(brain?).await.ok()?;
    let newest = status.backends.iter().min_by_key(|backend| backend.age_millis)?;
    (newest.name != "nft").then(|| newest.name.clone())
}

async fn explain(global: &Global, arguments: Explain) -> Answered {
    let brain = global.brain()?;
    let brain = brain.as_ref();
    if let Some(why_not) = arguments.why_not {
        let asked = why_not::Asked::new(why_not, arguments.from, arguments.to.as_ref()).map_err(Failure::Usage)?;
        let evidence = match global.snapshot(brain).await {
            Ok(state) => {
                let mut world = world(global, &arguments.node, brain, state).await?;
                let told = why_not::ask(brain, &asked.service).await;
                why_not::gather(&mut world, &asked, told).await
            }
            Err(failure) => Evidence {
                asked: format!("{}:{}", asked.service, asked.port),
                service: asked.service.to_string(),
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
    let mut world = world(global, &arguments.node, brain, state).await?;
    if let Some(path) = &arguments.packets {
        let many = many(&world, &read(path)?).await?;
        print(global, &arguments.output, &many)?;
        return Ok(many.0.iter().any(|one| one.outcome != "endpoints"));
    }
    let (Some(from), Some(to)) = (arguments.from, &arguments.to) else {
        return Err(Failure::Usage("--from and --to are both needed".to_owned()));
    };
    let (packet, known) = packet(&world, from, to).await?;
    let explanation = explain::explain(&mut world, brain, packet, known).await;
    print(global, &arguments.output, &explanation)?;
    Ok(!explanation.arrives())
}

/// The packet of a question, and whether its source is known.
async fn packet(world: &World, from: Sender, to: &To) -> Result<(localnet_client::route::Packet, bool), Failure> {
    let destination = question::destination(to, from.address().map(Family::of), &world.state);
    let destination =
        destination.map_err(|no| Failure::Missing(format!("{no}; localnet explain --why-not says why")))?;
    if let Some(source) = from.address().filter(|source| source.is_ipv4() != destination.0.is_ipv4()) {
        return Err(Failure::Usage(format!("{source} and {} are of different families", destination.0)));
    }
    let packet = world.packet(from, destination).await;
    Ok((packet, from.address().is_some() || from == Sender::Node))
}

/// What becomes of each packet of a text.
async fn many(world: &World, text: &str) -> Result<Many, Failure> {
    let mut told = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let wrong = |why: String| Failure::Usage(format!("line {number}: {why}"));
        let (from, to) = match words[..] {
            [] => continue,
            [from, to] => (from.parse::<Sender>().map_err(wrong)?, to.parse::<To>().map_err(wrong)?),
            _ => return Err(wrong("a sender and a destination are expected".to_owned())),
        };
        let (packet, known) = packet(world, from, &to).await?;
        let mut one = explain::told(world, &world.judge(packet));
        if !known {
            one.from = String::new();
        }
        told.push(one);
    }
    Ok(Many(told))
}

fn read(path: &Path) -> anyhow::Result<String> {
    use anyhow::Context as _;
    if path.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).context("reading standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

async fn differ(global: &Global, arguments: Diff) -> Answered {
    let brain = global.brain()?;
    // What the kernel holds is read while the state arrives and is planned: both take long where there are many Services.
    let reading = asks_kernel(global, &arguments.node)
        .then(|| std::thread::spawn(|| Kernel::open().and_then(|mut kernel| Held::read(&mut kernel))));
    let state = global.snapshot(brain.as_ref()).await?;
    let config = configured(&arguments.node)?;
    let World { state, local, kernel, .. } = world(global, &arguments.node, brain.as_ref(), state).await?;
    let wrong = |error: &dyn std::fmt::Display| unreadable(global, &format!("the kernel: {error}"));
    let mut kernel = kernel.map_err(|error| wrong(&error))?;
    let most = if arguments.all { usize::MAX } else { diff::MOST };
    let held = || match reading {
        Some(reading) => reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        None => Kernel::open().and_then(|mut kernel| Held::read(&mut kernel)),
    };
    let compared = diff::differences(&state, config.clone(), local.clone(), held, most);
    let (mut differences, mut rest) = compared.map_err(|error| wrong(&error))?;
    // The backend may have programmed the state after the kernel was read.
    if differences.count > 0 && kernel.generation().map_err(|error| wrong(&error))? != rest.generation() {
        let compared = diff::differences(&state, config, local, || Held::read(&mut kernel), most);
        (differences, rest) = compared.map_err(|error| wrong(&error))?;
    }
    print(global, &arguments.output, &differences)?;
    // The program ends, which frees it at once.
    std::mem::forget((state, rest));
    Ok(differences.count > 0)
}

async fn top(global: &Global, arguments: Top) -> Answered {
    let brain = global.brain()?;
    let state = global.snapshot(brain.as_ref()).await?;
    // Flows are the same whatever backend there is.
    let node = OfNode { kernel: When::No, config: arguments.node.config.clone() };
    let local = kernel::addresses().await.unwrap_or_default();
    let world = world(global, &node, None, state).await?;
    let facts = Facts::new(&configured(&node)?, &world.state.node, &local);
    let mut flows = Vec::new();
    for family in diff::FAMILIES {
        flows.extend(kernel::flows(family, |_| true).map_err(|error| unreadable(global, &error.to_string()))?);
    }
    print(global, &arguments.output, &top::count(&world.state, &facts, &flows, arguments.by, arguments.most))?;
    Ok(false)
}

async fn examine(global: &Global, arguments: Doctor) -> Answered {
    let brain = global.brain()?;
    let brain = brain.as_ref();
    let mut known = Known { api: global.describe(), ..Known::default() };
    if let Some(brain) = brain {
        known.status = Some(global.status(brain).await.map_err(|error| format!("{error:#}")));
    }
    let state = global.snapshot(brain).await;
    let (state, error) = match state {
        Ok(state) => (state, None),
        Err(failure) => (Snapshot::default(), Some(failure.to_string())),
    };
    known.state = Some(error.clone().map_or_else(|| Ok(doctor::count(&state)), Err));
    if error.is_some() {
        // A brain that is not there is said once.
        known.status = known.status.filter(Result::is_ok);
    }
    let mut world = world(global, &arguments.node, brain, state).await?;
    let affinity = Family::BOTH.map(|family| path::has_affinity(&world.state, &world.facts, family));
    let wanted = |family: localnet_linux::nft::Family| match error {
        // What is planned follows from the state.
        Some(_) => Vec::new(),
        None => Way::new(&world.facts, localnet_nft::plan::model_family(family), affinity[family as usize])
            .chains()
            .to_vec(),
    };
    doctor::look(&mut world.kernel, &mut known, wanted);
    let findings = Findings::of(&known);
    print(global, &arguments.output, &findings)?;
    Ok(findings.fail())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        let words = line.split_whitespace().map(OsString::from);
        Arguments::from_arg_matches(&command(None).try_get_matches_from(words)?)
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn lines_are_read() {
        for line in [
            "localnet get svc",
            "localnet --state s.yaml get endpoints web -n shop -o wide",
            "localnet get node --api tcp://127.0.0.1:1 -o json",
            "localnet watch --count 1 -o name",
            "localnet explain --from pod --to shop/web:80",
            "localnet explain --why-not web:80",
            "localnet explain --why-not web:80 --from 10.0.0.1 --to 192.0.2.1:80 --cluster-cidr 10.0.0.0/8",
            "localnet explain --packets -",
            "localnet diff --all --config file",
            "localnet top --by client",
            "localnet doctor --kernel no",
            "localnet completion zsh",
        ] {
            assert!(parsed(line).is_ok(), "{line}: {:?}", parsed(line).err());
        }
        for line in [
            "localnet",
            "localnet get",
            "localnet get pods",
            "localnet explain --from pod",
            "localnet explain --from there --to web:80",
            "localnet explain --packets - --to web:80",
            "localnet --api brain get svc",
        ] {
            assert_eq!(parsed(line).map(|_| ()).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn a_plugin_is_called_as_kubectl_calls_it() {
        let usage = |called: &str| {
            let called = OsString::from(called);
            command(Some(&called)).try_get_matches_from([called, "--help".into()]).unwrap_err().to_string()
        };
        assert!(
            usage("/usr/bin/kubectl-localnet").contains("Usage: kubectl localnet"),
            "{}",
            usage("kubectl-localnet")
        );
        assert!(usage("localnet").contains("Usage: localnet"));
        assert!(usage("localnet").contains("Exit codes:"));
    }

    #[test]
    fn every_command_has_examples() {
        for command in Arguments::command().get_subcommands() {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }
}
