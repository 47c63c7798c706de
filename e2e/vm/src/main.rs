//! Runs one command in a guest, for people.

use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use localnet_vm::{Guest, Options};

#[derive(Parser)]
#[command(about = "Run a command in a guest whose kernel has IPVS; the exit code is the command's")]
struct Arguments {
    /// Memory in MiB
    #[arg(long, default_value_t = Options::default().memory_mib)]
    memory: u32,
    /// Processors
    #[arg(long, default_value_t = Options::default().cpus)]
    cpus: u32,
    /// Seconds that the command may take
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// The command; it sees this machine's files and writes only to the guest's memory
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let guest = Guest::boot(&Options { memory_mib: arguments.memory, cpus: arguments.cpus, network: None })?;
    eprintln!("guest booted in {:.1?} ({})", guest.booted_in(), guest.accelerator());
    let mut words = arguments.command.iter();
    let mut command = Command::new(words.next().map(String::as_str).unwrap_or_default());
    command.args(words);
    let output = guest.run(&command, Duration::from_secs(arguments.timeout))?;
    std::io::stdout().write_all(&output.stdout)?;
    std::io::stderr().write_all(&output.stderr)?;
    let code = output.status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
