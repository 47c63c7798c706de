//! Measures one contestant in the guest.

use std::{
    fs::{self, File},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use localnet_lab::{Namespace, Network, Running, Topology};
use localnet_vm::nic;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::{
    api,
    cluster::{Probe, Size, TARGET_PORT},
    contestants::{Contestant, Place, Program, WITH_IPVS},
    packets::{self, Answer, Listener, Observer},
    statistics::{Times, millis},
};

/// The contestant to measure, and how to reach the API server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    /// An index of [`WITH_IPVS`].
    pub(super) contestant: usize,
    pub(super) services: u32,
    pub(super) endpoints: u32,
    pub(super) quick: bool,
    /// Paths of kubeconfigs.
    pub(super) admin: PathBuf,
    pub(super) kube_proxy: PathBuf,
    pub(super) server: IpAddr,
}

/// The results, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    /// Until a sample of the virtual servers answers, and all of them exist with their destinations.
    pub(super) answered: f64,
    /// Until the contestant reports that its first sync has ended. `None` if that took longer than [`START`].
    pub(super) ended: Option<f64>,
    /// From the write of a change until packets go to another endpoint. `None` if the first sync has not ended.
    pub(super) change: Option<Times>,
}

/// Maximum time for the start.
pub(super) const START: Duration = Duration::from_secs(3600);
/// Maximum time for a change. A slower change is an error.
const CHANGE: Duration = Duration::from_secs(900);
/// Maximum and minimum number of changes. After this total time, no further change starts.
const MOST: usize = 30;
const LEAST: usize = 3;
const CHANGING: Duration = Duration::from_secs(600);
/// The interval of polling during a start, which leaves the processors to the contestant.
const LOOK: Duration = Duration::from_millis(20);
const CONNECTS: &str = "10.180.0.1";

pub(super) fn measure(task: &Task) -> anyhow::Result<Figures> {
    let size = Size::new(task.services, task.endpoints);
    let contestant = WITH_IPVS.get(task.contestant).context("there is no such contestant")?;
    let pods = [Probe::Open, Probe::Closed].map(|probe| probe.address().to_string());
    let network = Network::build(Topology::with_pods([CONNECTS, &pods[0], &pods[1]])?)?;
    // The routes of this program and of the node to the API server.
    nic::connect(0, None, &[task.server])?;
    nic::connect(1, Some(network.node().name()), &[task.server])?;
    let pod = network.pod(Probe::Open.address().into())?;
    let _listeners =
        [Listener::start(network.outside(), TARGET_PORT, false)?, Listener::start(pod, TARGET_PORT, false)?];
    let runtime = Runtime::new()?;
    let client = runtime.block_on(client(&task.admin))?;
    let folder = tempfile::tempdir().context("creating a temporary folder")?;

    let started = Instant::now();
    let site = Site { network: &network, folder: folder.path() };
    let _running = site.start(contestant, &task.kube_proxy)?;
    let answered = site.await_all(size, started).with_context(|| site.logs())?;
    let ended = site.await_end(contestant, started).with_context(|| site.logs())?;
    let change = match ended {
        Some(_) => Some(site.change(&runtime, &client, contestant, task.quick).with_context(|| site.logs())?),
        None => None,
    };
    Ok(Figures { answered: millis(answered), ended: ended.map(millis), change })
}

async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

struct Site<'a> {
    network: &'a Network,
    folder: &'a Path,
}

