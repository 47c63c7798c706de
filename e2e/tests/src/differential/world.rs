//! Networks with the same addresses and one control plane: our programs run in one network, kube-proxy, if any, in another.
//!
//! ```text
//!   network A                                  network B
//!   node-a: brain, backend, API server ──────── node-a: kube-proxy
//!           100.64.0.1            a link of their own           100.64.0.2
//! ```
//!
//! In a guest, the API server runs on the host, and each node has a link to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    process::Command,
    time::Duration,
};

use anyhow::Context as _;
use localnet_client::{Snapshot, Source as _, grpc::Brain};
use localnet_lab::{Namespace, Network, Probe, Protocol, Running, Sandbox, Servers};
use localnet_proto::{Revision, wire::BackendReport};
use tokio::{runtime::Runtime, time::timeout};

use crate::{
    Backend, Programs,
    api_server::Api,
    await_condition,
    kube_proxy::{self, KUBE_PROXY, Mode},
    patience,
};

use super::{
    ask::{Asked, Seen},
    cluster::NAMESPACE,
    disturb::{Disturbance, Edited},
    pair::{Pair, Side},
    pools,
    random::Random,
    settle::{self, tail},
    setup::Setup,
    write::{Sentinel, Writer},
};

const LINK: [&str; 2] = ["100.64.0.1", "100.64.0.2"];
/// With this many connections, the chance of missing one of two endpoints is below 10⁻¹¹.
const ENOUGH: usize = 40;
/// A started kube-proxy programs the zone of its Node within this time, or never.
const KNOWS_ZONE_WITHIN: Duration = Duration::from_secs(3);
const MAX_RESENDS: usize = 5;

