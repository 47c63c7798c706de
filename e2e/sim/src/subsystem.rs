//! [`Subsystem`]: a subsystem of the kernel, as the faults, the invariants and the kernel of a run use it.

use std::{collections::BTreeSet, fmt::Debug};

use localnet_client::served::{Lack, Served};
use localnet_proto::{ByFamily, Family, Snapshot};
use rand::rngs::StdRng;

/// A subsystem of the kernel. An implementor wraps the fake kernel of a backend's unit tests.
pub trait Subsystem: Clone + Send + 'static {
    /// The name of the backend in its reports.
    const NAME: &'static str;
    /// What the subsystem cannot hold.
    const LACKS: &'static [Lack] = &[];
    /// Whether a commit contains all changes of a VIP. Otherwise, a VIP may have some endpoints of an old state and some of a new one
    /// until a sync succeeds.
    const IS_ATOMIC: bool = true;
    /// Whether the backend has to delete stale flows.
    const HAS_FLOWS: bool = true;
    /// Whether it sees all flows. Otherwise, it sees only those that began with its rules, until another program damages these.
    const SEES_ALL_FLOWS: bool = true;
    /// Whether only a sync that [`Synced::full`](localnet_client::Synced::full) names repairs damage. Otherwise, damage is repaired when
    /// the kernel serves the state again.
    const NAMES_REPAIRS: bool = false;
    /// The codes of what the backend may skip.
    const SKIPS: &'static [&'static str] = &[];
    /// Whether a VIP that changes may be missing until a sync succeeds.
    const HAS_GAPS: bool = false;
    /// Whether the VIPs of a Service share endpoints. Until a sync succeeds, a VIP may then also have those of another VIP of its Service.
    const SHARES_ENDPOINTS: bool = false;
    /// Whether the backend skips only the VIPs that the kernel refuses, instead of their Services.
    const REFUSES_PARTS: bool = false;
    /// Whether the backend programs no part of a Service that the kernel refuses, not even in the other family.
    const REFUSES_WHOLE: bool = false;
    /// Whether the backend knows exactly what the subsystem holds, after a sync that nothing has disturbed.
    const IS_KNOWN: bool = false;
    /// Whether what the backend writes for session affinity depends on what it finds.
    const KEEPS_SLOTS: bool = false;
    /// What the subsystem tells the backend about a commit of another program.
    type Notice: Debug + Send;

    /// The empty subsystem of a node. A run may choose its properties.
    fn new(rng: &mut StdRng) -> Self;

    /// The empty subsystem after a new backend has applied `state`. An error leaves the subsystem incomplete.
    #[must_use]
    fn after(self, state: &Snapshot) -> Self;

    /// What the subsystem serves.
    fn served(&self) -> Served;

    /// The families of which packets meet the rules. Before the first load has ended, they may not.
    fn entered(&self) -> ByFamily<bool> {
        ByFamily::new(true, true)
    }

    /// Whether no damage is left of which [`Self::served`] shows nothing as long as the state stays the same.
    fn is_whole(&self, _family: Family) -> bool {
        true
    }

    /// Everything that a new backend would program in the same way, as text.
    fn objects(&self, state: &Snapshot) -> Vec<String>;

    /// What the backend has put off, although a sync has succeeded.
    fn unsettled(&self) -> Option<String> {
        None
    }

    /// Whether a new backend takes for its own what the running one cannot know.
    fn has_strays(&self) -> bool {
        false
    }

    /// Checks the invariants of this subsystem after a commit: the name of an invariant, and what violates it. `before`: what packets
    /// of each family entered before. `damaged`: the families that another program has damaged.
    fn check(&self, _before: ByFamily<bool>, _damaged: ByFamily<bool>) -> Option<(&'static str, String)> {
        None
    }

    /// What no packet uses, although the last sync has met no fault.
    fn waste(&mut self) -> Option<String> {
        None
    }

    /// Whether it may refuse some objects of `state`, whatever else it holds.
    fn refuses(&self, _state: &Snapshot) -> bool {
        true
    }

    /// Refuses some objects if they are written again.
    fn hate(&mut self, rng: &mut StdRng);

    /// Refuses nothing any more.
    fn heal(&mut self);

    /// Another program changes objects of the backend, or, if `elsewhere` is set, objects of its own. If `silent` is set, the backend
    /// gets no notice of it.
    fn edit(&mut self, rng: &mut StdRng, elsewhere: bool, silent: bool) -> Edit<Self::Notice>;
}

/// A change by another program.
#[derive(Debug)]
pub struct Edit<N> {
    /// What it is.
    pub what: String,
    /// The families whose objects it damages.
    pub damages: BTreeSet<Family>,
    /// The notice that the backend gets; `None` if it gets none.
    pub notice: Option<N>,
}
