//! What a backend counts: its attempts, checks for stale flows, rules and repairs.

use std::{sync::Arc, time::Duration};

use localnet_proto::{ByFamily, traffic::TrafficReport, wire};

/// A backend's counters besides those of its syncs, since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// The checks for stale flows.
    pub flow_checks: ByFamily<FlowChecks>,
    /// The rules in the backend's kernel tables. Empty if the backend uses no rules.
    pub rules: ByFamily<Vec<wire::RuleCount>>,
    /// The number of repairs, of both families together. A repair is a sync that changed something after another process
    /// had modified the kernel's state.
    pub repairs: u64,
    /// The packets that rules of the backend have counted; `None` if they count no packets.
    pub packets: Option<wire::PacketCounts>,
    /// The traffic of Services; `None` if the backend does not count it.
    pub traffic: Option<Arc<TrafficReport>>,
}

impl Counts {
    /// Adds one check for stale flows. For each family that was checked, the value is the duration of the check and the
    /// number of deleted flows. For any other family, it is `None`.
    pub fn flows_checked(&mut self, families: ByFamily<Option<(Duration, usize)>>) {
        for (family, checked) in families {
            let (Some((took, ended)), flow_checks) = (checked, &mut self.flow_checks[family]) else { continue };
            flow_checks.took.add(took);
            flow_checks.ended += u64::try_from(ended).unwrap_or(u64::MAX);
        }
    }

    /// Sets the counters in a report, including the counters of each family in the report.
    pub(crate) fn add_to(&self, report: &mut wire::BackendReport) {
        report.repairs = self.repairs;
        report.packets = self.packets;
        for of_family in &mut report.families {
            let Some(family) = of_family.family().known() else { continue };
            let FlowChecks { took, ended } = &self.flow_checks[family];
            of_family.flows = Some(wire::FlowSearches { took: Some(took.into()), ended: *ended });
            of_family.rules.clone_from(&self.rules[family]);
        }
    }
}

/// The checks for stale flows, which are flows to endpoints that are no longer eligible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowChecks {
    /// The durations of the checks.
    pub took: Attempts,
    /// How many flows the checks deleted.
    pub ended: u64,
}

/// A histogram of the durations of attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// How many attempts took at most 1 ms, how many took longer but at most 2 ms, and so on: each limit is twice the
    /// previous one, up to 16.384 s. The last count is for all longer attempts.
    counts: [u64; Self::LIMITS + 1],
    sum: Duration,
}

impl Attempts {
    const LIMITS: usize = 15;

    /// Adds one attempt.
    pub fn add(&mut self, took: Duration) {
        let limit = |place: usize| Duration::from_millis(1 << place);
        let place = (0..Self::LIMITS).find(|place| took <= limit(*place)).unwrap_or(Self::LIMITS);
        self.counts[place] += 1;
        self.sum += took;
    }
}

impl From<&Attempts> for wire::Attempts {
    fn from(attempts: &Attempts) -> Self {
        let Attempts { counts, sum } = attempts;
        Self { counts: counts.to_vec(), sum_micros: sum.as_micros().try_into().unwrap_or(u64::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_counted_in_buckets_with_doubling_limits() {
        let mut attempts = Attempts::default();
        for micros in [1, 1_000, 1_001, 2_000, 16_384_000, 16_384_001, 60_000_000] {
            attempts.add(Duration::from_micros(micros));
        }
        let mut counts = vec![0; 16];
        counts[..2].copy_from_slice(&[2, 2]);
        counts[14..].copy_from_slice(&[1, 2]);
        assert_eq!(wire::Attempts::from(&attempts), wire::Attempts { counts, sum_micros: 92_772_003 });
    }
}
