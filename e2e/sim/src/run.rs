//! One run: a schedule of changes and faults from a seed, the checks between its steps, and the convergence at its end.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use localnet_cluster::{
    Cluster, Options,
    localize::{Localized, NodeIps},
    objects::{Event as Change, Kind, Object},
};
use localnet_proto::{Digest, Family, Revision, Snapshot};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::{
    api::{Api, Backup, Mood},
    backends::{Name, Program, ebpf::Ebpf, iptables::Iptables, ipvs::Ipvs, nft::Nft, win::Hns},
    faults::{FAULTS, Fault, Todo, inject},
    invariants::{Ledger, Seen},
    kernel::Kernel,
    link::Link,
    node::{RunningBackend, RunningBrain},
    trace::Trace,
    world::{Key, World, differing},
};

/// How long after the last fault the node may take to hold the state of the cluster. The brain keeps objects that are
/// suddenly missing from a list for 300 s, and asks again about once a minute; a silent watch takes 300 s to notice.
const CONVERGENCE: Duration = Duration::from_secs(1800);
/// The most tasks and file descriptors at the end of a run.
const MOST_TASKS: usize = 40;
const MOST_DESCRIPTORS: usize = 30;
/// The longest run.
const LONGEST: Duration = Duration::from_secs(4 * 3600);
/// The time between two checks at the end.
const PAUSE: Duration = Duration::from_secs(5);

/// A step of the schedule. Its seed determines the details, so the other steps stay the same if one is left out.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// When the step happens, after the start.
    pub at: Duration,
    /// The fault. `None` for a change of the cluster.
    pub fault: Option<Fault>,
    seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The digest of the trace.
    pub digest: u64,
    /// The number of writes to the API server.
    pub changes: u64,
    /// The simulated time.
    pub time: Duration,
    /// The invariant that was violated, and how.
    pub violation: Option<String>,
}

/// The steps of a run.
pub fn schedule(seed: u64) -> Vec<Step> {
    let mut rng = StdRng::seed_from_u64(seed);
    // Each run has only some of the faults. Otherwise, frequent faults would hide the effects of rare ones.
    let few = rng.random_bool(0.2);
    let chosen: Vec<_> = FAULTS.into_iter().filter(|_| rng.random_bool(if few { 0.1 } else { 0.4 })).collect();
    let slowest = *[20, 200, 2000, 8000].choose(&mut rng).unwrap_or(&200);
    let mut at = Duration::ZERO;
    let steps = 0..rng.random_range(10..120_u32);
    steps
        .map(|_| {
            at += Duration::from_millis(rng.random_range(1..=slowest));
            let mut dice = rng.random_range(0..100_u32);
            let fault = chosen.iter().find(|(_, rate)| {
                let hit = dice < *rate;
                dice = dice.saturating_sub(*rate);
                hit
            });
            Step { at, fault: fault.map(|(fault, _)| *fault), seed: rng.random() }
        })
        .collect()
}

/// What the driver does at a time.
enum Due {
    Step(Step),
    /// The controllers write an object.
    Write,
    Heal,
    StartBrain,
    /// Another program changes the backend's objects this many times.
    Edit(u32),
}

struct Driver<S: Program> {
    rng: StdRng,
    start: Instant,
    queue: BTreeMap<(Instant, u64), Due>,
    queued: u64,
    world: World,
    /// The objects of `world`, and which of them the controllers have not written yet.
    wanted: BTreeMap<Key, Value>,
    pending: Vec<Key>,
    goals: Vec<World>,
    writing: bool,
    backup: Option<(World, Backup)>,
    /// After a restore, until the brain has listed everything again: the oldest version that it knows and that no longer
    /// exists.
    restored_from: Option<u64>,
    changes: u64,
    /// The configuration of the node's addresses.
    node_ips: NodeIps,
    api: Api,
    link: Link,
    kernel: Kernel<S>,
    /// The kernel at the start.
    empty: S,
    ledger: Ledger,
    trace: Trace,
    socket: PathBuf,
    brain: Option<RunningBrain>,
    backend: RunningBackend,
}

