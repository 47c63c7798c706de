//! Two networks with the same addresses, one control plane for both: in one our programs, in the other kube-proxy.
//!
//! ```text
//!   network A                                  network B
//!   node-a: brain, backend, API server ──────── node-a: kube-proxy
//!           100.64.0.1            a link of their own           100.64.0.2
//! ```

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_client::{Snapshot, Source as _, grpc::Brain};
use localnet_controlplane::{ControlPlane, Options};
use localnet_e2e::{PATIENCE, Programs, await_condition};
use localnet_lab::{Network, Outcome, Probe, Protocol, Running, Servers, topology::SERVICE_CIDRS};
use localnet_proto::{Revision, Update};
use tokio::{runtime::Runtime, time::timeout};

use crate::kube_proxy::{self, KUBE_PROXY};

use super::{
    pair::Pair,
    pools,
    setup::Setup,
    write::{NAMESPACE, Sentinel, Writer},
};

const LINK: [&str; 2] = ["100.64.0.1", "100.64.0.2"];
/// The chance that so many connections miss one of two endpoints is below 10⁻¹¹.
const ENOUGH: usize = 40;
/// A kube-proxy that has started programs the zone of its Node at once, or never.
const KNOWS_ZONE_WITHIN: Duration = Duration::from_secs(3);
const MOST_TOLD_AGAIN: usize = 5;

/// Everything that runs.
pub(crate) struct World {
    pub(crate) pair: Pair,
    // Fields are dropped in this order: first what runs in a network.
    proxies: Option<Proxies>,
    running_brain: Option<(&'static str, Running)>,
    plane: ControlPlane,
    brain: Brain,
    programs: Programs,
    _servers: Vec<Servers>,
    sides: [Network; 2],
    runtime: Runtime,
    /// The zone that both proxies know to be the Node's.
    zone: Option<&'static str>,
}

/// What programs the nodes, with the same flags.
struct Proxies {
    setup: Setup,
    backend: Running,
    kube_proxy: Running,
}

/// Who programs the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Ours,
    KubeProxy,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Ours, Self::KubeProxy];
}

