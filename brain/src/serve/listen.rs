//! Bound sockets: where the brain is served, and who may connect.
//!
//! On a unix socket the kernel says who the peer is; its file is 0660. TCP beyond loopback asks for a client certificate.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use localnet_proto::Address;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream, lookup_host},
    time,
};

use super::{
    names::Name,
    peer::Peer,
    peers::Who,
    preface::Greeted,
    tls::{Tls, TlsFiles},
    unix,
};
use crate::metrics::Metrics;

/// How often the files of TLS are looked at while nobody connects.
const LOOK: Duration = Duration::from_secs(10);
/// A client has to show its certificate again after so long: it may have expired.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// How to listen.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Group that owns the files of unix sockets, and the folders made for them.
    pub socket_gid: Option<u32>,
    /// Users that may connect to unix sockets. With an empty `allow_gids` as well: whoever may open the file.
    pub allow_uids: Vec<u32>,
    /// Groups whose members may connect to unix sockets.
    pub allow_gids: Vec<u32>,
    /// Certificates for TCP. Without them TCP is limited to loopback.
    pub tls: Option<TlsFiles>,
    /// Names of clients that may connect by TLS; empty: every client whose certificate is good.
    pub allow_names: Vec<Name>,
    /// Serve TCP beyond loopback without TLS, to everybody.
    pub insecure_tcp: bool,
}

/// A socket on which the brain can be served.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    socket: Socket,
    options: Arc<Options>,
}

#[derive(Debug)]
enum Socket {
    /// The file is removed when this is dropped.
    Unix(unix::Socket),
    Tcp(TcpListener, Option<Arc<Tls>>),
}

impl Listener {
    /// Binds all addresses.
    ///
    /// # Errors
    /// One cannot be bound, or is there twice; or an option says who may connect where nobody can.
    pub async fn bind_all(addresses: &[Address], options: &Options) -> anyhow::Result<Vec<Self>> {
        let is_tcp = |address: &Address| matches!(address, Address::Tcp { .. });
        for (position, address) in addresses.iter().enumerate() {
            // Port 0 is another one each time.
            let any_port = matches!(address, Address::Tcp { port: 0, .. });
            ensure!(
                any_port || !addresses[..position].contains(address),
                "--listen {address} is given twice; remove one of them"
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
            bail!("{flag} is about TCP, and no --listen is tcp://HOST:PORT; give one, or leave {flag} out");
        }
        if let Some(flag) = given(&for_unix).filter(|_| addresses.iter().all(is_tcp)) {
            bail!("{flag} is about unix sockets, and no --listen is unix:///PATH; give one, or leave {flag} out");
        }
        let mut listeners = Vec::new();
        for address in addresses {
            listeners.push(Self::bind(address, options).await?);
        }
        Ok(listeners)
    }

    /// Binds `address`. A file of a unix socket that nobody listens on any more is replaced.
    pub async fn bind(address: &Address, options: &Options) -> anyhow::Result<Self> {
        Self::try_bind(address, options).await.with_context(|| format!("failed to listen on {address}"))
    }

    async fn try_bind(address: &Address, options: &Options) -> anyhow::Result<Self> {
        let (socket, address) = match address {
            Address::Unix(path) => (Socket::Unix(unix::Socket::bind(path, options.socket_gid)?), address.clone()),
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
            Address::Pipe(_) => bail!("only Windows has named pipes; use unix:///absolute/path or tcp://host:port"),
        };
        Ok(Self { address, socket, options: Arc::new(options.clone()) })
    }

    /// Where it listens; the port is the one that the kernel chose if 0 was asked for.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Tells when the certificate expires, if there is one.
    pub(super) fn tell(&self, metrics: &Metrics) {
        if let Socket::Tcp(_, Some(tls)) = &self.socket {
            tls.tell(metrics.clone());
        }
    }

    /// Waits for the next peer. Whether it may stay is found out by [`Accepted::establish`].
    pub(super) async fn accept(&mut self) -> io::Result<Accepted> {
        let (peer, who, stream) = match &mut self.socket {
            Socket::Unix(socket) => {
                let stream = socket.accept().await?;
                // The kernel always knows; should it not, all that it does not know share what one peer has.
                let who = Who::User(stream.peer_cred().map_or(u32::MAX, |credentials| credentials.uid()));
                (self.address.to_string(), who, Stream::Unix(stream))
            }
            Socket::Tcp(listener, tls) => {
                let (stream, peer) = accept_tcp(listener, tls.as_deref()).await?;
                (peer.to_string(), Who::host(peer.ip()), Stream::Tcp(stream, tls.clone()))
            }
        };
        Ok(Accepted { peer, who, stream, options: Arc::clone(&self.options) })
    }
}

/// Waits for the next peer, and looks after the files of TLS meanwhile.
async fn accept_tcp(listener: &TcpListener, tls: Option<&Tls>) -> io::Result<(TcpStream, SocketAddr)> {
    let Some(tls) = tls else { return listener.accept().await };
    loop {
        match time::timeout(LOOK, listener.accept()).await {
            Ok(accepted) => return accepted,
            Err(_) => tls.look(),
        }
    }
}

async fn bind_tcp(host: &str, port: u16, beyond_loopback: bool) -> anyhow::Result<TcpListener> {
    let addresses: Vec<SocketAddr> =
        lookup_host((host, port)).await.with_context(|| format!("{host:?} is not known; use an address"))?.collect();
    if !beyond_loopback && let Some(open) = addresses.iter().find(|address| !address.ip().is_loopback()) {
        bail!(
            "{} can be reached from other machines; pass --tls-cert, --tls-key and --tls-client-ca, or --insecure-tcp to serve everybody",
            open.ip()
        );
    }
    match TcpListener::bind(&*addresses).await {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bail!("another process serves there; stop it or choose another port")
        }
        bound => Ok(bound?),
    }
}