/// Everything that runs.
pub(crate) struct World {
    pub(crate) pair: Pair,
    // Fields are dropped in this order: first the programs that run in a network.
    proxies: Option<Proxies>,
    running_brain: Option<(&'static str, Running)>,
    api_server: Api,
    brain: Brain,
    programs: Programs,
    _servers: Vec<Servers>,
    networks: BTreeMap<Side, Network>,
    runtime: Runtime,
    /// The zone of the Node that both proxies have programmed.
    zone: Option<&'static str>,
    /// The cgroup of the processes on the node, for the ebpf backend.
    sandbox: Option<Sandbox>,
}

/// The proxies of both nodes, with the same flags.
struct Proxies {
    setup: Setup,
    backend: Running,
    kube_proxy: Option<Running>,
    /// The number of repairs by the backend.
    repairs: u64,
}

impl World {
    pub(crate) fn build(pair: Pair) -> anyhow::Result<Self> {
        let sandbox = (pair.backend == Backend::Ebpf).then(Sandbox::enter).transpose()?;
        let runtime = Runtime::new()?;
        let built = pair.sides().map(|side| anyhow::Ok((side, Network::build(pools::topology())?)));
        let networks = built.collect::<anyhow::Result<BTreeMap<_, _>>>()?;
        load_conntrack(networks[&Side::Ours].node())?;
        for network in networks.values() {
            // Forget closed short connections soon, because there are thousands.
            let short = [("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "2")];
            // Keep open flows, which are used only once in each state.
            let long = [
                "net/netfilter/nf_conntrack_udp_timeout",
                "net/netfilter/nf_conntrack_udp_timeout_stream",
                "net/netfilter/nf_conntrack_sctp_timeout_heartbeat_sent",
            ];
            let long = long.map(|setting| (setting, "600"));
            network.node().sysctl(&short.into_iter().chain(long).collect::<Vec<_>>())?;
        }
        let servers = networks.values().map(|network| Servers::start_with_open_connections(network, pools::servers()));
        let servers = servers.collect::<Result<_, _>>()?;
        let programs = Programs::new()?;
        let nodes: Vec<&Namespace> = networks.values().map(Network::node).collect();
        let api_server = runtime.block_on(async {
            let api_server = reach_api_server(&nodes).await?;
            api_server.objects(NAMESPACE).ensure_namespace().await?;
            anyhow::Ok(api_server)
        })?;
        let brain = {
            let _inside = runtime.enter();
            Brain::new(programs.api().parse()?, None)?
        };
        Ok(Self {
            pair,
            proxies: None,
            running_brain: None,
            api_server,
            brain,
            programs,
            _servers: servers,
            networks,
            runtime,
            zone: None,
            sandbox,
        })
    }

    /// Sends a question. A sender on another host is outside of the sandbox.
    pub(crate) fn ask(&self, side: Side, asked: &Asked) -> anyhow::Result<Seen> {
        let ask = || asked.ask(self.network(side));
        match &self.sandbox {
            Some(sandbox) if !asked.question.is_from_this_node() => sandbox.outside(ask),
            _ => ask(),
        }
    }

    /// Ensures that our programs run with these flags. If they do not run or have other flags, starts them and ends kube-proxy.
    /// Returns whether they were started. Until both sides have settled, the previous rules remain.
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
        let backend = self.start_backend(self.pair.backend, setup)?;
        self.proxies = Some(Proxies { setup: *setup, backend, kube_proxy: None, repairs: 0 });
        Ok(true)
    }

    /// Ends kube-proxy. kube-proxy itself exits when the Node's addresses or pod CIDRs differ from those at its start, and its
    /// supervisor starts it again.
    pub(crate) fn stop_kube_proxy(&mut self) {
        if let Some(proxies) = &mut self.proxies {
            proxies.kube_proxy = None;
        }
    }

    /// Starts kube-proxy if it does not run. Returns whether it was started. It has exactly the objects that were written
    /// earlier. It may or may not have objects that change while it starts.
    pub(crate) fn run_kube_proxy(&mut self) -> anyhow::Result<bool> {
        let (Some(mode), Some(Proxies { setup, kube_proxy: None, .. })) = (self.pair.kube_proxy, &self.proxies) else {
            return Ok(false);
        };
        let started = self.start_kube_proxy(mode, setup)?;
        if let Some(proxies) = &mut self.proxies {
            proxies.kube_proxy = Some(started);
        }
        self.zone = None;
        Ok(true)
    }

    /// Disturbs our side and waits until the backend has repaired it. Returns the edit.
    pub(crate) fn disturb(
        &mut self,
        Disturbance { kill, edit }: Disturbance,
        state: &Snapshot,
        random: &mut Random,
    ) -> anyhow::Result<Edited> {
        let repairs = self.proxies.as_ref().context("nothing runs")?.repairs;
        self.await_report(state, |number| number == repairs)?;
        let proxies = self.proxies.as_mut().context("nothing runs")?;
        if kill {
            proxies.backend.kill()?;
            proxies.backend.wait()?;
        }
        let from = self.programs.log(self.pair.backend.program()).len();
        let edited = match edit {
            Some(edit) => edit.make(self.pair.backend, self.networks[&Side::Ours].node(), random)?,
            None => Edited::default(),
        };
        let repairs = if kill {
            let setup = proxies.setup;
            let backend = self.start_backend(self.pair.backend, &setup)?;
            self.proxies.as_mut().context("nothing runs")?.backend = backend;
            self.await_applied(self.pair.backend, state, from).with_context(|| edited.edit.clone())?;
            // Until the new backend reports, the report of its predecessor remains.
            self.await_report(state, |number| number == 0)?
        } else {
            self.await_report(state, |number| number > repairs).with_context(|| edited.edit.clone())?
        };
        self.proxies.as_mut().context("nothing runs")?.repairs = repairs;
        Ok(edited)
    }

    /// Waits until the brain answers.
    fn await_brain(&mut self) -> anyhow::Result<()> {
        let (brain, runtime) = (&mut self.brain, &self.runtime);
        let mut last_error = None;
        let is_up = await_condition("the brain answers", || {
            let answer = runtime.block_on(async { timeout(patience(), brain.next(Revision::default(), false)).await });
            let answer = answer.map_err(anyhow::Error::from).and_then(|answer| answer.map_err(anyhow::Error::from));
            last_error = answer.as_ref().err().map(|error| format!("{error:#}"));
            answer.is_ok()
        });
        is_up.with_context(|| last_error.unwrap_or_default())
    }

    fn start_brain(&self, node: &str) -> anyhow::Result<Running> {
        let source = format!("kube:{}", self.api_server.kube_proxy.display());
        let (api, log) = (self.programs.api(), "localnet-brain");
        self.programs.start(self.node(Side::Ours), log, &["--source", &source, "--node-name", node, "--listen", &api])
    }

    fn start_backend(&self, backend: Backend, setup: &Setup) -> anyhow::Result<Running> {
        let (api, flags) = (self.programs.api(), setup.flags());
        let mut arguments = vec!["--api", &api];
        arguments.extend(flags.iter().map(String::as_str).chain(backend.flags()));
        self.programs.start(self.node(Side::Ours), backend.program(), &arguments)
    }

    fn start_kube_proxy(&self, mode: Mode, setup: &Setup) -> anyhow::Result<Running> {
        let whose = (&*self.api_server.kube_proxy, setup.node);
        kube_proxy::start(self.node(Side::KubeProxy), &self.programs, mode, whose, &setup.kube_proxy_lines())
    }

    /// The address of the brain's listener.
    pub(crate) fn api(&self) -> String {
        self.programs.api()
    }

    /// A folder for files.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.programs.path()
    }

