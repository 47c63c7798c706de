//! `localnet-conformance`: checks any backend, in any language.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use clap::Parser;
use localnet_conformance::{Level, Options, claims::Claims, outcome::Verdict, run};
use rustix::process::Signal;

/// Check a backend of localnet: what it makes of streams, of states, of packets, and of what can happen to it.
///
/// The backend is started many times, as root in network namespaces of its own. It tells what it holds by Report, or, which
/// shows more, in a file: see docs/writing-a-backend.md.
#[derive(Debug, Parser)]
#[command(name = "localnet-conformance", version)]
struct Arguments {
    /// The command of the backend. In it {api} is the brain's address (unix:///…) and {socket} the path in it, or with {tcp}, an
    /// IP address and a port, tcp://…; {dump} is the file to write what is held to, {folder} one that is there for this brain alone,
    /// {flags} kube-proxy's flags of the node
    #[arg(long, value_name = "COMMAND")]
    backend: String,
    /// Levels to check: wire, state, packets, life
    #[arg(long, value_name = "LEVEL", value_delimiter = ',', default_value = "wire,state,packets,life")]
    levels: Vec<Level>,
    /// What the backend can do with packets, with commas between: tcp, udp, sctp, ipv4, ipv6, cluster-ip, external, node-port, answers, source,
    /// node-source, reject, drop, untouched, scopes, affinity, flows; or none [default: everything]
    #[arg(long, value_name = "CLAIMS")]
    claims: Option<Claims>,
    /// Only checks with one of these texts in their names (LEVEL/NAME)
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    only: Vec<String>,
    /// The folder of Cases [default: that of the repository]
    #[arg(long, value_name = "FOLDER")]
    cases: Option<PathBuf>,
    /// How long anything may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    patience: u64,
    /// Checks at a time
    #[arg(long, value_name = "COUNT", default_value_t = Options::of("").at_a_time)]
    at_a_time: usize,
    /// The signal that asks the backend to end: TERM, INT, HUP, QUIT
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = signal)]
    stop: Signal,
    /// A command that prints what the backend has written, line by line: restarts have to leave it as it is
    #[arg(long, value_name = "COMMAND")]
    listing: Option<String>,
    /// A command that removes all rules of a node, as others would: the backend has to put them back
    #[arg(long, value_name = "COMMAND")]
    flush: Option<String>,
    /// A command that removes all that the backend has written
    #[arg(long, value_name = "COMMAND")]
    cleanup: Option<String>,
    /// A command that reads back what the kernel serves, and prints it: see docs/writing-a-backend.md
    #[arg(long, value_name = "COMMAND")]
    read_back: Option<String>,
    /// A command after which the backend cannot write what it wants, until --clear
    #[arg(long, value_name = "COMMAND", requires = "clear")]
    obstruct: Option<String>,
    /// A command after which it can again
    #[arg(long, value_name = "COMMAND", requires = "obstruct")]
    clear: Option<String>,
    /// Write JUnit's XML to a file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

fn main() -> ExitCode {
    match check(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // There is nobody to tell that standard error cannot be written.
            _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::from(2)
        }
    }
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
        obstruct: arguments.obstruct,
        clear: arguments.clear,
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
    write!(io::stdout(), "{}", outcomes.table(false)).context("writing the table")?;
    if let Some(path) = &arguments.junit {
        fs::write(path, outcomes.junit(&options.backend)).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(outcomes.passed())
}
