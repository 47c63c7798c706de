//! `localnet sysdump`.

use std::{fs::OpenOptions, io, os::unix::fs::OpenOptionsExt as _, path::PathBuf};

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use localnet_client::Snapshot;
use localnet_proto::sysdump::Sysdump as Content;

use super::{Answered, Failure, Format, Global, OfNode, Style, diff, doctor};
use crate::{
    anonymise::Anonymiser,
    diff::MOST,
    history::{self, Selection},
    inspect::Inspected,
    kernel,
    output::{self, Show},
    peer::{CONTENT, Peer},
    status::{Status, Versions},
};

/// Write everything that is needed to examine this node elsewhere into one archive
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet sysdump
  localnet sysdump --output node-a.tar
  localnet sysdump --anonymise
  localnet --state node-a.tar explain --why-not shop/web:80    # on any machine

The archive contains names and addresses from the cluster, but no Secrets. With --anonymise, it contains replaced ones, and only
the state, the history and the progress of backends.")]
pub(crate) struct Sysdump {
    /// File to write [default: sysdump-NODE-TIME.tar]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace names and addresses; equal ones stay equal
    #[arg(long)]
    anonymise: bool,
    #[command(flatten)]
    node: OfNode,
}

/// The maximum number of Services whose reasons are recorded. Each Service needs a call of its own.
const MOST_REASONS: usize = 10_000;

pub(super) async fn run(flags: Sysdump, global: &Global) -> Answered {
    let brain = Peer::Brain(global.live("is a sysdump already, or the part of one")?);
    let mut state = global.newest(Some(&brain)).await?;
    let now = Timestamp::now();
    let mut content = content(&brain, &state, now, &flags, global).await?;
    if flags.node.reads_kernel(global) || flags.node.hns.is_some() {
        let status = Ok(Status::from(content.status.clone().unwrap_or_default()));
        let world = flags.node.world(global, Some(&brain), &status, state.clone()).await?;
        for backend in Inspected::of(&world).into_iter().chain(Inspected::beside(&world)) {
            // The archive contains the reason in diff.txt.
            let Ok(listings) = backend.read(&world).await else { continue };
            content.listings.push(listings.to_wire(backend.name()));
        }
    }
    if flags.anonymise {
        content = Anonymiser::default().sysdump(&content).map_err(anyhow::Error::from)?;
        state = content.state().map_err(anyhow::Error::from)?;
    }
    let mut archive = Archive { tar: tar::Builder::new(Vec::new()), now };
    archive.add(CONTENT, &content.to_bytes())?;
    archive.add_shown("state.yaml", &state, Format::Yaml)?;
    let status = Status::from(content.status.clone().unwrap_or_default());
    let versions = Versions { localnet: env!("CARGO_PKG_VERSION"), brain: Some(status.version.clone()) };
    archive.add_shown("status.txt", &status, Format::Wide)?;
    archive.add_shown("status.json", &status, Format::Json)?;
    archive.add_shown("version.txt", &versions, Format::Table)?;
    archive.add_shown(
        "history.txt",
        &history::rows(state.clone(), &content.history, &Selection::default()),
        Format::Wide,
    )?;
    if !flags.anonymise {
        archive.add_shown("doctor.txt", &doctor::findings(&flags.node, global).await?, Format::Table)?;
        // Without the privilege to read the kernel, the archive states the reason instead.
        match diff::of_kernel(MOST, &flags.node, global).await {
            Ok(differences) => archive.add_shown("diff.txt", &differences, Format::Table)?,
            Err(failure) => archive.add("diff.txt", format!("{failure}\n").as_bytes())?,
        }
    }
    let name = || PathBuf::from(format!("sysdump-{}-{}.tar", state.node.name, now.strftime("%Y%m%dT%H%M%SZ")));
    let path = flags.output.clone().unwrap_or_else(name);
    let failed = || format!("failed to write {}", path.display());
    let bytes = archive.tar.into_inner().with_context(failed)?;
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).with_context(failed)?;
    io::Write::write_all(&mut file, &bytes).with_context(failed)?;
    output::print(|out| Ok(io::Write::write_fmt(out, format_args!("{}\n", path.display()))?))?;
    Ok(false)
}

/// Gathers the part of the archive that `localnet --state` reads.
async fn content(
    brain: &Peer,
    state: &Snapshot,
    now: Timestamp,
    flags: &Sysdump,
    global: &Global,
) -> Result<Content, Failure> {
    let mut content = Content {
        time_millis: now.as_millisecond().unsigned_abs(),
        status: Some(global.in_time(brain.status()).await?),
        // An older brain records no history.
        history: brain.history().await.unwrap_or_default(),
        ..Content::default()
    };
    content.set_state(state);
    for key in state.services.keys().take(MOST_REASONS) {
        let Ok(reasons) = brain.why(key).await else { break };
        content.reasons.push(reasons.to_wire(key, state.revision));
    }
    if flags.node.reads_kernel(global) {
        content.kernel = kernel::record().await;
    }
    Ok(content)
}

/// The archive.
struct Archive {
    tar: tar::Builder<Vec<u8>>,
    now: Timestamp,
}

impl Archive {
    fn add_shown(&mut self, name: &str, answer: &impl Show, format: Format) -> anyhow::Result<()> {
        let mut text = Vec::new();
        output::write(answer, format, Style::default(), &mut text)?;
        self.add(name, output::harmless(&String::from_utf8_lossy(&text)).as_bytes())
    }

    fn add(&mut self, name: &str, content: &[u8]) -> anyhow::Result<()> {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.now.as_second().unsigned_abs());
        Ok(self.tar.append_data(&mut header, format!("sysdump/{name}"), content)?)
    }
}
