//! Drives the clean-up: knows what changed since the last time, reads the table only if that can have made a flow
//! stale, and keeps at it until it is done.
//!
//! It never acts on an event. What changed only says whether to look; a look compares every flow with everything
//! that is known. So whatever failed, or was lost, or happened while no backend ran, the next look makes up for.
//!
//! A backend calls `set` and `remove`, commits its rules, and calls `run` after every commit, which is free if nothing
//! is due; again after a while if that failed; and once more, a second after, if that is wanted `Later`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::{Conntrack, Endpoints, Error, Family, Flow, Frontend, Frontends, Protocol, Selection, is_stale};

/// Stale flows that are held in memory before they are deleted.
const AT_ONCE: usize = 16_384;
/// How often the same flows are read in one run, if new stale ones keep turning up by the thousand.
const PASSES: usize = 64;

/// A client that asks and is answered without a pause nearly always has a packet under way, which enters its flow again as soon as the
/// entry is deleted, backwards if it is the answer. So later looks go on while they find something, but not for ever: another
/// program's flow may look the same.
const LATER_LOOKS: u32 = 10;

/// The state of one backend's clean-up.
#[derive(Clone, Debug)]
pub struct Reconciler {
    frontends: Frontends,
    /// What changed since the last run, and how it was then.
    changed: HashMap<Frontend, Before>,
    /// What a run that failed was to look at.
    pending: BTreeSet<Selection>,
    /// All flows are to be compared, whatever changed.
    everything: bool,
    /// What the last run looked at and the second look is still to look at; then what the last look found something in.
    second_look: BTreeSet<Selection>,
    /// How many later looks there were since the last first one.
    later_looks: u32,
    /// Former frontends that the last run looked at.
    looked_at: HashSet<Frontend>,
}

/// How much a run is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// No flow can be stale.
    Nothing,
    /// A second look, a moment after the first (a second is plenty): a packet that was under way while the rules
    /// changed may have been entered behind the first one's back. And more of them while they find something.
    Later,
    /// Something changed, or the last run failed.
    Now,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Flows that were looked at.
    pub dumped: usize,
    /// Flows that were deleted.
    pub deleted: usize,
    /// How long it took.
    pub took: Duration,
    /// The same by family, IPv4 first: none for one of which no flows were looked at.
    pub families: [Option<OfFamily>; 2],
}

