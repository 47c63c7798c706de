//! Virtual servers in a temporary network namespace, and `ipvsadm` in it.

use localnet_core::Protocol;
use localnet_linux::ipvs::{Change, Destination, Frontend, Socket, VirtualServer};

use crate::namespace::{self, run};

/// Runs `test` in a new network namespace, which ends with the thread.
pub(crate) fn isolated(test: impl FnOnce() + Send + 'static) {
    namespace::isolated(|| {
        run("ip", &["link", "set", "lo", "up"], "");
        test();
    });
}

/// The sorted lines of `ipvsadm -S -n`.
pub(crate) fn ipvsadm() -> Vec<String> {
    sorted(&run("ipvsadm", &["-S", "-n"], ""))
}

pub(crate) fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// Applies changes, of which the kernel must refuse none.
#[track_caller]
pub(crate) fn apply(socket: &mut Socket, changes: &[Change]) {
    let applied = socket.apply(changes).unwrap();
    assert_eq!((applied.changes, applied.refused), (changes.len(), Vec::new()));
}

pub(crate) fn frontend(protocol: Protocol, address: &str) -> Frontend {
    Frontend::new(protocol, address.parse().unwrap())
}

pub(crate) fn server(protocol: Protocol, address: &str, scheduler: &str) -> VirtualServer {
    VirtualServer::new(frontend(protocol, address), scheduler.parse().unwrap())
}

pub(crate) fn destination(address: &str, weight: u32) -> Destination {
    Destination::masqueraded(address.parse().unwrap(), weight)
}
