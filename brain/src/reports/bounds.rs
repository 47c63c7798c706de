//! Bounds for the memory of a stored report. An empty entry of a list takes 3 bytes in a message, but 176 bytes in memory. Pure.

use localnet_proto::{
    traffic::TrafficReport,
    wire::{Attempts, BackendReport, IpSet},
};
use prost::Message as _;

/// Maximum size of a stored report, as a message in bytes. The reports of all backends together then fit into one answer of
/// `Reasons.Status`: 12 MiB, of 16 MiB that the client library accepts.
pub(super) const LARGEST: usize = 192 << 10;
/// Maximum number of entries of `Skipped`, as in the client library.
const MOST_SKIPPED: usize = 256;
/// Maximum number of warnings, as in `localnet.v1`.
const MOST_WARNINGS: usize = 64;
/// Maximum number of families. There are two.
const MOST_FAMILIES: usize = 8;
/// Maximum number of tables, each with its number of rules.
const MOST_RULES: usize = 16;
/// The number of buckets of a histogram.
const MOST_BUCKETS: usize = 16;
/// Maximum number of addresses or CIDRs in a setting, as in `localnet.v1`.
const MOST_ADDRESSES: usize = 512;
/// Maximum length of a text, in bytes.
const LONGEST: usize = 2048;
/// Maximum length of an address, a CIDR, or the name of a table or interface, in bytes.
const LONGEST_NAME: usize = 64;

/// Maximum of a counter. The counters of all buckets, families and backends together then fit into a `u64`.
const HIGHEST: u64 = 1 << 48;

/// Maximum number of ports in a report of traffic: the largest value of the flag `--traffic`.
const MOST_PORTS: usize = 10_000;
/// Maximum number of endpoints of all ports together. A report has no room for more, unless it omits their addresses.
const MOST_ENDPOINTS: usize = 200_000;
/// Maximum number of reasons of a port. There are three.
const MOST_REASONS: usize = 8;

/// Cuts off long texts and lists, and limits the counters that metrics add up.
pub(super) fn report(report: &mut BackendReport) {
    name(&mut report.proxy_mode);
    cut(&mut report.families, MOST_FAMILIES);
    for family in &mut report.families {
        text(&mut family.error);
        cut(&mut family.rules, MOST_RULES);
        family.rules.iter_mut().for_each(|of| name(&mut of.table));
        [&mut family.failures, &mut family.partial_failures].into_iter().for_each(limit);
        family.flows.iter_mut().for_each(|flows| limit(&mut flows.ended));
        let searches = family.flows.as_mut().and_then(|flows| flows.took.as_mut());
        for Attempts { counts, .. } in [family.full.as_mut(), family.partial.as_mut(), searches].into_iter().flatten() {
            cut(counts, MOST_BUCKETS);
            counts.iter_mut().for_each(limit);
        }
    }
    if let Some(of) = &mut report.configuration {
        name(&mut of.interface);
        addresses(&mut of.cluster_cid_rs);
        addresses(&mut of.node_port_cid_rs);
        if let Some(IpSet { v4, v6 }) = &mut of.node_port_addresses {
            addresses(v4);
            addresses(v6);
        }
    }
    cut(&mut report.warnings, MOST_WARNINGS);
    for of in &mut report.warnings {
        [&mut of.reason, &mut of.note, &mut of.code, &mut of.problem, &mut of.remedy].into_iter().for_each(text);
    }
    let skipped = report.skipped.len().try_into().unwrap_or(i32::MAX);
    report.skipped_count = report.skipped_count.max(skipped);
    cut(&mut report.skipped, MOST_SKIPPED);
    for of in &mut report.skipped {
        [&mut of.reason, &mut of.code, &mut of.field, &mut of.problem, &mut of.remedy].into_iter().for_each(text);
        if let Some(key) = &mut of.service {
            [&mut key.namespace, &mut key.name].into_iter().for_each(text);
        }
    }
    while report.encoded_len() > LARGEST && (report.skipped.pop().is_some() || report.warnings.pop().is_some()) {}
}

/// Cuts off long lists.
pub(super) fn traffic(report: &mut TrafficReport) {
    cut(&mut report.rest_refused, MOST_REASONS);
    cut(&mut report.ports, MOST_PORTS);
    let mut left = MOST_ENDPOINTS;
    for port in &mut report.ports {
        cut(&mut port.refused, MOST_REASONS);
        cut(&mut port.endpoints, left);
        left -= port.endpoints.len();
    }
}

fn limit(counter: &mut u64) {
    *counter = HIGHEST.min(*counter);
}

fn cut<T>(list: &mut Vec<T>, most: usize) {
    if list.len() > most {
        list.truncate(most);
        list.shrink_to_fit();
    }
}

fn addresses(list: &mut Vec<String>) {
    cut(list, MOST_ADDRESSES);
    list.iter_mut().for_each(name);
}

