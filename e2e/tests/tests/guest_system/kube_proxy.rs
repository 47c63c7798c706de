//! Compares kube-proxy's ipvs mode with the Cases. `differences.yaml` lists each flow that differs, under the number of an entry
//! of `docs/differences.md`. Any other difference fails the test, and so does a listed flow that no longer differs. `localnet shadow`
//! must find these entries and no other difference, and then each planted one.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::Write as _,
    panic::resume_unwind,
    path::Path,
    process::Command,
    slice, thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_e2e::{
    Programs,
    api_server::{Api, host_side},
    kube_proxy::{self, KUBE_PROXY, Mode},
    program,
    writer::{self, NODE_NAME, Sentinel, Writer},
};
use localnet_lab::{
    Case, Flow, Flows, Network, Outcome, Probe, Protocol, Servers, probe_flows, topology::CLUSTER_CIDRS,
};
use localnet_vm::on_ipvs_with_host_side;
use serde_json::Value;
use tokio::runtime::Runtime;

/// Maximum time for the whole test.
pub(crate) const LIMIT: Duration = Duration::from_secs(1800);
/// Maximum time for kube-proxy to start and to sync, on an emulated processor.
const PATIENCE: Duration = Duration::from_secs(300);
/// The number of flows at a time. They spend most of the time waiting.
const AT_A_TIME: usize = 4;

/// Changes of what kube-proxy programs for this Case, each with the commands that undo it.
const PLANTED_IN: &str = "policy-external-local";
const PLANTED: [(&str, &str); 8] = [
    ("ipvsadm -d -t 172.30.0.41:80 -r 10.180.1.4:8041", "ipvsadm -a -t 172.30.0.41:80 -r 10.180.1.4:8041 -m -w 1"),
    ("ipvsadm -E -t 172.30.0.41:80 -s rr -p 60", "ipvsadm -E -t 172.30.0.41:80 -s rr"),
    (
        "ipvsadm -D -t 1.2.3.41:80",
        "ipvsadm -A -t 1.2.3.41:80 -s rr; ipvsadm -a -t 1.2.3.41:80 -r 10.180.0.3:8041 -m -w 1",
    ),
    ("ipset del KUBE-CLUSTER-IP 172.30.0.41,tcp:80", "ipset add KUBE-CLUSTER-IP 172.30.0.41,tcp:80"),
    ("ipset del KUBE-LOAD-BALANCER-LOCAL 1.2.3.41,tcp:80", "ipset add KUBE-LOAD-BALANCER-LOCAL 1.2.3.41,tcp:80"),
    ("ipset del KUBE-NODE-PORT-LOCAL-TCP 30041", "ipset add KUBE-NODE-PORT-LOCAL-TCP 30041"),
    ("ip address del 198.51.100.41/32 dev kube-ipvs0", "ip address add 198.51.100.41/32 dev kube-ipvs0"),
    ("iptables -t nat -F KUBE-MARK-MASQ", "iptables -t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000"),
];

/// Case → entry of `docs/differences.md` → flows.
type Listed = BTreeMap<String, BTreeMap<usize, BTreeSet<String>>>;

#[test]
fn all_differences_from_kube_proxy_are_listed() {
    on_ipvs_with_host_side(|| host_side(1, false, LIMIT), || compare().unwrap_or_else(|error| panic!("{error:#}")));
}

