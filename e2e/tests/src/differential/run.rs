//! One run: clusters from a seed, the steps of each, and packets on both sides after each step.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use localnet_client::route::Outcome;
use localnet_lab::Protocol;

use crate::Backend;

use super::{
    ask::{Asked, Seen},
    cluster::Cluster,
    differences::{Difference, explain},
    disturb::{Disturbance, Edited},
    ebpf, explained,
    former::Former,
    hashed, ipvs,
    judge::judge,
    open::{Became, Followed, OpenFlows},
    pair::Side,
    print_line,
    question::Sender,
    random::Random,
    report::{Intended, Report},
    scene::Scene,
    setting,
    setup::Setup,
    shadowed,
    sticky::Memory,
    world::World,
    write::Writer,
};

const STATES_PER_CLUSTER: usize = 8;
/// The number of a cluster's states before the programs get other flags.
const USUAL_STATES: usize = 4;
const PACKETS_PER_STATE: usize = 63;
/// The number of packets that `localnet shadow` evaluates in each state if no packet is compared.
const EVALUATED: usize = 250;
/// The entry of `docs/differences.md` about a kube-proxy that does not know the zone of its Node.
const ZONE_UNKNOWN: Intended = Intended::Entry(6);
/// The entry about flows that kube-proxy keeps.
const FLOW_KEPT: Intended = Intended::Entry(15);

/// Consecutive runs in one world.
pub(crate) struct Runs {
    world: World,
    writer: Writer,
    memory: Memory,
    former: Former,
    open: OpenFlows,
    /// How long to wait at an unexplained difference.
    pause: Duration,
    pub(crate) report: Report,
}

impl Runs {
    pub(crate) fn new(world: World, pause: Duration) -> Self {
        let writer = world.writer();
        let memory = Memory::new(world.pair.backend);
        let (former, open, report) = (Former::default(), OpenFlows::default(), Report::default());
        Self { world, writer, memory, former, open, pause, report }
    }

    /// Sends at least this many packets.
    pub(crate) fn run(&mut self, seed: u64, packets: usize) -> anyhow::Result<()> {
        let pair = self.world.pair;
        let sent = |report: &Report| if pair.is_only_evaluated() { report.evaluated } else { report.packets };
        let enough = sent(&self.report) + packets;
        let mut seed = seed;
        while sent(&self.report) < enough {
            self.report.clusters += 1;
            let mut random = Random::new(seed);
            let mut cluster = Cluster::random(&mut random);
            let unusual = Setup::random(&mut random);
            self.open.close();
            for changes in 0..STATES_PER_CLUSTER {
                let setup = if changes < USUAL_STATES { Setup::USUAL } else { unusual }.on(cluster.node);
                let other_node = self.world.block_on(self.writer.write_node(setup.node, cluster.node))?;
                let started = self.world.set_up(&setup)?;
                if started {
                    self.open.restarted();
                } else if other_node {
                    self.world.stop_kube_proxy();
                }
                let before = self.writer.written().clone();
                self.former.follow(&before, &cluster);
                let sentinel = self.world.block_on(self.writer.write(&cluster))?;
                if self.world.run_kube_proxy()? {
                    self.former.clear();
                }
                let (mut state, resends) = self.world.settle(&self.writer, sentinel)?;
                if pair.is_only_evaluated() {
                    // In mode ipvs, a virtual server answers before its sync has ended. The next sync starts after that.
                    let sentinel = self.world.block_on(self.writer.write(&cluster))?;
                    state = self.world.settle(&self.writer, sentinel)?.0;
                }
                (0..resends).for_each(|_| self.report.explained(ZONE_UNKNOWN));
                let (before, cluster_now) = (&before, &cluster);
                let scene =
                    Scene { seed, changes, cluster: cluster_now, before, state: &state, setup: &setup, former: None };
                let former = self.former.held(&scene);
                let former = former.as_ref().map(|(cluster, state)| (cluster, state));
                let scene = Scene { former, ..scene };
                self.compare(&scene, &mut random)?;
                cluster.change(&mut random);
            }
            self.report.returned = self.memory.returned;
            // Each cluster has its own seed. A run with this seed begins with the cluster.
            seed = Random::new(seed).number() >> 32;
        }
        Ok(())
    }

