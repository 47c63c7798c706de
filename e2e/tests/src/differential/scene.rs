//! A cluster in one of its states, and the questions that are drawn for it. Pure.

use std::net::IpAddr;

use localnet_client::{
    Snapshot,
    route::{self, Outcome},
};
use localnet_lab::{Pod, topology::Place};
use localnet_proto::HashBy;

use super::{
    alone,
    ask::Asked,
    cluster::Cluster,
    question::{Question, Sender},
    random::Random,
    setup::Setup,
};

/// One in this many questions is repeated until every endpoint has answered.
const COVERED: usize = 5;
/// The number of endpoints from which this takes hundreds of connections.
const MANY: usize = 12;
/// The ratio for that many endpoints: one in this many questions.
const COVERED_OF_MANY: usize = 20;
/// The percentage of questions that are drawn again if they expect no answer, because there are enough of them.
const REDRAWN: usize = 50;

/// A cluster in one of its states, as both sides have it.
pub(crate) struct Scene<'a> {
    /// The seed of a run whose first cluster is this one.
    pub(crate) seed: u64,
    /// The number of changes from that cluster to this state.
    pub(crate) changes: usize,
    pub(crate) cluster: &'a Cluster,
    /// The cluster before the last change.
    pub(crate) before: &'a Cluster,
    pub(crate) state: &'a Snapshot,
    pub(crate) setup: &'a Setup,
    /// The cluster and state that would result if moved slices still belonged to their former owners, too.
    pub(crate) former: Option<(&'a Cluster, &'a Snapshot)>,
}

impl Scene<'_> {
    /// See [`alone::claimants`].
    pub(crate) fn claimants(&self, address: IpAddr) -> Vec<Snapshot> {
        alone::claimants(self.cluster, address, &self.state.node)
    }

    /// The claimants that also claim the protocol and port.
    pub(crate) fn claims_of_port<'a>(
        &self,
        claimants: &'a [Snapshot],
        asked: &Asked,
    ) -> impl Iterator<Item = &'a Snapshot> {
        let packet = self.setup.packet(&asked.question);
        let claims = move |state: &&Snapshot| {
            let mut ports = state.services.values().flat_map(|service| &service.ports);
            ports.any(|port| port.protocol == packet.protocol && port.port == packet.port)
        };
        claimants.iter().filter(claims)
    }

    /// Draws a question whose answer can reach the sender.
    pub(crate) fn draw(&self, random: &mut Random) -> Asked {
        loop {
            let question = Question::random(self.cluster, random);
            let rules = self.setup.rules(question.to.ip());
            let expected = route::route(self.state, &rules, &self.setup.packet(&question));
            let is_served = matches!(expected, Outcome::Endpoints { .. });
            if !is_served && random.percent(REDRAWN) || cannot_return(&expected, &question) {
                continue;
            }
            let many = matches!(&expected, Outcome::Endpoints { choices, .. } if choices.len() > MANY);
            let is_repeated = random.below(if many { COVERED_OF_MANY } else { COVERED }) == 0;
            // A hash of the sender's address always chooses the same endpoint.
            let target = route::target(self.state, &rules, &self.setup.packet(&question));
            let cover = is_repeated && target.is_none_or(|target| target.service.hash != Some(HashBy::Source));
            return Asked { question, expected, cover };
        }
    }
}

/// Whether an answer cannot reach the sender. If a packet to a remote pod is not masqueraded, the answer bypasses the node. A
/// sender beyond the router, which has sent to another address, does not accept it. A pod that connects to itself must be
/// masqueraded. A node does so only for its own pods, which fails if the pods of this node have the other node's name.
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