    pub(crate) fn network(&self, side: Side) -> &Network {
        &self.networks[&side]
    }

    fn node(&self, side: Side) -> &Namespace {
        self.network(side).node()
    }

    pub(crate) fn writer(&self) -> Writer {
        Writer::new(&self.api_server.client)
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Waits until brain, backend and kube-proxy have reached the sentinel. Returns the brain's state, and how many times the
    /// zone was written again for kube-proxy.
    pub(crate) fn settle(&mut self, writer: &Writer, sentinel: Sentinel) -> anyhow::Result<(Snapshot, usize)> {
        for resends in 0..=MAX_RESENDS {
            let state = self.await_state(&format!("{sentinel:?}"), |state| sentinel.has_come(state))?;
            self.await_applied(self.pair.backend, &state, 0)?;
            for side in self.pair.sides() {
                for (to, endpoint) in sentinel.paths() {
                    // Until the sentinel is programmed, probes may be silent.
                    let probe = Probe::new(Protocol::Tcp, to).timeout(Duration::from_millis(200));
                    self.await_answers(side, probe, 1, &BTreeSet::from([endpoint]), patience())?;
                }
            }
            if self.zone == Some(sentinel.zone()) {
                return Ok((state, resends));
            }
            let zones = sentinel.zones();
            let await_zone = |side, patience| {
                zones.iter().try_for_each(|(to, endpoints)| {
                    self.await_answers(side, Probe::new(Protocol::Tcp, *to), ENOUGH, endpoints, patience)
                })
            };
            await_zone(Side::Ours, patience())?;
            let has_just_started = self.zone.is_none() && resends < MAX_RESENDS;
            let theirs = match self.pair.kube_proxy {
                Some(_) if has_just_started => await_zone(Side::KubeProxy, KNOWS_ZONE_WITHIN),
                Some(_) => await_zone(Side::KubeProxy, patience()),
                None => Ok(()),
            };
            match theirs {
                Ok(()) => {
                    self.zone = Some(sentinel.zone());
                    return Ok((state, resends));
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

    /// Waits for a state of the brain that satisfies `is_right`.
    fn await_state(&mut self, what: &str, is_right: impl Fn(&Snapshot) -> bool) -> anyhow::Result<Snapshot> {
        settle::await_state(&mut self.brain, &self.runtime, is_right).with_context(|| {
            format!("the brain has not come to {what}\n{}", tail(&self.programs.log("localnet-brain")))
        })
    }

    /// Waits until a backend logs, after this many bytes of its log, that it has applied this state or a later one.
    fn await_applied(&self, backend: Backend, state: &Snapshot, from: usize) -> anyhow::Result<()> {
        let program = backend.program();
        await_condition("the backend has applied the state", || {
            settle::has_applied(self.programs.log(program).get(from..).unwrap_or_default(), state)
        })
        .with_context(|| tail(&self.programs.log(program)))
    }

    /// Waits until the backend has reported that it has applied this state, with a number of repairs that satisfies `is_right`.
    fn await_report(&self, state: &Snapshot, is_right: impl Fn(u64) -> bool) -> anyhow::Result<u64> {
        let Revision { instance, rev } = state.revision;
        let repairs = || -> anyhow::Result<Option<u64>> {
            let status = self.runtime.block_on(async { timeout(patience(), self.brain.status()).await })??;
            let mut reports = status.backends.into_iter().filter_map(|received| received.report);
            let holds = |report: &BackendReport| {
                report.instance_id == instance && report.families.iter().all(|family| family.applied_rev >= rev)
            };
            let report = reports.find(|report| self.pair.backend.program().ends_with(&report.backend));
            Ok(report.filter(holds).map(|report| report.repairs))
        };
        let mut reported = Ok(None);
        let is_reported = await_condition("the backend reports that the rules are correct", || {
            reported = repairs();
            matches!(reported, Ok(Some(number)) if is_right(number))
        });
        let report = || format!("{reported:?}\n{}", tail(&self.programs.log(self.pair.backend.program())));
        is_reported.with_context(report)?;
        reported?.context("the backend reports nothing")
    }

    /// Waits until exactly these endpoints answer `count` connections in a row, inside and outside of the sandbox.
    fn await_answers(
        &self,
        side: Side,
        probe: Probe,
        connections: usize,
        endpoints: &BTreeSet<SocketAddr>,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let client = self.network(side).client();
        let are_answered = || settle::await_answers(client, probe, connections, endpoints, patience);
        let outside = || self.sandbox.as_ref().map_or(Ok(()), |sandbox| sandbox.outside(are_answered));
        are_answered().and_then(|()| outside()).with_context(|| {
            let log = match side {
                Side::Ours => self.programs.log(self.pair.backend.program()),
                Side::KubeProxy => self.programs.log(KUBE_PROXY),
            };
            format!("{side:?} has not settled\n{}", tail(&log))
        })
    }
}

/// Loads connection tracking, whose settings do not exist earlier. A kernel may have it as a module, and loads it with the first
/// rule that uses it.
pub(crate) fn load_conntrack(node: &Namespace) -> anyhow::Result<()> {
    const RULES: &str = "table inet load { chain load { ct state new counter; }; }; delete table inet load";
    node.output(Command::new("nft").arg(RULES)).map(drop)
}

/// Connects the nodes to the API server of the host. Outside of a guest, starts one on the first node.
async fn reach_api_server(nodes: &[&Namespace]) -> anyhow::Result<Api> {
    if let Some(of_host) = Api::of_host(nodes).await? {
        return Ok(of_host);
    }
    match nodes {
        [ours, theirs] => link(ours, theirs)?,
        // Not at lo: the kernel would prefer the address for masquerading.
        _ => nodes[0].ip([
            "link add link-b index 900 type veth peer name link-a index 901".to_owned(),
            format!("addr add {}/32 dev link-b", LINK[0]),
            "link set link-b up".to_owned(),
        ])?,
    }
    Api::start(nodes[0].path(), LINK[0].parse()?, true).await
}

fn link(ours: &Namespace, theirs: &Namespace) -> anyhow::Result<()> {
    let peer = theirs.name();
    ours.ip([format!("link add link-b index 900 type veth peer name link-a index 901 netns {peer}")])?;
    for (node, name, address) in [(ours, "link-b", LINK[0]), (theirs, "link-a", LINK[1])] {
        node.ip([format!("addr add {address}/30 dev {name}"), format!("link set {name} up")])?;
    }
    Ok(())
}
