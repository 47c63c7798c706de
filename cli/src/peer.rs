//! [`Peer`]: answers questions about a node. It is the node's brain, or a sysdump.

use std::{fs::File, io::Read as _, path::Path};

use anyhow::Context as _;
use localnet_client::{Snapshot, Source as _, SourceError, grpc::Brain};
use localnet_proto::{
    Revision, ServiceKey, history::Entry, reasons::Reasons, sysdump::Sysdump, traffic::NodeTraffic, wire,
};

/// The file in the archive that this command reads. All other files are for people.
pub const CONTENT: &str = "sysdump.pb";

/// Answers questions about a node.
#[derive(Debug)]
pub enum Peer {
    /// A brain.
    Brain(Brain),
    /// A sysdump.
    Sysdump(Box<Sysdump>),
}

impl Peer {
    /// Reads a sysdump. Returns `None` if the file is no archive.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is an archive but no sysdump.
    pub fn of_archive(path: &Path) -> anyhow::Result<Option<Self>> {
        let failed = || format!("failed to read {}", path.display());
        let is_archive = |path: &Path| -> std::io::Result<bool> {
            let mut head = Vec::new();
            File::open(path)?.take(512).read_to_end(&mut head)?;
            // The magic number of a tar archive.
            Ok(head.get(257..262) == Some(b"ustar"))
        };
        // Reading the head of a pipe would take it from the state that follows.
        if path.as_os_str() == "-" || !path.is_file() || !is_archive(path).with_context(failed)? {
            return Ok(None);
        }
        for entry in tar::Archive::new(File::open(path).with_context(failed)?).entries().with_context(failed)? {
            let mut entry = entry.with_context(failed)?;
            if entry.path().with_context(failed)?.file_name().is_some_and(|name| name == CONTENT) {
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).with_context(failed)?;
                let sysdump = Sysdump::from_bytes(&bytes).with_context(failed)?;
                return Ok(Some(Self::Sysdump(Box::new(sysdump))));
            }
        }
        anyhow::bail!("{} is no sysdump: it does not contain {CONTENT}", path.display())
    }

    /// The newest state.
    ///
    /// # Errors
    /// Returns an error if the brain is unavailable, or the sysdump contains no valid state.
    pub async fn state(&self) -> Result<Snapshot, SourceError> {
        match self {
            Self::Brain(brain) => {
                let mut state = Snapshot::default();
                state.apply(brain.next(Revision::default(), false).await?);
                Ok(state)
            }
            Self::Sysdump(sysdump) => sysdump.state().map_err(|error| SourceError::Invalid(error.to_string())),
        }
    }

    /// Explains the state of a Service.
    ///
    /// # Errors
    /// Returns the problem if the brain is unavailable, or the sysdump does not contain the Service.
    pub async fn why(&self, service: &ServiceKey) -> Result<Reasons, String> {
        let sysdump = match self {
            Self::Brain(brain) => return brain.why(service).await.map_err(|error| error.to_string()),
            Self::Sysdump(sysdump) => sysdump,
        };
        let key = wire::ServiceKey::from(service);
        let found = sysdump.reasons.iter().find(|reasons| reasons.service.as_ref() == Some(&key));
        found.cloned().map(Into::into).ok_or_else(|| format!("the sysdump has no reasons about Service {service}"))
    }

    /// The progress of the brain and of the backends.
    ///
    /// # Errors
    /// Returns an error if the brain is unavailable, or is too old to know the call.
    pub async fn status(&self) -> Result<wire::BrainStatus, SourceError> {
        match self {
            Self::Brain(brain) => brain.status().await,
            Self::Sysdump(sysdump) => Ok(sysdump.status.clone().unwrap_or_default()),
        }
    }

    /// The traffic that backends have counted; empty if the brain is too old to know it.
    pub async fn traffic(&self) -> NodeTraffic {
        match self {
            Self::Brain(brain) => brain.traffic().await.unwrap_or_default(),
            Self::Sysdump(_) => NodeTraffic::default(),
        }
    }

    /// The last changes of the state, oldest first.
    ///
    /// # Errors
    /// Returns an error if the brain is unavailable, or is too old to know the call.
    pub async fn history(&self) -> Result<Vec<Entry>, SourceError> {
        match self {
            Self::Brain(brain) => brain.history().await,
            Self::Sysdump(sysdump) => Ok(sysdump.history.clone()),
        }
    }
}
