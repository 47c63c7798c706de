//! The command line: the commands, their help and the exit codes.

mod commands;

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use clap::{Arg, ArgAction, CommandFactory as _, FromArgMatches as _, Parser};

use self::commands::Command;
use crate::source::Global;

const EXIT_CODES: &str = "\
Exit codes:
  0  success; no problem was found
  1  a problem was found (explain: the packet reaches no endpoint; --why-not: there is a cause; diff: the kernel differs;
     doctor: a check fails; status: a backend or the brain's source fails, or a backend lags; replay: a digest differs)
  2  the command line is invalid
  3  the brain, the file, the kernel or the cluster cannot be read or changed
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
    match arguments.command.run(&arguments.global).await {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(1),
        Err(failure) => {
            _ = writeln!(io::stderr(), "error: {}", failure.to_string().replace('\n', " "));
            ExitCode::from(failure.code())
        }
    }
}

/// Returns the command, named `kubectl localnet` if kubectl runs the program as a plugin.
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
            "localnet diff --dump - --cannot-hold outside,seconds",
            "localnet top --by client",
            "localnet doctor --kernel no",
            "localnet completion zsh",
            "localnet get svc -A --no-headers",
            "localnet top --interval 2 --count 3",
            "localnet top",
            "localnet ui --listen [::1]:0 --kernel no",
            "localnet ui --listen -",
            "localnet status -o json",
            "localnet sysdump --output node-a.tar",
            "localnet history --since 03:00 --service shop/web",
            "localnet get svc --at 812",
            "localnet diff --from 812 --to 03:12",
            "localnet takeover --plan node-a node-b",
            "localnet give-back -n proxies node-a",
            "localnet shadow --every 30s",
            "localnet canary add --plan --namespace shop",
            "localnet canary remove -n shop web api",
            "localnet canary add -n shop --selector tier=front",
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
            "localnet ui --listen 0.0.0.0:80",
            "localnet diff --to 812",
            "localnet diff --cannot-hold outside",
            "localnet diff --dump - --from 812",
            "localnet history --since noon",
            "localnet takeover --plan",
            "localnet shadow --every 30s --packets -",
            "localnet canary add",
            "localnet canary add -n shop web --selector tier=front",
            "localnet canary add -n shop --label proxy",
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
