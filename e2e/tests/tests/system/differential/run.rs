//! One run: clusters from a seed, steps of each, packets after each step, on both sides.

use std::{collections::BTreeMap, net::IpAddr, thread};

use localnet_client::{
    Snapshot,
    route::{self, Outcome},
};
use localnet_lab::{Pod, Protocol, topology::Place};

use super::{
    alone,
    ask::{Asked, Seen},
    cluster::Cluster,
    differences::{Difference, explain},
    explained,
    former::Former,
    judge::judge,
    open::{Became, Followed, OpenFlows},
    question::{Question, Sender},
    random::Random,
    report::Report,
    say,
    setup::Setup,
    sticky::Memory,
    world::{Side, World},
    write::Writer,
};

const STATES_PER_CLUSTER: usize = 8;
/// In the second half of them the programs have other flags.
const USUAL_STATES: usize = 4;
const PACKETS_PER_STATE: usize = 63;
/// The entry of `docs/differences.md` about a kube-proxy that does not know the zone of its Node.
const ZONE_UNKNOWN: usize = 6;
/// The entry about flows that kube-proxy keeps.
const FLOW_KEPT: usize = 15;
/// One question in so many goes on until every endpoint has answered.
const COVERED: usize = 5;
/// So many endpoints take hundreds of connections …
const MANY: usize = 12;
/// … so fewer questions go on.
const COVERED_OF_MANY: usize = 20;
/// Questions that no endpoint is expected to answer are drawn again so often in a hundred: there are enough of them.
const REDRAWN: usize = 50;

/// Runs in a world, one after the other.
pub(crate) struct Runs {
    world: World,
    writer: Writer,
    memory: Memory,
    former: Former,
    open: OpenFlows,
    pub(crate) report: Report,
}

/// A cluster in one of its states, as both sides hold it.
pub(crate) struct Scene<'a> {
    /// The cluster is the first one of a run with this seed …
    pub(crate) seed: u64,
    /// … and this is the state after so many changes.
    pub(crate) changes: usize,
    pub(crate) cluster: &'a Cluster,
    /// What it was before the last change.
    pub(crate) before: &'a Cluster,
    pub(crate) state: &'a Snapshot,
    pub(crate) setup: &'a Setup,
    /// What the state would be if slices that have changed their owner were still with the former one, too.
    pub(crate) former: Option<&'a Snapshot>,
}

impl Runs {
    pub(crate) fn new(world: World) -> Self {
        let writer = world.writer();
        let memory = Memory::new();
        Self { world, writer, memory, former: Former::default(), open: OpenFlows::default(), report: Report::default() }
    }

