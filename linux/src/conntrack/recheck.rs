//! When it is not enough to look at the flows of what a commit changed.

use super::Commit;

/// Remembers across syncs that flows may have gone astray. Rules that someone else has changed may have sent any flow anywhere; and
/// a family that could not be written kept its old rules, by which new flows went, while what changed was told with the commit that failed.
#[derive(Debug, Default)]
pub struct Recheck {
    /// Rules were missing or wrong since the last sync.
    disturbed: bool,
    /// A family has not had what was last told.
    failed: bool,
}

impl Recheck {
    /// The rules may have been changed: they are repaired with the next sync.
    pub fn disturbed(&mut self) {
        self.disturbed = true;
    }

    /// A sync is in force, `failed`: but not in every family; says what of flows is to be looked at.
    pub fn after(&mut self, failed: bool, commit: Commit) -> Commit {
        let disturbed = std::mem::take(&mut self.disturbed);
        // What one family could not be given is looked at once it is.
        let mended = std::mem::replace(&mut self.failed, failed) && !failed;
        Commit { recheck: commit.recheck || disturbed || mended, ..commit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Syncs, each of which may have failed and may be a repair, and after which of them all flows are looked at.
    #[track_caller]
    fn check(syncs: &[(bool, bool)], expected: &[bool]) {
        let mut recheck = Recheck::default();
        let sync = |(repairs, failed): &(bool, bool)| {
            if *repairs {
                recheck.disturbed();
            }
            recheck.after(*failed, Commit::default()).recheck
        };
        assert_eq!(syncs.iter().map(sync).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn all_flows_are_looked_at_after_a_repair_and_when_a_family_is_well_again() {
        check(&[(false, false), (true, false), (false, false)], &[false, true, false]);
        // One family is repaired, the other one later: what is refused again and again costs no look at all flows each time.
        check(&[(true, true), (false, true), (false, false), (false, false)], &[true, false, true, false]);
        check(&[(false, true), (false, true), (false, false), (false, false)], &[false, false, true, false]);
    }
}
