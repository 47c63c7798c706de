//! The history of a state: how two versions of a part differ, and how to go from one state to the previous or the next one.
//!
//! ```text
//!  brain: records of the old and of the new version ──► patch ──► Change, stored and served by the brain
//!  reader: state + Change ──► Past::back ──► previous state        (or Past::forward ──► next state)
//! ```
//!
//! A patch contains both versions of what differs, so a reader can go in both directions, and notices if a patch does not fit.

use std::{collections::HashSet, error::Error, fmt, sync::Arc};

use bytes::Bytes;
use prost::Message as _;

use self::entry::Event;
pub use crate::historyv1alpha1::*;
use crate::{
    convert::{DecodeError, Names, endpoint_of, service_of},
    decode::Assembler,
    digest::Digest,
    model::{Node, Service, ServiceKey, Snapshot},
    update::Changes,
    wire,
};

/// A `NextItem` whose inner messages stay serialized.
#[derive(Clone, PartialEq, prost::Message)]
struct RawItem {
    #[prost(message, optional, tag = "2")]
    endpoints: Option<RawEndpoints>,
    #[prost(bytes = "bytes", tag = "3")]
    node: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawEndpoints {
    #[prost(bytes = "bytes", tag = "1")]
    service: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    endpoints: Vec<Bytes>,
}

/// The records of a part of a state, from its serialized `NextItem`s. The result shares the memory of the items.
pub fn records(items: &[Bytes]) -> Vec<Bytes> {
    let mut records = Vec::new();
    for item in items.iter().filter_map(|item| RawItem::decode(item.clone()).ok()) {
        if !item.node.is_empty() {
            records.push(item.node);
        }
        if let Some(RawEndpoints { service, endpoints }) = item.endpoints {
            // Further items of a Service only continue the list of its endpoints.
            records.extend(Some(service).filter(|_| records.is_empty()));
            records.extend(endpoints);
        }
    }
    records
}

/// The difference between two lists of records. Records that are in both lists must have the same order in both.
pub fn hunks(old: &[Bytes], new: &[Bytes]) -> Vec<Hunk> {
    let all = (old, new);
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let end = old[start..].iter().rev().zip(new[start..].iter().rev()).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[start..old.len() - end], &new[start..new.len() - end]);
    let kept: HashSet<&Bytes> = new.iter().collect();
    let kept: HashSet<&Bytes> = old.iter().filter(|record| kept.contains(record)).collect();
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    let (mut hunks, mut keep) = (Vec::new(), start);
    while old.peek().is_some() || new.peek().is_some() {
        let lone = |records: &mut std::iter::Peekable<std::slice::Iter<'_, Bytes>>| {
            std::iter::from_fn(|| records.next_if(|record| !kept.contains(record)).cloned()).collect::<Vec<_>>()
        };
        let (gone, come) = (lone(&mut old), lone(&mut new));
        if !gone.is_empty() || !come.is_empty() {
            let keep = u32::try_from(std::mem::take(&mut keep)).unwrap_or(u32::MAX);
            hunks.push(Hunk { keep, old: gone, new: come });
        }
        let (same, other) = (old.next(), new.next());
        if same != other {
            // The caller broke the rule about the order.
            return vec![Hunk { keep: 0, old: all.0.to_vec(), new: all.1.to_vec() }];
        }
        keep += usize::from(same.is_some());
    }
    hunks
}

/// The error for a change that does not fit the state, or that is not a valid state.
#[derive(Debug, PartialEq, Eq)]
pub enum Broken {
    /// The history does not belong to the state, or is damaged.
    Misfit(u64),
    /// The previous state is not recorded.
    Whole(u64),
    /// A record cannot be decoded.
    Record(u64, DecodeError),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misfit(revision) => write!(
                f,
                "the change to revision {revision} does not fit the state: the history is damaged or belongs to another brain"
            ),
            Self::Whole(revision) => write!(f, "the state before revision {revision} is not recorded"),
            Self::Record(revision, error) => write!(f, "revision {revision}: {error}"),
        }
    }
}

impl Error for Broken {}

/// A part of a state before and after a step: a Service, or the node.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A Service; `None` if it does not exist.
    Service(ServiceKey, Option<Arc<Service>>, Option<Arc<Service>>),
    /// The facts about the node.
    Node(Box<(Node, Node)>),
}

