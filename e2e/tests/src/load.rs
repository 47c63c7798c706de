//! Generates load while a test does something else: new TCP connections at a constant rate, and long-lived UDP flows.
//!
//! Each load has its own thread inside the sender's namespace. The thread never waits for an answer before it continues: each
//! connection starts when it is due. Connections that were due while the machine was busy start later. A load ends at the first
//! connection that fails, or at the first flow that changes its endpoint.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::mpsc,
    thread::{Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_lab::Namespace;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::{TcpSocket, UdpSocket},
    runtime::Builder,
    sync::oneshot,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

/// Maximum time for an answer. TCP retransmits a lost packet after one second.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How long a client waits until the server ends a connection.
const SERVER_ENDS_WITHIN: Duration = Duration::from_millis(200);
/// Maximum number of connections without an answer. More are a sign of a failure.
const MOST_PENDING: usize = 500;

/// A load that runs until [`Load::finish`].
#[derive(Debug)]
pub struct Load<'scope> {
    stop: oneshot::Sender<()>,
    thread: ScopedJoinHandle<'scope, anyhow::Result<Answered>>,
}

/// The result of a load in which everything was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answered {
    /// The number of connections or datagrams.
    pub count: usize,
    /// The number of those that were due during the load, but started only at its end.
    pub late: usize,
    /// The duration of the load.
    pub took: Duration,
    /// The longest time for one connection or datagram.
    pub slowest: Duration,
}

/// New TCP connections: their source, destinations and rate.
#[derive(Clone, Debug)]
pub struct Connections {
    /// The source address. If `None`, the kernel chooses it.
    pub source: Option<IpAddr>,
    /// The destinations, which are used in turn.
    pub to: Vec<SocketAddr>,
    /// The endpoints that may answer.
    pub endpoints: BTreeSet<SocketAddr>,
    /// The number of new connections per second.
    pub rate: u32,
}

impl<'scope> Load<'scope> {
    /// Starts to connect from a namespace.
    pub fn connections<'env>(
        scope: &'scope Scope<'scope, 'env>,
        from: &'env Namespace,
        connections: Connections,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let work = move || run(from, connect_by_schedule(connections, stopped));
        Self { stop, thread: scope.spawn(work) }
    }

    /// Opens `count` UDP flows from a namespace, and sends datagrams on each of them repeatedly. Also returns the endpoints of
    /// the flows. A flow must keep its endpoint.
    ///
    /// # Errors
    /// Returns an error if a flow is not answered.
    pub fn flows<'env>(
        scope: &'scope Scope<'scope, 'env>,
        from: &'env Namespace,
        to: SocketAddr,
        count: usize,
        every: Duration,
    ) -> anyhow::Result<(Self, BTreeSet<SocketAddr>)> {
        let (stop, stopped) = oneshot::channel();
        let (opened, endpoints) = mpsc::channel();
        let thread = scope.spawn(move || {
            run(from, async move {
                let mut flows = Vec::new();
                for _ in 0..count {
                    flows.push(Flow::open(to).await.with_context(|| format!("opening a flow to {to}"))?);
                }
                // The receiver is dropped only if the test has failed.
                _ = opened.send(flows.iter().map(|flow| flow.endpoint).collect());
                keep_asking(&flows, every, stopped).await
            })
        });
        match endpoints.recv() {
            Ok(endpoints) => Ok((Self { stop, thread }, endpoints)),
            Err(_) => match thread.join().expect("a load does not panic") {
                Ok(_) => anyhow::bail!("the flows to {to} ended at once"),
                Err(error) => Err(error),
            },
        }
    }

    /// Ends the load.
    ///
    /// # Errors
    /// Returns an error if an answer is missing, or if it came from the wrong endpoint.
    pub fn finish(self) -> anyhow::Result<Answered> {
        // A load that has failed has already stopped.
        _ = self.stop.send(());
        self.thread.join().expect("a load does not panic")
    }
}

impl Answered {
    /// The number of connections per second that started during the load.
    pub fn rate(&self) -> f64 {
        (self.count - self.late) as f64 / self.took.as_secs_f64()
    }

    /// Combines loads that ran at the same time.
    pub fn together(loads: impl IntoIterator<Item = Self>) -> Self {
        let add = |all: Self, one: Self| Self {
            count: all.count + one.count,
            late: all.late + one.late,
            took: all.took.max(one.took),
            slowest: all.slowest.max(one.slowest),
        };
        loads.into_iter().fold(Self::default(), add)
    }
}

fn run<T: Send>(from: &Namespace, load: impl Future<Output = anyhow::Result<T>> + Send) -> anyhow::Result<T> {
    // Sockets belong to the namespace of the thread that creates them, so the runtime has only one thread.
    from.run(|| Builder::new_current_thread().enable_all().build()?.block_on(load))
}

