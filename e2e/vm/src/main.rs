//! Runs one command in a guest.

use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use localnet_vm::{Guest, Options};

#[derive(Parser)]
#[command(about = "Run a command in a guest whose kernel has IPVS; the exit code is the command's")]
struct Arguments {
    /// Memory of the guest in MiB
    #[arg(long, default_value_t = Options::default().memory_mib)]
    memory: u32,
    /// Processors of the guest
    #[arg(long, default_value_t = Options::default().cpus)]
    cpus: u32,
    /// Time limit for the command in seconds
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// The command. It sees this machine's files; its changes stay in the guest's memory
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
