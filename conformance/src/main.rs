//! `localnet-conformance`: tests any backend, in any language.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap::Parser;
use localnet_client::served::Lack;
use localnet_conformance::{
    Level, Options,
    claims::{Claim, Claims},
    outcome::Verdict,
    run,
};
use rustix::process::Signal;

/// Test a backend of localnet: how it handles streams, states, packets and failures.
///
/// The kit starts the backend many times. As root, it uses network namespaces that it creates. The backend calls Report
/// to tell the kit which state it has applied. It can write more details to a file: see docs/writing-a-backend.md.
#[derive(Debug, Parser)]
#[command(name = "localnet-conformance", version)]
struct Arguments {
    /// The backend's command. The kit replaces {api} with the brain's address (unix://PATH) and {socket} with PATH. If the
    /// command contains {tcp}, the kit replaces {tcp} with IP:PORT, and {api} with tcp://IP:PORT. {dump} is a file for the
    /// backend's state, {folder} is a folder only for this run, and {flags} are kube-proxy's flags for the node
    #[arg(long, value_name = "COMMAND")]
    backend: String,
    /// Levels to check: wire, state, packets, life
    #[arg(long, value_name = "LEVEL", value_delimiter = ',', default_value = "wire,state,packets,life")]
    levels: Vec<Level>,
    #[arg(long, value_name = "CLAIMS", help = claims_help())]
    claims: Option<Claims>,
    /// Run only checks whose names (LEVEL/NAME) contain one of these strings
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,
    /// The folder of Cases [default: those that come with the kit]
    #[arg(long, value_name = "FOLDER")]
    cases: Option<PathBuf>,
    /// Time limit for each step, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    patience: u64,
    /// How many checks run at a time
    #[arg(long, value_name = "COUNT", default_value_t = Options::of("").at_a_time)]
    at_a_time: usize,
    /// The signal that stops the backend: TERM, INT, HUP, QUIT
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = signal)]
    stop: Signal,
    /// A command that prints everything the backend has written, line by line; a restart of the backend must not change the output
    #[arg(long, value_name = "COMMAND")]
    listing: Option<String>,
    /// A command that removes all rules of the node, as another program might; the backend must restore its own
    #[arg(long, value_name = "COMMAND")]
    flush: Option<String>,
    /// A command that removes everything the backend has written
    #[arg(long, value_name = "COMMAND")]
    cleanup: Option<String>,
    /// A command that reads the kernel's state and prints what it serves: see docs/writing-a-backend.md
    #[arg(long, value_name = "COMMAND")]
    read_back: Option<String>,
    /// Limits of the kernel, separated by commas; the kit adapts its expectations to them
    #[arg(long, value_enum, value_name = "LACKS", value_delimiter = ',', requires = "read_back")]
    cannot_hold: Vec<Lack>,
    /// A command after which the kernel refuses the backend's changes, until --clear
    #[arg(long, value_name = "COMMAND", requires = "clear")]
    obstruct: Option<String>,
    /// A command after which the kernel accepts the backend's changes again
    #[arg(long, value_name = "COMMAND", requires = "obstruct")]
    clear: Option<String>,
    /// For a backend with eBPF programs: mount a new BPF file system at /sys/fs/bpf, and a new cgroup with the node's processes at
    /// /sys/fs/cgroup, only for each check and the backend that it starts; needs root
    #[arg(long)]
    sandbox: bool,
    /// Write the results to a file, as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

fn main() -> ExitCode {
    match check(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // If standard error is closed, there is no place to report that.
            _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn claims_help() -> String {
    let all = Claim::ALL.map(Claim::as_str).join(", ");
    format!("What the backend does with packets, separated by commas: {all}; or none [default: everything]")
}

fn signal(name: &str) -> Result<Signal, &'static str> {
    match name {
        "TERM" => Ok(Signal::TERM),
        "INT" => Ok(Signal::INT),
        "HUP" => Ok(Signal::HUP),
        "QUIT" => Ok(Signal::QUIT),
        _ => Err("expected TERM, INT, HUP or QUIT"),
    }
}

fn check(arguments: Arguments) -> anyhow::Result<bool> {
    let defaults = Options::of(arguments.backend);
    let options = Options {
        levels: arguments.levels,
        claims: arguments.claims.unwrap_or_default(),
        only: arguments.only,
        cases: arguments.cases.unwrap_or(defaults.cases),
        patience: Duration::from_secs(arguments.patience),
        at_a_time: arguments.at_a_time,
        stop: arguments.stop,
        listing: arguments.listing,
        flush: arguments.flush,
        cleanup: arguments.cleanup,
        read_back: arguments.read_back,
        cannot_hold: arguments.cannot_hold.into_iter().collect(),
        obstruct: arguments.obstruct,
        clear: arguments.clear,
        sandbox: arguments.sandbox,
        ..defaults
    };
    let outcomes = run(&options, |outcome| {
        let word = match &outcome.verdict {
            Verdict::Passed => "ok",
            Verdict::Failed(_) => "FAILED",
            Verdict::NotClaimed(_) => "-",
        };
        _ = writeln!(io::stderr(), "{word:<7} {}/{}", outcome.level, outcome.name);
    })?;
    write!(io::stdout(), "{}", outcomes.table(false)).context("failed to write the table")?;
    if let Some(path) = &arguments.junit {
        fs::write(path, outcomes.junit(&options.backend)).with_context(|| format!("--junit {}", path.display()))?;
    }
    Ok(outcomes.passed())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn help_and_the_page_for_authors_list_every_claim() {
        let command = Arguments::command();
        let claims = command.get_arguments().find(|argument| argument.get_id() == "claims").unwrap();
        let help = claims.get_help().unwrap().to_string();
        let listed = help.split_once(": ").and_then(|(_, rest)| rest.split_once("; or none")).unwrap().0;
        let expected = Claim::ALL.map(Claim::as_str).to_vec();
        assert_eq!(listed.split(", ").collect::<Vec<_>>(), expected);

        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/writing-a-backend.md");
        let page = fs::read_to_string(page).unwrap();
        let table = page.split_once("\n| claim | meaning |\n").unwrap().1.split_once("\n\n").unwrap().0;
        let cells = table.lines().skip(1).filter_map(|row| row.split('|').nth(1));
        let documented: Vec<_> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        assert_eq!(documented, expected);
    }
}