/// What a run did in one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfFamily {
    /// Flows that were deleted.
    pub deleted: usize,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    fn add(&mut self, family: Family, deleted: usize, took: Duration) {
        let place = match family {
            Family::V4 => 0,
            Family::V6 => 1,
        };
        let of_family = self.families[place].get_or_insert_default();
        of_family.deleted += deleted;
        of_family.took += took;
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Before {
    Absent,
    Endpoints(Endpoints),
    /// It was somebody's before us, whose endpoints are not known.
    Unknown,
}

impl Default for Reconciler {
    fn default() -> Self {
        Self::new()
    }
}

impl Reconciler {
    /// Knows no frontends. The first run compares all flows: who ran before may not have ended his.
    pub fn new() -> Self {
        Self {
            frontends: Frontends::default(),
            changed: HashMap::new(),
            pending: BTreeSet::new(),
            everything: true,
            second_look: BTreeSet::new(),
            later_looks: 0,
            looked_at: HashSet::new(),
        }
    }

    /// Makes these all the frontends that there are.
    pub fn desired(&mut self, frontends: impl IntoIterator<Item = (Frontend, Endpoints)>) {
        let mut gone: HashSet<_> = self.frontends.current().copied().collect();
        for (frontend, endpoints) in frontends {
            gone.remove(&frontend);
            self.set(frontend, endpoints);
        }
        for frontend in &gone {
            self.remove(frontend);
        }
    }

    /// Adds a frontend or changes its endpoints. With none, nothing may answer for it.
    pub fn set(&mut self, frontend: Frontend, endpoints: Endpoints) {
        if self.frontends.endpoints(&frontend) == Some(&endpoints) {
            return;
        }
        let before = self.frontends.set(frontend, endpoints);
        self.changed.entry(frontend).or_insert(before.map_or(Before::Absent, Before::Endpoints));
    }

    /// Removes a frontend: its service, its address or its port is gone.
    pub fn remove(&mut self, frontend: &Frontend) {
        if self.frontends.endpoints(frontend).is_some()
            && let Some(before) = self.frontends.retire(frontend)
        {
            self.looked_at.remove(frontend);
            self.changed.entry(*frontend).or_insert(Before::Endpoints(before));
        }
    }

    /// Tells of a frontend that the kernel held before this process. If it is not desired, its flows are stale.
    pub fn remember(&mut self, frontend: Frontend) {
        self.changed.insert(frontend, Before::Unknown);
        if self.frontends.endpoints(&frontend).is_none() {
            self.frontends.retire(&frontend);
            self.looked_at.remove(&frontend);
        }
    }

    /// Whether a change to these endpoints makes the next run forget those that were in force since the last one.
    pub fn forgets(&self, frontend: &Frontend, next: Option<&Endpoints>) -> bool {
        let now = self.frontends.endpoints(frontend).filter(|_| self.changed.contains_key(frontend));
        now.is_some_and(|now| now.loses(next))
    }

    /// Makes the next run compare all flows.
    pub fn recheck(&mut self) {
        self.everything = true;
    }

    /// Whether a run is wanted.
    pub fn due(&self) -> Due {
        if !self.first_look().is_empty() {
            Due::Now
        } else if !self.second_look.is_empty() {
            Due::Later
        } else {
            Due::Nothing
        }
    }

    /// What is ours, and was until the last look.
    pub fn frontends(&self) -> &Frontends {
        &self.frontends
    }

    /// Whether a run is wanted at once.
    pub fn is_due(&self) -> bool {
        self.due() == Due::Now
    }

    /// Compares the flows that can be stale, and deletes those that are. Call it after each commit, with the rules for
    /// what is desired in force: a flow that is deleted earlier comes back as it was. Costs nothing if nothing is due;
    /// after an error it is as due as before. Blocks while the kernel works.
    pub fn run(&mut self, conntrack: &mut impl Conntrack) -> Result<Report, Error> {
        // From here on it does not matter how it was before: flows of each state that was in force may exist.
        self.pending = self.first_look();
        self.changed = HashMap::new();
        let selections: BTreeSet<_> = self.pending.union(&self.second_look).copied().collect();
        if selections.is_empty() {
            self.looked(BTreeSet::new());
            return Ok(Report::default());
        }
        let started = Instant::now();
        let mut report = Report::default();
        let mut found = BTreeSet::new();
        for selection in selections {
            let (began, before) = (Instant::now(), report.deleted);
            self.clean(conntrack, selection, &mut report)?;
            let deleted = report.deleted - before;
            if deleted > 0 {
                found.insert(selection);
            }
            report.add(selection.family, deleted, began.elapsed());
        }
        report.took = started.elapsed();
        self.looked(found);
        Ok(report)
    }

    /// A look succeeded, and found stale flows among these.
    fn looked(&mut self, found: BTreeSet<Selection>) {
        // Before the first frontend is known nothing was compared.
        self.everything &= self.frontends.is_empty();
        for frontend in self.looked_at.drain() {
            self.frontends.forget(&frontend);
        }
        self.looked_at.extend(self.frontends.former());
        self.later_looks = if self.pending.is_empty() { self.later_looks + 1 } else { 0 };
        self.second_look = std::mem::take(&mut self.pending);
        if self.later_looks < LATER_LOOKS {
            self.second_look.extend(found);
        }
    }

    fn clean(&self, conntrack: &mut impl Conntrack, selection: Selection, report: &mut Report) -> Result<(), Error> {
        for _ in 0..PASSES {
            let mut stale: Vec<Flow> = Vec::new();
            let mut more = false;
            conntrack.dump(selection, &mut |flow| {
                report.dumped += 1;
                if is_stale(flow, &self.frontends) {
                    more |= stale.len() == AT_ONCE;
                    if !more {
                        stale.push(*flow);
                    }
                }
            })?;
            for flow in &stale {
                tracing::debug!(%flow, id = flow.id, "deleting a stale flow");
            }
            report.deleted += conntrack.delete(&stale)?;
            if !more {
                return Ok(());
            }
        }
        Err(Error::Interrupted)
    }

    /// The flows among which some may have become stale since the last run that succeeded.
    fn first_look(&self) -> BTreeSet<Selection> {
        if self.everything {
            return self.frontends.current().chain(self.frontends.former()).map(Frontend::selection).collect();
        }
        let matters = |(frontend, before): &(&Frontend, &Before)| {
            let after = self.frontends.endpoints(frontend);
            let lost = match before {
                Before::Absent => false,
                Before::Unknown => true,
                Before::Endpoints(before) => !after.map_or(before.is_empty(), |after| before.is_subset(after)),
            };
            lost || frontend.protocol != Protocol::Tcp && gained(before, after)
        };
        let changed = self.changed.iter().filter(matters).map(|(frontend, _)| frontend.selection());
        changed.chain(self.pending.iter().copied()).collect()
    }
}

/// Whether rules look at the packets of a frontend that passed by before. A TCP client that asks again does so for a
/// minute at most; that is not worth reading the table each time a service is created.
fn gained(before: &Before, after: Option<&Endpoints>) -> bool {
    match (before, after) {
        (Before::Absent, Some(_)) => true,
        (Before::Endpoints(before), Some(after)) => before.is_empty() && !after.is_empty(),
        (_, None) | (Before::Unknown, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::super::fake::{Fake, Stage, address, endpoints, flow, frontend};
    use super::*;
    use Protocol::{Sctp, Tcp, Udp};

    const VIP: &str = "10.96.0.10:53";
    const NODE_PORT: &str = "192.168.0.2:30053";
    const A: &str = "10.244.0.2:5353";
    const B: &str = "10.244.0.3:5353";

    fn selection(protocol: Protocol) -> Selection {
        Selection { family: Family::V4, protocol }
    }

    fn numbered(flows: impl IntoIterator<Item = Flow>) -> Vec<Flow> {
        flows.into_iter().zip(1..).map(|(flow, id)| Flow { id, ..flow }).collect()
    }

    fn to(protocol: Protocol, stage: Stage, destination: &str, endpoint: &str) -> Flow {
        flow(protocol, stage, address(destination), address(endpoint))
    }

    /// A reconciler for which everything is done.
    fn settled(protocol: Protocol, all: &[&str]) -> Reconciler {
        let mut reconciler = Reconciler::new();
        reconciler.set(frontend(protocol, VIP), endpoints(all));
        let mut kernel = Fake::default();
        reconciler.run(&mut kernel).unwrap();
        reconciler.run(&mut kernel).unwrap();
        assert_eq!(reconciler.due(), Due::Nothing);
        reconciler
    }

    fn ids(kernel: &Fake) -> Vec<u32> {
        kernel.flows.iter().map(|flow| flow.id).collect()
    }

    #[test]
    fn a_start_compares_and_keeps_what_is_right() {
        let mut kernel = Fake::new(numbered([
            to(Udp, Stage::Answered, VIP, A),
            to(Udp, Stage::Answered, VIP, B),
            to(Tcp, Stage::Answered, VIP, B),
            to(Tcp, Stage::Unanswered, VIP, B),
            to(Udp, Stage::Answered, "198.51.100.9:53", "198.51.100.9:53"),
        ]));
        let mut reconciler = Reconciler::new();
        reconciler.desired([Udp, Tcp].map(|protocol| (frontend(protocol, VIP), endpoints(&[A]))));
        let report = reconciler.run(&mut kernel).unwrap();
        assert_eq!((report.dumped, report.deleted), (4, 2));
        assert_eq!(ids(&kernel), [1, 3, 5]);
    }

    #[test]
    fn a_run_before_the_first_state_is_no_start() {
        let mut kernel = Fake::new([to(Tcp, Stage::Unanswered, VIP, B)]);
        let mut reconciler = Reconciler::new();
        assert_eq!(reconciler.run(&mut kernel).unwrap(), Report::default());
        reconciler.desired([(frontend(Tcp, VIP), endpoints(&[A]))]);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
    }

    #[test]
    fn only_a_change_that_can_make_flows_stale_reads_the_table() {
        let none: &[&str] = &[];
        // protocol, endpoints before and after (none: no such frontend), whether to look
        for (protocol, before, after, expected) in [
            (Udp, Some(&[A][..]), Some(&[A][..]), false),
            (Udp, Some(&[A]), Some(&[A, B]), false),
            (Udp, Some(&[A, B]), Some(&[A]), true),
            (Udp, Some(&[A]), Some(&[B]), true),
            (Udp, Some(&[A]), Some(none), true),
            (Udp, Some(&[A]), None, true),
            (Udp, Some(none), Some(&[A]), true),
            (Udp, Some(none), None, false),
            (Udp, None, Some(&[A]), true),
            (Udp, None, Some(none), true),
            (Tcp, Some(&[A]), Some(&[A, B]), false),
            (Tcp, Some(&[A, B]), Some(&[A]), true),
            (Tcp, Some(&[A]), None, true),
            (Tcp, Some(none), Some(&[A]), false),
            (Tcp, None, Some(&[A]), false),
            (Sctp, None, Some(&[A]), true),
            (Sctp, Some(&[A, B]), Some(&[B]), true),
        ] {
            let mut reconciler = settled(protocol, before.unwrap_or(&[A]));
            let frontend = frontend(protocol, VIP);
            if before.is_none() {
                reconciler.remove(&frontend);
                for _ in 0..2 {
                    reconciler.run(&mut Fake::default()).unwrap();
                }
            }
            match after {
                Some(after) => reconciler.set(frontend, endpoints(after)),
                None => reconciler.remove(&frontend),
            }
            assert_eq!(reconciler.is_due(), expected, "{protocol:?} {before:?} {after:?}");
            let mut kernel = Fake::default();
            reconciler.run(&mut kernel).unwrap();
            let dumps: &[Selection] = if expected { &[selection(protocol)] } else { &[] };
            assert_eq!(kernel.dumps, dumps, "{protocol:?} {before:?} {after:?}");
            assert_eq!(reconciler.due(), if expected { Due::Later } else { Due::Nothing });
        }
    }

    #[test]
    fn what_is_taken_out_and_put_back_is_no_change() {
        for all in [&[A][..], &[]] {
            let mut reconciler = settled(Udp, all);
            reconciler.set(frontend(Udp, VIP), endpoints(&[B]));
            assert!(reconciler.is_due());
            reconciler.remove(&frontend(Udp, VIP));
            reconciler.set(frontend(Udp, VIP), endpoints(all));
            assert_eq!(reconciler.due(), Due::Nothing);
        }
    }

    #[test]
    fn work_that_failed_stays_due() {
        let flows = numbered([to(Udp, Stage::Answered, VIP, A), to(Udp, Stage::Answered, NODE_PORT, A)]);
        for (dump_fails, delete_fails) in [(true, false), (false, true)] {
            let mut reconciler = settled(Udp, &[A]);
            reconciler.set(frontend(Udp, VIP), endpoints(&[B]));
            let mut kernel = Fake { dump_fails, delete_fails, ..Fake::new(flows.clone()) };
            for _ in 0..3 {
                reconciler.run(&mut kernel).unwrap_err();
                assert!(reconciler.is_due());
            }
            kernel = Fake::new(kernel.flows);
            assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
            assert!(!reconciler.is_due());
            assert_eq!(ids(&kernel), [2]);
        }
    }

    #[test]
    fn flows_of_a_state_that_lasted_from_one_commit_to_the_next_are_found() {
        // The run after the commit of B failed; of what was added, was not wanted.
        for (between, fails) in [(&[B][..], true), (&[A, B], false)] {
            let mut reconciler = settled(Udp, &[A]);
            reconciler.set(frontend(Udp, VIP), endpoints(between));
            assert_eq!(reconciler.run(&mut Fake { dump_fails: fails, ..Fake::default() }).is_err(), fails);
            reconciler.set(frontend(Udp, VIP), endpoints(&[A]));
            assert!(reconciler.is_due());
            let mut kernel = Fake::new([to(Udp, Stage::Answered, VIP, B)]);
            assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
        }
        let mut reconciler = settled(Udp, &[A]);
        let fleeting = frontend(Udp, NODE_PORT);
        reconciler.set(fleeting, endpoints(&[A]));
        reconciler.run(&mut Fake { dump_fails: true, ..Fake::default() }).unwrap_err();
        reconciler.remove(&fleeting);
        let mut kernel = Fake::new([to(Udp, Stage::Answered, NODE_PORT, A)]);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
    }

    #[test]
    fn a_second_look_finds_what_came_behind_the_first() {
        let mut reconciler = settled(Udp, &[A]);
        reconciler.remove(&frontend(Udp, VIP));
        let mut kernel = Fake::default();
        reconciler.run(&mut kernel).unwrap();
        assert_eq!(reconciler.due(), Due::Later);
        kernel.flows.push(to(Udp, Stage::Answered, VIP, A));
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
        assert_eq!(reconciler.due(), Due::Later, "there may be more");
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 0);
        assert_eq!(reconciler.due(), Due::Nothing);
        kernel.flows.push(to(Udp, Stage::Answered, VIP, A));
        reconciler.recheck();
        reconciler.run(&mut kernel).unwrap();
        assert_eq!(ids(&kernel), [1], "whoever has the address now is not our business");
    }

    /// A client that is answered without a pause: whenever its entry is deleted, an answer is under way.
    #[test]
    fn looks_go_on_while_they_find_something_but_not_for_ever() {
        for (returns, looks) in [(0, 1), (3, 4), (LATER_LOOKS, LATER_LOOKS), (u32::MAX, LATER_LOOKS)] {
            let mut reconciler = settled(Udp, &[]);
            let backwards = to(Udp, Stage::Answered, VIP, VIP).reversed();
            reconciler.set(frontend(Udp, VIP), endpoints(&[A]));
            let mut kernel = Fake::new([backwards]);
            assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
            let mut later = 0;
            while reconciler.due() == Due::Later {
                kernel.flows = if later < returns { vec![backwards] } else { Vec::new() };
                reconciler.run(&mut kernel).unwrap();
                later += 1;
            }
            assert_eq!((reconciler.due(), later), (Due::Nothing, looks), "{returns}");
        }
    }

    #[test]
    fn a_frontend_that_went_twice_gets_two_looks_each_time() {
        let mut reconciler = settled(Udp, &[A]);
        for _ in 0..2 {
            reconciler.set(frontend(Udp, VIP), endpoints(&[A]));
            reconciler.remove(&frontend(Udp, VIP));
            reconciler.recheck();
            reconciler.run(&mut Fake::default()).unwrap();
        }
        let mut kernel = Fake::new([to(Udp, Stage::Answered, VIP, A)]);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);

        for _ in 0..2 {
            reconciler.remember(frontend(Udp, NODE_PORT));
            reconciler.run(&mut Fake::default()).unwrap();
        }
        let mut kernel = Fake::new([to(Udp, Stage::Answered, NODE_PORT, A)]);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
    }

    #[test]
    fn former_frontends_are_forgotten_while_others_keep_changing() {
        let mut reconciler = settled(Udp, &[A]);
        for port in 1..100 {
            let fleeting = Frontend::new(Udp, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
            reconciler.set(fleeting, endpoints(&[A]));
            reconciler.run(&mut Fake::default()).unwrap();
            reconciler.remove(&fleeting);
            reconciler.run(&mut Fake::default()).unwrap();
            assert!(reconciler.frontends.former().count() <= 2);
        }
    }

    #[test]
    fn a_frontend_that_the_kernel_held_before_us_is_cleaned_up() {
        let flows = [to(Udp, Stage::Answered, NODE_PORT, A), to(Udp, Stage::Answered, VIP, A)];
        let mut reconciler = Reconciler::new();
        reconciler.remember(frontend(Udp, NODE_PORT));
        reconciler.desired([(frontend(Sctp, VIP), endpoints(&[A]))]);
        assert_eq!(reconciler.run(&mut Fake::new(numbered(flows))).unwrap().deleted, 1);

        let mut reconciler = settled(Udp, &[A]);
        reconciler.remember(frontend(Udp, VIP));
        reconciler.remember(frontend(Udp, NODE_PORT));
        assert!(reconciler.is_due());
        let mut kernel = Fake::new(numbered(flows));
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
        assert_eq!(ids(&kernel), [2], "what is desired stays");
    }

    #[test]
    fn flows_that_are_shown_twice_count_once() {
        let mut kernel = Fake { shows_twice: true, ..Fake::new([to(Udp, Stage::Answered, VIP, A)]) };
        let mut reconciler = Reconciler::new();
        reconciler.set(frontend(Udp, VIP), endpoints(&[]));
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
    }

    #[test]
    fn more_stale_flows_than_are_held_at_once_are_all_deleted() {
        let many = (0..AT_ONCE + 10).map(|_| to(Udp, Stage::Answered, VIP, B));
        let mut reconciler = settled(Udp, &[A, B]);
        reconciler.set(frontend(Udp, VIP), endpoints(&[A]));
        // All of one name: the fake deletes by comparing each with each.
        let mut kernel = Fake::new(many);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, AT_ONCE + 10);
        assert_eq!(kernel.dumps.len(), 2);
    }
}