/// Runs the steps of `seed` except those whose index is in `without`. `prints` is whether to print the trace. Must be called
/// in a runtime with paused time.
///
/// # Errors
/// Returns an error if the folder of the socket cannot be created.
pub async fn run(seed: u64, backend: Name, without: &[usize], prints: bool) -> anyhow::Result<Outcome> {
    match backend {
        Name::Nft => run_on::<Nft>(seed, without, prints).await,
        Name::Iptables => run_on::<Iptables>(seed, without, prints).await,
        Name::Ipvs => run_on::<Ipvs>(seed, without, prints).await,
        Name::Win => run_on::<Hns>(seed, without, prints).await,
        Name::Ebpf => run_on::<Ebpf>(seed, without, prints).await,
    }
}

async fn run_on<S: Program + Sync>(seed: u64, without: &[usize], prints: bool) -> anyhow::Result<Outcome> {
    let trace = Trace::new(prints);
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("brain.sock");
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
    let api = Api::new(rng.random(), trace.clone());
    let seed_of_kernel = rng.random();
    let link = Link::new(rng.random());
    let empty = S::new(&mut rng);
    let ledger = Ledger::new(empty.clone());
    let kernel = Kernel::new(empty.clone(), seed_of_kernel, ledger.clone(), trace.clone());
    let backend = RunningBackend::start((kernel.clone(), link.clone()), &socket, ledger.clone(), trace.clone());
    let world = World::new(&mut rng);
    let mut driver = Driver {
        rng,
        start: Instant::now(),
        queue: BTreeMap::new(),
        queued: 0,
        goals: vec![world.clone()],
        world: world.clone(),
        wanted: BTreeMap::new(),
        pending: Vec::new(),
        writing: false,
        backup: None,
        restored_from: None,
        changes: 0,
        node_ips: NodeIps::default(),
        api,
        link,
        kernel,
        empty,
        ledger,
        trace,
        socket,
        brain: None,
        backend,
    };
    driver.pursue(world);
    while driver.write() {}
    driver.backup = Some((driver.world.clone(), driver.api.backup()));
    driver.queue(Duration::from_millis(1), Due::StartBrain);
    for (index, step) in schedule(seed).into_iter().enumerate() {
        if !without.contains(&index) {
            driver.queue(step.at, Due::Step(step));
        }
    }
    driver.play().await?;
    if driver.ledger.violation().is_none() {
        driver.converge().await?;
    }
    let violation = driver.ledger.violation();
    if let Some(violation) = &violation {
        driver.trace.add(format_args!("violation of {violation}"));
    }
    let (digest, time) = (driver.trace.digest(), driver.start.elapsed());
    Ok(Outcome { digest, changes: driver.changes, time, violation })
}

impl<S: Program> Driver<S> {
    fn queue(&mut self, after: Duration, due: Due) {
        self.queued += 1;
        self.queue.insert((Instant::now() + after, self.queued), due);
    }

    /// Plays the queue until it is empty or an invariant is violated.
    async fn play(&mut self) -> anyhow::Result<()> {
        while let Some((at, number)) = self.queue.first_key_value().map(|(key, _)| *key) {
            tokio::select! {
                biased;
                () = self.api.crash() => {
                    self.end_brain(false).await;
                    let down = Duration::from_millis(self.rng.random_range(1..5000));
                    self.queue(down, Due::StartBrain);
                    continue;
                }
                () = sleep_until(at) => {}
            }
            let Some(due) = self.queue.remove(&(at, number)) else { continue };
            self.check().await;
            if self.start.elapsed() > LONGEST {
                self.ledger.violated("converges", "the brain does not notice that etcd was restored");
            }
            if self.ledger.violation().is_some() {
                return Ok(());
            }
            match due {
                Due::Step(step) => self.step(step).await,
                Due::Write => {
                    self.writing = self.write();
                    self.keep_writing();
                }
                Due::Heal => self.heal(),
                Due::Edit(times) => {
                    self.kernel.edit(false, self.rng.random_bool(0.3));
                    self.edit_again(times - 1);
                }
                Due::StartBrain if self.brain.is_some() => {}
                Due::StartBrain => {
                    let (server, node_ips) = ((&self.api, &self.link), self.node_ips.clone());
                    let brain = RunningBrain::start(server, &self.socket, node_ips, &self.ledger, &self.trace).await?;
                    self.brain = Some(brain);
                }
            }
        }
        Ok(())
    }