    fn follow_open(&mut self, scene: &Scene<'_>, random: &mut Random) -> anyhow::Result<()> {
        // The backend ends sockets, not flows. The tests of backend-ebpf cover this.
        if self.world.pair.backend == Backend::Ebpf {
            return Ok(());
        }
        for followed in self.open.follow(&self.world, scene, random)? {
            let Followed { side, asked, seen, became, before } = &followed;
            let side = *side;
            // A flow that continues does not show where new flows of its client go.
            let left = match became {
                Became::WentOn => None,
                Became::Anew | Became::Kept | Became::Ended(_) | Became::Wrong => {
                    self.remember(side, asked, seen, scene)
                }
            };
            // For flows without a connection, kube-proxy's result depends on its intermediate syncs, which are not visible.
            let left_alone = side == Side::KubeProxy && *became == Became::Wrong;
            if left_alone && asked.question.protocol != Protocol::Tcp {
                self.report.explained(FLOW_KEPT);
                continue;
            }
            let wrong = match became {
                Became::Wrong => format!("an open flow that was answered by {before}"),
                Became::Kept => {
                    self.report.explained(FLOW_KEPT);
                    continue;
                }
                Became::WentOn | Became::Anew | Became::Ended(_) => {
                    self.report.followed(*became == Became::WentOn);
                    if let Became::Ended(number) = became {
                        self.report.explained(Intended::Ipvs(*number));
                    }
                    let Some(left) = left else { continue };
                    left
                }
            };
            self.differs(side, asked, &[(side, seen)], scene, &wrong);
        }
        Ok(())
    }

    fn compare(&mut self, scene: &Scene<'_>, random: &mut Random) -> anyhow::Result<()> {
        if self.world.pair.is_only_evaluated() {
            self.report.states += 1;
            return self.evaluate(scene);
        }
        self.memory.enter(scene);
        self.follow_open(scene, random)?;
        let drawn = (0..PACKETS_PER_STATE).map(|_| self.draw(scene, random));
        let (by_oracle, asked): (Vec<Outcome>, Vec<Asked>) = drawn.unzip();
        let predicted = explained::outcomes(&self.world, scene.setup, &asked)?;
        let sides: Vec<Side> = self.world.pair.sides().collect();
        let seen = ask_all(&self.world, &sides, &asked)?;
        let shadowed = match self.world.pair.kube_proxy {
            Some(_) => shadowed::differences(&self.world, scene.setup, &asked)?,
            None => BTreeMap::new(),
        };
        self.report.states += 1;
        for (number, asked) in asked.iter().enumerate() {
            self.report.count(asked);
            let all: Vec<_> = sides.iter().map(|side| (*side, &seen[&(*side, number)])).collect();
            if predicted[number] == by_oracle[number] {
                self.report.predicted += 1;
            } else {
                let prediction = format!("localnet explain predicts {:?}", predicted[number]);
                self.report.unexplained(format!("{prediction}\n{}", scene.describe(asked, &all)));
            }
            for &(side, seen) in &all {
                self.report.connections += seen.connections;
                if side == Side::KubeProxy {
                    self.shadow(scene, asked, &all, shadowed.get(&number));
                }
                if let Some(wrong) = self.wrong(side, asked, seen, scene) {
                    self.differs(side, asked, &all, scene, &wrong);
                }
            }
        }
        self.evaluate(scene)?;
        self.disturb(scene, &asked)
    }

