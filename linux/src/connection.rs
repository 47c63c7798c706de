//! An rtnetlink connection, and functions that its users share.

use std::io;

use futures::TryStreamExt as _;
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::{Handle, new_connection};
use rustix::io::Errno;
use tokio::task::JoinHandle;

/// An rtnetlink connection whose task ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) handle: Handle,
    task: JoinHandle<()>,
}

impl Connection {
    /// Connects in the network namespace of the calling thread. Must be called within a tokio runtime.
    pub(crate) fn open() -> io::Result<Self> {
        let (connection, handle, _) = new_connection()?;
        Ok(Self { handle, task: tokio::spawn(connection) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The kernel's error number; `None` if the error did not come from the kernel.
pub(crate) fn errno(error: &rtnetlink::Error) -> Option<Errno> {
    match error {
        rtnetlink::Error::NetlinkError(message) => Errno::from_io_error(&message.to_io()),
        _ => None,
    }
}

/// The interface with that name; `None` if there is none.
pub(crate) async fn link(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, rtnetlink::Error> {
    match handle.link().get().match_name(name).execute().try_collect::<Vec<_>>().await {
        Ok(links) => Ok(links.into_iter().next()),
        Err(error) if errno(&error) == Some(Errno::NODEV) => Ok(None),
        Err(error) => Err(error),
    }
}
