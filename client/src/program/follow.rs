//! Restarts a backend in place when its configuration changes.
//!
//! A restart takes one sync: the backend adopts the live state and writes the differences. So no other code has to handle
//! the change from one configuration to another.

use std::{pin::pin, sync::Arc};

use localnet_config::{Config, DetectLocalMode, Mode};
use localnet_config_file::Current;
use tracing::{info, warn};

use crate::{Options, backend::Backend, source::Source};

impl Options {
    /// These options, with the values that the configuration sets for the loop. The longest retry delay is at most
    /// `syncPeriod`.
    #[must_use]
    pub fn configured(self, config: &Config) -> Self {
        let max_backoff = self.max_backoff.min(config.sync_period);
        let node_cidr = config.detect_local.mode == DetectLocalMode::NodeCidr;
        // On Windows the backend knows its pods' addresses without the Node's `spec.podCIDRs`.
        let needs_pod_cidrs = node_cidr && config.mode != Mode::Kernelspace;
        Self { min_interval: config.min_interval(), max_backoff, needs_pod_cidrs, ..self }
    }
}

/// Runs a backend until `shutdown`, or with [`Options::once`] until one state is applied.
///
/// `concerns` extracts the part of the configuration that the backend uses. When that part changes, the backend ends,
/// and `open` creates one for the new configuration. If `open` fails, the backend continues with the previous
/// configuration.
///
/// # Errors
/// Returns the errors of [`crate::run`], and an error if the first backend cannot be opened.
pub async fn run<K, B, S>(
    mut current: Current,
    concerns: impl Fn(&Config) -> K,
    mut open: impl AsyncFnMut(&Config) -> anyhow::Result<(B, Options)>,
    source: S,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()>
where
    K: PartialEq,
    B: Backend,
    S: Source + Clone,
{
    let mut shutdown = pin!(shutdown);
    let mut usable: Option<Arc<Config>> = None;
    loop {
        let config = current.now();
        let used = concerns(&config);
        let (backend, options) = match (open(&config).await, &usable) {
            (Ok(opened), _) => {
                usable = Some(config);
                opened
            }
            (Err(error), None) => return Err(error),
            (Err(error), Some(usable)) => {
                warn!("cannot apply the new configuration; keeping the previous one: {error:#}");
                open(usable).await?
            }
        };
        let mut restart = false;
        let ended = async {
            tokio::select! {
                () = shutdown.as_mut() => {}
                () = config_changed(&mut current, &concerns, &used) => restart = true,
            }
        };
        crate::run(backend, source.clone(), options, ended).await?;
        if !restart {
            return Ok(());
        }
        info!("the configuration changed; restarting the backend with it");
    }
}

/// Resolves when the part of the configuration that the backend uses has changed.
async fn config_changed<K: PartialEq>(current: &mut Current, concerns: &impl Fn(&Config) -> K, used: &K) {
    while concerns(current.changed().await.as_ref()) == *used {}
}
