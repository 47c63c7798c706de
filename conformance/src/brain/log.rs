//! The faults of answers, and the record of the backend's actions. The brain and its services share both.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use localnet_proto::{Revision, wire::BackendReport};
use tokio::sync::Notify;
use tonic::Code;

/// A fault of an answer.
pub enum Fault {
    /// Ends with an error code after this many items.
    Cut(usize, Code),
    /// Sends nothing more after this many items.
    Hang(usize),
    /// Starts only after [`super::Brain::release`].
    Hold,
    /// Sends the full state, even if a delta was requested.
    Full,
    /// Pauses before each item.
    Slow(Duration),
    /// Sends a modified answer.
    Edit(Edit),
}

/// A modification of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Each item and each part of it has fields that no version knows.
    UnknownFields,
    /// There are items of a kind that no version knows.
    UnknownItems,
    /// Each Service has a port with an unknown protocol.
    UnknownProtocol,
    /// Each port of a Service has an unknown verdict on traffic without an endpoint.
    UnknownVerdict,
    /// `localnet.v1` only: `commit.digest` is wrong.
    WrongDigest,
    /// `localnet.v1` only: `begin.base` is not the token of the request.
    WrongBase,
    /// `localnet.v1` only: the answer ends with OK, but without its `commit`.
    NoCommit,
}

/// A package that serves the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    /// `localnetv1.Endpoints.Next`.
    Localnetv1,
    /// `localnet.v1.StateService.NextState`.
    V1,
}

/// A request for a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The package of the method.
    pub package: Package,
    /// The state that the backend has, by the token of the request. The default: the request has no token. `None`: the kit did not
    /// send this token.
    pub held: Option<Revision>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let package = match self.package {
            Package::Localnetv1 => "localnetv1",
            Package::V1 => "localnet.v1",
        };
        match self.held {
            None => write!(f, "{package}, with an unknown token"),
            Some(held) if held == Revision::default() => write!(f, "{package}, without a token"),
            Some(held) => write!(f, "{package}, with the token of {held}"),
        }
    }
}

/// The record of the backend's actions.
#[derive(Debug, Default)]
pub struct Log {
    /// The requests for a state, in order.
    pub calls: Vec<Call>,
    /// How many answers were started.
    pub answers_started: usize,
    /// How many answers hang ([`Fault::Hang`]).
    pub hung: usize,
    /// How many answers wait for [`super::Brain::release`].
    pub held: usize,
    /// How many connections are open.
    pub open: usize,
    /// How many connections were refused.
    pub refused_connections: usize,
    /// The backend's reports.
    pub reports: Vec<BackendReport>,
}

/// The data that the brain shares with its gRPC services.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) log: Mutex<Log>,
    pub(super) changed: Condvar,
    pub(super) faults: Mutex<VecDeque<Fault>>,
    pub(super) release: Notify,
}

impl Shared {
    pub(super) fn log(&self, change: impl FnOnce(&mut Log)) {
        change(&mut lock(&self.log));
        self.changed.notify_all();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
