//! The intended differences: entries of `docs/differences.md`, matched by number.

use std::{collections::BTreeSet, net::SocketAddr};

use localnet_client::route::{self, Origin, Outcome, Packet};
use localnet_lab::probe;

use super::{
    ask::{Asked, Seen},
    run::Scene,
    world::Side,
};

/// Something that differs from the oracle on one side.
pub(crate) struct Difference<'a> {
    pub(crate) side: Side,
    pub(crate) asked: &'a Asked,
    pub(crate) seen: &'a Seen,
    pub(crate) scene: &'a Scene<'a>,
    /// All that is wrong is that a client has another endpoint by another address of the Service.
    pub(crate) by_another_address: bool,
}

struct Entry {
    number: usize,
    matches: fn(&Difference<'_>) -> bool,
}

const ENTRIES: [Entry; 2] = [
    Entry { number: 1, matches: translated_packet_meets_another_service },
    Entry { number: 2, matches: |difference| difference.side == Side::Ours && difference.by_another_address },
];

/// The number of the entry that explains it.
pub(crate) fn explain(difference: &Difference<'_>) -> Option<usize> {
    ENTRIES.iter().find(|entry| (entry.matches)(difference)).map(|entry| entry.number)
}

fn translated_packet_meets_another_service(difference: &Difference<'_>) -> bool {
    let Difference { side: Side::KubeProxy, asked, seen, scene, .. } = difference else { return false };
    let Outcome::Endpoints { choices, .. } = &asked.expected else { return false };
    let answered = |choice: &SocketAddr| seen.answers.keys().any(|(by, _)| by == choice);
    let meets = |choice: &SocketAddr| {
        // The other Service's policy would let some senders through, were they translated once more.
        [asked.question.packet().origin, Origin::Outside].into_iter().any(|origin| {
            let packet = Packet { destination: choice.ip(), port: choice.port(), origin, ..asked.question.packet() };
            let outcome = match route::route(scene.state, scene.rules, &packet) {
                Outcome::Reject => probe::Outcome::Rejected,
                Outcome::Drop => probe::Outcome::Dropped,
                Outcome::Endpoints { .. } | Outcome::NotOurs => return false,
            };
            !answered(choice) && seen.others == BTreeSet::from([outcome])
        })
    };
    seen.answers.keys().all(|(by, _)| choices.contains(by)) && choices.iter().any(meets)
}
