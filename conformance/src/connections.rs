//! The brain's listener. It counts connections, to detect a backend that leaks connections, and can refuse all connections.

use std::{
    io,
    net::TcpListener as StdTcpListener,
    path::Path,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{Stream, stream};
use localnet_lab::Namespace;
use localnet_proto::Address;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, UnixListener},
};
use tonic::transport::server::Connected;

/// A bidirectional stream.
trait Both: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Both for T {}

pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Binds a unix socket. Must be called within a tokio runtime.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        UnixListener::bind(path).map(Self::Unix)
    }

    /// Takes over a TCP listener. Must be called within a tokio runtime.
    pub(crate) fn tcp(listener: StdTcpListener) -> io::Result<Self> {
        TcpListener::from_std(listener).map(Self::Tcp)
    }

    async fn accept(&self) -> io::Result<Box<dyn Both>> {
        Ok(match self {
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        })
    }

    /// The incoming connections. Calls `changed` with 1 when a connection opens, and with -1 when it closes.
    pub(crate) fn incoming(
        self,
        changed: impl Fn(isize) + Send + Sync + 'static,
    ) -> impl Stream<Item = io::Result<Counted>> {
        let changed: Arc<Changed> = Arc::new(changed);
        stream::unfold((self, changed), |(listener, changed)| async {
            let both = listener.accept().await;
            let counted = both.map(|both| {
                changed(1);
                Counted { both, changed: Arc::clone(&changed) }
            });
            Some((counted, (listener, changed)))
        })
    }

    /// Closes each new connection immediately, and calls `refused_connections` for each.
    pub(crate) async fn refuse_connections(self, refused_connections: impl Fn()) {
        loop {
            if self.accept().await.is_ok() {
                refused_connections();
            }
        }
    }
}

type Changed = dyn Fn(isize) + Send + Sync;

/// A connection that counts as open until it is dropped.
pub(crate) struct Counted {
    both: Box<dyn Both>,
    changed: Arc<Changed>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.changed)(-1);
    }
}

impl Connected for Counted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.both).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.both).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.both).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.both).poll_shutdown(cx)
    }
}

/// Binds the TCP address, in a namespace if there is one; `None` for an address of another kind.
pub(crate) fn tcp(address: &Address, inside: Option<&Namespace>) -> io::Result<Option<StdTcpListener>> {
    let Address::Tcp { host, port } = address else { return Ok(None) };
    let listen = || {
        let listener = StdTcpListener::bind((host.as_str(), *port))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    match inside {
        None => listen().map(Some),
        Some(namespace) => namespace.run(|| listen().map_err(Into::into)).map(Some).map_err(io::Error::other),
    }
}