    /// Lets `localnet shadow` evaluate EVALUATE more packets, which are not sent. If it reports a difference without an entry, sends the
    /// packet to kube-proxy: either the alarm is false, or an entry is missing.
    fn evaluate(&mut self, scene: &Scene<'_>) -> anyhow::Result<()> {
        let default = if self.world.pair.is_only_evaluated() { EVALUATED } else { 0 };
        let count = setting("EVALUATE")?.map_or(Ok(default), usize::try_from)?;
        if count == 0 || self.world.pair.kube_proxy.is_none() {
            return Ok(());
        }
        let mut random = Random::new(scene.seed.rotate_left(16) ^ scene.changes as u64);
        let drawn: Vec<_> = (0..count).map(|_| Asked { cover: true, ..scene.draw(&mut random) }).collect();
        self.report.evaluated += count;
        let mut reported = BTreeSet::new();
        for (number, alarm) in shadowed::differences(&self.world, scene.setup, &drawn)? {
            if let Some(entry) = alarm.entry {
                self.report.explained(Intended::Entry(entry));
                continue;
            }
            let has_past = scene.former.is_some() || scene.claimants(alarm.to.ip()).len() >= 2;
            if has_past || !reported.insert(alarm.to_string()) {
                continue;
            }
            let (side, asked) = (Side::KubeProxy, &drawn[number]);
            let seen = self.world.ask(side, asked)?;
            let by_packets = judge(asked, &seen, self.world.network(side).topology());
            self.report.unexplained_of_kube_proxy += usize::from(by_packets.is_some());
            self.report.unexplained(format!(
                "localnet shadow reports {alarm}; packets show: {}\n{}",
                by_packets.as_deref().unwrap_or("no difference"),
                scene.describe(asked, &[(side, &seen)])
            ));
        }
        Ok(())
    }

    /// Checks what `localnet shadow` says of kube-proxy's rules.
    fn shadow(
        &mut self,
        scene: &Scene<'_>,
        asked: &Asked,
        all: &[(Side, &Seen)],
        shadow: Option<&shadowed::Difference>,
    ) {
        let side = Side::KubeProxy;
        let Some((_, seen)) = all.iter().find(|(of, _)| *of == side) else { return };
        let (pair, topology) = (self.world.pair, self.world.network(side).topology());
        let difference = Difference { pair, side, asked, seen, scene, topology };
        let by_packets = judge(asked, seen, topology).map(|_| explain(&difference));
        let has_past = || scene.former.is_some() || scene.claimants(asked.question.to.ip()).len() >= 2;
        self.report.shadowed += 1;
        if let Some(wrong) = shadowed::contradiction(by_packets, shadow, has_past) {
            let of = shadow.map(|shadow| format!(": {shadow}")).unwrap_or_default();
            self.report.unexplained(format!("localnet shadow {wrong}{of}\n{}", scene.describe(asked, all)));
        }
    }

    /// Draws a question that can be judged. Also returns the oracle's outcome, which is not the expected one if the backend
    /// differs from the oracle.
    fn draw(&self, scene: &Scene<'_>, random: &mut Random) -> (Outcome, Asked) {
        loop {
            let asked = scene.draw(random);
            let by_oracle = asked.expected.clone();
            if self.world.pair.backend != Backend::Ebpf {
                return (by_oracle, asked);
            }
            if let Some(asked) = ebpf::expected(&asked, scene) {
                return (by_oracle, asked);
            }
        }
    }

    /// The error in the outcome of a question, if there is one.
    fn wrong(&mut self, side: Side, asked: &Asked, seen: &Seen, scene: &Scene<'_>) -> Option<String> {
        let left = self.remember(side, asked, seen, scene);
        let wrong = judge(asked, seen, self.world.network(side).topology()).or(left);
        // The other backends have a hash of their own, or none.
        if side == Side::KubeProxy || self.world.pair.backend != Backend::Nft {
            return wrong;
        }
        let (count, other) = hashed::check(asked, seen, scene);
        self.report.hashed += count;
        wrong.or(other)
    }

    /// The error in an answer that is right apart from affinity, if there is one.
    fn remember(&mut self, side: Side, asked: &Asked, seen: &Seen, scene: &Scene<'_>) -> Option<String> {
        if self.world.pair.backend == Backend::Ipvs && side == Side::Ours && ipvs::has_no_affinity(asked, scene) {
            return None;
        }
        // Each of the two backends remembers clients of its own, and a pod is one client with both of its addresses.
        if self.world.pair.backend == Backend::Ebpf {
            return None;
        }
        self.memory.check(side, asked, seen, scene)
    }

