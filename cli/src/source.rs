//! Reads the state, from a brain at a socket or TCP address, or from a file that `get state` saved.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::{Args, ColorChoice};
use localnet_client::{Snapshot, args::TlsArgs, grpc::Brain};
use localnet_proto::{Address, DEFAULT_ADDRESS, history::Entry};
use tokio::time::timeout;

use crate::{
    failure::Failure,
    moment::{Moment, state_at},
    peer::Peer,
    status::Status,
    traffic::Rates,
};

/// The source of the state and the style of the output. All commands have these flags.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Address of the brain: unix:///path or tcp://host:port
    #[arg(long, value_name = "ADDR", env = "LOCALNET_API", default_value = DEFAULT_ADDRESS)]
    pub api: Address,
    /// Read a sysdump, or a state saved by `localnet get state -o yaml`, instead of querying a brain; - reads a state from standard
    /// input
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Use an earlier state of the brain: a revision, or the state at a time, such as 03:12 (UTC), 10m (before now) or
    /// 2026-01-31T03:12:00Z
    #[arg(long, value_name = "REVISION|TIME")]
    pub at: Option<Moment>,
    /// The files for TLS.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Seconds to wait for the brain's first state
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub timeout: u64,
    /// When to colour tables; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", help_heading = None::<&str>)]
    pub colour: ColorChoice,
}

impl Global {
    /// Returns the brain or the sysdump to query; `None` if a saved state is used. Requires a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if a TLS file or the sysdump cannot be read.
    pub fn brain(&self) -> Result<Option<Peer>, Failure> {
        match &self.state {
            Some(path) => Ok(Peer::of_archive(path)?),
            None => Ok(Some(Peer::Brain(Brain::new(self.api.clone(), self.tls.files().as_ref())?))),
        }
    }

    /// Returns the brain to query.
    ///
    /// # Errors
    /// Returns an error if a TLS file cannot be read, or if a sysdump or a saved state is used. `why` is the reason why the command
    /// needs a brain: what a file lacks.
    pub fn live(&self, why: &str) -> Result<Brain, Failure> {
        match self.brain()? {
            Some(Peer::Brain(brain)) => Ok(brain),
            Some(Peer::Sysdump(_)) | None => Err(Failure::Usage(format!("a file {why}; query a brain with --api"))),
        }
    }

    /// The address or file that the state comes from, in words.
    pub fn describe(&self) -> String {
        self.state.as_ref().map_or_else(|| self.api.to_string(), |path| path.display().to_string())
    }

    /// Whether the state is the newest one from a unix socket. If so, it describes the node that this command runs on.
    pub fn is_of_this_node(&self) -> bool {
        self.state.is_none() && self.at.is_none() && matches!(self.api, Address::Unix(_))
    }

    /// How long to wait for the brain.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Reads the state.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or the brain sends no state in time.
    pub async fn snapshot(&self, brain: Option<&Peer>) -> Result<Snapshot, Failure> {
        let Some(at) = self.at else { return self.newest(brain).await };
        let brain =
            brain.ok_or_else(|| Failure::Usage("a saved state has no earlier states; remove --at".to_owned()))?;
        state_at(self.newest(Some(brain)).await?, &self.history(brain).await?, at)
    }

    /// Reads the newest state, even with `--at`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or the brain sends no state in time.
    pub async fn newest(&self, brain: Option<&Peer>) -> Result<Snapshot, Failure> {
        let Some(brain) = brain else { return Ok(self.saved()?) };
        Ok(self.in_time(brain.state()).await?)
    }

    /// Returns the last changes of the state.
    ///
    /// # Errors
    /// Returns an error if the brain does not answer in time, or is too old to record changes.
    pub async fn history(&self, brain: &Peer) -> anyhow::Result<Vec<Entry>> {
        self.in_time(brain.history()).await
    }

    /// Returns the brain if its reasons belong to the state. The brain knows the reasons of the newest state only.
    pub fn reasoning<'a>(&self, brain: Option<&'a Peer>) -> Option<&'a Peer> {
        brain.filter(|_| self.at.is_none())
    }

    /// Returns the rates of the counted traffic; `None` if no backend counts it, or if an earlier state is used.
    pub async fn rates(&self, brain: Option<&Peer>) -> Option<Rates> {
        let brain = self.reasoning(brain)?;
        Rates::of(&timeout(self.patience(), brain.traffic()).await.ok()?)
    }

    /// Returns which revision the brain and its backends have reached.
    ///
    /// # Errors
    /// Returns an error if the brain does not answer.
    pub async fn status(&self, brain: &Peer) -> anyhow::Result<Status> {
        Ok(Status::from(self.in_time(brain.status()).await?))
    }

    /// Waits for the brain's answer, at most for the time that `--timeout` gives.
    ///
    /// # Errors
    /// Returns the brain's error, or an error if the brain does not answer in time.
    pub async fn in_time<T, E>(&self, answer: impl Future<Output = Result<T, E>>) -> anyhow::Result<T>
    where
        Result<T, E>: anyhow::Context<T, E>,
    {
        let answered = timeout(self.patience(), answer).await.with_context(|| {
            let Self { api, timeout, .. } = self;
            format!("{api} does not answer within {timeout} s: the brain is not running, is busy, or has not read the cluster yet")
        })?;
        answered.with_context(|| self.api.to_string())
    }

    fn saved(&self) -> anyhow::Result<Snapshot> {
        let path = self.state.as_deref().context("--state is missing")?;
        let wrong = || format!("{} is not a state saved by `localnet get state -o yaml`", path.display());
        read(&text_of(path)?).with_context(wrong)
    }
}

/// Returns the text of a file, or of standard input for `-`.
///
/// # Errors
/// Returns an error if the file or standard input cannot be read, or is not UTF-8.
pub fn text_of(path: &Path) -> anyhow::Result<String> {
    if path.as_os_str() == "-" {
        return io::read_to_string(io::stdin()).context("failed to read standard input");
    }
    std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}

/// Reads a saved state from JSON or YAML.
///
/// # Errors
/// Returns an error if the text is not a state. The error contains the position of the first mistake.
pub fn read(text: &str) -> anyhow::Result<Snapshot> {
    match text.trim_start().starts_with('{') {
        true => Ok(serde_json::from_str(text)?),
        false => Ok(serde_saphyr::from_str(text)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str =
        "node: {name: n}\nservices:\n- {service: a/b, type: ClusterIP, clusterIPs: [10.0.0.1], ports: []}\n";

    #[test]
    fn a_saved_state_is_read_in_both_forms() {
        let yaml = read(STATE).unwrap();
        assert_eq!(yaml.services.len(), 1);
        assert_eq!(read(&serde_json::to_string(&yaml).unwrap()).unwrap(), yaml);
        assert!(format!("{:#}", read("node: 3").unwrap_err()).contains("line 1"));
        assert!(read("{\"node\": 3}").is_err());
    }
}
