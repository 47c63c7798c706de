//! The queue of a cleaner: the commits that it has not processed yet. Pure.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use super::{Endpoints, Flow, Frontend, Reconciler};

/// The changes of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Frontends whose endpoints changed, with their present endpoints; `None` for a deleted frontend.
    pub frontends: Vec<(Frontend, Option<Endpoints>)>,
    /// Those of `frontends` whose established TCP connections are closed, and how long after their endpoint has stopped serving.
    pub closing: Vec<(Frontend, Duration)>,
    /// Frontends that the kernel held before this process started.
    pub remembered: Vec<Frontend>,
    /// Frontends that another proxy serves from now on. Their flows are left alone.
    pub handed_over: Vec<Frontend>,
    /// Whether all flows have to be checked, because rules were missing or wrong.
    pub recheck: bool,
}

/// The commits that wait, merged. However many commits wait, each frontend has only one entry, with its newest endpoints.
#[derive(Debug, Default)]
pub struct Queue {
    frontends: HashMap<Frontend, Option<Endpoints>>,
    closing: HashMap<Frontend, Duration>,
    remembered: BTreeSet<Frontend>,
    handed_over: BTreeSet<Frontend>,
    recheck: bool,
}

impl Queue {
    /// Adds a commit whose rules are in force.
    pub fn put(&mut self, commit: Commit) {
        for (frontend, now) in commit.frontends {
            // If two commits merge, the endpoints that were in force between them are lost, so the flows to these endpoints have
            // to be checked explicitly. Without the frontend, flows may have begun untranslated.
            let may_be_stale = self.frontends.get(&frontend).is_some_and(|before| match before {
                Some(before) => before.any_missing_from(now.as_ref()),
                None => now.is_some(),
            });
            if may_be_stale {
                self.remembered.insert(frontend);
            }
            self.frontends.insert(frontend, now);
            self.closing.remove(&frontend);
            self.handed_over.remove(&frontend);
        }
        self.closing.extend(commit.closing);
        for frontend in commit.handed_over {
            self.frontends.remove(&frontend);
            self.remembered.remove(&frontend);
            self.handed_over.insert(frontend);
        }
        self.remembered.extend(commit.remembered);
        self.recheck |= commit.recheck;
    }

    /// Whether a waiting commit makes the flow right: its endpoint serves its frontend, or another proxy does.
    pub fn spares(&self, flow: &Flow) -> bool {
        let frontend = Frontend::new(flow.protocol, flow.original.destination);
        let serves = |endpoints: &Endpoints| endpoints.contains(&flow.reply.source);
        self.frontends.get(&frontend).and_then(Option::as_ref).is_some_and(serves)
            || self.handed_over.contains(&frontend)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        let nothing = self.frontends.is_empty() && self.remembered.is_empty() && self.handed_over.is_empty();
        nothing && !self.recheck
    }

    /// Passes everything to a reconciler.
    pub fn apply(self, reconciler: &mut Reconciler) {
        for frontend in &self.handed_over {
            reconciler.hand_over(frontend);
        }
        for frontend in self.remembered {
            reconciler.remember(frontend);
        }
        for (frontend, endpoints) in self.frontends {
            // No run has checked the flows to the endpoints that were in force until now.
            if reconciler.overwrites_unchecked(&frontend, endpoints.as_ref()) {
                reconciler.remember(frontend);
            }
            match endpoints {
                Some(endpoints) => reconciler.set_closing(frontend, endpoints, self.closing.get(&frontend).copied()),
                None => reconciler.remove(&frontend),
            }
        }
        if self.recheck {
            reconciler.recheck();
        }
    }
}

#[cfg(test)]
mod tests {
    use localnet_core::Protocol;

    use super::*;
    use crate::conntrack::{Conntrack, Due, Error, Flow, Selection};

    fn frontend() -> Frontend {
        Frontend::new(Protocol::Udp, "10.96.0.10:53".parse().unwrap())
    }

    fn served_by(endpoints: &[&str]) -> Commit {
        let endpoints = endpoints.iter().map(|endpoint| endpoint.parse().unwrap()).collect();
        Commit { frontends: vec![(frontend(), Some(endpoints))], ..Commit::default() }
    }

    /// A table without flows.
    struct Empty;

    impl Conntrack for Empty {
        fn dump(&mut self, _: Selection, _: &mut dyn FnMut(&Flow)) -> Result<(), Error> {
            Ok(())
        }

        fn delete(&mut self, flows: &[Flow]) -> Result<usize, Error> {
            Ok(flows.len())
        }
    }

    #[test]
    fn pending_commits_merge_to_one_entry_per_frontend() {
        let mut queue = Queue::default();
        for count in 0..10_000 {
            queue.put(served_by(if count % 2 == 0 { &["10.244.0.2:53"] } else { &[] }));
            queue.put(Commit { remembered: vec![frontend()], recheck: count == 0, ..Commit::default() });
        }
        assert_eq!((queue.frontends.len(), queue.remembered.len(), queue.recheck), (1, 1, true));
        assert!(queue.frontends[&frontend()].as_ref().is_some_and(Endpoints::is_empty));
        // The last commit of a frontend decides whether it is handed over.
        for last_serves in [false, true] {
            let hands_over = Commit { handed_over: vec![frontend()], ..Commit::default() };
            let serves = served_by(&["10.244.0.2:53"]);
            let mut queue = Queue::default();
            assert!(queue.is_empty());
            for commit in if last_serves { [hands_over, serves] } else { [serves, hands_over] } {
                queue.put(commit);
            }
            assert!(!queue.is_empty());
            assert_eq!((queue.frontends.len(), queue.handed_over.len()), if last_serves { (1, 0) } else { (0, 1) });
        }
    }

    /// Two commits arrive before a run, and the second one removes endpoints that the first one added. Flows that began in
    /// between go to these endpoints. If the first one removes the frontend, such flows are untranslated.
    #[test]
    fn flows_of_a_replaced_state_are_checked() {
        const A: &str = "10.244.0.2:53";
        const B: &str = "10.244.0.3:53";
        let removed = || Commit { frontends: vec![(frontend(), None)], ..Commit::default() };
        for (commits, expected) in [
            ([served_by(&[A]), served_by(&[])], Due::Now),
            ([served_by(&[A]), served_by(&[B])], Due::Now),
            ([served_by(&[A]), removed()], Due::Now),
            ([removed(), served_by(&[])], Due::Now),
            ([served_by(&[]), served_by(&[])], Due::Nothing),
        ] {
            for joined in [true, false] {
                let mut reconciler = Reconciler::new();
                let mut queue = Queue::default();
                queue.put(served_by(&[]));
                std::mem::take(&mut queue).apply(&mut reconciler);
                while reconciler.due() != Due::Nothing {
                    reconciler.run(&mut Empty).unwrap();
                }
                for commit in &commits {
                    queue.put(commit.clone());
                    if !joined {
                        std::mem::take(&mut queue).apply(&mut reconciler);
                    }
                }
                queue.apply(&mut reconciler);
                assert_eq!(reconciler.due(), expected, "{commits:?} {joined}");
            }
        }
    }
}
