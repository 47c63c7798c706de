//! The command line: the commands, their help and the exit codes.

mod commands;

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Arg, ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use crate::{
    configuration::ConfigurationArgs,
    failure::Failure,
    get::{Filter, Kind},
    output::{self, Format},
    question::{From as Sender, To},
    source::Global,
    top::By,
};

const EXIT_CODES: &str = "\
Exit codes:
  0  success; no problem was found
  1  a problem was found (explain: the packet reaches no endpoint; --why-not: there is a cause; diff: the kernel differs;
     doctor: a check fails; status: a backend or the brain's source fails, or a backend lags)
  2  the command line is invalid
  3  the brain, the file or the kernel cannot be read
  4  the requested object does not exist";

/// Inspect the Services of a node
#[derive(Debug, Parser)]
#[command(name = "localnet", version, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(flatten, next_help_heading = "State")]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the Services, endpoints or facts in the state of the node
    #[command(after_help = "Examples:
  localnet get services
  localnet get endpoints web -n shop -o wide
  localnet get services -o name | head
  localnet get state -o yaml > state.yaml        # and later: localnet --state state.yaml explain …
  localnet --api tcp://10.0.0.7:12090 get node")]
    Get(Get),
    /// Print changes of Services as they happen
    #[command(after_help = "Examples:
  localnet watch -n shop
  localnet watch -o json | jq -c '[.type, .service.service]'")]
    Watch(Watch),
    /// Explain what happens to a packet and why, or why a Service does not answer
    #[command(after_help = "Examples:
  localnet explain --from 10.244.0.7 --to shop/web:http
  localnet explain --from outside:203.0.113.9 --to 192.0.2.10:443
  localnet explain --from node --to 10.96.0.10:53/udp -o json
  localnet explain --why-not shop/web:80
  localnet explain --why-not shop/web:80 --from outside:203.0.113.9 --to 192.0.2.10:443

--from: an address, pod, pod:ADDRESS, node, outside or outside:ADDRESS
--to:   ADDRESS:PORT or NAMESPACE/SERVICE:PORT, each followed by /udp or /sctp if it is not TCP")]
    Explain(Explain),
    /// Compare the nft backend's plan with the live state of the kernel
    #[command(after_help = "Examples:
  localnet diff
  localnet diff --all -o json
  localnet diff --cluster-cidr 10.9.0.0/16       # what would change with another configuration")]
    Diff(Diff),
    /// Show which Services, endpoints or clients have the most flows
    #[command(after_help = "Examples:
  localnet top
  localnet top --by endpoint --most 5
  localnet top --interval 2")]
    Top(Top),
    /// Check the health of the whole node
    #[command(after_help = "Examples:
  localnet doctor
  localnet doctor -o json")]
    Doctor(Doctor),
    /// Show the revisions of the brain and its backends, and the configuration of each backend
    #[command(after_help = "Examples:
  localnet status
  localnet status -o json")]
    Status {
        #[command(flatten)]
        output: Output,
    },
    /// Print the versions of this command and of the brain
    #[command(after_help = "Examples:
  localnet version
  localnet version -o json")]
    Version {
        #[command(flatten)]
        output: Output,
    },
    /// Print a completion script for a shell
    #[command(after_help = "Examples:
  localnet completion bash > /etc/bash_completion.d/localnet
  localnet completion zsh > \"${fpath[1]}/_localnet\"")]
    Completion {
        /// Shell to print the script for
        shell: clap_complete::Shell,
    },
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

