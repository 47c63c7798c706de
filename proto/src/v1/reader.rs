//! What a reader keeps, and how it applies an answer: the steps in the comment of `StateService` (`state.proto`).

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt,
    sync::Arc,
};

use super::{EndpointKey, decode, wire};
use crate::{
    convert::{DecodeError, Names},
    digest::Digest,
    model::{Endpoint, Facts, Node, Origin, Service, ServiceKey, Snapshot},
    update::{Change, Update},
};

/// The messages of one answer, in their order.
#[derive(Clone, Debug, Default)]
pub struct Answer(Vec<wire::NextStateResponse>);

impl Answer {
    /// Adds the next message of the stream.
    pub fn push(&mut self, message: wire::NextStateResponse) {
        self.0.push(message);
    }
}

/// What a reader keeps between two answers. The default has no state.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    token: String,
    digest: Digest,
    node: Option<(Node, Digest)>,
    services: BTreeMap<ServiceKey, Held>,
    names: Names,
}

#[derive(Clone, Debug)]
struct Held {
    /// The Service without its endpoints and their origins.
    service: Service,
    withheld: bool,
    digest: Digest,
    endpoints: BTreeMap<EndpointKey, HeldEndpoint>,
}

#[derive(Clone, Debug)]
struct HeldEndpoint {
    endpoint: Endpoint,
    digest: Digest,
    origin: Origin,
}

impl Held {
    /// The sum of the digests of the Service and its endpoints.
    fn sum(&self) -> Digest {
        self.endpoints.values().fold(self.digest, |sum, endpoint| sum.and(endpoint.digest))
    }

    fn whole(&self) -> Service {
        let endpoints = self.endpoints.values().map(|held| held.endpoint.clone()).collect();
        let known = self.endpoints.values().filter(|held| held.origin != Origin::default());
        let origins = known.flat_map(|HeldEndpoint { endpoint, origin, .. }| {
            endpoint.ports.iter().map(|port| ((endpoint.address, port.clone()), origin.clone()))
        });
        let facts = Facts { origins: origins.collect(), ..self.service.facts.as_deref().cloned().unwrap_or_default() };
        Service { endpoints, facts: facts.known(), ..self.service.clone() }
    }
}

/// Why an answer was not applied. The reader then has no state and no token: the next answer is a full state.
#[derive(Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A field of the answer has an invalid value.
    Invalid(DecodeError),
    /// The reader has lost something.
    Lost(&'static str),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => write!(f, "the answer is invalid: {error}"),
            Self::Lost(what) => write!(f, "the state is incomplete: {what}; reading it again"),
        }
    }
}

impl Error for Rejected {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Invalid(error) => Some(error),
            Self::Lost(_) => None,
        }
    }
}

impl From<DecodeError> for Rejected {
    fn from(error: DecodeError) -> Self {
        Self::Invalid(error)
    }
}

