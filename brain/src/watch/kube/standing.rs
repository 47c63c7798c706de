//! How a watch stands with the API server. Says it in the log once, when it changes.
//!
//! Only a complete list and then a watch that has lived for some seconds are a recovery: an answer alone is none, as one that
//! is cut, or outdated at once, is asked for again and again.

use std::{
    collections::HashMap,
    mem::{Discriminant, discriminant},
    time::Duration,
};

use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    api_server::ApiServer,
    backoff::Backoff,
    steps::Step,
    trouble::{Trouble, resource},
};
use crate::cluster::Kind;

/// An API server that has just started says no for a moment, until it knows its rules: so often it is not taken at its word.
pub(super) const NOT_AT_ITS_WORD: u32 = 3;
/// A watch that has lived for so long is well.
const LIVED: Duration = Duration::from_secs(5);

/// How the watch stands with the API server.
pub(super) struct Standing {
    kind: Kind,
    api: ApiServer,
    /// The last one since all was well.
    trouble: Option<Trouble>,
    /// How often that one was met without another one in between.
    in_a_row: u32,
    /// How often each was met since all was well.
    met: HashMap<Discriminant<Trouble>, u32>,
    /// The operator was told of one of them.
    told: bool,
    /// The API server counts this watch among those that cannot reach it.
    lost: bool,
    /// The server could not be reached, and then said something: attempts have begun anew once.
    begun_anew: bool,
    /// It was tried again early, since the server had answered somebody.
    woken: bool,
    backoff: Backoff,
    /// When a watch began that is still open.
    opened: Option<Instant>,
    /// It has told of something.
    worded: bool,
}

impl Standing {
    pub(super) fn new(kind: Kind, api: ApiServer) -> Self {
        Self {
            kind,
            api,
            trouble: None,
            in_a_row: 0,
            met: HashMap::new(),
            told: false,
            lost: false,
            begun_anew: false,
            woken: false,
            backoff: Backoff::default(),
            opened: None,
            worded: false,
        }
    }

    /// Takes note of a step; a trouble if it is one.
    pub(super) fn take<K>(&mut self, step: &Step<K>) -> Option<Trouble> {
        match step {
            Step::Page { last, .. } => {
                if *last {
                    self.api.troubles().heard(resource(self.kind));
                }
                None
            }
            Step::Opened => {
                (self.opened, self.worded) = (Some(Instant::now()), false);
                None
            }
            Step::Applied(_) | Step::Unreadable(_) | Step::Deleted { .. } | Step::Bookmark => {
                self.worded = true;
                self.api.troubles().heard(resource(self.kind));
                None
            }
            Step::Closed if !self.has_lived() => Some(Trouble::Interrupted("it is closed".to_owned())),
            Step::Closed | Step::Silent => {
                self.opened = None;
                None
            }
            Step::Missed(name) => Some(Trouble::Silent(name.clone())),
            Step::Restored { .. } => None,
        }
    }

    /// When all is well again, if nothing happens until then.
    pub(super) fn due(&self) -> Option<Instant> {
        let silent = matches!(self.trouble, Some(Trouble::Silent(_))) && !self.worded;
        let shaken = self.trouble.is_some() || self.backoff.is_running();
        self.opened.filter(|_| shaken && !silent).map(|opened| opened + LIVED)
    }

    fn has_lived(&self) -> bool {
        self.opened.is_some_and(|opened| opened.elapsed() >= LIVED)
    }

    /// The API server was last seen to be away.
    fn is_cut_off(&self) -> bool {
        self.trouble.as_ref().is_some_and(Trouble::is_of_all_kinds)
    }

    /// Whether an answer to another watch is a reason not to wait any longer: once, as that one may be cut off again, too.
    pub(super) fn may_be_woken(&self) -> bool {
        self.is_cut_off() && !self.woken
    }

    /// It is tried again now.
    pub(super) fn woken(&mut self) {
        self.woken = true;
    }

    /// How often `trouble` has been met without a break, this time included.
    pub(super) fn times(&self, trouble: &Trouble) -> u32 {
        let same = self.trouble.as_ref().is_some_and(|last| discriminant(last) == discriminant(trouble));
        if same { self.in_a_row + 1 } else { 1 }
    }

    /// Takes note of `trouble`, and says how long to wait.
    pub(super) fn shaken(&mut self, trouble: Trouble, synced: bool, tolerable: bool) -> Duration {
        if self.due().is_some_and(|due| due <= Instant::now()) {
            self.recovered();
        }
        self.opened = None;
        if self.is_cut_off() && !trouble.is_of_all_kinds() {
            self.found();
            // A server that has come back says no for a moment, and may be well soon.
            if !std::mem::replace(&mut self.begun_anew, true) {
                self.backoff.reset();
            }
        }
        self.in_a_row = self.times(&trouble);
        let met = self.met.entry(discriminant(&trouble)).or_default();
        *met += 1;
        let met = *met;
        let text = trouble.describe(self.kind, &self.api.url());
        if self.is_news(&trouble, met) {
            self.told = true;
            let meanwhile = if synced { "what was last seen stays in use" } else { "nothing is served until then" };
            warn!("{text}; {meanwhile}, and it is tried again");
        } else {
            debug!(kind = self.kind.as_str(), met, "{text}");
        }
        // A stumble that passes at once is no trouble.
        let is_certain = trouble.is_of_all_kinds() || matches!(trouble, Trouble::Silent(_));
        if !tolerable && (is_certain || met >= NOT_AT_ITS_WORD) {
            self.api.troubles().is(resource(self.kind), text);
        }
        self.trouble = Some(trouble);
        self.backoff.next()
    }

    /// Whether the operator has not been told. All kinds lose the API server together: one of them says so.
    fn is_news(&mut self, trouble: &Trouble, met: u32) -> bool {
        match trouble {
            Trouble::Unreachable(_) | Trouble::NoCredentials(_) => {
                !std::mem::replace(&mut self.lost, true) && self.api.lost() && met == 1
            }
            Trouble::Unknown | Trouble::Silent(_) => met == 1,
            _ => met == NOT_AT_ITS_WORD,
        }
    }

    /// It can be reached; whether this is the last one of those that could not.
    fn found(&mut self) -> bool {
        std::mem::take(&mut self.lost) && self.api.found()
    }

    /// All is well.
    pub(super) fn recovered(&mut self) {
        self.backoff.reset();
        let cut_off = self.is_cut_off();
        let last = self.found();
        let told = std::mem::take(&mut self.told);
        self.trouble = None;
        self.met.clear();
        (self.begun_anew, self.woken) = (false, false);
        self.api.troubles().is_over(resource(self.kind));
        if if cut_off { last } else { told } {
            info!(kind = self.kind.as_str(), "the API server answers again");
        }
    }
}
