//! Sends packets and records their outcomes. It does not judge them, but the expected outcome decides how many packets it sends.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use localnet_client::route::Outcome;
use localnet_lab::{Network, Probe, probe};

use super::{cluster, question::Question};

const CONNECTIONS: usize = 3;
/// With n endpoints and this many connections per endpoint, the chance of missing one endpoint is below 10⁻¹⁴, even if it has the least
/// weight and all others have the greatest.
const MOST_CONNECTIONS_PER_ENDPOINT: usize = 40 * cluster::MOST_WEIGHT;

/// Maximum time for all connections of a question. Without packet loss, they take a second.
const LONGEST: Duration = Duration::from_secs(10);
/// Additional time for each endpoint, if many must be seen.
const LONGEST_PER_ENDPOINT: Duration = Duration::from_secs(1);

/// The outcomes of a question on one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// The number of answers by each endpoint and the source address that it saw.
    pub(crate) answers: BTreeMap<(SocketAddr, IpAddr), usize>,
    /// The endpoint that answered each source port.
    pub(crate) by_port: BTreeMap<u16, SocketAddr>,
    /// Other outcomes: a reject, silence or no route.
    pub(crate) others: BTreeSet<probe::Outcome>,
    pub(crate) connections: usize,
    /// When the packets were sent.
    pub(crate) span: Option<Span>,
}

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answers = self.answers.iter().map(|((by, seen), count)| format!("{count}× {by}, which saw {seen}"));
        let parts: Vec<String> = answers.chain(self.others.iter().map(ToString::to_string)).collect();
        write!(f, "{}", parts.join("; "))
    }
}

/// A question, its expected outcome, and whether all endpoints must be seen.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) question: Question,
    pub(crate) expected: Outcome,
    pub(crate) cover: bool,
}

impl Asked {
    /// The same question, with endpoints that see the other source address: that of the sender instead of the node's, or vice versa.
    pub(crate) fn otherwise_masqueraded(&self) -> Self {
        let mut other = self.clone();
        if let Outcome::Endpoints { masquerade, .. } = &mut other.expected {
            *masquerade = !*masquerade;
        }
        other
    }

    /// Sends the packets.
    pub(crate) fn ask(&self, network: &Network) -> anyhow::Result<Seen> {
        let question = &self.question;
        let probe = Probe::new(question.protocol, question.to).from(question.source());
        let (probe, most, choices) = match &self.expected {
            Outcome::Endpoints { choices, affinity: None, .. } if self.cover => {
                (probe, MOST_CONNECTIONS_PER_ENDPOINT * choices.len(), choices.len())
            }
            Outcome::Endpoints { affinity: Some(_), .. } => (probe, CONNECTIONS + 1, usize::MAX),
            Outcome::Endpoints { .. } => (probe, CONNECTIONS, usize::MAX),
            Outcome::Reject | Outcome::NotOurs => (probe, 2, usize::MAX),
            Outcome::Drop => (probe.timeout(probe::SILENCE_TIMEOUT), 1, usize::MAX),
        };
        let to_be_seen = if choices == usize::MAX { 0 } else { u32::try_from(choices).unwrap_or(u32::MAX) };
        let longest = LONGEST + LONGEST_PER_ENDPOINT * to_be_seen;
        let mut seen = Seen::default();
        let began = Instant::now();
        question.home(network)?.probe_ports_until(probe, most, |port, outcome| {
            seen.connections += 1;
            match outcome {
                probe::Outcome::Answer { by, seen_source } => {
                    *seen.answers.entry((by, seen_source)).or_default() += 1;
                    seen.by_port.insert(port, by);
                }
                other => {
                    seen.others.insert(other);
                }
            }
            // Stop after silence, which takes long, whether expected or not. A connection that is answered only after a
            // retransmission takes as long.
            let is_silent = seen.others.contains(&probe::Outcome::Dropped) || began.elapsed() > longest;
            is_silent || seen.answers.len() >= choices
        })?;
        seen.span = Some(Span { began, ended: Instant::now() });
        Ok(seen)
    }
}