/// A state that steps through its history.
#[derive(Clone, Debug)]
pub struct Past {
    /// The state. Its revision is the last one that was reached.
    pub state: Snapshot,
    /// Its digest.
    pub digest: Digest,
}

impl From<Snapshot> for Past {
    fn from(state: Snapshot) -> Self {
        Self { digest: Digest::of(&state), state }
    }
}

/// Computes the state after the last of these entries, from the last full state among them. `None` if the last brain recorded no
/// full state, or if the content of a later change is not recorded.
pub fn state_after(entries: &[Entry]) -> Option<Past> {
    let full = |entry: &Entry| match &entry.event {
        Some(Event::State(part)) => Some(part.continues),
        _ => None,
    };
    let start = entries.iter().rposition(|entry| matches!(entry.event, Some(Event::Start(_)))).unwrap_or(0);
    let run = &entries[start..];
    let last = run.iter().rposition(|entry| full(entry) == Some(false))?;
    let first = run[..last].iter().rposition(|entry| full(entry) != Some(true)).map_or(0, |before| before + 1);
    let mut replay = Replay::default();
    run[first..].iter().try_for_each(|entry| replay.take(entry).map(drop)).ok()?;
    replay.past
}

impl Past {
    /// Undoes a change: goes from its revision to the previous one. Returns what differs; the second value of each step is the
    /// newer one.
    ///
    /// # Errors
    /// Returns an error if the change does not fit the state. The state is then undefined.
    pub fn back(&mut self, change: &Change) -> Result<Vec<Step>, Broken> {
        match change.whole {
            true => return Err(Broken::Whole(change.rev)),
            false if self.digest.0 != change.digest => return Err(Broken::Misfit(change.rev)),
            false => {}
        }
        let mut steps = Vec::new();
        for patch in &change.patches {
            let hunks = patch.hunks.iter().map(|hunk| (hunk.keep, &hunk.new, &hunk.old));
            steps.push(match self.step(change.rev, patch, hunks)? {
                Step::Service(key, after, before) => Step::Service(key, before, after),
                Step::Node(pair) => Step::Node(Box::new((pair.1, pair.0))),
            });
        }
        self.state.revision.rev = change.rev.saturating_sub(1);
        Ok(steps)
    }

    /// Applies a change: goes from the revision before it to its own one. Returns what differs.
    ///
    /// # Errors
    /// Returns an error if the change does not fit the state. The state is then undefined.
    pub fn forward(&mut self, change: &Change) -> Result<Vec<Step>, Broken> {
        if change.whole {
            return Err(Broken::Whole(change.rev));
        }
        let mut steps = Vec::new();
        for patch in &change.patches {
            let hunks = patch.hunks.iter().map(|hunk| (hunk.keep, &hunk.old, &hunk.new));
            steps.push(self.step(change.rev, patch, hunks)?);
        }
        self.state.revision.rev = change.rev;
        if self.digest.0 == change.digest { Ok(steps) } else { Err(Broken::Misfit(change.rev)) }
    }

    fn step<'a>(
        &mut self,
        rev: u64,
        patch: &Patch,
        hunks: impl Iterator<Item = (u32, &'a Vec<Bytes>, &'a Vec<Bytes>)>,
    ) -> Result<Step, Broken> {
        let invalid = |error| Broken::Record(rev, error);
        let wrong = |object: String, error: prost::DecodeError| {
            invalid(DecodeError { object, field: "record", problem: error.to_string() })
        };
        if patch.namespace.is_empty() && patch.name.is_empty() {
            let before = vec![Bytes::from(wire::NodeState::from(&self.state.node).encode_to_vec())];
            let after = replaced(before, hunks).and_then(|mut records| records.pop()).ok_or(Broken::Misfit(rev))?;
            let node = wire::NodeState::decode(after).map_err(|error| wrong("node".to_owned(), error))?;
            let node = Node::try_from(&node).map_err(invalid)?;
            self.digest = self.digest.without(Digest::of_node(&self.state.node)).and(Digest::of_node(&node));
            let before = std::mem::replace(&mut self.state.node, node.clone());
            return Ok(Step::Node(Box::new((before, node))));
        }
        let key = ServiceKey::new(patch.namespace.as_str(), patch.name.as_str());
        let before = self.state.services.remove(&key);
        let records = before.as_ref().map(|service| records_of(service)).unwrap_or_default();
        let mut records = replaced(records, hunks).ok_or(Broken::Misfit(rev))?.into_iter();
        let after = match records.next() {
            None => None,
            Some(head) => {
                let of = || format!("service {key}");
                let head = wire::Service::decode(head).map_err(|error| wrong(of(), error))?;
                let mut names = Names::default();
                let endpoints = records.map(|record| {
                    let endpoint = wire::Endpoint::decode(record).map_err(|error| wrong(of(), error))?;
                    endpoint_of(&key, &endpoint, &mut names).map_err(invalid)
                });
                let endpoints = endpoints.collect::<Result<_, _>>()?;
                Some(Arc::new(service_of(key.clone(), &head, endpoints, &mut Names::default()).map_err(invalid)?))
            }
        };
        let digest =
            |service: &Option<Arc<Service>>| service.as_ref().map_or(Digest(0), |service| Digest::of_service(service));
        self.digest = self.digest.without(digest(&before)).and(digest(&after));
        self.state.services.extend(after.iter().map(|service| (key.clone(), Arc::clone(service))));
        Ok(Step::Service(key, before, after))
    }
}

