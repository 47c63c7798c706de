//! Bound sockets: the addresses that the brain serves on, and the authentication of peers.
//!
//! On a unix socket, the kernel reports the user and group of the peer, and the mode of the socket's file is 0660. On
//! Windows, a named pipe replaces the unix socket. TCP on addresses other than loopback requires a client certificate.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use localnet_proto::Address;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, lookup_host},
    time,
};

#[cfg(windows)]
use super::pipe as local;
#[cfg(unix)]
use super::unix as local;
use super::{
    names,
    quota::PeerId,
    tls::{Tls, TlsFiles},
};
use crate::{
    metrics::Metrics,
    peer::{Name, Peer},
    platform,
};

/// How often the TLS files are checked while no client connects.
const TLS_POLL: Duration = Duration::from_secs(10);
/// Maximum age of a TLS connection. The client then has to authenticate again, because its certificate may have expired.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// Who may connect, and how.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// Group (name or number) that owns the unix sockets and may connect to them; their mode is 0660
    #[arg(long = "socket-group", value_name = "GROUP", value_parser = platform::group)]
    pub socket_gid: Option<u32>,
    /// User (number) that may connect to unix sockets; may be given several times; excludes all other users, except for
    /// members of --allow-gid [default: everybody who can open the socket]
    #[arg(long = "allow-uid", value_name = "UID")]
    pub allow_uids: Vec<u32>,
    /// Group (number) whose members may connect to unix sockets, by their primary group or by a supplementary group that
    /// /proc shows; may be given several times; excludes everybody else, except for users of --allow-uid
    #[arg(long = "allow-gid", value_name = "GID")]
    pub allow_gids: Vec<u32>,
    /// Certificates for TCP. Without them, TCP is limited to loopback.
    #[command(flatten)]
    pub tls: Option<TlsFiles>,
    /// Name in the certificate of a client that may connect by TLS: a DNS name, or a URI such as a SPIFFE ID. A name that
    /// ends with /* allows all URIs below it. May be given several times [default: every client whose certificate
    /// --tls-client-ca verifies]
    #[arg(long = "tls-allow-name", value_name = "NAME", requires = "client_ca")]
    pub allow_names: Vec<Name>,
    /// Serve TCP beyond loopback without TLS, to everybody who can reach it
    #[arg(long)]
    pub insecure_tcp: bool,
}

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    socket: Socket,
    options: Arc<Options>,
}

#[derive(Debug)]
enum Socket {
    /// A socket within this machine.
    Local(local::Socket),
    Tcp(TcpListener, Option<Arc<Tls>>),
}