    /// Sends at least so many packets.
    pub(crate) fn run(&mut self, seed: u64, packets: usize) -> anyhow::Result<()> {
        let enough = self.report.packets + packets;
        let mut seed = seed;
        while self.report.packets < enough {
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
                    self.world.restart_kube_proxy()?;
                }
                if started || other_node {
                    self.former.clear();
                }
                let before = self.writer.written().clone();
                self.former.follow(&before, &cluster);
                let sentinel = self.world.block_on(self.writer.write(&cluster))?;
                let (state, told_again) = self.world.settle(&self.writer, sentinel)?;
                (0..told_again).for_each(|_| self.report.explained(ZONE_UNKNOWN));
                let (before, cluster_now) = (&before, &cluster);
                let scene =
                    Scene { seed, changes, cluster: cluster_now, before, state: &state, setup: &setup, former: None };
                let former = self.former.state(&scene);
                let scene = Scene { former: former.as_ref(), ..scene };
                self.compare(&scene, &mut random)?;
                cluster.change(&mut random);
            }
            self.report.returned = self.memory.returned;
            // Each cluster has a seed of its own, with which it is the first one of a run.
            seed = Random::new(seed).number() >> 32;
        }
        Ok(())
    }

    fn follow_open(&mut self, scene: &Scene<'_>, random: &mut Random) -> anyhow::Result<()> {
        let mode = self.world.pair.mode;
        for followed in self.open.follow(&self.world, scene, random)? {
            let Followed { side, asked, seen, became, before } = &followed;
            let (side, topology) = (*side, self.world.network(*side).topology());
            // A flow that goes on says nothing of where its client is sent now.
            let left = match became {
                Became::WentOn => None,
                Became::Anew | Became::Kept | Became::Wrong => self.memory.check(side, asked, seen, scene),
            };
            // What kube-proxy leaves of flows that are no connections depends on what it synced in between, which nobody sees.
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
                Became::WentOn | Became::Anew => {
                    self.report.followed(*became == Became::WentOn);
                    let Some(left) = left else { continue };
                    left
                }
            };
            match explain(&Difference { mode, side, asked, seen, scene, topology }) {
                Some(entry) => self.report.explained(entry),
                None => {
                    self.report.unexplained += 1;
                    self.report.of_kube_proxy += usize::from(side == Side::KubeProxy);
                    let nothing = Seen::default();
                    let both = if side == Side::Ours { [seen, &nothing] } else { [&nothing, seen] };
                    say(&format!("\ndifference: {side:?}: {wrong}\n{}", scene.describe(asked, both)));
                }
            }
        }
        Ok(())
    }

    fn compare(&mut self, scene: &Scene<'_>, random: &mut Random) -> anyhow::Result<()> {
        self.memory.enter(scene);
        self.follow_open(scene, random)?;
        let asked: Vec<Asked> = (0..PACKETS_PER_STATE).map(|_| scene.draw(random)).collect();
        let told = explained::outcomes(&self.world, scene.setup, &asked)?;
        let seen = ask_all(&self.world, &asked)?;
        let mode = self.world.pair.mode;
        self.report.states += 1;
        for (number, asked) in asked.iter().enumerate() {
            self.report.count(asked);
            let both = Side::BOTH.map(|side| &seen[&(side, number)]);
            if told[number] == asked.expected {
                self.report.told += 1;
            } else {
                self.report.unexplained += 1;
                let said = format!("localnet explain says {:?}", told[number]);
                say(&format!("\ndifference: {said}\n{}", scene.describe(asked, both)));
            }
            for (side, seen) in Side::BOTH.into_iter().zip(both) {
                self.report.connections += seen.connections;
                let wrong = judge(asked, seen, self.world.network(side).topology());
                let left = self.memory.check(side, asked, seen, scene);
                let Some(wrong) = wrong.or(left) else { continue };
                let topology = self.world.network(side).topology();
                match explain(&Difference { mode, side, asked, seen, scene, topology }) {
                    Some(entry) => self.report.explained(entry),
                    None => {
                        self.report.unexplained += 1;
                        self.report.of_kube_proxy += usize::from(side == Side::KubeProxy);
                        say(&format!("\ndifference: {side:?}: {wrong}\n{}", scene.describe(asked, both)));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Scene<'_> {
    /// See [`alone::claimants`].
    pub(crate) fn claimants(&self, address: IpAddr) -> Vec<Snapshot> {
        alone::claimants(self.cluster, address, &self.state.node)
    }

    /// Those that also claim protocol and port.
    pub(crate) fn claims_of_port<'a>(
        &self,
        claimants: &'a [Snapshot],
        asked: &Asked,
    ) -> impl Iterator<Item = &'a Snapshot> {
        let packet = asked.question.packet(self.setup);
        let claims = move |state: &&Snapshot| {
            let mut ports = state.services.values().flat_map(|service| &service.ports);
            ports.any(|port| port.protocol == packet.protocol && port.port == packet.port)
        };
        claimants.iter().filter(claims)
    }

    /// A question that an answer can come back to.
    pub(crate) fn draw(&self, random: &mut Random) -> Asked {
        loop {
            let question = Question::random(self.cluster, random);
            let rules = self.setup.rules(question.to.ip());
            let expected = route::route(self.state, &rules, &question.packet(self.setup));
            let is_served = matches!(expected, Outcome::Endpoints { .. });
            if !is_served && random.percent(REDRAWN) || cannot_return(&expected, &question) {
                continue;
            }
            let many = matches!(&expected, Outcome::Endpoints { choices, .. } if choices.len() > MANY);
            let cover = random.below(if many { COVERED_OF_MANY } else { COVERED }) == 0;
            return Asked { question, expected, cover };
        }
    }
}

/// What is not masqueraded and goes to a remote pod is answered past the node, to somebody beyond the router who has asked another
/// address. A pod that is sent to itself must be masqueraded, which a node does for its own pods only: not where the pods of this node
/// are said to be on the other one.
pub(crate) fn cannot_return(expected: &Outcome, question: &Question) -> bool {
    let is_remote = |ip: IpAddr| Pod::at(ip).is_some_and(|pod| pod.place == Place::Remote);
    let past_the_node = match expected {
        Outcome::Endpoints { choices, masquerade, .. } => {
            !masquerade && choices.iter().any(|choice| is_remote(choice.ip()))
        }
        Outcome::Reject | Outcome::Drop | Outcome::NotOurs => false,
    };
    let to_itself = match expected {
        Outcome::Endpoints { choices, masquerade: false, hairpin, .. } => {
            choices.iter().any(|choice| choice.ip() == question.source() && !hairpin.contains(choice))
        }
        _ => false,
    };
    let beyond_the_router = match question.sender {
        Sender::Pod(pod) => pod.place == Place::Remote,
        Sender::Client | Sender::SecondClient => true,
        Sender::Node => false,
    };
    to_itself && question.sender != Sender::Node || past_the_node && beyond_the_router
}

/// Questions of one sender are asked one after the other: which endpoint a client stays with, and which SCTP packet is answered
/// by an ICMP error, would be mixed up otherwise. Silence is waited for all at once.
fn ask_all(world: &World, asked: &[Asked]) -> anyhow::Result<BTreeMap<(Side, usize), Seen>> {
    let mut lanes: BTreeMap<(Side, usize, Option<Sender>), Vec<usize>> = BTreeMap::new();
    for side in Side::BOTH {
        for (number, Asked { question, expected, .. }) in asked.iter().enumerate() {
            let alone = *expected == Outcome::Drop && question.protocol != Protocol::Sctp;
            let home = if question.sender == Sender::SecondClient { Sender::Client } else { question.sender };
            let lane = if alone { (side, number, None) } else { (side, 0, Some(home)) };
            lanes.entry(lane).or_default().push(number);
        }
    }
    thread::scope(|scope| {
        let ask = |side, numbers: Vec<usize>| -> anyhow::Result<Vec<((Side, usize), Seen)>> {
            let one = |number: usize| Ok(((side, number), asked[number].ask(world.network(side))?));
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
