//! Reads the state, from a brain at a socket or TCP address, or from a file that `get state` saved.

use std::{io::Read as _, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::Args;
use localnet_client::{
    Snapshot, Source as _,
    grpc::{Brain, TlsFiles},
};
use localnet_proto::{Address, DEFAULT_ADDRESS, Revision};
use tokio::time::timeout;

use crate::{failure::Failure, output::Colour, status::Status};

/// The source of the state and the style of the output. Flattened into every command.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Address of the brain: unix:///path or tcp://host:port
    #[arg(long, global = true, value_name = "ADDR", env = "LOCALNET_API", default_value = DEFAULT_ADDRESS, help_heading = "State")]
    pub api: Address,
    /// Read a state saved by `localnet get state -o yaml` instead of querying a brain; - reads standard input
    #[arg(long, global = true, value_name = "FILE", help_heading = "State")]
    pub state: Option<PathBuf>,
    /// CA certificates that verify the brain's TLS certificate
    #[arg(long, global = true, value_name = "FILE", help_heading = "State")]
    pub tls_ca: Option<PathBuf>,
    /// Client TLS certificate
    #[arg(long, global = true, value_name = "FILE", requires = "tls_key", help_heading = "State")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the client TLS certificate
    #[arg(long, global = true, value_name = "FILE", requires = "tls_cert", help_heading = "State")]
    pub tls_key: Option<PathBuf>,
    /// Seconds to wait for the brain's first state
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 5, help_heading = "State")]
    pub timeout: u64,
    /// When to colour tables
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub colour: Colour,
}

impl Global {
    /// Returns the brain to query; `None` if a saved state is used. Requires a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if a TLS file cannot be read.
    pub fn brain(&self) -> Result<Option<Brain>, Failure> {
        if self.state.is_some() {
            return Ok(None);
        }
        let identity = self.tls_cert.clone().zip(self.tls_key.clone());
        let tls = self.tls_ca.clone().map(|ca| TlsFiles { ca, identity });
        Ok(Some(Brain::new(self.api.clone(), tls.as_ref())?))
    }

    /// The address or file that the state comes from, in words.
    pub fn describe(&self) -> String {
        self.state.as_ref().map_or_else(|| self.api.to_string(), |path| path.display().to_string())
    }

    /// Whether the state is of the node that this runs on, that is, it comes from a unix socket.
    pub fn is_of_this_node(&self) -> bool {
        self.state.is_none() && matches!(self.api, Address::Unix(_))
    }

    /// How long to wait for the brain.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Reads the state.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or the brain sends no state in time.
    pub async fn snapshot(&self, brain: Option<&Brain>) -> Result<Snapshot, Failure> {
        let Some(brain) = brain else { return Ok(self.saved()?) };
        let update = self.in_time(brain.next(Revision::default(), false)).await?;
        let mut snapshot = Snapshot::default();
        snapshot.apply(update);
        Ok(snapshot)
    }

    /// Returns which revision the brain and its backends have reached.
    ///
    /// # Errors
    /// Returns an error if the brain does not answer.
    pub async fn status(&self, brain: &Brain) -> anyhow::Result<Status> {
        Ok(Status::from(self.in_time(brain.status()).await?))
    }

    /// Waits for the brain's answer, at most for the time that `--timeout` gives.
    ///
    /// # Errors
    /// Returns an error if there is no answer in time, or the brain's error.
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
        let path = self.state.as_deref().context("--state names no file")?;
        let shown = path.display();
        let mut text = String::new();
        if path.as_os_str() == "-" {
            std::io::stdin().read_to_string(&mut text).context("reading standard input")?;
        } else {
            text = std::fs::read_to_string(path).with_context(|| format!("reading {shown}"))?;
        }
        read(&text).with_context(|| format!("{shown} is not a state saved by `localnet get state -o yaml`"))
    }
}

/// Reads a saved state from JSON or YAML.
///
/// # Errors
/// Returns an error with its position if the text is not a state.
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
