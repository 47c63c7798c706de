//! One run: clusters from a seed, steps of each, packets after each step, on both sides.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
    thread,
};

use localnet_client::{
    Snapshot,
    route::{self, Outcome, Rules},
};
use localnet_lab::{
    Pod, Protocol,
    topology::{NODE, Place},
};

use crate::{
    ask::{Asked, Seen},
    cluster::{Cluster, Service},
    differences::{Difference, explain},
    judge::judge,
    question::{Question, Sender},
    random::Random,
    report::Report,
    say,
    world::{Side, World},
    write::Writer,
};

const STATES_PER_CLUSTER: usize = 8;
const PACKETS_PER_STATE: usize = 63;
/// One question in so many goes on until every endpoint has answered.
const COVERED: usize = 5;

/// Sends at least so many packets.
pub(crate) fn run(world: &mut World, seed: u64, packets: usize, report: &mut Report) -> anyhow::Result<()> {
    let mut writer = world.writer();
    let (mut sent, mut cluster_seed) = (0, seed);
    while sent < packets {
        report.clusters += 1;
        let mut random = Random::new(cluster_seed);
        let mut cluster = Cluster::random(&mut random);
        for _ in 0..STATES_PER_CLUSTER {
            sent += one_state(world, &mut writer, &cluster, cluster_seed, &mut random, report)?;
            cluster.change(&mut random);
        }
        // Each cluster has a seed of its own, with which it is the first one of a run.
        cluster_seed = Random::new(cluster_seed).number() >> 32;
    }
    world.block_on(writer.write(&Cluster::default()))?;
    Ok(())
}

fn one_state(
    world: &mut World,
    writer: &mut Writer,
    cluster: &Cluster,
    seed: u64,
    random: &mut Random,
    report: &mut Report,
) -> anyhow::Result<usize> {
    let sentinel = world.block_on(writer.write(cluster))?;
    let state = world.settle(sentinel)?;
    report.states += 1;
    let rules = Rules { masquerade_all: false, detects_pods: true, node_port_addresses: BTreeSet::from(NODE) };
    let asked: Vec<Asked> = (0..PACKETS_PER_STATE).map(|_| draw(cluster, &state, &rules, random)).collect();
    let seen = ask_all(world, &asked)?;
    for (number, asked) in asked.iter().enumerate() {
        report.count(asked);
        let both = Side::BOTH.map(|side| &seen[&(side, number)]);
        for (side, seen) in Side::BOTH.into_iter().zip(both) {
            report.connections += seen.connections;
            let Some(wrong) = judge(asked, seen, world.network(side).topology()) else { continue };
            match explain(&Difference { side, asked, seen }) {
                Some(entry) => report.explained(entry),
                None => {
                    report.unexplained += 1;
                    say(&describe(seed, report.states, cluster, &state, asked, both, side, &wrong));
                }
            }
        }
    }
    Ok(asked.len())
}

/// A question that an answer can come back to: nobody sees what a remote pod gets from another one directly.
fn draw(cluster: &Cluster, state: &Snapshot, rules: &Rules, random: &mut Random) -> Asked {
    loop {
        let question = Question::random(cluster, random);
        let expected = route::route(state, rules, &question.packet());
        let is_remote = |ip: IpAddr| Pod::at(ip).is_some_and(|pod| pod.place == Place::Remote);
        let past_the_node = match &expected {
            Outcome::Endpoints { choices, masquerade: false, .. } => choices.iter().any(|choice| is_remote(choice.ip())),
            _ => false,
        };
        if past_the_node && matches!(question.sender, Sender::Pod(pod) if pod.place == Place::Remote) {
            continue;
        }
        return Asked { question, expected, cover: random.below(COVERED) == 0 };
    }
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

#[expect(clippy::too_many_arguments, reason = "it tells all there is to tell")]
fn describe(
    seed: u64,
    states: usize,
    cluster: &Cluster,
    state: &Snapshot,
    asked: &Asked,
    [ours, theirs]: [&Seen; 2],
    side: Side,
    wrong: &str,
) -> String {
    let mut text = format!(
        "\ndifference: {side:?}: {wrong}\n  cluster SEED={seed}, state {} of it ({states} of the run)\n  packet: {}\n  oracle: {:?}\n  \
         ours: {ours}\n  kube-proxy: {theirs}\n",
        (states - 1) % STATES_PER_CLUSTER,
        asked.question,
        asked.expected,
    );
    let to = asked.question.to;
    let concerns = |service: &&Service| {
        service.name == asked.question.about
            || [service.cluster_ips.clone(), service.external_ips.clone()].concat().contains(&to.ip())
            || service.ingress.iter().any(|ingress| ingress.ip == to.ip())
    };
    for service in cluster.services.values().filter(concerns) {
        let mut objects = vec![service.object()];
        objects[0]["status"] = service.status();
        objects.extend(service.slices.iter().map(|slice| slice.object(&service.name)));
        for object in objects {
            let yaml = serde_saphyr::to_string(&object).unwrap_or_else(|_| object.to_string());
            let _ = write!(text, "---\n{yaml}");
        }
        let localized = state.services.values().find(|localized| *localized.key.name == *service.name);
        let localized = localized.map(|localized| serde_saphyr::to_string(&**localized).unwrap_or_default());
        let _ = write!(text, "--- in the brain's state:\n{}", localized.unwrap_or_else(|| "nothing\n".to_owned()));
    }
    text
}