/// A peer that has connected.
pub(super) struct Accepted {
    peer: String,
    who: Who,
    stream: Stream,
    options: Arc<Options>,
}

/// A peer that may stay.
pub(super) struct Established {
    pub(super) io: Box<dyn Io>,
    /// Resolves when it has to connect anew, and why.
    pub(super) retired: Retired,
}

type Retired = Pin<Box<dyn Future<Output = &'static str> + Send>>;

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream, Option<Arc<Tls>>),
}

impl Accepted {
    /// Its address, for the log.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Whose share of the listener it takes.
    pub(super) fn who(&self) -> Who {
        self.who
    }

    /// Checks who the peer is, does the handshake if there is one, and waits until the peer has greeted.
    pub(super) async fn establish(self) -> io::Result<Established> {
        let (io, retired): (Box<dyn Io>, Retired) = match self.stream {
            Stream::Unix(stream) => {
                let (uids, gids) = (&self.options.allow_uids, &self.options.allow_gids);
                if !(uids.is_empty() && gids.is_empty()) {
                    Peer::of(&stream)?.check(uids, gids).map_err(refused)?;
                }
                (Box::new(stream), Box::pin(std::future::pending()))
            }
            Stream::Tcp(stream, tls) => {
                stream.set_nodelay(true)?;
                match tls {
                    None => (Box::new(stream), Box::pin(std::future::pending())),
                    Some(tls) => {
                        let (acceptor, retired) = tls.acceptor();
                        // Names are checked in the handshake, so that who is refused gets an alert. The end that follows it
                        // must not overtake it.
                        let stream = match acceptor.accept(stream).into_fallible().await {
                            Ok(stream) => stream,
                            Err((error, mut stream)) => {
                                _ = stream.shutdown().await;
                                return Err(error);
                            }
                        };
                        let retired = async move {
                            match time::timeout(MAX_AGE, retired.cancelled()).await {
                                Ok(()) => "other authorities vouch for clients now",
                                Err(_) => "the client has to show its certificate again",
                            }
                        };
                        (Box::new(stream), Box::pin(retired))
                    }
                }
            }
        };
        Ok(Established { io: Box::new(Greeted::greet(io).await?), retired })
    }
}

fn refused(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// What HTTP/2 runs over.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
