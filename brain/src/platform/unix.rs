//! Linux.

use std::{
    collections::BTreeSet,
    fs::{self, File, FileType, Metadata, OpenOptions, TryLockError},
    io,
    net::IpAddr,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    pin::Pin,
};

use anyhow::Context as _;
use localnet_config::{Mode, Platform};
use tokio::signal::unix::{SignalKind, signal};

/// Resolves when the program has to end.
pub type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The system of the node.
pub const PLATFORM: Platform = Platform::Linux;
/// The mode if none is configured.
pub const BACKEND_MODE: Mode = Mode::Nftables;
/// The error for files that cannot be watched.
pub(crate) const UNWATCHED: &str = "failed to watch files; check whether fs.inotify.max_user_instances is too small";
/// Whether a server must ask to bind a port whose earlier connections linger. Go's `net.Listen` also does.
pub(crate) const ASKS_TO_REUSE_PORTS: bool = true;

/// Runs the program, which has to end when its argument resolves: on SIGTERM or SIGINT. Only Windows has services. Must be
/// called in a tokio runtime.
///
/// # Errors
/// Returns an error of the program, or an error if the handlers of the signals cannot be installed.
pub fn run(_as_service: bool, program: impl FnOnce(Ended) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to handle SIGINT")?;
    program(Box::pin(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }))
}

/// The host name.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Parses the name or the number of a group.
pub(crate) fn group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err("there is no such group".to_owned()),
        Err(error) => Err(format!("failed to look up the group: {error}")),
    }
}

/// The addresses of the node's interfaces.
pub(crate) fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or(address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    });
    Ok(addresses.collect::<BTreeSet<_>>().into_iter().collect())
}

/// Whether this machine has IPv6, according to the same files that kube-proxy reads.
pub(crate) fn has_ipv6() -> bool {
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    fs::exists("/proc/net/if_inet6").unwrap_or(false) && disabled.is_ok_and(|text| text.trim() == "0")
}

/// The properties of a file that change if another file replaces it.
pub(crate) fn identity(file: &Metadata) -> (u64, u64, u32) {
    (file.dev(), file.ino(), file.mode())
}

/// When the file last changed, in seconds and nanoseconds since 1970.
pub(crate) fn changed(file: &Metadata) -> (i64, i64) {
    (file.ctime(), file.ctime_nsec())
}

/// The device that contains a file or folder.
pub(crate) fn device(file: &Metadata) -> Option<u64> {
    Some(file.dev())
}

/// Whether a file was already complete when it got this name. This is so if it is a symbolic or hard link to an existing
/// file, or if it was renamed after its last write. No event then reports a finished write. A file that is still being
/// written has only one name, and its metadata were not changed after the last write.
pub(crate) fn was_created_complete(file: &Metadata) -> bool {
    let written = (file.mtime(), file.mtime_nsec());
    file.is_symlink() || file.nlink() > 1 || (file.len() > 0 && changed(file) > written)
}

/// The options that open a file to read it, and never wait, for instance for the writer of a FIFO.
pub(crate) fn to_read() -> OpenOptions {
    let without_waiting = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(without_waiting);
    options
}

/// Opens a file to read and to extend it, or creates it for this user alone. Returns `None` if another process has opened
/// the file in this way.
pub(crate) fn open_alone(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// What a file is that is not a regular file.
pub(crate) fn kind(file_type: FileType) -> &'static str {
    match file_type {
        kind if kind.is_fifo() => "FIFO",
        kind if kind.is_socket() => "socket",
        kind if kind.is_dir() => "folder",
        _ => "device",
    }
}

/// Whether a link cannot be followed because it leads back to itself.
pub(crate) fn is_loop(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}
