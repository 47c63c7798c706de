//! The counts of a Service that the metrics need. They are computed when the Service is encoded, because the feed does
//! not keep the decoded Service.

use std::{iter::Sum, ops::AddAssign};

use localnet_proto::{ByFamily, Family, Port, Scopes, Service, Verdict};

/// Counts over one Service, or over all Services of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of endpoints.
    pub endpoints: u32,
    /// The number of ports with `internalTrafficPolicy: Local` whose endpoints are all on other nodes.
    pub without_internal: ByFamily<u32>,
    /// The number of ports with `externalTrafficPolicy: Local` whose endpoints are all on other nodes.
    pub without_external: ByFamily<u32>,
}

impl Counts {
    pub(super) fn of(service: &Service) -> Self {
        let endpoints = u32::try_from(service.endpoints.len()).unwrap_or(u32::MAX);
        let mut counts = Self { endpoints, ..Self::default() };
        for family in Family::BOTH {
            for port in &service.ports {
                let (internal, external) = lacks_local(service, port, family);
                counts.without_internal[family] += u32::from(internal);
                counts.without_external[family] += u32::from(external);
            }
        }
        counts
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.endpoints = self.endpoints.saturating_add(other.endpoints);
        for family in Family::BOTH {
            self.without_internal[family] += other.without_internal[family];
            self.without_external[family] += other.without_external[family];
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut sum, counts| {
            sum += counts;
            sum
        })
    }
}

/// For internal and for external traffic: whether the traffic policy Local excludes all endpoints of a port, so that the
/// kernel drops the traffic.
fn lacks_local(service: &Service, port: &Port, family: Family) -> (bool, bool) {
    if !service.has_family(family) {
        return (false, false);
    }
    let serving = |scope: fn(&Scopes) -> bool| service.endpoints_of(port, family, scope).next().is_some();
    let empty = port.when_empty(family);
    (
        service.internal_traffic_to_local && empty.internal == Verdict::Drop && !serving(|scopes| scopes.internal),
        service.external_traffic_to_local && empty.external == Verdict::Drop && !serving(|scopes| scopes.external),
    )
}