    async fn step(&mut self, step: Step) {
        let mut rng = StdRng::seed_from_u64(step.seed);
        let Some(fault) = step.fault else {
            let wanted = self.goals.last().unwrap_or(&self.world);
            let (what, goals) = wanted.change(&mut rng);
            self.trace.add(format_args!("step: {what}"));
            self.goals.extend(goals);
            if rng.random_bool(0.05) {
                self.backup = Some((self.world.clone(), self.api.backup()));
            }
            if !std::mem::replace(&mut self.writing, true) {
                self.keep_writing();
            }
            return;
        };
        self.trace.add(format_args!("step: {fault:?}"));
        match inject(fault, &mut rng, &self.api, &self.kernel, &self.link) {
            Todo::Nothing => {}
            Todo::HealAfter(time) => self.queue(time, Due::Heal),
            Todo::Restore => self.restore(),
            Todo::EndBrain { gracefully, polls, down } => {
                self.poll(polls).await;
                self.end_brain(gracefully).await;
                self.queue(down, Due::StartBrain);
            }
            Todo::EndBackend { polls } => self.backend.kill_after(Some(polls)),
            Todo::StandStill(time) => {
                tokio::time::advance(time).await;
                self.link.stood_still();
                self.api.stood_still();
            }
            Todo::EditAgain(times) => self.edit_again(times),
            Todo::Configure => {
                let addresses = ["192.168.0.2", "192.168.0.9", "fd00:192::2"].map(str::parse);
                let addresses = addresses.into_iter().flatten().filter(|_| rng.random());
                self.node_ips = NodeIps { first: addresses.collect(), single_stack: rng.random() };
                if let Some(brain) = &self.brain {
                    brain.node_ips.send_replace(self.node_ips.clone());
                }
            }
        }
    }

    fn edit_again(&mut self, times: u32) {
        if times > 0 {
            let pause = Duration::from_millis(self.rng.random_range(0..10));
            self.queue(pause, Due::Edit(times));
        }
    }

    async fn end_brain(&mut self, gracefully: bool) {
        if let Some(brain) = self.brain.take() {
            brain.check_replay(&self.ledger);
            brain.end(gracefully).await;
            self.trace.add("the brain has ended");
        }
    }

    /// Lets the other tasks run a little, so that a crash hits them at any await.
    async fn poll(&self, polls: u32) {
        for _ in 0..polls {
            tokio::task::yield_now().await;
        }
    }

    fn restore(&mut self) {
        let Some((world, backup)) = self.backup.clone().filter(|_| self.restored_from.is_none()) else { return };
        self.restored_from = Some(self.api.restore(backup));
        self.goals = vec![world.clone()];
        self.pursue(world);
        self.ledger.restored();
        self.record(self.api.version());
        if !std::mem::replace(&mut self.writing, true) {
            self.keep_writing();
        }
    }

    fn keep_writing(&mut self) {
        if self.writing {
            let pause = Duration::from_millis(self.rng.random_range(0..30));
            self.queue(pause, Due::Write);
        }
    }

    /// Makes a cluster the current goal.
    fn pursue(&mut self, world: World) {
        self.wanted = world.objects();
        self.pending = self.api.with_objects(|have| differing(have, &self.wanted));
        self.world = world;
    }

    /// Records what the API server now contains.
    fn record(&self, version: u64) {
        self.api.with_objects(|objects| self.ledger.with_truth(|truth| truth.update(objects, version)));
    }

    /// Writes one object that differs from the current goal, or goes on to the next goal. Returns whether there is more to
    /// write.
    fn write(&mut self) -> bool {
        if let Some(before) = self.restored_from {
            let knows_all = Kind::ALL.iter().all(|kind| self.api.counts().get(kind).is_some_and(|of| of.delivered > 0));
            if knows_all {
                self.restored_from = None;
            } else if self.api.version() + 1 >= before {
                // If the versions reached those that a client knows, the client could not notice the restore. etcd's
                // documentation therefore says to increase the versions.
                self.queue(Duration::from_secs(1), Due::Write);
                return false;
            }
        }
        if let Some(key) = self.pending.choose(&mut self.rng).cloned() {
            self.pending.retain(|pending| *pending != key);
            let version = self.api.write(&key, self.wanted.get(&key).cloned());
            self.changes += 1;
            self.record(version);
            return true;
        }
        if self.goals.is_empty() {
            return false;
        }
        let next = self.goals.remove(0);
        self.pursue(next);
        true
    }

