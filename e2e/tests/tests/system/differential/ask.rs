//! Sends packets, and says what came of them. Knows nothing of what is right; how often to ask follows from what is expected.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use localnet_client::route::Outcome;
use localnet_lab::{Network, Probe, probe};

use super::question::Question;

const CONNECTIONS: usize = 3;
/// With n endpoints, the chance that one of them is missed in n times as many connections is below 10⁻¹⁴.
const MOST_CONNECTIONS_PER_ENDPOINT: usize = 40;

/// All of them together take a second, unless packets are lost …
const LONGEST: Duration = Duration::from_secs(10);
/// … and longer where many endpoints must be seen.
const LONGEST_PER_ENDPOINT: Duration = Duration::from_secs(1);

/// What came of a question on one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Who answered, which source they saw, and how often.
    pub(crate) answers: BTreeMap<(SocketAddr, IpAddr), usize>,
    /// What else came of it: a reject, silence, no route.
    pub(crate) others: BTreeSet<probe::Outcome>,
    pub(crate) connections: usize,
    /// When it was asked.
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

/// A question, what is expected of it, and whether all endpoints must be seen.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) question: Question,
    pub(crate) expected: Outcome,
    pub(crate) cover: bool,
}

impl Asked {
    /// Sends it.
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
            Outcome::Drop => (probe.timeout(probe::SILENCE), 1, usize::MAX),
        };
        let to_be_seen = if choices == usize::MAX { 0 } else { u32::try_from(choices).unwrap_or(u32::MAX) };
        let longest = LONGEST + LONGEST_PER_ENDPOINT * to_be_seen;
        let mut seen = Seen::default();
        let began = Instant::now();
        question.home(network)?.probe_until(probe, most, |outcome| {
            seen.connections += 1;
            match outcome {
                probe::Outcome::Answer { by, seen_source } => {
                    *seen.answers.entry((by, seen_source)).or_default() += 1;
                }
                other => {
                    seen.others.insert(other);
                }
            }
            // Silence takes long, and is wrong or expected; so does a connection that is answered only when it is asked for again.
            let is_silent = seen.others.contains(&probe::Outcome::Dropped) || began.elapsed() > longest;
            is_silent || seen.answers.len() >= choices
        })?;
        seen.span = Some(Span { began, ended: Instant::now() });
        Ok(seen)
    }
}