impl Reader {
    /// The token of the last answer; empty if there is none.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The sum of the digests of all records.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The keys of all Services.
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.keys()
    }

    /// The Services that the brain withholds from this reader.
    pub fn withheld(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.iter().filter(|(_, held)| held.withheld).map(|(key, _)| key)
    }

    /// Applies an answer to a request with [`token`](Self::token). The stream must have ended with OK.
    ///
    /// An answer without its end changes nothing, and returns `None`: the same request may be repeated.
    ///
    /// # Errors
    /// Returns an error if the answer is invalid, or if it does not fit what the reader keeps. The reader then forgets
    /// everything.
    pub fn accept(&mut self, answer: Answer) -> Result<Option<Update>, Rejected> {
        let Some(commit) = answer.0.last().and_then(|last| last.commit.clone()) else { return Ok(None) };
        let applied = self.apply(answer, &commit);
        if applied.is_err() {
            *self = Self::default();
        }
        applied.map(Some)
    }

    fn apply(&mut self, Answer(messages): Answer, commit: &wire::Commit) -> Result<Update, Rejected> {
        let begin = messages.first().and_then(|first| first.begin.clone());
        let begin = begin.ok_or_else(|| decode::answer_error("begin", "is missing from the first message"))?;
        let revision = decode::revision(&begin.revision.unwrap_or_default())?;
        let full = begin.base.is_empty();
        if full {
            *self = Self::default();
        } else if begin.base != self.token {
            return Err(Rejected::Lost("the answer continues another state"));
        }
        let (mut node, mut changed) = (false, BTreeSet::new());
        for message in messages {
            if let Some(record) = &message.node {
                self.set_node(record)?;
                node = true;
            }
            for update in &message.services {
                changed.insert(self.update(update)?);
            }
        }
        if self.digest.0 != commit.digest {
            return Err(Rejected::Lost("the sum of the digests differs"));
        }
        self.token.clone_from(&commit.token);
        let (known, _) = self.node.as_ref().ok_or(Rejected::Lost("there are no facts about the node"))?;
        if full {
            let services = self.services.iter().map(|(key, held)| (key.clone(), Arc::new(held.whole())));
            return Ok(Update::Full(Snapshot { revision, node: known.clone(), services: services.collect() }));
        }
        let node = node.then(|| Change::Node(known.clone()));
        let services = changed.into_iter().map(|key| match self.services.get(&key) {
            Some(held) => Change::Service(Arc::new(held.whole())),
            None => Change::Removed(key),
        });
        Ok(Update::Delta { revision, changes: node.into_iter().chain(services).collect() })
    }

    fn set_node(&mut self, record: &wire::NodeState) -> Result<(), DecodeError> {
        let digest = Digest(record.digest);
        let before = self.node.replace((decode::node(record)?, digest));
        self.exchange(before.map(|(_, digest)| digest), digest);
        Ok(())
    }

    /// Counts a new record, and no longer counts the one that it replaces.
    fn exchange(&mut self, before: Option<Digest>, now: Digest) {
        self.digest = self.digest.without(before.unwrap_or_default()).and(now);
    }

    fn remove(&mut self, key: &ServiceKey) {
        if let Some(held) = self.services.remove(key) {
            self.digest = self.digest.without(held.sum());
        }
    }

    /// Applies one update, in the order of the numbers of its fields. Returns the key of the Service.
    fn update(&mut self, update: &wire::ServiceUpdate) -> Result<ServiceKey, Rejected> {
        let key = decode::service_key(update.key.as_ref())?;
        if update.removed || update.replace {
            self.remove(&key);
        }
        if update.removed {
            return Ok(key);
        }
        if let Some(record) = &update.service {
            self.set_service(&key, record)?;
        }
        let Some(held) = self.services.get_mut(&key) else {
            return Err(Rejected::Lost("the answer changes a Service that the reader does not have"));
        };
        let mut digest = self.digest;
        for gone in &update.removed_endpoints {
            let gone = decode::endpoint_key(&key, &gone.address, gone.ordinal)?;
            if let Some(before) = held.endpoints.remove(&gone) {
                digest = digest.without(before.digest);
            }
        }
        for record in &update.endpoints {
            let (name, endpoint) = decode::endpoint(&key, record, &mut self.names)?;
            let origin = decode::origin(record, &mut self.names);
            let now = HeldEndpoint { endpoint, digest: Digest(record.digest), origin };
            digest = digest.and(now.digest);
            if let Some(before) = held.endpoints.insert(name, now) {
                digest = digest.without(before.digest);
            }
        }
        self.digest = digest;
        Ok(key)
    }

    fn set_service(&mut self, key: &ServiceKey, record: &wire::Service) -> Result<(), DecodeError> {
        let (service, digest) = (decode::service(key, record, &mut self.names)?, Digest(record.digest));
        let before = match self.services.get_mut(key) {
            Some(held) => {
                (held.service, held.withheld) = (service, record.withheld);
                Some(std::mem::replace(&mut held.digest, digest))
            }
            None => {
                let held = Held { service, withheld: record.withheld, digest, endpoints: BTreeMap::new() };
                self.services.insert(key.clone(), held);
                None
            }
        };
        self.exchange(before, digest);
        Ok(())
    }
}