fn compare() -> anyhow::Result<()> {
    let mut listed: Listed = serde_saphyr::from_str(include_str!("differences.yaml"))?;
    if let Ok(only) = env::var("CASES") {
        listed = only.split(',').map(|name| (name.to_owned(), listed.remove(name).unwrap_or_default())).collect();
    }
    let began = Instant::now();
    let runtime = Runtime::new()?;
    let cases = listed.keys().map(|name| load(name)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut world = World::build(&runtime, &cases)?;
    print_line(&format!("kube-proxy ipvs: it runs after {:.1?}", began.elapsed()));
    let mut wrong = Vec::new();
    for case in &cases {
        world.enter(case).with_context(|| format!("{}: {}", case.name, world.programs.log(KUBE_PROXY)))?;
        let settled = began.elapsed();
        let found = world.shadow_agrees().with_context(|| case.name.clone())?;
        let missing: Vec<&usize> = listed[&case.name].keys().filter(|entry| !found.contains(*entry)).collect();
        anyhow::ensure!(missing.is_empty(), "{}: localnet shadow does not find entries {missing:?}", case.name);
        let differs = world.differing(&case.flows.flows);
        let expected: BTreeSet<&String> = listed[&case.name].values().flatten().collect();
        let flows: BTreeSet<String> = differs.iter().map(|(flow, _)| flow.clone()).collect();
        print_line(&format!(
            "kube-proxy ipvs: {:.1?}, {:.1?}: {}: {} of {} flows differ",
            settled,
            began.elapsed(),
            case.name,
            differs.len(),
            case.flows.flows.len()
        ));
        let listed = |flow: &String| if expected.contains(flow) { "listed" } else { "not listed" };
        differs.iter().for_each(|(flow, error)| print_line(&format!("  {}: \"{flow}\": {error}", listed(flow))));
        let unexplained = differs.iter().filter(|(flow, _)| !expected.contains(flow));
        wrong.extend(unexplained.map(|(flow, error)| format!("{}: {flow}: {error}", case.name)));
        let missing = expected.into_iter().filter(|flow| !flows.contains(*flow));
        wrong.extend(missing.map(|flow| format!("{}: {flow}: is listed, and does not differ", case.name)));
        if case.name == PLANTED_IN {
            world.plant()?;
        }
    }
    anyhow::ensure!(wrong.is_empty(), "{} unexplained:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// A Case of this repository.
pub(crate) fn load(name: &str) -> anyhow::Result<Case> {
    Case::load(&localnet_lab::case::folder().join(name))
}

/// One network for all Cases, with kube-proxy on its node.
pub(crate) struct World<'a> {
    runtime: &'a Runtime,
    // Fields are dropped in this order: first the programs that run in the network.
    pub(crate) kube_proxy: localnet_lab::Running,
    pub(crate) brain: localnet_lab::Running,
    writer: Writer,
    pub(crate) api: Api,
    pub(crate) programs: Programs,
    _servers: Servers,
    pub(crate) network: Network,
}

impl<'a> World<'a> {
    pub(crate) fn build(runtime: &'a Runtime, cases: &[Case]) -> anyhow::Result<Self> {
        let first = cases.first().context("no Case is listed")?;
        let mut all = Flows { node: first.flows.node.clone(), ..Flows::default() };
        let mut endpoints: BTreeSet<_> = writer::sentinel_endpoints().collect();
        for case in cases {
            anyhow::ensure!(case.flows.node == all.node, "{} has other options than {}", case.name, first.name);
            all.flows.extend(case.flows.flows.iter().cloned());
            endpoints.extend(case.endpoints()?);
        }
        let network = Network::build(all.topology(&endpoints))?;
        let servers = Servers::start_with_open_connections(&network, endpoints)?;
        let programs = Programs::new()?;
        let api = runtime.block_on(writer::reach(&network))?;
        let lines = format!(
            "clusterCIDR: \"{}\"\nnodePortAddresses: [primary]\nipvs: {{minSyncPeriod: 50ms, syncPeriod: 1h}}\n",
            CLUSTER_CIDRS.join(",")
        );
        let client = (api.kube_proxy.as_path(), NODE_NAME);
        let kube_proxy = kube_proxy::start(network.node(), &programs, Mode::Ipvs, client, &lines)?;
        let (source, listen) = (format!("kube:{}", api.kube_proxy.display()), programs.api());
        let arguments = ["--source", &source, "--node-name", NODE_NAME, "--listen", &listen, "--shadow"];
        let brain = programs.start(network.node(), "localnet-brain", &arguments)?;
        let writer = Writer::new(api.client.clone());
        Ok(Self { runtime, kube_proxy, brain, writer, api, programs, _servers: servers, network })
    }

    /// What `localnet shadow` finds: the entries of the differences, and the differences without an entry.
    fn shadow(&self) -> anyhow::Result<(BTreeSet<usize>, Vec<Value>)> {
        let mut command = Command::new(program("localnet")?);
        command.args(["shadow", "-o", "json", "--settle", "0", "--api", &self.programs.api()]);
        command.args(["--cluster-cidr", &CLUSTER_CIDRS.join(","), "--nodeport-addresses", "primary"]);
        let output = self.network.node().run(|| command.output().context("running localnet"))?;
        let error = String::from_utf8_lossy(&output.stderr);
        let answer: Value =
            serde_json::from_slice(&output.stdout).with_context(|| format!("localnet shadow: {error}"))?;
        anyhow::ensure!(answer["mode"] == "ipvs", "{answer}");
        let entry = |difference: &Value| difference["entry"].as_u64().and_then(|entry| usize::try_from(entry).ok());
        let differences = answer["differences"].as_array().cloned().unwrap_or_default();
        let entries = differences.iter().filter_map(entry).collect();
        Ok((entries, differences.into_iter().filter(|difference| entry(difference).is_none()).collect()))
    }

    /// Waits until `localnet shadow` finds no difference without an entry. Returns the entries of the others.
    fn shadow_agrees(&self) -> anyhow::Result<BTreeSet<usize>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // The brain may be starting.
            match self.shadow() {
                Ok((entries, unexplained)) if unexplained.is_empty() => return Ok(entries),
                found if Instant::now() > deadline => {
                    anyhow::bail!("{found:?}\n{}", self.programs.log("localnet-brain"))
                }
                _ => thread::park_timeout(Duration::from_millis(50)),
            }
        }
    }

    fn plant(&self) -> anyhow::Result<()> {
        let sh = |script: &str| self.network.node().output(Command::new("sh").args(["-ec", script]));
        for (plant, undo) in PLANTED {
            sh(plant)?;
            anyhow::ensure!(!self.shadow()?.1.is_empty(), "localnet shadow does not find: {plant}");
            sh(undo)?;
        }
        self.shadow_agrees().map(drop)
    }

    /// Writes a Case, and waits until kube-proxy has programmed it.
    pub(crate) fn enter(&mut self, case: &Case) -> anyhow::Result<()> {
        self.runtime.block_on(self.writer.write(case))?;
        // A virtual server answers while a sync is still running. The next sync starts only after that one has ended.
        for _ in 0..2 {
            let sentinel = self.runtime.block_on(self.writer.write_sentinel())?;
            self.await_sentinel(&sentinel)?;
        }
        Ok(())
    }

    fn await_sentinel(&self, sentinel: &Sentinel) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for (to, endpoint) in sentinel.paths {
            let probe = Probe::new(Protocol::Tcp, to).timeout(Duration::from_millis(500));
            loop {
                let outcome = self.network.client().probe(probe)?;
                if matches!(outcome, Outcome::Answer { by, .. } if by == endpoint) {
                    break;
                }
                anyhow::ensure!(Instant::now() < deadline, "{to} is not answered by {endpoint}: {outcome}");
                // Rejects come at once. Leave the processors to kube-proxy.
                thread::park_timeout(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// The flows that differ from the expectations of their Case, with the differences.
    fn differing(&self, flows: &[Flow]) -> Vec<(String, String)> {
        let one = |flow: &Flow| {
            let error = probe_flows(&self.network, slice::from_ref(flow)).err()?;
            let Flow { from, protocol, to, .. } = flow;
            Some((format!("{from} {} {to}", protocol.as_lowercase()), format!("{error:#}").replace('\n', " ")))
        };
        thread::scope(|scope| {
            let chunks = flows.chunks(flows.len().div_ceil(AT_A_TIME).max(1));
            let probes: Vec<_> =
                chunks.map(|flows| scope.spawn(move || flows.iter().filter_map(one).collect::<Vec<_>>())).collect();
            let join =
                |probe: thread::ScopedJoinHandle<'_, _>| probe.join().unwrap_or_else(|panic| resume_unwind(panic));
            probes.into_iter().flat_map(join).collect()
        })
    }
}

/// Prints at once, even if the test passes.
fn print_line(line: &str) {
    // A closed standard error is not a failure.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

#[test]
fn every_listed_entry_is_described() {
    let listed: Listed = serde_saphyr::from_str(include_str!("differences.yaml")).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/differences.md");
    let page = fs::read_to_string(page).unwrap();
    for (case, entries) in &listed {
        for entry in entries.keys() {
            assert!(page.contains(&format!("\n## {entry}. ")), "{case}: entry {entry}");
        }
    }
}
