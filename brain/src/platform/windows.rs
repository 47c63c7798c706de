//! Windows.

use std::{
    collections::BTreeSet,
    fs::{File, FileType, Metadata, OpenOptions},
    io,
    net::{IpAddr, Ipv6Addr, UdpSocket},
    os::windows::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use localnet_config::{Mode, Platform};
pub use localnet_config_file::windows::Stopped as Ended;
use localnet_config_file::windows::{run_service, terminated};

/// The system of the node.
pub const PLATFORM: Platform = Platform::Windows;
/// The mode if none is configured.
pub const BACKEND_MODE: Mode = Mode::Kernelspace;
/// The error for files that cannot be watched.
pub(crate) const UNWATCHED: &str = "failed to watch files";
/// Whether a server must ask to bind a port whose earlier connections linger. On Windows, the option would let it take a
/// port from another process.
pub(crate) const ASKS_TO_REUSE_PORTS: bool = false;

/// `FILE_SHARE_READ | FILE_SHARE_DELETE`.
const SHARE_READ_DELETE: u32 = 1 | 4;
/// `ERROR_SHARING_VIOLATION`.
const SHARING_VIOLATION: i32 = 32;
/// `ERROR_CANT_RESOLVE_FILENAME`.
const CANNOT_RESOLVE: i32 = 1921;
/// The number of 100 ns steps in a second.
const STEPS: i64 = 10_000_000;
/// The number of seconds from 1601, when the time of Windows begins, to 1970.
const TO_1970: i64 = 11_644_473_600;

/// Runs the program, in the foreground or as a Windows service. It has to end when its argument resolves: on Ctrl-C or
/// Ctrl-Break, when the console is closed, when the service is stopped, and when Windows shuts down.
///
/// # Errors
/// Returns an error of the program, or an error if the service control manager did not start this process.
pub fn run(as_service: bool, program: impl FnOnce(Ended) -> anyhow::Result<()> + Send + 'static) -> anyhow::Result<()> {
    if as_service { run_service("localnet-brain", program) } else { program(Box::pin(terminated())) }
}

/// The host name.
pub(crate) fn host_name() -> String {
    hostname::get().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Refuses the name of a group.
pub(crate) fn group(_: &str) -> Result<u32, String> {
    Err("localnet-brain serves no unix sockets on Windows; remove the flag".to_owned())
}

/// The addresses of the node's interfaces.
pub(crate) fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let adapters = ipconfig::get_adapters().map_err(io::Error::other)?;
    let addresses = adapters.iter().flat_map(|adapter| adapter.ip_addresses().iter().copied());
    Ok(addresses.collect::<BTreeSet<_>>().into_iter().collect())
}

/// Whether this machine has IPv6.
pub(crate) fn has_ipv6() -> bool {
    UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// The properties of a file that change if another file replaces it.
pub(crate) fn identity(file: &Metadata) -> (u64, u64, u32) {
    (file.creation_time(), 0, file.file_attributes())
}

/// When the file last changed, in seconds and nanoseconds since 1970.
pub(crate) fn changed(file: &Metadata) -> (i64, i64) {
    let steps = i64::try_from(file.last_write_time()).unwrap_or(i64::MAX);
    (steps / STEPS - TO_1970, steps % STEPS * 100)
}

/// The device that contains a file or folder. Rust's standard library does not tell it.
pub(crate) fn device(_: &Metadata) -> Option<u64> {
    None
}

/// Whether a file was already complete when it got this name. [`to_read`] fails while a file is being written.
pub(crate) fn was_created_complete(_: &Metadata) -> bool {
    true
}

/// The options that open a file to read it. Opening fails while another process writes the file, because no event
/// reports that a writer has closed its file.
pub(crate) fn to_read() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).share_mode(SHARE_READ_DELETE);
    options
}

/// Opens a file to read and to extend it, or creates it with the permissions of its folder. Returns `None` if another
/// process has opened the file to write it. A lock would also prevent this process from reading the file.
pub(crate) fn open_alone(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    // A file that is opened to append cannot be cut.
    options.read(true).write(true).create(true).truncate(false).share_mode(SHARE_READ_DELETE);
    match options.open(path) {
        Err(error) if error.raw_os_error() == Some(SHARING_VIOLATION) => Ok(None),
        opened => opened.map(Some),
    }
}

/// What a file is that is not a regular file.
pub(crate) fn kind(file_type: FileType) -> &'static str {
    if file_type.is_dir() { "folder" } else { "device" }
}

/// Whether a link cannot be followed because it leads back to itself.
pub(crate) fn is_loop(error: &io::Error) -> bool {
    error.raw_os_error() == Some(CANNOT_RESOLVE)
}
