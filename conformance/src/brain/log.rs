//! The faults of answers, and the record of the backend's actions. The brain and its services share both.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use localnet_proto::wire::{BackendReport, NextFilter};
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
    /// Sends modified items.
    Edit(fn(Vec<Bytes>) -> Vec<Bytes>),
}

/// The record of the backend's actions.
#[derive(Debug, Default)]
pub struct Log {
    /// The requests of `Next`, in order.
    pub calls: Vec<NextFilter>,
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