fn name(name: &mut String) {
    shorten(name, LONGEST_NAME);
}

fn text(text: &mut String) {
    shorten(text, LONGEST);
}

fn shorten(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        text.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use localnet_proto::{
        traffic::{EndpointTraffic, PortTraffic, Refusals},
        wire::{BackendConfiguration, BackendWarning, FamilyReport, FlowSearches, RuleCount, SkippedService},
    };

    use super::*;

    #[test]
    fn a_report_of_many_empty_entries_takes_little_memory() {
        let mut bounded = BackendReport {
            skipped: vec![SkippedService::default(); 300_000],
            warnings: vec![BackendWarning::default(); 300_000],
            skipped_count: 7,
            ..BackendReport::default()
        };
        report(&mut bounded);
        assert_eq!((bounded.skipped.capacity(), bounded.warnings.capacity()), (MOST_SKIPPED, MOST_WARNINGS));
        assert_eq!(bounded.skipped_count, 300_000);

        let port = PortTraffic { refused: vec![Refusals::default(); 9], ..PortTraffic::default() };
        let mut bounded = TrafficReport { ports: vec![port; MOST_PORTS + 1], ..TrafficReport::default() };
        bounded.ports[1].endpoints = vec![EndpointTraffic::default(); MOST_ENDPOINTS + 1];
        bounded.ports[2].endpoints = vec![EndpointTraffic::default()];
        traffic(&mut bounded);
        assert_eq!((bounded.ports.capacity(), bounded.ports[0].refused.capacity()), (MOST_PORTS, MOST_REASONS));
        assert_eq!([1, 2].map(|port: usize| bounded.ports[port].endpoints.capacity()), [MOST_ENDPOINTS, 0]);
    }

    /// Regression: the sum overflowed, so that a brain with overflow checks crashed.
    #[test]
    fn the_counters_of_all_backends_can_be_added() {
        let attempts = || Some(Attempts { counts: vec![u64::MAX; MOST_BUCKETS], ..Attempts::default() });
        let flows = Some(FlowSearches { took: attempts(), ended: u64::MAX });
        let family = FamilyReport {
            full: attempts(),
            partial: attempts(),
            failures: u64::MAX,
            flows,
            ..FamilyReport::default()
        };
        let mut bounded = BackendReport { families: vec![family; MOST_FAMILIES], ..BackendReport::default() };
        report(&mut bounded);
        let attempts = |of: &Option<Attempts>| of.iter().flat_map(|of| &of.counts).sum::<u64>();
        let sum: u64 = bounded
            .families
            .iter()
            .map(|family| {
                let flows = family.flows.as_ref().unwrap();
                let attempts = attempts(&family.full) + attempts(&family.partial) + attempts(&flows.took);
                attempts + family.failures + family.partial_failures + flows.ended
            })
            .sum();
        assert!(sum.checked_mul(super::super::MAX_BACKENDS as u64).is_some());
    }

    #[test]
    fn a_report_of_long_texts_is_cut_off() {
        let long = || "é".repeat(LARGEST);
        let skipped = SkippedService { reason: long(), remedy: long(), ..SkippedService::default() };
        let attempts = || Some(Attempts { counts: vec![u64::MAX; 100], ..Attempts::default() });
        let family = FamilyReport {
            error: long(),
            full: attempts(),
            partial: attempts(),
            flows: Some(FlowSearches { took: attempts(), ended: 0 }),
            rules: vec![RuleCount { table: long(), total: u64::MAX, last: u64::MAX }; 100],
            ..FamilyReport::default()
        };
        let addresses = || vec!["x".repeat(100); MOST_ADDRESSES + 1];
        let settings = BackendConfiguration {
            cluster_cid_rs: addresses(),
            node_port_cid_rs: addresses(),
            node_port_addresses: Some(IpSet { v4: addresses(), v6: addresses() }),
            interface: long(),
            ..BackendConfiguration::default()
        };
        let warning = BackendWarning { note: long(), ..BackendWarning::default() };
        let mut bounded = BackendReport {
            families: vec![family; 9],
            skipped: vec![skipped; 2],
            warnings: vec![warning; 2],
            configuration: Some(settings),
            proxy_mode: long(),
            ..BackendReport::default()
        };
        report(&mut bounded);
        assert!(bounded.encoded_len() <= LARGEST, "{} bytes", bounded.encoded_len());
        let [one, _] = &bounded.skipped[..] else { panic!("both fit") };
        assert_eq!(one.reason, "é".repeat(LONGEST / 2));
        bounded.skipped = vec![one.clone(); MOST_SKIPPED];
        report(&mut bounded);
        assert!((1..MOST_SKIPPED).contains(&bounded.skipped.len()) && bounded.encoded_len() <= LARGEST);
    }
}
