//! `localnet ui`.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    net::SocketAddr,
    os::fd::AsFd as _,
    rc::Rc,
    str::FromStr,
    time::Duration,
};

use anyhow::Context as _;
use clap::Args;
use localnet_client::{Snapshot, args::terminated};
use serde::Serialize;
use tokio::{
    net::TcpListener,
    select,
    sync::{Mutex, watch},
    task::LocalSet,
    time::timeout,
};

use super::{Answered, Failure, Global, OfNode, ask_status, configured, explain, shadow, top};
use crate::{
    history::{self, Selection},
    peer::Peer,
    question::{From as Sender, To},
    top::{
        live,
        seen::{Seen, Traffic},
    },
    ui::{
        Ask,
        serve::{Answer, serve},
    },
};

/// How long traffic is remembered, so that several pages do not shorten the time between samples.
const FRESH: Duration = Duration::from_millis(900);
/// How long to wait before differences from kube-proxy are checked again. kube-proxy syncs once per second.
const SETTLE: Duration = Duration::from_secs(2);

/// Serve a page about the node: Services, the path of a packet, the history, and the differences from kube-proxy
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet ui                              # open the printed address in a browser
  localnet ui --listen 127.0.0.1:9800
  ssh -L 9800:127.0.0.1:9800 root@node localnet ui --listen 127.0.0.1:9800

Anyone with this address can read the state of the node, because it contains a secret.")]
pub(crate) struct Ui {
    /// Loopback address and port of the page; port 0 selects a free port; - uses the listening socket on standard input
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: Listen,
    #[command(flatten)]
    node: OfNode,
}

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listen {
    /// At an address of the loopback.
    At(SocketAddr),
    /// At the socket that standard input is, as inetd passes it. Its network namespace may be another one.
    Inherited,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse::<SocketAddr>() {
            _ if text == "-" => Ok(Self::Inherited),
            Ok(address) if address.ip().is_loopback() => Ok(Self::At(address)),
            Ok(_) => Err("the page is for this machine only: use 127.0.0.1 or [::1], and a tunnel".to_owned()),
            Err(_) => Err("expected an address and a port, such as 127.0.0.1:9800".to_owned()),
        }
    }
}

impl Listen {
    async fn open(self) -> anyhow::Result<TcpListener> {
        match self {
            Self::At(address) => {
                TcpListener::bind(address).await.with_context(|| format!("failed to listen at {address}"))
            }
            Self::Inherited => {
                let socket = io::stdin().as_fd().try_clone_to_owned().context("failed to use standard input")?;
                let socket = std::net::TcpListener::from(socket);
                let address = socket.local_addr().context("standard input is no listening socket")?;
                anyhow::ensure!(address.ip().is_loopback(), "the socket on standard input is not at the loopback");
                socket.set_nonblocking(true)?;
                Ok(TcpListener::from_std(socket)?)
            }
        }
    }
}

pub(super) async fn run(flags: Ui, global: &Global) -> Answered {
    let brain = global.live("does not change")?;
    let peer = global.brain()?;
    // Fails if the brain does not answer.
    global.snapshot(peer.as_ref()).await?;
    let configuration = configured(&flags.node.configuration, &ask_status(global, peer.as_ref()).await)?;
    let listener = flags.listen.open().await?;
    let secret = secret()?;
    let address = listener.local_addr().context("failed to read the address of the page")?;
    let (followed, states) = watch::channel(live::Followed::default());
    let sampler = Mutex::new((Seen::default(), None, top::Sampler::new(configuration)));
    let page =
        Rc::new(Page { global: global.clone(), peer, node: flags.node, states, sampler, comparing: Mutex::new(()) });
    writeln!(io::stdout(), "http://{address}/{secret}/").context("failed to write to standard output")?;
    // The note is for people; the page works without it.
    _ = writeln!(io::stderr(), "open this address in a browser; press Ctrl-C to exit");
    let answer = move |ask| {
        let page = Rc::clone(&page);
        async move { page.answer(ask).await }
    };
    let serving = LocalSet::new();
    serving
        .run_until(async {
            select! {
                () = serve(listener, secret, answer, terminated()) => {}
                never = live::follow(&brain, &followed) => match never {},
            }
        })
        .await;
    Ok(false)
}

/// A random text of 128 bits.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    anyhow::ensure!(got.context("failed to get random numbers")? == bytes.len(), "failed to get random numbers");
    let mut text = String::new();
    // Writing to a string cannot fail.
    bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    Ok(text)
}

/// What answers are computed from.
struct Page {
    global: Global,
    peer: Option<Peer>,
    node: OfNode,
    states: watch::Receiver<live::Followed>,
    /// The last traffic, and when it was read.
    sampler: Mutex<(Seen, Option<tokio::time::Instant>, top::Sampler)>,
    /// Held during a comparison with kube-proxy, which needs much processor time.
    comparing: Mutex<()>,
}

fn json(answer: &impl Serialize) -> Answer {
    Ok(serde_json::to_vec(answer).context("failed to write JSON")?)
}

impl Page {
    async fn answer(&self, ask: Ask) -> Answer {
        let (global, peer) = (&self.global, self.peer.as_ref());
        match ask {
            Ask::State => json(&self.state().await?),
            Ask::Traffic => self.traffic().await,
            Ask::Status => json(&ask_status(global, peer).await.map_err(anyhow::Error::msg)?),
            Ask::History => {
                let brain = peer.context("there is no brain")?;
                let entries = global.history(brain).await?;
                json(&history::rows(self.state().await?, &entries, &Selection::default()))
            }
            Ask::Explain { from, to } => {
                let from: Sender = from.parse().map_err(Failure::Usage)?;
                let to: To = to.parse().map_err(Failure::Usage)?;
                json(&explain::packet_explained(&self.node, global, peer, from, &to).await?)
            }
            Ask::Shadow => {
                let _comparing = self.comparing.lock().await;
                json(&shadow::compared(&self.node, global, SETTLE).await?)
            }
        }
    }

    /// The newest state.
    async fn state(&self) -> Result<Snapshot, Failure> {
        let mut states = self.states.clone();
        let first = states.wait_for(|followed| followed.state.revision.rev > 0);
        let first = timeout(self.global.patience(), first).await.context("the brain does not answer")?;
        Ok(first.context("the brain does not answer")?.state.clone())
    }

    async fn traffic(&self) -> Answer {
        let state = self.state().await?;
        let mut sampler = self.sampler.lock().await;
        let (seen, at, sampler) = &mut *sampler;
        if at.is_none_or(|at| at.elapsed() >= FRESH) {
            *seen = sampler.sample(&self.global, self.peer.as_ref(), &state).await;
            *at = Some(tokio::time::Instant::now());
        }
        let problem = self.states.borrow().problem.clone();
        json(&Traffic { revision: state.revision.rev, node: &state.node.name, problem, seen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_served_on_loopback_only() {
        assert_eq!("127.0.0.1:9800".parse::<Listen>(), Ok(Listen::At(([127, 0, 0, 1], 9800).into())));
        assert_eq!("-".parse::<Listen>(), Ok(Listen::Inherited));
        assert!("[::1]:0".parse::<Listen>().is_ok());
        for text in ["0.0.0.0:80", "[::]:80", "192.168.0.2:80", "localhost:80", "127.0.0.1", ""] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[test]
    fn secrets_differ() {
        let (one, other) = (secret().unwrap(), secret().unwrap());
        assert!(one.len() == 32 && one != other);
    }
}