#[derive(Debug, Args)]
struct Get {
    /// Kind of object to list
    kind: Kind,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Watch {
    #[command(flatten)]
    filter: Filter,
    /// Exit after this many states
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    #[command(flatten)]
    output: Output,
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
    #[command(flatten)]
    configuration: ConfigurationArgs,
}

#[derive(Debug, Args)]
struct Explain {
    /// Sender of the packet [default: a pod of this node for ClusterIPs, an outside client for other addresses]
    #[arg(long, value_name = "SENDER", required_unless_present_any = ["why_not", "packets"])]
    from: Option<Sender>,
    /// Destination of the packet
    #[arg(long, value_name = "DESTINATION", required_unless_present_any = ["why_not", "packets"])]
    to: Option<To>,
    /// Explain why this port of a Service does not answer, likeliest cause first
    #[arg(long, value_name = "SERVICE:PORT", conflicts_with = "packets")]
    why_not: Option<To>,
    /// Explain each packet in a file from the state only; each line is SENDER DESTINATION; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to"])]
    packets: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

#[derive(Debug, Args)]
struct Diff {
    /// List all differences, however many
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

#[derive(Debug, Args)]
struct Top {
    /// Object to count flows by
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// Maximum number of rows
    #[arg(long, default_value_t = 20, value_name = "NUMBER")]
    most: usize,
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

#[derive(Debug, Args)]
struct Doctor {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    node: OfNode,
}

/// Whether a command found a problem, which sets the exit code, or why it has no answer.
type Answered = Result<bool, Failure>;

/// Runs the program.
pub async fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let parsed = command(arguments.first()).try_get_matches_from(&arguments);
    let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            // If standard error cannot be written, the exit code still reports the error.
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

/// Returns the command with the name by which the user called it: as a plugin, it is called `kubectl localnet`.
fn command(called: Option<&OsString>) -> clap::Command {
    let name = called.map(Path::new).and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
    let command = with_short_help(Arguments::command().mut_args(|arg| arg.global(true)));
    if name.starts_with("kubectl-") { command.bin_name("kubectl localnet") } else { command }
}

/// Makes `-h` and `--help` both print each flag on one line.
fn with_short_help(command: clap::Command) -> clap::Command {
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help");
    let help = help.help_heading(None::<&str>);
    command.disable_help_flag(true).arg(help).mut_subcommands(with_short_help)
}

async fn run(arguments: Arguments) -> Answered {
    let Arguments { global, command } = arguments;
    match command {
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut self::command(None), "localnet", &mut script);
            output::print(|out| Ok(out.write_all(&script)?))?;
            Ok(false)
        }
        Command::Get(arguments) => commands::get(&global, arguments).await,
        Command::Watch(arguments) => commands::watch(&global, arguments).await,
        Command::Explain(arguments) => commands::explain(&global, arguments).await,
        Command::Diff(arguments) => commands::differ(&global, arguments).await,
        Command::Top(arguments) => commands::top(&global, arguments).await,
        Command::Doctor(arguments) => commands::examine(&global, arguments).await,
        Command::Status { output } => commands::status(&global, &output).await,
        Command::Version { output } => commands::version(&global, &output).await,
    }
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
            "localnet get svc -A --no-headers",
            "localnet top --interval 2 --count 3",
            "localnet status -o json",
            "localnet version",
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
            "localnet get svc -A -n shop",
            "localnet top --interval 0",
            // Flags of the long-running programs that this one does not have.
            "localnet doctor --write-config-to file",
            "localnet doctor --cleanup",
            "localnet diff --init-only",
            "localnet explain --from pod --to web:80 --proxy-mode ipvs",
            "localnet top --metrics-bind-address 127.0.0.1",
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

    /// The help of a command lists its own flags only, not those of a proxy.
    #[test]
    fn help_fits_on_a_screen_or_two() {
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            let help = parsed(&format!("localnet {name} --help")).map(|_| ()).unwrap_err().to_string();
            let lines = help.lines().count();
            assert!(lines <= 80, "{name}: {lines} lines\n{help}");
            for flag in ["--conntrack", "--cleanup", "--write-config-to", "--ipvs", "--hostname-override"] {
                assert!(!help.contains(flag), "{name}: {flag}\n{help}");
            }
        }
    }

    #[test]
    fn every_command_has_examples() {
        for command in Arguments::command().get_subcommands() {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Examples:"), "{}", command.get_name());
        }
    }
}