async fn connect_by_schedule(connections: Connections, mut stopped: oneshot::Receiver<()>) -> anyhow::Result<Answered> {
    let Connections { source, to, endpoints, rate } = connections;
    let mut due = interval(Duration::from_secs(1) / rate);
    let mut destinations = to.iter().cycle();
    let (mut pending, mut begun) = (JoinSet::new(), 0);
    let mut begin = |pending: &mut JoinSet<_>| -> anyhow::Result<usize> {
        anyhow::ensure!(pending.len() < MOST_PENDING, "{MOST_PENDING} connections wait for an answer");
        pending.spawn(connect(source, *destinations.next().context("connections go nowhere")?));
        Ok(1)
    };
    let mut answered = Answered::default();
    let check = |answer: anyhow::Result<(SocketAddr, Duration)>, answered: &mut Answered| {
        let (endpoint, took) = answer.with_context(|| format!("after {} connections", answered.count))?;
        anyhow::ensure!(endpoints.contains(&endpoint), "{endpoint} answered, which is none of {endpoints:?}");
        answered.count += 1;
        answered.slowest = answered.slowest.max(took);
        Ok(())
    };
    let began = Instant::now();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            _ = due.tick() => begun += begin(&mut pending)?,
            Some(answer) = pending.join_next() => check(answer.context("a connection panicked")?, &mut answered)?,
        }
    }
    answered.took = began.elapsed();
    // Connections that were due while the machine was busy.
    for _ in begun..(answered.took.as_secs_f64() * f64::from(rate)).ceil() as usize {
        begin(&mut pending)?;
        answered.late += 1;
    }
    while let Some(answer) = pending.join_next().await {
        check(answer.context("a connection panicked")?, &mut answered)?;
    }
    Ok(answered)
}

/// The endpoint that answered, and how long it took.
async fn connect(source: Option<IpAddr>, to: SocketAddr) -> anyhow::Result<(SocketAddr, Duration)> {
    let began = Instant::now();
    let (socket, any) = match to {
        SocketAddr::V4(_) => (TcpSocket::new_v4()?, IpAddr::from(Ipv4Addr::UNSPECIFIED)),
        SocketAddr::V6(_) => (TcpSocket::new_v6()?, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
    };
    // Allow reusing ports of finished connections.
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::new(source.unwrap_or(any), 0))?;
    let from = socket.local_addr()?;
    let ask = async {
        let mut stream = BufReader::new(socket.connect(to).await.context("connecting")?);
        let mut answer = String::new();
        stream.read_line(&mut answer).await.context("reading the answer")?;
        let took = began.elapsed();
        // Most servers end the connection. Those that keep it open leave that to the client.
        _ = timeout(SERVER_ENDS_WITHIN, stream.read_line(&mut String::new())).await;
        Ok((name(&answer)?, took))
    };
    let answered = timeout(ANSWER_WITHIN, ask).await.map_err(anyhow::Error::from).flatten();
    answered.with_context(|| format!("from {from} to {to}"))
}

/// A UDP flow, with the first endpoint that answered.
struct Flow {
    socket: UdpSocket,
    endpoint: SocketAddr,
}

impl Flow {
    async fn open(to: SocketAddr) -> anyhow::Result<Self> {
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
        socket.connect(to).await?;
        let endpoint = ask(&socket).await?;
        Ok(Self { socket, endpoint })
    }
}

async fn keep_asking(flows: &[Flow], every: Duration, mut stopped: oneshot::Receiver<()>) -> anyhow::Result<Answered> {
    let mut due = interval(every);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut answered = Answered::default();
    let began = Instant::now();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            _ = due.tick() => {}
        }
        for Flow { socket, endpoint } in flows {
            let sent = Instant::now();
            let now = ask(socket).await.with_context(|| format!("after {} datagrams", answered.count))?;
            anyhow::ensure!(now == *endpoint, "a flow has moved from {endpoint} to {now}");
            answered.count += 1;
            answered.slowest = answered.slowest.max(sent.elapsed());
        }
    }
    answered.took = began.elapsed();
    Ok(answered)
}

/// Sends a datagram on a flow, and returns the endpoint that answers.
async fn ask(socket: &UdpSocket) -> anyhow::Result<SocketAddr> {
    socket.send(b"hello?").await?;
    let mut answer = [0; 256];
    let length = timeout(ANSWER_WITHIN, socket.recv(&mut answer)).await.context("waiting for an answer")??;
    name(&String::from_utf8_lossy(&answer[..length]))
}

/// The name at the beginning of an answer of the lab's servers.
fn name(answer: &str) -> anyhow::Result<SocketAddr> {
    let word = answer.split_whitespace().next();
    word.and_then(|word| word.parse().ok()).with_context(|| format!("a strange answer: {answer:?}"))
}

impl fmt::Display for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, took, slowest, .. } = self;
        write!(f, "{count} in {took:.1?} ({:.0} a second, the slowest in {slowest:.1?})", self.rate())
    }
}
