//! [`Troubles`]: problems that keep a source from reporting changes. While a trouble lasts, the affected part of the
//! state does not change.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    time::{Instant, SystemTime},
};

use localnet_core::Diagnostic;
use prometheus::{GaugeVec, IntCounterVec};
use tokio::sync::watch;

use super::register::Register;

/// The troubles. The key of a trouble is a label for what cannot be read: `OF`, or `OF-NUMBER` if an earlier source has the
/// same label. Clones share the troubles.
#[derive(Clone, Debug)]
pub struct Troubles {
    failing: GaugeVec,
    heard: GaugeVec,
    restored: IntCounterVec,
    held: GaugeVec,
    now: watch::Sender<All>,
    /// The number that the labels end with.
    number: Option<usize>,
}

type All = BTreeMap<Cow<'static, str>, Trouble>;

/// The reason why something cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The problem and its remedy.
    pub diagnostic: Diagnostic,
    /// When the trouble began.
    pub since: Instant,
}

/// The default metrics are not exported.
impl Default for Troubles {
    fn default() -> Self {
        Self::register(&Register::default())
    }
}

impl Troubles {
    pub(super) fn register(register: &Register) -> Self {
        Self {
            failing: register.gauges(
                "localnet_source_failing",
                "1 while the brain cannot read the resource in the label `of` (`files`: the YAML files), else 0. While it is 1, the brain keeps the last good state, and `localnet doctor` gives the reason.",
                &["of"],
            ),
            heard: register.gauges(
                "localnet_source_heard_timestamp_seconds",
                "Unix time at which the source last sent an object, a complete list or a bookmark of the resource in the label `of`. An API server sends a bookmark about every minute.",
                &["of"],
            ),
            restored: register.counters(
                "localnet_source_restored_total",
                "How many times the API server went back to an older state, as after a restore of etcd. Each time, the brain requests all lists again.",
                &["of"],
            ),
            held: register.gauges(
                "localnet_source_held_objects",
                "Objects that are not in the newest list, but that the brain keeps until their removal is confirmed.",
                &["of"],
            ),
            now: watch::Sender::default(),
            number: None,
        }
    }

    /// The same troubles, with labels that end with a number.
    #[must_use]
    pub(crate) fn numbered(&self, number: usize) -> Self {
        Self { number: Some(number), ..self.clone() }
    }

    fn label(&self, of: &'static str) -> Cow<'static, str> {
        self.number.map_or(Cow::Borrowed(of), |number| Cow::Owned(format!("{of}-{number}")))
    }

    /// Records that `of` cannot be read. If this is called repeatedly, the trouble keeps the time of the first call.
    pub(crate) fn is(&self, of: &'static str, diagnostic: Diagnostic) {
        let of = self.label(of);
        self.failing.with_label_values(&[&*of]).set(1.0);
        self.now.send_modify(|now| {
            let since = now.get(&of).map_or_else(Instant::now, |trouble| trouble.since);
            now.insert(of, Trouble { diagnostic, since });
        });
    }

    /// Records that `of` can be read again.
    pub(crate) fn is_over(&self, of: &'static str) {
        let of = self.label(of);
        self.now.send_if_modified(|now| now.remove(&of).is_some());
        self.failing.with_label_values(&[&*of]).set(0.0);
    }

    /// Records that the source has reported about `of`, even if nothing has changed.
    pub(crate) fn heard(&self, of: &'static str) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.heard.with_label_values(&[&*self.label(of)]).set(now.as_secs_f64());
    }

    /// Counts that the source has gone back to an older version of the resource `of`.
    pub(crate) fn restored(&self, of: &'static str) {
        self.restored.with_label_values(&[of]).inc();
    }

    /// Sets the number of objects of the kind `of` that are held although they are not in the newest list.
    pub(crate) fn held(&self, of: &'static str, objects: usize) {
        self.held.with_label_values(&[of]).set(objects as f64);
    }

    /// The current troubles.
    pub fn all(&self) -> BTreeMap<Cow<'static, str>, Trouble> {
        self.now.borrow().clone()
    }

    /// The current troubles. The receiver is notified of each change.
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<Cow<'static, str>, Trouble>> {
        self.now.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use localnet_core::{Code, Subject};

    use super::*;

    #[test]
    fn a_trouble_is_known_since_it_began_until_it_is_over() {
        let about = |problem: &str| Diagnostic::new(Code::YamlInvalid, Subject::text(1), problem);
        let register = Register::default();
        let troubles = Troubles::register(&register);
        let gauge = || troubles.failing.with_label_values(&["files"]).get();
        troubles.is_over("files");
        assert_eq!((troubles.all().len(), gauge()), (0, 0.0));
        troubles.is("files", about("one"));
        let since = troubles.all()["files"].since;
        troubles.is("files", about("two"));
        assert_eq!(troubles.all()["files"], Trouble { diagnostic: about("two"), since });
        assert_eq!((gauge(), register.0.gather().len()), (1.0, 1));
        troubles.clone().is_over("files");
        assert_eq!((troubles.all().len(), gauge()), (0, 0.0));
        // Two folders have troubles of their own.
        let second = troubles.numbered(2);
        second.is("files", about("three"));
        troubles.is_over("files");
        assert_eq!(troubles.all().into_keys().collect::<Vec<_>>(), ["files-2"]);
        second.is_over("files");
        assert!(troubles.all().is_empty());
    }
}
