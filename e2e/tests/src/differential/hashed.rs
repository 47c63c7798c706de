//! Checks which of the permitted endpoints the nft backend chooses by a hash. kube-proxy knows no hash. Pure.

use localnet_client::route;

use super::{
    ask::{Asked, Seen},
    scene::Scene,
};

/// The number of answers whose endpoint a hash determines, and the first one by another endpoint.
pub(crate) fn check(asked: &Asked, seen: &Seen, scene: &Scene<'_>) -> (usize, Option<String>) {
    let packet = scene.setup.packet(&asked.question);
    let rules = scene.setup.rules(packet.destination);
    let (mut count, mut wrong) = (0, None);
    for (port, by) in &seen.by_port {
        let Some(chosen) = route::hashed(scene.state, &rules, &packet, *port) else { break };
        count += 1;
        if chosen != *by {
            wrong.get_or_insert_with(|| format!("{by} answers port {port}, but the hash chooses {chosen}"));
        }
    }
    (count, wrong)
}
