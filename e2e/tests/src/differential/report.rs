//! The result of a run: counts by kind.

use std::{collections::BTreeMap, fmt};

use localnet_client::route::Outcome;
use localnet_proto::Family;

use super::{ask::Asked, disturb::Disturbance, print_line, sticky::Returned};

/// An intended difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Intended {
    /// An entry of `docs/differences.md`.
    Entry(usize),
    /// A difference that `docs/backends/ipvs.md` lists.
    Ipvs(usize),
}

impl fmt::Display for Intended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(number) => write!(f, "entry {number} of docs/differences.md"),
            Self::Ipvs(number) => write!(f, "difference {number} of docs/backends/ipvs.md"),
        }
    }
}

/// The counts of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) clusters: usize,
    pub(crate) states: usize,
    pub(crate) packets: usize,
    pub(crate) connections: usize,
    /// The unexplained differences.
    pub(crate) unexplained: Vec<String>,
    /// The number of answers whose endpoint a hash determines.
    pub(crate) hashed: usize,
    /// How many of the unexplained differences are kube-proxy's.
    pub(crate) unexplained_of_kube_proxy: usize,
    /// The number of packets whose outcome `localnet explain` predicted.
    pub(crate) predicted: usize,
    /// The number of packets for which `localnet shadow` evaluated kube-proxy's rules.
    pub(crate) shadowed: usize,
    /// The number of further packets that it evaluated, and that were not sent.
    pub(crate) evaluated: usize,
    pub(crate) returned: Returned,
    /// How many open flows continued, and how many were routed anew.
    open: [usize; 2],
    expected: BTreeMap<&'static str, usize>,
    protocols: BTreeMap<&'static str, usize>,
    explained: BTreeMap<Intended, usize>,
    disturbances: BTreeMap<String, usize>,
}

impl Report {
    pub(crate) fn count(&mut self, asked: &Asked) {
        self.packets += 1;
        let kind = match &asked.expected {
            Outcome::Endpoints { affinity: Some(_), .. } => "sticky",
            Outcome::Endpoints { masquerade: true, .. } => "masqueraded",
            Outcome::Endpoints { .. } => "kept",
            Outcome::Reject => "rejected",
            Outcome::Drop => "dropped",
            Outcome::NotOurs => "untouched",
        };
        *self.expected.entry(kind).or_default() += 1;
        *self.protocols.entry(asked.question.protocol.as_lowercase()).or_default() += 1;
        *self.protocols.entry(Family::of(asked.question.to.ip()).as_str()).or_default() += 1;
    }

    /// Counts a datagram or segment on an open flow.
    pub(crate) fn followed(&mut self, went_on: bool) {
        self.open[usize::from(!went_on)] += 1;
    }

    /// Counts a disturbance after which the packets of a state were sent again.
    pub(crate) fn disturbed(&mut self, disturbance: Disturbance) {
        *self.disturbances.entry(disturbance.to_string()).or_default() += 1;
    }

    /// Prints an unexplained difference, and keeps it for the message of the failure.
    pub(crate) fn unexplained(&mut self, difference: String) {
        print_line(&format!("\ndifference: {difference}"));
        self.unexplained.push(difference);
    }

    /// Counts an intended difference.
    pub(crate) fn explained(&mut self, by: Intended) {
        *self.explained.entry(by).or_default() += 1;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clusters, states, packets, connections, unexplained, returned, .. } = self;
        write!(f, "{packets} packets ({connections} connections) in {states} states of {clusters} clusters: ")?;
        let kinds = self.expected.iter().map(|(kind, count)| format!("{count} {kind}"));
        let protocols = self.protocols.iter().map(|(protocol, count)| format!("{count} {protocol}"));
        write!(f, "{}; {}; ", kinds.collect::<Vec<_>>().join(", "), protocols.collect::<Vec<_>>().join(", "))?;
        let Returned { count, elsewhere } = returned;
        write!(
            f,
            "{count} clients returned after their affinity had ended, {elsewhere} of them reached another endpoint; "
        )?;
        write!(f, "{} endpoints chosen by a hash; ", self.hashed)?;
        let [went_on, anew] = self.open;
        write!(f, "{went_on} open flows continued and {anew} were routed anew; ")?;
        let disturbances = self.disturbances.iter().map(|(kind, count)| format!("{count} {kind}"));
        write!(f, "sent again after {}; ", disturbances.collect::<Vec<_>>().join(", "))?;
        for (by, count) in &self.explained {
            write!(f, "{count} as {by}, ")?;
        }
        write!(
            f,
            "{} packets predicted by localnet explain, {} by localnet shadow ({} more were not sent), ",
            self.predicted, self.shadowed, self.evaluated
        )?;
        write!(f, "{} unexplained differences", unexplained.len())
    }
}