impl Listener {
    /// Binds all `addresses`.
    ///
    /// # Errors
    /// Returns an error if an address cannot be bound or is given twice, or if an option applies only to a
    /// kind of socket (TCP or unix) that `addresses` does not contain.
    pub async fn bind_all(addresses: &[Address], options: &Options) -> anyhow::Result<Vec<Self>> {
        let is_tcp = |address: &Address| matches!(address, Address::Tcp { .. });
        let is_unix = |address: &Address| matches!(address, Address::Unix(_));
        for (position, address) in addresses.iter().enumerate() {
            // The kernel chooses a different port each time that port 0 is bound, so it may be given twice.
            let any_port = matches!(address, Address::Tcp { port: 0, .. });
            ensure!(
                any_port || !addresses[..position].contains(address),
                "--listen {address} is given twice; remove one of the two"
            );
        }
        let for_tcp = [
            ("--tls-cert", options.tls.is_some()),
            ("--tls-allow-name", !options.allow_names.is_empty()),
            ("--insecure-tcp", options.insecure_tcp),
        ];
        let for_unix = [
            ("--socket-group", options.socket_gid.is_some()),
            ("--allow-uid", !options.allow_uids.is_empty()),
            ("--allow-gid", !options.allow_gids.is_empty()),
        ];
        let given = |flags: &[(&'static str, bool)]| flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
        if let Some(flag) = given(&for_tcp).filter(|_| !addresses.iter().any(is_tcp)) {
            bail!("{flag} applies to TCP, and no --listen is tcp://HOST:PORT; add one, or remove {flag}");
        }
        if let Some(flag) = given(&for_unix).filter(|_| !addresses.iter().any(is_unix)) {
            let add = if cfg!(unix) { "add one, or " } else { "" };
            bail!("{flag} applies to unix sockets, and no --listen is unix:///PATH; {add}remove {flag}");
        }
        let mut listeners = Vec::new();
        for address in addresses {
            listeners.push(Self::bind(address, options).await?);
        }
        Ok(listeners)
    }

    /// Binds `address`. The file of a unix socket is replaced if no process listens on it.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound, if the TLS files are unusable, or if TCP would be served without
    /// TLS on an address other than loopback.
    pub async fn bind(address: &Address, options: &Options) -> anyhow::Result<Self> {
        Self::try_bind(address, options).await.with_context(|| format!("failed to listen on {address}"))
    }

    async fn try_bind(address: &Address, options: &Options) -> anyhow::Result<Self> {
        let (socket, address) = match address {
            Address::Tcp { host, port } => {
                let tls = options
                    .tls
                    .as_ref()
                    .map(|files| Tls::load(files.clone(), &options.allow_names))
                    .transpose()?
                    .map(Arc::new);
                let listener = bind_tcp(host, *port, tls.is_some() || options.insecure_tcp).await?;
                let port = listener.local_addr()?.port();
                (Socket::Tcp(listener, tls), Address::Tcp { host: host.clone(), port })
            }
            within => (Socket::Local(local::Socket::bind(within, options.socket_gid)?), address.clone()),
        };
        Ok(Self { address, socket, options: Arc::new(options.clone()) })
    }

    /// The address of the socket. If port 0 was requested, this contains the port that the kernel chose.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits for the next peer, which [`Accepted::establish`] then authenticates. Exports the expiry of the server's
    /// certificate to `metrics`.
    pub(super) async fn accept(&mut self, metrics: &Metrics) -> io::Result<Accepted> {
        let (peer, peer_id, stream) = match &mut self.socket {
            Socket::Local(socket) => {
                let stream = socket.accept().await?;
                (self.address.to_string(), local::peer_id(&stream), Stream::Local(stream))
            }
            Socket::Tcp(listener, tls) => {
                let (stream, peer) = accept_tcp(listener, tls.as_deref(), metrics).await?;
                (peer.to_string(), PeerId::host(peer.ip()), Stream::Tcp(stream, tls.clone()))
            }
        };
        Ok(Accepted { peer, peer_id, stream, options: Arc::clone(&self.options) })
    }
}

/// Waits for the next peer, and follows the TLS files in the meantime.
async fn accept_tcp(
    listener: &TcpListener,
    tls: Option<&Tls>,
    metrics: &Metrics,
) -> io::Result<(TcpStream, SocketAddr)> {
    let mut ticks = time::interval(TLS_POLL);
    loop {
        tokio::select! {
            accepted = listener.accept() => return accepted,
            _ = ticks.tick(), if tls.is_some() => {
                if let Some(expires) = tls.and_then(Tls::expires) {
                    metrics.certificate_expires(expires);
                }
            }
        }
    }
}

async fn bind_tcp(host: &str, port: u16, beyond_loopback: bool) -> anyhow::Result<TcpListener> {
    let addresses: Vec<SocketAddr> = lookup_host((host, port))
        .await
        .with_context(|| format!("cannot resolve {host:?}; use an IP address"))?
        .collect();
    if !beyond_loopback && let Some(open) = addresses.iter().find(|address| !address.ip().is_loopback()) {
        bail!(
            "{} can be reached from other machines; pass --tls-cert, --tls-key and --tls-client-ca, or --insecure-tcp to serve these machines without TLS",
            open.ip()
        );
    }
    match TcpListener::bind(&*addresses).await {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bail!("another process listens on this port; stop it or choose another port")
        }
        bound => Ok(bound?),
    }
}

/// A peer that has connected and is not authenticated yet.
pub(super) struct Accepted {
    /// The address of the peer, for the log.
    pub(super) peer: String,
    /// The peer whose quota this connection uses.
    pub(super) peer_id: PeerId,
    stream: Stream,
    options: Arc<Options>,
}

/// An authenticated peer.
pub(super) struct Established {
    pub(super) io: Box<dyn Io>,
    pub(super) peer: Peer,
    /// Resolves when the client has to reconnect. The value is the reason.
    pub(super) retired: Retired,
}

type Retired = Pin<Box<dyn Future<Output = &'static str> + Send>>;

enum Stream {
    Local(local::Stream),
    Tcp(TcpStream, Option<Arc<Tls>>),
}

impl Accepted {
    /// Authenticates the peer, by its credentials or by TLS.
    ///
    /// # Errors
    /// Returns an error if the peer may not connect, or if the handshake fails.
    pub(super) async fn establish(self) -> io::Result<Established> {
        let (io, peer, retired): (Box<dyn Io>, Peer, Retired) = match self.stream {
            Stream::Local(stream) => {
                let peer = local::peer(&stream, &self.options.allow_uids, &self.options.allow_gids)?;
                (Box::new(stream), peer, Box::pin(std::future::pending()))
            }
            Stream::Tcp(stream, tls) => {
                stream.set_nodelay(true)?;
                match tls {
                    None => (Box::new(stream), Peer::Anonymous, Box::pin(std::future::pending())),
                    Some(tls) => {
                        let (acceptor, retired) = tls.acceptor();
                        // The handshake checks the client's names, so that a refused client gets an alert. The stream
                        // must then be shut down, not reset, because a reset could overtake the alert.
                        let stream = match acceptor.accept(stream).into_fallible().await {
                            Ok(stream) => stream,
                            Err((error, mut stream)) => {
                                _ = stream.shutdown().await;
                                return Err(error);
                            }
                        };
                        // The handshake has verified the certificate.
                        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                        let peer = certificate.and_then(|certificate| names::peer(certificate).ok());
                        let retired = async move {
                            match time::timeout(MAX_AGE, retired.cancelled()).await {
                                Ok(()) => "the authorities for client certificates have changed",
                                Err(_) => "the client has to present its certificate again",
                            }
                        };
                        (Box::new(stream), peer.unwrap_or(Peer::Anonymous), Box::pin(retired))
                    }
                }
            }
        };
        Ok(Established { io, peer, retired })
    }
}

/// A byte stream that carries HTTP/2.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
