//! The view of a client: new TCP connections from a pod of the node, and the listeners that they reach.
//!
//! This module does not know which program programs the node. A connection ends with a reset, so that neither side keeps its
//! state.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle, Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use localnet_lab::Namespace;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, accept, bind, connect, getsockname,
        listen, recv, send, shutdown, socket_with,
        sockopt::{Timeout, set_socket_linger, set_socket_reuseaddr, set_socket_timeout, socket_error},
    },
};

/// Maximum time for an expected answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The backlog for connections while the listener waits for a processor.
const BACKLOG: i32 = 4096;
/// The pause between two connections of an [`Observer`]: while it waits for a change, and otherwise.
const WATCHFUL: Duration = Duration::from_micros(200);
const IDLE: Duration = Duration::from_millis(5);

/// The outcome of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The connection was accepted.
    Open,
    /// The connection was refused by a reset or an ICMP error.
    Refused,
    /// No answer came in time.
    Silent,
}

/// Connects once from the namespace of this thread.
pub(crate) fn ask(to: SocketAddr, patience: Duration) -> anyhow::Result<Answer> {
    let socket = new_socket(SocketFlags::NONBLOCK)?;
    let result = match connect(&socket, &to) {
        Err(Errno::INPROGRESS) => {
            // An ICMP error that arrives before `connect` returns causes no event, but can be read.
            let soon = socket_error(&socket)?;
            let timeout = Timespec::try_from(patience).context("reading the time to wait")?;
            if soon.is_ok() && poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&timeout))? == 0 {
                return Ok(Answer::Silent);
            }
            soon.and_then(|()| socket_error(&socket).and_then(|result| result))
        }
        result => result,
    };
    match result {
        Ok(()) => Ok(Answer::Open),
        Err(Errno::CONNREFUSED | Errno::ACCESS | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NOPROTOOPT) => {
            Ok(Answer::Refused)
        }
        Err(Errno::TIMEDOUT) => Ok(Answer::Silent),
        Err(error) => bail!("connecting to {to}: {error}"),
    }
}

/// Connects once from the namespace of this thread to a listener that [tells its address](Listener::start). `None` if the
/// connection failed.
pub(crate) fn reached(to: SocketAddr) -> anyhow::Result<Option<Ipv4Addr>> {
    let socket = new_socket(SocketFlags::empty())?;
    for wait in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, wait, Some(PATIENCE)).context("setting a time limit")?;
    }
    let mut address = [0; 4];
    let told = connect(&socket, &to).and_then(|()| recv(&socket, &mut address, RecvFlags::WAITALL));
    match told {
        Ok((_, length)) => Ok((length == address.len()).then(|| address.into())),
        // The first two mean that the time is over.
        Err(Errno::INPROGRESS | Errno::AGAIN | Errno::TIMEDOUT | Errno::CONNREFUSED | Errno::CONNRESET) => Ok(None),
        Err(Errno::ACCESS | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NOPROTOOPT) => Ok(None),
        Err(error) => bail!("connecting to {to}: {error}"),
    }
}

/// How long a new connection from the namespace of this thread takes.
pub(crate) fn time_to_connect(to: SocketAddr) -> anyhow::Result<Duration> {
    let socket = new_socket(SocketFlags::empty())?;
    let started = Instant::now();
    connect(&socket, &to).with_context(|| format!("connecting to {to}"))?;
    Ok(started.elapsed())
}

/// Waits until all addresses accept connections or, if not `open`, until none does. Returns the time of the last change. `None`
/// if this did not happen before the deadline.
pub(crate) fn await_all(all: &[SocketAddr], open: bool, deadline: Instant) -> anyhow::Result<Option<Instant>> {
    let mut last = Instant::now();
    for to in all {
        loop {
            let answer = ask(*to, if open { PATIENCE } else { Duration::from_millis(50) })?;
            last = Instant::now();
            if (answer == Answer::Open) == open {
                break;
            }
            if last > deadline {
                return Ok(None);
            }
            thread::park_timeout(WATCHFUL);
        }
    }
    Ok(Some(last))
}

