//! `localnet record`.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use localnet_client::{Snapshot, Source as _, grpc::Brain};
use localnet_config::GoDuration;
use localnet_proto::{
    Digest, Revision, encode,
    history::{Entry, FullState, entry::Event},
    trace,
};
use tokio::time::sleep;

use super::{Answered, Failure, Global};
use crate::{anonymise::Anonymiser, output};

/// Record every change of the state into a trace, until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet record --output shop.trace
  localnet record --output shop.trace --duration 10m --anonymise

The trace contains no Secrets, but names and addresses from the cluster, except with --anonymise.")]
pub(crate) struct Record {
    /// File to write; must not exist
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Stop after this many changes
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    /// Stop after this duration, such as 90s or 10m
    #[arg(long, value_name = "DURATION")]
    duration: Option<GoDuration>,
    /// Stop when the trace has this size in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    size: u64,
    /// Replace names and addresses; equal ones stay equal
    #[arg(long)]
    anonymise: bool,
}

pub(super) async fn run(flags: &Record, global: &Global) -> Answered {
    let brain = global.live("does not change")?;
    let failed = || format!("failed to write {}", flags.output.display());
    let mut file = OpenOptions::new();
    let file = file.write(true).create_new(true).mode(0o600).open(&flags.output).with_context(failed)?;
    let anonymiser = flags.anonymise.then(Anonymiser::default);
    let mut trace = Trace { file, bytes: 0, changes: 0, anonymiser };
    trace.bytes += trace::begin(&mut trace.file).with_context(failed)?;
    let why = tokio::select! {
        result = record(&brain, &mut trace, flags, global) => result?,
        _ = tokio::signal::ctrl_c() => "interrupted",
        () = limit(flags.duration) => "the duration is over",
    };
    let Trace { bytes, changes, .. } = trace;
    let path = flags.output.display();
    output::print(|out| Ok(writeln!(out, "{path}: {changes} changes in {bytes} bytes ({why})")?))?;
    Ok(false)
}

async fn limit(duration: Option<GoDuration>) {
    match duration.and_then(GoDuration::positive) {
        Some(duration) => sleep(duration).await,
        None => std::future::pending().await,
    }
}

struct Trace {
    file: File,
    bytes: usize,
    /// The number of changes.
    changes: u64,
    anonymiser: Option<Anonymiser>,
}

impl Trace {
    fn add(&mut self, entry: Entry) -> anyhow::Result<()> {
        let entry = match &mut self.anonymiser {
            Some(anonymiser) => anonymiser.entry(entry)?,
            None => entry,
        };
        self.bytes += trace::append(&mut self.file, &entry).context("failed to write the trace")?;
        Ok(())
    }

    fn add_state(&mut self, state: &Snapshot, time_millis: u64) -> anyhow::Result<()> {
        let anonymous = self.anonymiser.as_mut().map(|anonymiser| anonymiser.state(state));
        let state = anonymous.as_ref().unwrap_or(state);
        let part = FullState { items: encode::state_items(state), continues: false, digest: Digest::of(state).0 };
        self.add(Entry { time_millis, event: Some(Event::State(part)) })
    }
}

/// Records until a limit is reached or the brain ends. Returns the reason.
async fn record(brain: &Brain, trace: &mut Trace, flags: &Record, global: &Global) -> Result<&'static str, Failure> {
    let newest = async || -> anyhow::Result<Snapshot> {
        let mut state = Snapshot::default();
        state.apply(global.in_time(brain.next(Revision::default(), false)).await?);
        Ok(state)
    };
    let mut entries = global.in_time(brain.follow()).await?;
    let now = Timestamp::now().as_millisecond().unsigned_abs();
    let mut held = newest().await?;
    trace.add_state(&held, now)?;
    while let Some(entry) = entries.next().await.map_err(anyhow::Error::from)? {
        let (rev, whole) = match &entry.event {
            Some(Event::Change(change)) => (Some(change.rev), change.whole),
            _ => (None, false),
        };
        // The state already contains the change.
        if rev.is_some_and(|rev| rev <= held.revision.rev) {
            continue;
        }
        let time_millis = entry.time_millis;
        trace.add(entry)?;
        trace.changes += u64::from(rev.is_some());
        if whole {
            held = newest().await?;
            trace.add_state(&held, time_millis)?;
        }
        if flags.count.is_some_and(|count| trace.changes >= count) {
            return Ok("the number is reached");
        }
        if trace.bytes as u64 >= flags.size << 20 {
            return Ok("the size is reached");
        }
    }
    Ok("the brain ended")
}