    /// Usually disturbs our side, and sends the same packets again. The disturbance is drawn independently of the cluster and its
    /// packets.
    fn disturb(&mut self, scene: &Scene<'_>, asked: &[Asked]) -> anyhow::Result<()> {
        let mut random = Random::new(scene.seed.rotate_left(32) ^ scene.changes as u64);
        let Some(disturbance) = Disturbance::random(&mut random) else { return Ok(()) };
        let side = Side::Ours;
        let Edited { edit, forgets, cuts } = self.world.disturb(disturbance, scene.state, &mut random)?;
        if forgets {
            self.memory.doubt(side);
        }
        if cuts {
            self.open.cut(side);
        }
        self.report.disturbed(disturbance);
        for ((_, number), seen) in ask_all(&self.world, &[side], asked)? {
            self.report.connections += seen.connections;
            if let Some(wrong) = self.wrong(side, &asked[number], &seen, scene) {
                let wrong = format!("{wrong}, after {disturbance}: {edit}");
                self.differs(side, &asked[number], &[(side, &seen)], scene, &wrong);
            }
        }
        Ok(())
    }

    /// Waits, so that the node's rules and flows can be inspected.
    fn pause(&self, side: Side) {
        if !self.pause.is_zero() {
            print_line(&format!(
                "the node is the namespace {}; next packets in {:?}",
                self.world.network(side).node().name(),
                self.pause
            ));
            thread::sleep(self.pause);
        }
    }

    /// Records a difference from the expected outcome on one side.
    fn differs(&mut self, side: Side, asked: &Asked, all: &[(Side, &Seen)], scene: &Scene<'_>, wrong: &str) {
        let (pair, topology) = (self.world.pair, self.world.network(side).topology());
        let Some((_, seen)) = all.iter().find(|(of, _)| *of == side) else { return };
        let difference = Difference { pair, side, asked, seen, scene, topology };
        let by_entry = || explain(&difference).map(Intended::Entry);
        match by_entry().or_else(|| ipvs::explain(&difference).map(Intended::Ipvs)) {
            Some(by) => self.report.explained(by),
            None => {
                self.report.unexplained_of_kube_proxy += usize::from(side == Side::KubeProxy);
                self.report.unexplained(format!("{side:?}: {wrong}\n{}", scene.describe(asked, all)));
                self.pause(side);
            }
        }
    }
}

/// Sends all questions. Those of one sender are sent in sequence. Otherwise the endpoints of sticky clients, or the SCTP packets
/// that ICMP errors belong to, would be confused. Questions with expected silence wait in parallel.
fn ask_all(world: &World, sides: &[Side], asked: &[Asked]) -> anyhow::Result<BTreeMap<(Side, usize), Seen>> {
    let mut lanes: BTreeMap<(Side, usize, Option<Sender>), Vec<usize>> = BTreeMap::new();
    for &side in sides {
        for (number, Asked { question, expected, .. }) in asked.iter().enumerate() {
            let alone = *expected == Outcome::Drop && question.protocol != Protocol::Sctp;
            let home = if question.sender == Sender::SecondClient { Sender::Client } else { question.sender };
            let lane = if alone { (side, number, None) } else { (side, 0, Some(home)) };
            lanes.entry(lane).or_default().push(number);
        }
    }
    thread::scope(|scope| {
        let ask = |side, numbers: Vec<usize>| -> anyhow::Result<Vec<((Side, usize), Seen)>> {
            let one = |number: usize| Ok(((side, number), world.ask(side, &asked[number])?));
            numbers.into_iter().map(one).collect()
        };
        let lanes: Vec<_> =
            lanes.into_iter().map(|((side, ..), numbers)| scope.spawn(move || ask(side, numbers))).collect();
        let mut all = BTreeMap::new();
        for lane in lanes {
            all.extend(lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(all)
    })
}
