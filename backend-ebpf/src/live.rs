//! [`LiveBackend`]: the backend on a live node. It notices when another program deletes its pins.

use std::time::Duration;

use localnet_linux::addresses::NodeAddresses;
use localnet_linux_backend::live::{Live, Watch};
use tokio::time;
use tracing::info;

use crate::{EbpfBackend, host::Host, kernel::Kernel as _};

/// The eBPF backend of this host.
pub type LiveBackend = Live<EbpfBackend<Host>, Pins>;

/// Opens the backend, which attaches the programs. Must be called in a tokio runtime.
///
/// # Errors
/// Returns an error if the kernel refuses the programs or the maps, for instance without privileges.
pub async fn open(mut backend: EbpfBackend<Host>) -> anyhow::Result<LiveBackend> {
    backend.kernel_mut().attach()?;
    Ok(Live::new(backend, Pins, NodeAddresses::default()).await)
}

/// Notices deleted pins.
#[derive(Debug)]
pub struct Pins;

/// How often the pins are checked. The check costs a few system calls.
const EVERY: Duration = Duration::from_secs(10);

impl Watch<EbpfBackend<Host>> for Pins {
    const OBJECTS: &'static str = "the pinned programs and maps";

    async fn changed(&mut self, backend: &mut EbpfBackend<Host>) {
        loop {
            time::sleep(EVERY).await;
            if !backend.kernel_mut().is_attached() {
                info!("another program deleted pinned programs or maps; repairing them");
                return;
            }
        }
    }
}