/// A state that follows the entries of a history or a trace.
#[derive(Debug, Default)]
pub struct Replay {
    past: Option<Past>,
    /// The parts of a full state so far.
    parts: Option<Assembler>,
}

impl Replay {
    /// The state; `None` before the first full state.
    pub fn past(&self) -> Option<&Past> {
        self.past.as_ref()
    }

    /// Takes the next entry. Returns what differs if the entry leads to another revision.
    ///
    /// # Errors
    /// Returns an error with the revision if the state that results from the entry does not have the entry's digest.
    pub fn take(&mut self, entry: &Entry) -> Result<Option<Changes>, Broken> {
        match &entry.event {
            Some(Event::Start(_)) => *self = Self::default(),
            Some(Event::State(part)) => return self.part(part),
            Some(Event::Change(change)) => return self.change(change),
            _ => {}
        }
        Ok(None)
    }

    fn change(&mut self, change: &Change) -> Result<Option<Changes>, Broken> {
        match &mut self.past {
            Some(past) if change.rev <= past.state.revision.rev => Ok(None),
            // The full state follows.
            _ if change.whole => Ok(None),
            None => Err(Broken::Whole(change.rev)),
            Some(past) => {
                let mut changes = Changes::default();
                for step in past.forward(change)? {
                    match step {
                        Step::Service(key, ..) => _ = changes.services.insert(key),
                        Step::Node(_) => changes.node = true,
                    }
                }
                Ok(Some(changes))
            }
        }
    }

    fn part(&mut self, part: &FullState) -> Result<Option<Changes>, Broken> {
        let mut state = self.past.as_ref().map(|past| past.state.clone()).unwrap_or_default();
        let invalid = |rev: u64| move |error: DecodeError| Broken::Record(rev + 1, error);
        let invalid = invalid(state.revision.rev);
        let mut parts = self.parts.take().unwrap_or_default();
        part.items.iter().try_for_each(|item| parts.push_bytes(item.clone())).map_err(invalid)?;
        if part.continues {
            self.parts = Some(parts);
            return Ok(None);
        }
        let changes = state.apply(parts.finish().map_err(invalid)?);
        let past = Past::from(state);
        if Digest::reported(part.digest).is_some_and(|digest| digest != past.digest) {
            return Err(Broken::Misfit(past.state.revision.rev));
        }
        self.past = Some(past);
        Ok(Some(changes))
    }
}

fn records_of(service: &Service) -> Vec<Bytes> {
    let endpoints = service.endpoints.iter().map(|endpoint| wire::Endpoint::from(endpoint).encode_to_vec());
    [wire::Service::from(service).encode_to_vec()].into_iter().chain(endpoints).map(Bytes::from).collect()
}

/// Replaces records. Each hunk consists of the number of kept records, the records to replace, and the new ones. `None` if the
/// records to replace are others.
fn replaced<'a>(
    records: Vec<Bytes>,
    hunks: impl Iterator<Item = (u32, &'a Vec<Bytes>, &'a Vec<Bytes>)>,
) -> Option<Vec<Bytes>> {
    let mut rest = records.into_iter();
    let mut result = Vec::new();
    for (keep, old, new) in hunks {
        for _ in 0..keep {
            result.push(rest.next()?);
        }
        for old in old {
            rest.next().filter(|record| record == old)?;
        }
        result.extend(new.iter().cloned());
    }
    result.extend(rest);
    Some(result)
}
