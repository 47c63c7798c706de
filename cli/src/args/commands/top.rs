//! `localnet top`.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use clap::Args;
use jiff::Timestamp;

use super::{
    Answered, ConfigurationArgs, Failure, Format, Global, Output, ask_status, configured, kernel, output, unreadable,
};
use crate::top::{self, By, Sample};

/// Show which Services, endpoints or clients have the most flows
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet top
  localnet top --by endpoint --most 5
  localnet top --draining --by endpoint    # may a node or pod be removed?
  localnet top --interval 2")]
pub(crate) struct Top {
    /// Object to count flows by
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// Count only flows to endpoints that get no new connections, because they terminate, are not ready or were removed
    #[arg(long)]
    draining: bool,
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

pub(super) async fn run(flags: &Top, global: &Global) -> Answered {
    let brain = global.brain()?;
    let mut state = global.snapshot(brain.as_ref()).await?;
    let configuration = configured(&flags.configuration, &ask_status(global, brain.as_ref()).await)?;
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
        let mut top = top::count(&state, &facts, &sample, before.as_ref(), (flags.by, flags.draining));
        top.rows.truncate(flags.most);
        // The counted rates include connections to other endpoints.
        if !flags.draining
            && let Some(rates) = global.rates(brain.as_ref()).await
        {
            top.set_rates(&rates, flags.by);
        }
        (top.time, top.counts_bytes) = (output::utc(Timestamp::now()), kernel::counts_bytes());
        top.configuration = configuration.origin.clone();
        print(global, &flags.output, &top, samples)?;
        before = Some(sample);
    }
    Ok(false)
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
