//! Whether hints narrow the endpoints of a port to those near this node (KEP-2433, KEP-3015).
//!
//! Hints are an all-or-nothing offer of the endpoint controller: they are followed only when every ready endpoint has one
//! and one of them is meant for this node. Neither `spec.trafficDistribution` nor an annotation is read: they reach a node as
//! hints.

use super::{Here, candidates::Candidate};

/// Which endpoints are near enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// All.
    Everywhere,
    /// Those hinted for this node.
    SameNode,
    /// Those hinted for this node's zone.
    SameZone,
}

/// Reads the hints of the ready endpoints: for the node, else for the zone, else none.
pub(super) fn mode<'a>(endpoints: impl Iterator<Item = &'a Candidate<'a>> + Clone, here: &Here) -> Mode {
    let ready = endpoints.filter(|endpoint| endpoint.conditions.ready);
    let offered = |mode: Mode| {
        let hints = |endpoint: &'a Candidate<'a>| match mode {
            Mode::SameNode => endpoint.node_hints,
            _ => endpoint.zone_hints,
        };
        let all_hinted = ready.clone().all(|endpoint| !hints(endpoint).is_empty());
        all_hinted && ready.clone().any(|endpoint| admits(mode, endpoint, here))
    };
    [Mode::SameNode, Mode::SameZone].into_iter().find(|mode| offered(*mode)).unwrap_or(Mode::Everywhere)
}

/// Whether the endpoint is near enough in the mode.
pub(super) fn admits(mode: Mode, endpoint: &Candidate<'_>, here: &Here) -> bool {
    match mode {
        Mode::Everywhere => true,
        Mode::SameNode => endpoint.node_hints.contains(&here.name),
        // A node without a zone is in none, whatever an empty hint may say.
        Mode::SameZone => !here.zone.is_empty() && endpoint.zone_hints.contains(&here.zone),
    }
}
