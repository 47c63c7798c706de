//! One run: a schedule of changes and faults from a seed, the checks between its steps, and the convergence at its end.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use localnet_cluster::{localize::NodeIps, objects::Kind};
use localnet_proto::Address;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    api::{Api, Backup, Mood},
    backends::{Name, Program, ebpf::Ebpf, iptables::Iptables, ipvs::Ipvs, nft::Nft, win::Hns},
    faults::{FAULTS, Fault, Todo, inject},
    kernel::Kernel,
    ledger::{Ledger, Seen},
    link::Link,
    node::{RunningBackend, RunningBrain, read_beside},
    trace::Trace,
    world::{Key, Objects, World, differing},
};

mod converge;

/// The longest run.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

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
    let steps = 0..rng.random_range(10..160_u32);
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
    wanted: Objects,
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
    // A generator of its own, so that the other choices of a seed do not depend on it.
    let draft = StdRng::seed_from_u64(seed ^ 0xd7af).random_bool(0.3);
    let link = Link::new(rng.random(), draft);
    let empty = S::new(&mut rng);
    let ledger = Ledger::new(empty.clone());
    let kernel = Kernel::new(empty.clone(), seed_of_kernel, ledger.clone(), trace.clone());
    let backend = RunningBackend::start((kernel.clone(), link.clone()), &socket, ledger.clone(), trace.clone());
    let mut beside = JoinSet::new();
    if rng.random_bool(0.3) {
        let longest = Duration::from_millis(rng.random_range(2..10_000));
        beside.spawn(read_beside(Address::Unix(socket.clone()), link.clone(), ledger.clone(), longest));
    }
    let world = World::new(&mut rng);
    let mut driver = Driver {
        rng,
        start: Instant::now(),
        queue: BTreeMap::new(),
        queued: 0,
        goals: vec![world.clone()],
        world: world.clone(),
        wanted: Objects::new(),
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
        let Some(fault) = step.fault else { return self.change(&mut rng) };
        self.trace.add(format_args!("step: {fault:?}"));
        let todo = inject(fault, &mut rng, &self.api, &self.kernel, &self.link);
        if fault.needs_change() && rng.random() {
            self.change(&mut rng);
        }
        match todo {
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

    /// Changes the cluster.
    fn change(&mut self, rng: &mut StdRng) {
        let wanted = self.goals.last().unwrap_or(&self.world);
        let (what, goals) = wanted.change(rng);
        self.trace.add(format_args!("step: {what}"));
        self.goals.extend(goals);
        if rng.random_bool(0.05) {
            self.backup = Some((self.world.clone(), self.api.backup()));
        }
        if !std::mem::replace(&mut self.writing, true) {
            self.keep_writing();
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
            // Controllers write in bursts.
            let pause = if self.rng.random() { 0 } else { self.rng.random_range(0..30) };
            self.queue(Duration::from_millis(pause), Due::Write);
        }
    }

    /// Makes a cluster the current goal.
    fn pursue(&mut self, world: World) {
        self.wanted = world.objects(&self.world, &self.wanted);
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
        if self.brain.is_some()
            && let Some(kind) = self.api.overdue()
        {
            self.ledger.violated("prompt-lists", format!("the brain has not listed {kind}"));
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
}
