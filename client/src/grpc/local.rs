//! Connections within a machine: by a unix socket, or by a named pipe of Windows.

use http::uri::{Authority, Scheme};
use localnet_proto::Address;

use super::channel::Channel;

/// The host that requests name: within a machine, there is only this one.
fn localhost() -> Authority {
    Authority::from_static("localhost")
}

/// A channel to an address of this machine.
///
/// # Errors
/// Returns an error if this system does not support such addresses.
#[cfg(unix)]
pub(super) fn channel(address: &Address) -> anyhow::Result<Channel> {
    match address {
        Address::Unix(path) => {
            let path = path.clone();
            Ok(Channel::new(Scheme::HTTP, localhost(), move || tokio::net::UnixStream::connect(path.clone())))
        }
        other => anyhow::bail!("{other}: only Windows has named pipes; use unix:///absolute/path or tcp://host:port"),
    }
}

/// A channel to an address of this machine.
///
/// # Errors
/// Returns an error if this system does not support such addresses. Windows has unix sockets, but neither Rust's
/// standard library nor tokio opens them there.
#[cfg(windows)]
pub(super) fn channel(address: &Address) -> anyhow::Result<Channel> {
    match address {
        Address::Pipe(name) => {
            let path = format!(r"\\.\pipe\{name}");
            Ok(Channel::new(Scheme::HTTP, localhost(), move || open(path.clone())))
        }
        other => anyhow::bail!("{other} is not supported on Windows; use tcp://host:port or npipe:////./pipe/name"),
    }
}

/// `ERROR_PIPE_BUSY`: all instances of the pipe are in use. The server will offer another one soon.
#[cfg(windows)]
const BUSY: i32 = 231;
#[cfg(windows)]
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Opens a named pipe. The channel limits how long this may take.
#[cfg(windows)]
async fn open(path: String) -> std::io::Result<tokio::net::windows::named_pipe::NamedPipeClient> {
    loop {
        match tokio::net::windows::named_pipe::ClientOptions::new().open(&path) {
            Err(error) if error.raw_os_error() == Some(BUSY) => tokio::time::sleep(PAUSE).await,
            opened => return opened,
        }
    }
}