fn new_socket(flags: SocketFlags) -> anyhow::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC | flags, None)
        .context("opening a socket")?;
    set_socket_linger(&socket, Some(Duration::ZERO)).context("setting a socket to end with a reset")?;
    Ok(socket)
}

/// Accepts every connection to a port, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// If `tells`, each connection receives the IPv4 address at which it arrived, in four bytes.
    pub(crate) fn start(home: &Namespace, port: u16, tells: bool) -> anyhow::Result<Self> {
        let address = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
        let socket = home.run(|| {
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &address).with_context(|| format!("binding to {address}"))?;
            listen(&socket, BACKLOG).with_context(|| format!("listening on {address}"))?;
            Ok(socket)
        })?;
        let socket = Arc::new(socket);
        let accepting = Arc::clone(&socket);
        let thread = thread::Builder::new().name("listener".to_owned()).spawn(move || {
            // A reset of a waiting connection is an error of that connection only. EINVAL means the end of the socket.
            loop {
                match accept(&accepting) {
                    Err(Errno::INVAL) => break,
                    Ok(connection) if tells => tell_address(&connection),
                    _ => {}
                }
            }
        })?;
        Ok(Self { socket, thread: Some(thread) })
    }
}

fn tell_address(connection: &OwnedFd) {
    if let Ok(own) = getsockname(connection)
        && let Ok(own) = SocketAddrV4::try_from(own)
    {
        // The client notices a missing address.
        _ = send(connection, &own.ip().octets(), SendFlags::NOSIGNAL);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Ends `accept` with EINVAL.
        if shutdown(&*self.socket, Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // The thread returns nothing and does not panic.
            _ = thread.join();
        }
    }
}

/// Connects to one address repeatedly, and reports each change of the answer.
pub(crate) struct Observer<'scope> {
    watchful: Arc<AtomicBool>,
    changes: Receiver<(Instant, Answer)>,
    stop: Sender<()>,
    thread: ScopedJoinHandle<'scope, anyhow::Result<usize>>,
}

impl<'scope> Observer<'scope> {
    pub(crate) fn start<'env>(scope: &'scope Scope<'scope, 'env>, from: &'env Namespace, to: SocketAddr) -> Self {
        let watchful = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = channel();
        let (tell, changes) = channel();
        let fast = Arc::clone(&watchful);
        let thread = scope.spawn(move || from.run(move || observe(to, &fast, &stopped, &tell)));
        Self { watchful, changes, stop, thread }
    }

    /// Shortens the pause between connections from now on.
    pub(crate) fn be_watchful(&self) {
        self.watchful.store(true, Ordering::Relaxed);
        while self.changes.try_recv().is_ok() {}
    }

    /// When this answer first came. `None` if it did not come in time.
    pub(crate) fn await_answer(&self, expected: Answer, patience: Duration) -> Option<Instant> {
        let deadline = Instant::now() + patience;
        let seen = loop {
            match self.changes.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((at, answer)) if answer == expected => break Some(at),
                Ok(_) => {}
                Err(_) => break None,
            }
        };
        self.watchful.store(false, Ordering::Relaxed);
        seen
    }

    /// Stops, and returns the number of connections.
    pub(crate) fn finish(self) -> anyhow::Result<usize> {
        // An observer that has failed has already stopped.
        _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn observe(
    to: SocketAddr,
    watchful: &AtomicBool,
    stopped: &Receiver<()>,
    tell: &Sender<(Instant, Answer)>,
) -> anyhow::Result<usize> {
    let (mut count, mut last) = (0, None);
    loop {
        let answer = ask(to, PATIENCE)?;
        count += 1;
        if last.replace(answer) != Some(answer) && tell.send((Instant::now(), answer)).is_err() {
            return Ok(count);
        }
        let pause = if watchful.load(Ordering::Relaxed) { WATCHFUL } else { IDLE };
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return Ok(count);
        }
    }
}