    fn heal(&mut self) {
        self.api.set_mood(Mood::Well);
        Kind::ALL.into_iter().for_each(|kind| self.api.set_latency(kind, Duration::from_millis(5)));
        self.kernel.heal();
        self.link.heal();
        self.trace.add("the faults end");
    }

    /// Checks the invariants that hold at any time.
    async fn check(&mut self) {
        let mut failure = None;
        if let Some(brain) = &mut self.brain {
            failure = brain.failure().await;
        }
        if let Some(failure) = failure {
            self.ledger.violated("no-panic", format!("the brain has failed: {failure}"));
        }
        let counts = self.api.counts();
        match &mut self.brain {
            Some(running) => {
                let (state, health) = (running.brain.feed().state(), running.health());
                running.look(&state);
                self.trace.add(format_args!("check at revision {} {}", state.revision(), state.digest()));
                let (reports, calm_since) = (&running.reports, self.link.calm_since());
                self.ledger.check(Some(Seen { state: &state, reports, health: &health, calm_since }), counts);
            }
            None => self.ledger.check(None, counts),
        }
        self.kernel.flows().send();
    }

    /// Ends all faults, and checks that the node soon holds the state of the cluster and then rests.
    async fn converge(&mut self) -> anyhow::Result<()> {
        self.trace.add("all faults end");
        self.heal();
        self.api.crash_after(None);
        self.backend.kill_after(None);
        if self.link.is_old() {
            self.end_brain(true).await;
        }
        self.queue(Duration::ZERO, Due::StartBrain);
        self.play().await?;
        let deadline = Instant::now() + CONVERGENCE;
        loop {
            self.queue(PAUSE, Due::Heal);
            self.play().await?;
            let Some(missing) = self.missing() else { break };
            if self.ledger.violation().is_none() && Instant::now() > deadline {
                self.ledger.violated("converges", missing);
            }
            if self.ledger.violation().is_some() {
                return Ok(());
            }
        }
        self.trace.add("converged");
        self.check_fresh_plan();
        // Nothing happens without a reason, and a new backend finds nothing to change.
        let commits = self.kernel.commits();
        let revision = self.brain.as_ref().map(|running| running.brain.feed().state().revision());
        let is_affine = |object: &Value| object["spec"]["sessionAffinity"] == "ClientIP";
        let has_affinity = S::KEEPS_SLOTS && self.api.with_objects(|objects| objects.values().any(is_affine));
        for restarts in [false, true] {
            if restarts && has_affinity {
                break;
            }
            if restarts {
                self.backend.kill();
            }
            self.queue(Duration::from_secs(60), Due::Heal);
            self.play().await?;
            if self.kernel.commits() != commits {
                self.ledger.violated("quiet-resync", format!("commits without a change; after a restart: {restarts}"));
            }
        }
        if self.brain.as_ref().map(|running| running.brain.feed().state().revision()) != revision {
            self.ledger.violated("quiet-idle", "a new revision without a change");
        }
        if let Some(brain) = &self.brain {
            brain.check_replay(&self.ledger);
        }
        self.check_no_leak();
        Ok(())
    }

    /// The state that follows from the objects.
    fn want(&self) -> Snapshot {
        self.api.with_objects(|objects| snapshot(objects, &self.node_ips))
    }

