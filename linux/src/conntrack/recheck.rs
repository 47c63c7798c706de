//! Decides when to check all flows, instead of only the flows that a commit may have made stale.

use super::Commit;

/// Remembers between syncs whether any flow may be stale. There are two possible causes. First, rules that another program
/// changed may have sent a flow anywhere. Second, a sync that failed for a family may have changed a part of its rules. They may
/// have sent new flows to endpoints that no commit names.
#[derive(Debug, Default)]
pub struct Recheck {
    /// Whether rules were missing or wrong since the last sync.
    disturbed: bool,
    /// Whether the last sync failed for a family.
    failed: bool,
}

impl Recheck {
    /// Records that rules may have been changed. The next sync repairs them.
    pub fn rules_changed(&mut self) {
        self.disturbed = true;
    }

    /// Completes the `commit` of a sync with the decision whether to check all flows. `failed`: whether the sync failed
    /// for a family. `read`: whether it had to read the live state.
    pub fn after_sync(&mut self, failed: bool, read: bool, commit: Commit) -> Commit {
        // A sync that finds changed rules reads and repairs them, before a notification reports the change.
        let disturbed = std::mem::take(&mut self.disturbed) || read;
        // A sync that failed for a family may have changed a part of its rules.
        let recovered = std::mem::replace(&mut self.failed, failed) && !failed;
        Commit { recheck: commit.recheck || disturbed || recovered, ..commit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `syncs`: for each sync, whether it is a repair and whether it failed. `expected`: after which of them all flows are checked.
    #[track_caller]
    fn check(syncs: &[(bool, bool)], expected: &[bool]) {
        let mut recheck = Recheck::default();
        let sync = |(repairs, failed): &(bool, bool)| {
            if *repairs {
                recheck.rules_changed();
            }
            recheck.after_sync(*failed, false, Commit::default()).recheck
        };
        assert_eq!(syncs.iter().map(sync).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn all_flows_are_checked_after_a_repair_and_after_a_recovery() {
        check(&[(false, false), (true, false), (false, false)], &[false, true, false]);
        // One family is repaired at once, the other one later. Repeated failures alone do not check all flows.
        check(&[(true, true), (false, true), (false, false), (false, false)], &[true, false, true, false]);
        check(&[(false, true), (false, true), (false, false), (false, false)], &[false, false, true, false]);
    }

    /// Another program deleted the table during a sync, which noticed that and repaired it. The notification came later and
    /// caused no repair, so UDP flows that had begun without the table stayed untranslated.
    #[test]
    fn all_flows_are_checked_after_a_sync_that_repairs_without_a_notification() {
        let mut recheck = Recheck::default();
        let mut after = |read| recheck.after_sync(false, read, Commit::default()).recheck;
        assert_eq!([after(true), after(false)], [true, false]);
    }
}
