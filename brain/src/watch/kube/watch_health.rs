//! The health of one watch. Each change of the health is logged once.
//!
//! A watch has recovered once a list was complete and the following watch has been open for some seconds. A single answer
//! does not prove a recovery, because the answer may be truncated, or each new watch may still end immediately.

use std::{
    collections::HashMap,
    mem::{Discriminant, discriminant},
    time::Duration,
};

use localnet_core::{Diagnostic, Subject};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    api_server::ApiServer,
    backoff::Backoff,
    steps::Step,
    trouble::{Trouble, resource},
};
use localnet_cluster::objects::Kind;

/// A trouble counts as transient until it has occurred this often. For example, an API server that has just started
/// refuses requests until it has loaded its RBAC rules.
pub(super) const TRANSIENT: u32 = 3;
/// A watch that has been open for this time is healthy.
const STABLE: Duration = Duration::from_secs(5);

/// The health of one watch.
pub(super) struct WatchHealth {
    kind: Kind,
    api: ApiServer,
    since: Since,
    /// Whether [`ApiServer`] counts this watch as unreachable.
    unreachable: bool,
    /// When the current watch was opened.
    opened: Option<Instant>,
    /// Whether the current watch has delivered anything.
    delivered: bool,
}

/// What has happened since the watch was last healthy.
#[derive(Default)]
struct Since {
    /// The last trouble.
    trouble: Option<Trouble>,
    /// How often the last trouble has occurred consecutively.
    in_a_row: u32,
    /// The number of occurrences of each trouble.
    occurrences: HashMap<Discriminant<Trouble>, u32>,
    /// Whether one of these troubles was logged as a warning.
    logged: bool,
    /// Whether the backoff was reset because the server became reachable again.
    backoff_reset: bool,
    /// Whether the watch retried early because another watch had got an answer.
    woken: bool,
    backoff: Backoff,
}

impl WatchHealth {
    pub(super) fn new(kind: Kind, api: ApiServer) -> Self {
        Self { kind, api, since: Since::default(), unreachable: false, opened: None, delivered: false }
    }

    /// Records a step. Returns a trouble if the step is one.
    pub(super) fn take<K>(&mut self, step: &Step<K>) -> Option<Trouble> {
        match step {
            Step::Page { last, .. } => {
                if *last {
                    self.api.troubles().heard(resource(self.kind));
                }
                None
            }
            Step::Opened => {
                (self.opened, self.delivered) = (Some(Instant::now()), false);
                None
            }
            Step::Applied(_) | Step::Unreadable(_) | Step::Deleted { .. } | Step::Bookmark => {
                self.delivered = true;
                self.api.troubles().heard(resource(self.kind));
                None
            }
            Step::Closed if !self.is_stable() => Some(Trouble::Interrupted("the stream is closed".to_owned())),
            Step::Closed | Step::Silent => {
                self.opened = None;
                None
            }
            Step::Missed(name) => Some(Trouble::Silent(name.clone())),
            Step::Restored { .. } => None,
        }
    }

    /// When the watch will count as recovered if it stays open.
    pub(super) fn due(&self) -> Option<Instant> {
        let silent = matches!(self.since.trouble, Some(Trouble::Silent(_))) && !self.delivered;
        let failed = self.since.trouble.is_some() || self.since.backoff.is_running();
        self.opened.filter(|_| failed && !silent).map(|opened| opened + STABLE)
    }

    fn is_stable(&self) -> bool {
        self.opened.is_some_and(|opened| opened.elapsed() >= STABLE)
    }

    /// Whether the last trouble affects the watches of all kinds, as an unreachable API server does.
    fn is_cut_off(&self) -> bool {
        self.since.trouble.as_ref().is_some_and(Trouble::is_of_all_kinds)
    }

    /// Whether an answer to another watch makes this watch retry immediately. This happens only once, because the other
    /// watch may lose the server again.
    pub(super) fn may_be_woken(&self) -> bool {
        self.is_cut_off() && !self.since.woken
    }

    /// Records that the watch retries early.
    pub(super) fn woken(&mut self) {
        self.since.woken = true;
    }

    /// The number of consecutive occurrences of `trouble`, including this one.
    pub(super) fn times(&self, trouble: &Trouble) -> u32 {
        let same = self.since.trouble.as_ref().is_some_and(|last| discriminant(last) == discriminant(trouble));
        if same { self.since.in_a_row + 1 } else { 1 }
    }

    /// Records `trouble`. Returns the delay before the next attempt.
    pub(super) fn failed(&mut self, trouble: Trouble, synced: bool, tolerable: bool) -> Duration {
        if self.due().is_some_and(|due| due <= Instant::now()) {
            self.recovered();
        }
        self.opened = None;
        if self.is_cut_off() && !trouble.is_of_all_kinds() {
            self.set_reachable();
            // The server may have just started, and may soon stop refusing requests.
            if !std::mem::replace(&mut self.since.backoff_reset, true) {
                self.since.backoff.reset();
            }
        }
        self.since.in_a_row = self.times(&trouble);
        let occurrences = self.since.occurrences.entry(discriminant(&trouble)).or_default();
        *occurrences += 1;
        let occurrences = *occurrences;
        let text = trouble.describe(self.kind, &self.api.url());
        if self.is_news(&trouble, occurrences) {
            self.since.logged = true;
            let effect = if synced { "keeping the last objects" } else { "nothing is served until a retry succeeds" };
            warn!("{text}; retrying; {effect}");
        } else {
            debug!(kind = self.kind.as_str(), occurrences, "{text}");
        }
        // All other troubles are often transient.
        let is_certain = trouble.is_of_all_kinds() || matches!(trouble, Trouble::Silent(_));
        if !tolerable && (is_certain || occurrences >= TRANSIENT) {
            let diagnostic = Diagnostic::new(trouble.code(), Subject::Program, text);
            self.api.troubles().is(resource(self.kind), diagnostic);
        }
        self.since.trouble = Some(trouble);
        self.since.backoff.next()
    }

    /// Whether to log the trouble as a warning. If the API server is unreachable, only one of the watches logs it.
    fn is_news(&mut self, trouble: &Trouble, occurrences: u32) -> bool {
        match trouble {
            Trouble::Unreachable(_) | Trouble::NoCredentials(_) => {
                !std::mem::replace(&mut self.unreachable, true) && self.api.set_unreachable() && occurrences == 1
            }
            Trouble::Unknown | Trouble::Silent(_) => occurrences == 1,
            _ => occurrences == TRANSIENT,
        }
    }

    /// Records that the API server is reachable. Returns whether this watch was the last watch that could not reach the
    /// server.
    fn set_reachable(&mut self) -> bool {
        std::mem::take(&mut self.unreachable) && self.api.set_reachable()
    }

    /// Records that the watch is healthy.
    pub(super) fn recovered(&mut self) {
        let cut_off = self.is_cut_off();
        let last = self.set_reachable();
        let Since { logged, .. } = std::mem::take(&mut self.since);
        self.api.troubles().is_over(resource(self.kind));
        if if cut_off { last } else { logged } {
            info!(kind = self.kind.as_str(), "the API server answers again");
        }
    }
}