impl Site<'_> {
    fn start(&self, contestant: &Contestant, kubeconfig: &Path) -> anyhow::Result<Vec<Running>> {
        let programs = (contestant.programs)(&Place { kubeconfig, folder: self.folder })?;
        let start = |Program { name, command }: &Program| {
            let path = self.folder.join(format!("{name}.log"));
            let log = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
            let out = log.try_clone()?;
            self.network.node().spawn(command.get_program(), |started| {
                started.args(command.get_args()).stdin(Stdio::null()).stdout(out).stderr(log)
            })
        };
        programs.iter().map(start).collect()
    }

    /// The ends of the programs' outputs.
    fn logs(&self) -> String {
        let logs = fs::read_dir(self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
        let end = |path: PathBuf| {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("{}:\n{}\n", path.display(), lines[lines.len().saturating_sub(20)..].join("\n"))
        };
        logs.map(end).collect()
    }

    fn pod(&self) -> anyhow::Result<&Namespace> {
        self.network.pod(CONNECTS.parse().context("reading the address of a pod")?)
    }

    /// Waits until a sample answers, and then until all virtual servers have all destinations. Returns the time since `started`.
    fn await_all(&self, size: Size, started: Instant) -> anyhow::Result<Duration> {
        for to in size.sample() {
            self.pod()?.run(|| {
                while packets::ask(to, Duration::from_secs(5))? != Answer::Open {
                    ensure!(started.elapsed() < START, "{to} is not answered");
                    thread::park_timeout(LOOK);
                }
                Ok(())
            })?;
        }
        loop {
            let now = started.elapsed();
            let table = self.network.node().run(|| Ok(fs::read_to_string("/proc/thread-self/net/ip_vs")?))?;
            let count = |start: &str| table.lines().filter(|line| line.starts_with(start)).count();
            // The probe's Service is one more.
            let (servers, destinations) = (size.services + 1, size.services * size.endpoints + 1);
            if count("TCP ") >= servers as usize && count("  -> ") > destinations as usize {
                return Ok(now);
            }
            ensure!(now < START, "there are {} virtual servers", count("TCP "));
            thread::park_timeout(LOOK);
        }
    }

    /// Waits until the contestant reports the end of its first sync. Returns the time since `started`.
    fn await_end(&self, contestant: &Contestant, started: Instant) -> anyhow::Result<Option<Duration>> {
        while !self.has_synced(contestant)? {
            if started.elapsed() > START {
                return Ok(None);
            }
            thread::park_timeout(LOOK);
        }
        Ok(Some(started.elapsed()))
    }

    fn has_synced(&self, contestant: &Contestant) -> anyhow::Result<bool> {
        let path = self.folder.join(format!("{}.log", contestant.name));
        if let Ok(log) = fs::read_to_string(path) {
            return Ok(log.contains(" applied revision="));
        }
        const LAST: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} ";
        let page = self.network.node().run(|| get("127.0.0.1:10249", "/metrics"))?;
        let last = page.lines().find_map(|line| line.strip_prefix(LAST)?.parse::<f64>().ok());
        Ok(last.is_some_and(|seconds| seconds > 0.0))
    }

    /// Moves the probe's Service between two pods, of which one listens.
    fn change(
        &self,
        runtime: &Runtime,
        client: &Client,
        contestant: &Contestant,
        quick: bool,
    ) -> anyhow::Result<Times> {
        let (most, began) = (if quick { LEAST } else { MOST }, Instant::now());
        let from = self.pod()?;
        thread::scope(|scope| {
            let observer = Observer::start(scope, from, Probe::vip());
            let mut now = Probe::Open;
            let mut all = Vec::new();
            let mut once = || -> anyhow::Result<Duration> {
                // Each change is separate, and not synchronous with any timer of the contestant.
                thread::sleep(contestant.rest.mul_f64(rand::random_range(1.0..1.2)));
                now = now.other();
                observer.be_watchful();
                let written = Instant::now();
                runtime.block_on(api::replace(client, &now.slice()))?;
                let expected = if now == Probe::Open { Answer::Open } else { Answer::Refused };
                let seen = observer.await_answer(expected, CHANGE).context("a change is not seen")?;
                Ok(seen - written)
            };
            let mut result = Ok(());
            while result.is_ok() && all.len() < most && (all.len() < LEAST || began.elapsed() < CHANGING) {
                result = once().map(|took| all.push(took));
            }
            observer.finish()?;
            result?;
            Times::of(all).context("nothing was changed")
        })
    }
}

/// The body of an HTTP answer. Empty while no server listens.
fn get(at: &str, path: &str) -> anyhow::Result<String> {
    use std::io::{Read as _, Write as _};
    let to: SocketAddr = at.parse().context("reading an address")?;
    let Ok(mut stream) = std::net::TcpStream::connect(to) else { return Ok(String::new()) };
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