impl World {
    pub(crate) fn build(pair: Pair) -> anyhow::Result<Self> {
        let runtime = Runtime::new()?;
        let sides = [Network::build(pools::topology())?, Network::build(pools::topology())?];
        link(&sides)?;
        for network in &sides {
            // Thousands of short connections need not be remembered for minutes.
            let short = [("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "2")];
            // Flows that stay open are asked once in each state.
            let long = [
                "net/netfilter/nf_conntrack_udp_timeout",
                "net/netfilter/nf_conntrack_udp_timeout_stream",
                "net/netfilter/nf_conntrack_sctp_timeout_heartbeat_sent",
            ];
            let long = long.map(|setting| (setting, "600"));
            network.node().sysctl(&short.into_iter().chain(long).collect::<Vec<_>>())?;
        }
        let servers = sides.iter().map(|network| Servers::that_keep_connections(network, pools::servers()));
        let servers = servers.collect::<Result<_, _>>()?;
        let programs = Programs::new()?;
        let options = Options {
            netns: Some(sides[0].node().path()),
            bind_address: LINK[0].parse::<Ipv4Addr>()?.into(),
            service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
            ..Options::default()
        };
        let plane = runtime.block_on(async {
            let plane = ControlPlane::start(options).await?;
            fill(&plane).await?;
            anyhow::Ok(plane)
        })?;
        let brain = {
            let _inside = runtime.enter();
            Brain::new(programs.api().parse()?, None)?
        };
        Ok(Self {
            pair,
            proxies: None,
            running_brain: None,
            plane,
            brain,
            programs,
            _servers: servers,
            sides,
            runtime,
            zone: None,
        })
    }

    /// Starts both proxies with these flags, if they run with others or not at all; whether they were started. Until they have settled, what the former ones
    /// programmed is still there.
    pub(crate) fn set_up(&mut self, setup: &Setup) -> anyhow::Result<bool> {
        if self.proxies.as_ref().is_some_and(|proxies| proxies.setup.has_flags_of(setup)) {
            return Ok(false);
        }
        self.proxies = None;
        if self.running_brain.as_ref().is_none_or(|(node, _)| *node != setup.node) {
            self.running_brain = None;
            self.running_brain = Some((setup.node, self.start_brain(setup.node)?));
        }
        self.await_brain()?;
        self.proxies = Some(Proxies {
            setup: *setup,
            backend: self.start_backend(setup)?,
            kube_proxy: self.start_kube_proxy(setup)?,
        });
        self.zone = None;
        Ok(true)
    }

    /// kube-proxy ends when the Node's addresses, or the CIDRs of its pods, are not what it started with, and whoever supervises it
    /// starts it again. This does not wait for that.
    pub(crate) fn restart_kube_proxy(&mut self) -> anyhow::Result<()> {
        let Some(Proxies { setup, backend, kube_proxy }) = self.proxies.take() else { return Ok(()) };
        drop(kube_proxy);
        self.proxies = Some(Proxies { setup, backend, kube_proxy: self.start_kube_proxy(&setup)? });
        self.zone = None;
        Ok(())
    }

    /// Waits until the brain answers.
    fn await_brain(&mut self) -> anyhow::Result<()> {
        let (brain, runtime) = (&mut self.brain, &self.runtime);
        let mut said = None;
        let is_up = await_condition("the brain answers", || {
            let answer = runtime.block_on(async { timeout(PATIENCE, brain.next(Revision::default(), false)).await });
            let answer = answer.map_err(anyhow::Error::from).and_then(|answer| answer.map_err(anyhow::Error::from));
            said = answer.as_ref().err().map(|error| format!("{error:#}"));
            answer.is_ok()
        });
        is_up.with_context(|| said.unwrap_or_default())
    }

    fn start_brain(&self, node: &str) -> anyhow::Result<Running> {
        let source = format!("kube:{}", self.plane.kube_proxy_kubeconfig().display());
        let (api, log) = (self.programs.api(), "localnet-brain");
        self.programs.start(self.sides[0].node(), log, &["--source", &source, "--node-name", node, "--listen", &api])
    }

    fn start_backend(&self, setup: &Setup) -> anyhow::Result<Running> {
        let (api, flags, backend) = (self.programs.api(), setup.flags(), self.pair.backend);
        let mut arguments = vec!["--api", &api];
        arguments.extend(flags.iter().map(String::as_str).chain(backend.flags()));
        self.programs.start(self.sides[0].node(), backend.program(), &arguments)
    }

    fn start_kube_proxy(&self, setup: &Setup) -> anyhow::Result<Running> {
        let whose = (self.plane.kube_proxy_kubeconfig(), setup.node);
        kube_proxy::start(self.sides[1].node(), &self.programs, self.pair.mode, whose, &setup.kube_proxy_lines())
    }

    /// Where the brain is served.
    pub(crate) fn api(&self) -> String {
        self.programs.api()
    }

    /// A folder for files.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.programs.path()
    }

    pub(crate) fn network(&self, side: Side) -> &Network {
        match side {
            Side::Ours => &self.sides[0],
            Side::KubeProxy => &self.sides[1],
        }
    }

    pub(crate) fn writer(&self) -> Writer {
        Writer::new(&self.plane.client())
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Waits until brain, backend and kube-proxy have come as far as the sentinel; the brain's state, and how often kube-proxy had
    /// to be told the zone again.
    pub(crate) fn settle(&mut self, writer: &Writer, sentinel: Sentinel) -> anyhow::Result<(Snapshot, usize)> {
        for told_again in 0..=MOST_TOLD_AGAIN {
            let state = self.await_state(&format!("{sentinel:?}"), |state| sentinel.has_come(state))?;
            self.await_applied(&state)?;
            for side in Side::BOTH {
                for (to, endpoint) in sentinel.paths() {
                    // Until it is programmed it may be silent.
                    let probe = Probe::new(Protocol::Tcp, to).timeout(Duration::from_millis(200));
                    self.await_answers(side, probe, 1, &BTreeSet::from([endpoint]), PATIENCE)?;
                }
            }
            if self.zone == Some(sentinel.zone()) {
                return Ok((state, told_again));
            }
            let zones = sentinel.zones();
            let await_zone = |side, patience| {
                zones.iter().try_for_each(|(to, endpoints)| {
                    self.await_answers(side, Probe::new(Protocol::Tcp, *to), ENOUGH, endpoints, patience)
                })
            };
            await_zone(Side::Ours, PATIENCE)?;
            let has_just_started = self.zone.is_none() && told_again < MOST_TOLD_AGAIN;
            match await_zone(Side::KubeProxy, if has_just_started { KNOWS_ZONE_WITHIN } else { PATIENCE }) {
                Ok(()) => {
                    self.zone = Some(sentinel.zone());
                    return Ok((state, told_again));
                }
                Err(_) if has_just_started => self.tell_zone_again(writer, sentinel)?,
                Err(error) => return Err(error),
            }
        }
        anyhow::bail!("kube-proxy does not learn the zone of {sentinel:?}")
    }

    fn tell_zone_again(&mut self, writer: &Writer, sentinel: Sentinel) -> anyhow::Result<()> {
        const ELSEWHERE: &str = "zone-of-a-moment";
        let node = self.proxies.as_ref().context("nothing runs")?.setup.node;
        self.block_on(writer.set_zone(node, Some(ELSEWHERE)))?;
        self.await_state(ELSEWHERE, |state| state.node.zone == ELSEWHERE)?;
        self.block_on(writer.set_zone(node, Some(sentinel.zone()).filter(|zone| !zone.is_empty())))
    }

    /// The newest state of the brain that is as it must be.
    fn await_state(&mut self, what: &str, is_right: impl Fn(&Snapshot) -> bool) -> anyhow::Result<Snapshot> {
        let brain = &mut self.brain;
        let newest = async {
            let mut have = Revision::default();
            loop {
                let Update::Full(state) = brain.next(have, false).await? else { continue };
                if is_right(&state) {
                    return anyhow::Ok(state);
                }
                have = state.revision;
            }
        };
        let awaited = self.runtime.block_on(async { timeout(PATIENCE, newest).await });
        awaited.map_err(anyhow::Error::from).flatten().with_context(|| {
            format!("the brain has not come to {what}\n{}", tail(&self.programs.log("localnet-brain")))
        })
    }

    /// Waits until the backend says that it has written this state or a later one.
    fn await_applied(&self, state: &Snapshot) -> anyhow::Result<()> {
        let Revision { instance, rev } = state.revision;
        let program = self.pair.backend.program();
        let applied = |log: &str| {
            // "applied revision=…", or, where several follow each other closely, "applied so far revision=…".
            let lines = log.lines().rev().filter(|line| line.contains(" applied "));
            let revisions = lines.filter_map(|line| line.split_once(" revision=")?.1.split(' ').next());
            let mut numbers = revisions.filter_map(|revision| revision.split_once(':'));
            numbers
                .any(|(of, number)| of.parse() == Ok(instance) && number.parse().is_ok_and(|number: u64| number >= rev))
        };
        await_condition("the backend has applied the state", || applied(&self.programs.log(program)))
            .with_context(|| tail(&self.programs.log(program)))
    }

    /// Waits until so many connections in a row are answered by exactly these endpoints.
    fn await_answers(
        &self,
        side: Side,
        probe: Probe,
        connections: usize,
        endpoints: &BTreeSet<SocketAddr>,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let (mut by, mut wrong) = (BTreeSet::new(), None);
            self.network(side).client().probe_until(probe, connections, |outcome| {
                match outcome {
                    Outcome::Answer { by: endpoint, .. } if endpoints.contains(&endpoint) => {
                        by.insert(endpoint);
                    }
                    other => wrong = Some(other),
                }
                wrong.is_some()
            })?;
            if wrong.is_none() && by == *endpoints {
                return Ok(());
            }
            let log = || match side {
                Side::Ours => self.programs.log(self.pair.backend.program()),
                Side::KubeProxy => self.programs.log(KUBE_PROXY),
            };
            anyhow::ensure!(
                Instant::now() < deadline,
                "{side:?} has not settled: {} is not answered by {endpoints:?} but by {by:?} and {wrong:?}\n{}",
                probe.to,
                tail(&log())
            );
            // Refusals come at once: leave the processors to those who are waited for.
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

fn link([ours, theirs]: &[Network; 2]) -> anyhow::Result<()> {
    let (ours, theirs) = (ours.node(), theirs.node());
    let peer = theirs.name();
    ours.ip([format!("link add link-b index 900 type veth peer name link-a index 901 netns {peer}")])?;
    for (node, name, address) in [(ours, "link-b", LINK[0]), (theirs, "link-a", LINK[1])] {
        node.ip([format!("addr add {address}/30 dev {name}"), format!("link set {name} up")])?;
    }
    Ok(())
}

async fn fill(plane: &ControlPlane) -> anyhow::Result<()> {
    plane.objects(NAMESPACE).ensure_namespace().await
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
