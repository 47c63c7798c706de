//! `localnet replay`.

use std::{
    fs::File,
    io::{BufReader, ErrorKind, Write as _},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use localnet_client::vips::Config;
use localnet_nft::{Netlink, NftBackend};
use localnet_proto::{
    Changes,
    history::{Broken, Entry, Replay as Replayed},
    trace,
};
use tokio::time::{Instant, sleep_until};

use super::{Answered, Failure};
use crate::{diff, kernel::Live, output};

/// Replay a trace, and check that each revision has the digest that the brain recorded
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet replay shop.trace --dry-run --speed max
  unshare --net localnet replay shop.trace --backend nft --speed 10x

The exit code is 1 if a digest differs, or if the kernel finally differs from the state.")]
pub(crate) struct Replay {
    /// Trace of `localnet record`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Speed: 1x (as recorded), 10x or max
    #[arg(long, value_name = "SPEED", default_value = "1x")]
    speed: Speed,
    /// Program each state into the kernel, in this network namespace, which no other backend may program
    #[arg(long, value_name = "BACKEND", required_unless_present = "dry_run")]
    backend: Option<Backend>,
    /// Change nothing
    #[arg(long, conflicts_with = "backend")]
    dry_run: bool,
}

/// A backend that can replay a trace.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Backend {
    /// nf_tables
    Nft,
}

/// How many times faster than recorded; `None` means without pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Speed(Option<f64>);

impl FromStr for Speed {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "max" {
            return Ok(Self(None));
        }
        let factor = text.strip_suffix('x').and_then(|factor| factor.parse().ok());
        let factor = factor.filter(|factor: &f64| factor.is_finite() && *factor > 0.0);
        factor.map(|factor| Self(Some(factor))).ok_or("expected a factor, such as 10x, or max")
    }
}

pub(super) async fn run(flags: &Replay) -> Answered {
    let failed = || format!("failed to read {}", flags.file.display());
    let mut reader = BufReader::with_capacity(1 << 20, File::open(&flags.file).with_context(failed)?);
    trace::open(&mut reader).with_context(failed)?;
    let mut kernel = flags.backend.map(|Backend::Nft| Kernel::open()).transpose()?;
    let (began, mut replayed, mut revisions, mut entries) = (Instant::now(), Replayed::default(), 0_u64, 0_u64);
    let mut first = None;
    let wrong = loop {
        let entry = match trace::next(&mut reader) {
            Ok(Some(entry)) => entry,
            Ok(None) => break None,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                break Some("the trace ends in the middle of an entry".to_owned());
            }
            Err(error) => return Err(anyhow::Error::from(error).context(failed()).into()),
        };
        entries += 1;
        pause(flags.speed, began, &entry, *first.get_or_insert(entry.time_millis)).await;
        match replayed.take(&entry) {
            Ok(None) => {}
            Ok(Some(changes)) => {
                revisions += 1;
                if let (Some(kernel), Some(past)) = (&mut kernel, replayed.past()) {
                    let all = if revisions == 1 { Changes::everything() } else { changes };
                    kernel.apply(&past.state, &all).with_context(|| format!("revision {}", past.state.revision.rev))?;
                }
            }
            Err(Broken::Misfit(rev)) => {
                break Some(format!("revision {rev}: the digest differs from the recorded one"));
            }
            Err(broken) => break Some(broken.to_string()),
        }
    };
    let (millis, digest) = (began.elapsed().as_millis(), replayed.past().map(|past| past.digest.to_string()));
    let problem = match (wrong, kernel, replayed.past()) {
        (None, Some(_), Some(past)) => different(&past.state)?,
        (wrong, ..) => wrong,
    };
    output::print(|out| {
        let digest = digest.unwrap_or_else(|| "none".to_owned());
        writeln!(out, "{entries} entries with {revisions} states replayed in {millis} ms; last digest: {digest}")?;
        Ok(problem.iter().try_for_each(|problem| writeln!(out, "{problem}"))?)
    })?;
    Ok(problem.is_some())
}

/// Waits until it is time for an entry.
async fn pause(speed: Speed, began: Instant, entry: &Entry, first: u64) {
    let Speed(Some(factor)) = speed else { return };
    let after = Duration::from_millis(entry.time_millis.saturating_sub(first)).as_secs_f64() / factor;
    if let Some(at) = Duration::try_from_secs_f64(after).ok().and_then(|after| began.checked_add(after)) {
        sleep_until(at).await;
    }
}

/// The kernel of this network namespace.
struct Kernel(NftBackend<Netlink>);

impl Kernel {
    fn open() -> Result<Self, Failure> {
        let tables = Live::read().map_err(anyhow::Error::from)?.tables;
        if tables.iter().any(|(_, table)| table.is_some()) {
            let problem = "another backend programs this network namespace; run `unshare --net localnet replay …`";
            return Err(Failure::Usage(problem.to_owned()));
        }
        let mut backend = NftBackend::new(Config::default(), Netlink::open().map_err(anyhow::Error::from)?);
        backend.check().map_err(anyhow::Error::from)?;
        Ok(Self(backend))
    }

    fn apply(&mut self, state: &localnet_client::Snapshot, changes: &Changes) -> anyhow::Result<()> {
        self.0.apply(state, changes)?.whole()
    }
}

/// Returns how the kernel differs from the plan of a state, in words.
fn different(state: &localnet_client::Snapshot) -> Result<Option<String>, Failure> {
    let live = Live::read().map_err(anyhow::Error::from)?;
    let found = diff::differences(&mut diff::plan(state, &Config::default(), &[]), &live, 1);
    let first = found.differences.first().map(|first| format!("{}: {}", first.place, first.text));
    Ok(first.map(|first| format!("the kernel differs from the state in {} objects; the first: {first}", found.count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_a_factor_or_max() {
        for (text, expected) in [("1x", Some(Some(1.0))), ("0.5x", Some(Some(0.5))), ("max", Some(None))] {
            assert_eq!(text.parse().ok(), expected.map(Speed), "{text}");
        }
        for text in ["", "x", "10", "0x", "-1x", "infx", "NaNx"] {
            assert!(text.parse::<Speed>().is_err(), "{text}");
        }
    }
}
