//! A named pipe of Windows. A pipe has an instance for each client, and one more that waits for the next client.

use std::{io, mem};

use anyhow::{Context as _, bail};
use localnet_proto::Address;
use tokio::net::windows::named_pipe::{NamedPipeServer, ServerOptions};

use super::quota::PeerId;
use crate::peer::Peer;

/// `ERROR_ACCESS_DENIED`: another process has the first instance of the pipe.
const ACCESS_DENIED: i32 = 5;

/// A connection.
pub(super) type Stream = NamedPipeServer;

/// The quota of a peer. All clients of pipes share one, because Windows reports no number for a user.
pub(super) fn peer_id(_: &Stream) -> PeerId {
    PeerId::User(u32::MAX)
}

/// Accepts a peer. Windows has already checked that it may open the pipe: by default, only Administrators, the system, and
/// the user of this process may write to a pipe.
///
/// # Errors
/// Returns no error; the signature is that of unix sockets.
pub(super) fn peer(_: &Stream, _uids: &[u32], _gids: &[u32]) -> io::Result<Peer> {
    Ok(Peer::Anonymous)
}

/// A named pipe.
#[derive(Debug)]
pub(super) struct Socket {
    path: String,
    /// The instance that waits for the next client. Without it, a client would find no pipe.
    waiting: NamedPipeServer,
}

impl Socket {
    /// Creates a pipe, which only processes of this machine can open.
    ///
    /// # Errors
    /// Returns an error if the address is a unix socket, or if another process has a pipe of this name.
    pub(super) fn bind(address: &Address, _gid: Option<u32>) -> anyhow::Result<Self> {
        let Address::Pipe(name) = address else {
            bail!("localnet-brain serves no unix sockets on Windows; use tcp://host:port or npipe:////./pipe/name")
        };
        let path = format!(r"\\.\pipe\{name}");
        match ServerOptions::new().first_pipe_instance(true).create(&path) {
            Err(error) if error.raw_os_error() == Some(ACCESS_DENIED) => {
                bail!("another process serves this pipe; stop it or choose another name")
            }
            created => Ok(Self { waiting: created.context("failed to create the pipe")?, path }),
        }
    }

    /// Waits for the next peer. Cancel safe.
    pub(super) async fn accept(&mut self) -> io::Result<Stream> {
        self.waiting.connect().await?;
        // If this fails, the client stays connected to the waiting instance, and the next call returns it.
        let next = ServerOptions::new().create(&self.path)?;
        Ok(mem::replace(&mut self.waiting, next))
    }
}
