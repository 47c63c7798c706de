//! The example backend of KEP-2104: prints the state of the node whenever it changes.
//!
//! ```text
//! cargo run -p localnet-client --example print-state -- --api unix:///run/localnet/brain.sock --once
//! ```

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser;
use localnet_client::{Backend, Changes, Options, Snapshot, Synced, args, args::ClientArgs, telemetry};

#[derive(Parser)]
#[command(about = "Print the state of the node whenever it changes")]
struct Arguments {
    #[command(flatten)]
    client: ClientArgs,
}

struct PrintState;

impl Backend for PrintState {
    fn name(&self) -> &'static str {
        "print-state"
    }

    async fn sync(&mut self, state: &Snapshot, _changes: &Changes) -> anyhow::Result<Synced> {
        let mut out = io::stdout().lock();
        writeln!(out, "# node {} at {}, {} Services", state.node.name, state.revision, state.services.len())?;
        for service in state.services.values() {
            writeln!(out, "{}", serde_json::to_string(service)?)?;
        }
        out.flush()?;
        Ok(Synced::default())
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Arguments { client } = Arguments::parse();
    if let Err(error) = telemetry::init(client.log_format.unwrap_or_default(), "info", None) {
        return args::exit(Err(error));
    }
    let result = match client.source() {
        Ok(source) => args::run(PrintState, source, Options { report: false, ..client.options() }).await,
        Err(error) => Err(error),
    };
    args::exit(result)
}
