//! [`LiveBackend`]: the backend on a live node. It notices when another program deletes its pins, and ends the sockets that a sync
//! could not end.

use std::time::Duration;

use localnet_linux::addresses::NodeAddresses;
use localnet_linux_backend::live::{Live, Watch};
use tokio::time::{self, Interval};
use tracing::info;

use crate::{EbpfBackend, host::Host, kernel::Kernel};

/// The eBPF backend of this host.
pub type LiveBackend = Live<EbpfBackend<Host>, Pins>;

/// Opens the backend, which attaches the programs. Must be called in a tokio runtime.
///
/// # Errors
/// Returns an error if the kernel refuses the programs or the maps, for instance without privileges.
pub async fn open(mut backend: EbpfBackend<Host>) -> anyhow::Result<LiveBackend> {
    backend.kernel_mut().attach()?;
    Ok(Live::new(backend, Pins::default(), NodeAddresses::default()).await)
}

/// Notices deleted pins, and tries again to end stale sockets.
#[derive(Debug)]
pub struct Pins {
    /// When to do so. It continues if a check is interrupted.
    check: Interval,
}

/// How often the pins are checked. The check costs a few system calls.
const EVERY: Duration = Duration::from_secs(10);

impl Default for Pins {
    /// Must be called in a tokio runtime.
    fn default() -> Self {
        Self { check: time::interval(EVERY) }
    }
}

impl<K: Kernel> Watch<EbpfBackend<K>> for Pins {
    const OBJECTS: &'static str = "the pinned programs and maps";

    async fn changed(&mut self, backend: &mut EbpfBackend<K>) {
        loop {
            self.check.tick().await;
            backend.end_sockets();
            if !backend.kernel_mut().is_attached() {
                info!("another program deleted pinned programs or maps; repairing them");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use localnet_client::{Changes, vips::Config};
    use tokio::time::timeout;

    use super::*;
    use crate::testing::FakeKernel;

    /// Regression: each update of counters, every 5 s, restarted the wait of 10 s, so no deleted pin was noticed.
    #[tokio::test(start_paused = true)]
    async fn a_check_happens_although_other_events_interrupt_the_wait() {
        let kernel = FakeKernel { attached: true, ..FakeKernel::default() };
        let (mut backend, mut pins) = (EbpfBackend::new(Config::default(), kernel), Pins::default());
        let wait = Duration::from_secs(5);
        assert!(timeout(wait, pins.changed(&mut backend)).await.is_err(), "nothing has changed");
        backend.kernel_mut().attached = false;
        let mut noticed = false;
        for _ in 0..2 {
            noticed |= timeout(wait, pins.changed(&mut backend)).await.is_ok();
        }
        assert!(noticed);
    }

    /// Regression: UDP sockets that a sync could not end kept endpoints that no longer existed, until the state changed again.
    #[tokio::test(start_paused = true)]
    async fn sockets_that_a_sync_could_not_end_are_ended_later() {
        let state = "{node: {name: n}, services: [{service: ns/dns, type: ClusterIP, clusterIPs: [172.30.0.1], ports: [{name: p, protocol: UDP, port: 53}]}]}";
        let state = serde_saphyr::from_str(state).unwrap();
        let stale = ["172.30.0.1:53", "10.0.0.1:53"].map(|text| crate::plan::socket(text.parse().unwrap()));
        let kernel = FakeKernel { attached: true, sockets: vec![stale], keeps_sockets: true, ..FakeKernel::default() };
        let (mut backend, mut pins) = (EbpfBackend::new(Config::default(), kernel), Pins::default());
        backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
        assert_eq!(backend.kernel_mut().sockets, [stale]);

        // A sync has failed, so the maps may still lead to the endpoint.
        let more = "{node: {name: n}, services: [{service: ns/web, type: ClusterIP, clusterIPs: [172.30.0.2], ports: [{name: p, protocol: TCP, port: 80}]}]}";
        let more = serde_saphyr::from_str(more).unwrap();
        let kernel = backend.kernel_mut();
        (kernel.keeps_sockets, kernel.limit) = (false, Some(kernel.applied));
        backend.apply(&more, &Changes::everything()).unwrap_err();
        assert!(timeout(EVERY, pins.changed(&mut backend)).await.is_err(), "nothing has changed");
        assert_eq!(backend.kernel_mut().sockets, [stale]);

        (backend.kernel_mut().keeps_sockets, backend.kernel_mut().limit) = (true, None);
        backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
        backend.kernel_mut().keeps_sockets = false;
        assert!(timeout(EVERY, pins.changed(&mut backend)).await.is_err(), "nothing has changed");
        assert!(backend.kernel_mut().sockets.is_empty());
    }
}