    /// What the node lacks to hold the state of the cluster.
    fn missing(&self) -> Option<String> {
        if self.writing || self.restored_from.is_some() && !self.queue.is_empty() {
            return Some("the controllers still write".to_owned());
        }
        let want = self.want();
        let Some(running) = &self.brain else { return Some("the brain does not run".to_owned()) };
        let state = running.brain.feed().state();
        if state.digest() != Digest::of(&want) {
            let have = state.snapshot().unwrap_or_default();
            return Some(format!("the brain serves {have:#?}\nand not {want:#?}"));
        }
        if Family::BOTH.into_iter().any(|family| self.ledger.applied()[family] != state.revision()) {
            return Some(format!("the backend has not applied {}", state.revision()));
        }
        if self.ledger.is_damaged() {
            return Some("the backend has not repaired the changes of another program".to_owned());
        }
        if let Some((kind, _)) = self.api.counts().iter().find(|(_, counts)| counts.open == 0) {
            return Some(format!("the brain does not watch {kind}"));
        }
        if let Some(unsettled) = self.kernel.ask(|kernel| kernel.unsettled()) {
            return Some(unsettled);
        }
        let report = running.reports.last(S::NAME).map(|received| received.report).unwrap_or_default();
        let reported = |family: &localnet_proto::wire::FamilyReport| {
            let revision = Revision { instance: report.instance_id, rev: family.applied_rev };
            revision == state.revision() && family.error.is_empty()
        };
        if report.families.len() != 2 || !report.families.iter().all(reported) {
            return Some(format!("the backend reports {report:?}"));
        }
        if let Some(skipped) = report.skipped.iter().find(|skipped| !S::SKIPS.contains(&skipped.code.as_str())) {
            return Some(format!("the backend skips {skipped:?}"));
        }
        // Damage that packets do not meet is repaired later.
        self.differences(&want).filter(|_| !S::NAMES_REPAIRS)
    }

    /// Neither tasks nor file descriptors remain of former brains, backends and connections.
    fn check_no_leak(&self) {
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let descriptors: Vec<_> = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().collect();
        if tasks > MOST_TASKS || descriptors.len() > MOST_DESCRIPTORS {
            let open: Vec<_> = descriptors.iter().filter_map(|one| std::fs::read_link(one.path()).ok()).collect();
            self.ledger.violated("no-leak", format!("{tasks} tasks and {} files remain: {open:?}", descriptors.len()));
        }
    }

    /// The kernel serves what a new backend programs on an empty kernel, and its other objects are equal, too.
    fn check_fresh_plan(&self) {
        let state = self.want();
        let (has, wants) = (self.kernel.contents(), self.empty.clone().after(&state));
        if has.served() != wants.served() {
            self.ledger.violated("fresh-plan", format!("{}\nand not\n{}", has.served(), wants.served()));
        }
        if let Some(differences) = self.differences(&state) {
            self.ledger.violated("fresh-plan", differences);
        }
    }

    /// How the kernel's objects differ from those that a new backend programs.
    fn differences(&self, state: &Snapshot) -> Option<String> {
        let [has, wants] =
            [self.kernel.contents(), self.empty.clone().after(state)].map(|kernel| kernel.objects(state));
        let only = |one: &[String], other: &[String]| {
            one.iter().filter(|line| !other.contains(line)).fold(String::new(), |all, line| all + "\n  " + line)
        };
        (has != wants).then(|| format!("the kernel has{}\nand not{}", only(&has, &wants), only(&wants, &has)))
    }
}

/// The state that follows from the objects and the configuration of the node's addresses: the oracle.
fn snapshot(objects: &BTreeMap<Key, Value>, node_ips: &NodeIps) -> Snapshot {
    let mut cluster = Cluster::new(Options::of_node(crate::world::NODE));
    cluster.set_node_ips(node_ips.clone());
    for kind in Kind::ALL {
        let of_kind = objects.iter().filter(|((of, _), object)| *of == kind && crate::api::is_selected(kind, object));
        let objects = of_kind.filter_map(|(_, object)| read(kind, object.clone()).ok()).collect();
        cluster.handle(Change::Replace { kind, objects });
    }
    let Localized { node, services, .. } = cluster.localize().unwrap_or_default();
    let services = services.into_iter().filter_map(|(key, service)| Some((key, service?))).collect();
    Snapshot { revision: Revision::default(), node: node.unwrap_or_default(), services }
}

fn read(kind: Kind, object: Value) -> serde_json::Result<Object> {
    use k8s_openapi::api::{core::v1, discovery::v1::EndpointSlice, networking::v1::ServiceCIDR};
    Ok(match kind {
        Kind::Service => Object::Service(serde_json::from_value::<v1::Service>(object)?.into()),
        Kind::Slice => Object::Slice(serde_json::from_value::<EndpointSlice>(object)?.into()),
        Kind::Node => Object::Node(serde_json::from_value::<v1::Node>(object)?.into()),
        Kind::ServiceCidr => Object::ServiceCidr(serde_json::from_value::<ServiceCIDR>(object)?.into()),
    })
}
