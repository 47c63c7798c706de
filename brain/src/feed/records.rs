//! The records of `localnet.v1` of one Service: what readers of that package get of it.
//!
//! Each record has the revision of its last change, so a reader gets only the records that are newer than its state. For readers
//! that lag behind, the keys of removed endpoints are kept, at most as many as the Service has endpoints: to list more would be
//! no cheaper than to send the Service again.

use std::sync::Arc;

use localnet_proto::{
    Digest,
    v1::{EndpointKey, encode},
};

/// At least this many removed endpoints of a Service are remembered.
const FEWEST_REMOVED: usize = 16;

/// The records of a Service and its endpoints.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Records {
    /// A reader of a state before this revision has to discard what it has of the Service. 0: no reader has to.
    pub(super) floor: u64,
    /// The revision in which `head` last changed.
    pub(super) head_rev: u64,
    /// The Service without its endpoints.
    pub(super) head: encode::Head,
    /// The sum of the digests of all records.
    pub(super) sum: Digest,
    /// The endpoints, sorted by key.
    pub(super) endpoints: Box<[Arc<EndpointRecord>]>,
    /// The removed endpoints, oldest first, with the revision in which each was removed. No endpoint with these keys exists.
    pub(super) removed: Vec<(u64, EndpointKey)>,
}

/// The record of an endpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EndpointRecord {
    /// The revision of the last change.
    pub(super) rev: u64,
    pub(super) of: encode::Tail,
}

impl Records {
    /// The records of a Service that is new in revision `rev`.
    pub(super) fn new(rev: u64, floor: u64, head: encode::Head, tails: impl Iterator<Item = encode::Tail>) -> Self {
        let endpoints = tails.map(|of| Arc::new(EndpointRecord { rev, of }));
        Self::of(floor, rev, head, endpoints.collect(), Vec::new())
    }

    /// The records after a change of the Service in revision `rev`. If nothing has changed, they are equal to these.
    pub(super) fn changed(&self, rev: u64, head: encode::Head, tails: impl Iterator<Item = encode::Tail>) -> Self {
        let head_rev = if head == self.head { self.head_rev } else { rev };
        // A reader that lacks a capability has another record of the Service, and no endpoints.
        let mut floor = if head.requires == self.head.requires { self.floor } else { rev };
        let mut gone = Vec::new();
        let mut before = self.endpoints.iter().peekable();
        let endpoints: Vec<_> = tails
            .map(|of| {
                while let Some(older) = before.next_if(|older| older.of.key < of.key) {
                    gone.push((rev, older.of.key));
                }
                match before.next_if(|older| older.of.key == of.key) {
                    Some(same) if same.of == of => Arc::clone(same),
                    _ => Arc::new(EndpointRecord { rev, of }),
                }
            })
            .collect();
        gone.extend(before.map(|older| (rev, older.of.key)));
        let again = |key: &EndpointKey| endpoints.binary_search_by_key(key, |endpoint| endpoint.of.key).is_ok();
        let mut removed: Vec<_> = self.removed.iter().filter(|(_, key)| !again(key)).copied().chain(gone).collect();
        let excess = removed.len().saturating_sub(endpoints.len().max(FEWEST_REMOVED));
        if let Some((forgotten, _)) = removed.drain(..excess).next_back() {
            floor = floor.max(forgotten);
        }
        Self::of(floor, head_rev, head, endpoints.into(), removed)
    }

    fn of(
        floor: u64,
        head_rev: u64,
        head: encode::Head,
        endpoints: Box<[Arc<EndpointRecord>]>,
        removed: Vec<(u64, EndpointKey)>,
    ) -> Self {
        let sum = endpoints.iter().fold(head.record.digest, |sum, endpoint| sum.and(endpoint.of.record.digest));
        Self { floor, head_rev, head, sum, endpoints, removed }
    }
}

#[cfg(test)]
mod tests {
    use localnet_proto::{Endpoint, EndpointPort, Scopes, Service, ServiceKey, SourceFilter};

    use super::*;

    /// A Service with an endpoint for each number; the second number of a pair distinguishes versions.
    fn service(numbers: impl IntoIterator<Item = (u8, u16)>) -> Service {
        let endpoint = |(last, port): (u8, u16)| Endpoint {
            address: [10, 1, 0, last].into(),
            ports: vec![EndpointPort { name: "".into(), port }],
            local: false,
            hostname: None,
            scopes: Scopes::default(),
            weight: None,
        };
        let endpoints = numbers.into_iter().map(endpoint).collect();
        Service { endpoints, ..Service::new(ServiceKey::new("default", "web"), vec![[10, 96, 0, 1].into()]) }
    }

    impl Records {
        fn of_service(rev: u64, floor: u64, service: &Service) -> Self {
            Self::new(rev, floor, encode::head(service), encode::endpoints(service))
        }

        fn changed_to(&self, rev: u64, service: &Service) -> Self {
            self.changed(rev, encode::head(service), encode::endpoints(service))
        }
    }

    /// The last number and the ordinal of each key.
    fn key(key: &EndpointKey) -> (u8, u32) {
        let std::net::IpAddr::V4(address) = key.address else { panic!("the endpoints are IPv4") };
        (address.octets()[3], key.ordinal)
    }

    fn revisions(records: &Records) -> Vec<((u8, u32), u64)> {
        records.endpoints.iter().map(|endpoint| (key(&endpoint.of.key), endpoint.rev)).collect()
    }

    fn removed(records: &Records) -> Vec<(u64, (u8, u32))> {
        records.removed.iter().map(|(rev, of)| (*rev, key(of))).collect()
    }

    #[test]
    fn a_change_gets_its_revision_and_leaves_the_others_alone() {
        let first = Records::of_service(1, 0, &service([(1, 80), (2, 80), (4, 80)]));
        let second = first.changed_to(2, &service([(1, 80), (2, 81), (3, 80)]));
        assert_eq!(revisions(&second), [((1, 0), 1), ((2, 0), 2), ((3, 0), 2)]);
        assert_eq!((removed(&second), second.head_rev, second.floor), (vec![(2, (4, 0))], 1, 0));
        assert!(Arc::ptr_eq(&first.endpoints[0], &second.endpoints[0]));
        let third = second.changed_to(3, &service([(4, 80)]));
        assert_eq!(revisions(&third), [((4, 0), 3)]);
        assert_eq!(removed(&third), [(3, (1, 0)), (3, (2, 0)), (3, (3, 0))], "endpoint 4 is back");
        assert_eq!(
            third.sum,
            Records::of_service(9, 9, &service([(4, 80)])).sum,
            "the digest does not depend on the history"
        );
    }

    #[test]
    fn endpoints_with_the_same_address_have_ordinals() {
        let first = Records::of_service(1, 0, &service([(1, 80), (1, 81), (1, 81)]));
        assert_eq!(revisions(&first), [((1, 0), 1), ((1, 1), 1), ((1, 2), 1)]);
        let second = first.changed_to(2, &service([(1, 81), (1, 81)]));
        assert_eq!(revisions(&second), [((1, 0), 2), ((1, 1), 1)]);
        assert_eq!(removed(&second), [(2, (1, 2))]);
    }

    #[test]
    fn a_forgotten_removal_raises_the_floor() {
        let mut records = Records::of_service(1, 0, &service((0..40).map(|last| (last, 80))));
        for rev in 2..30 {
            records = records.changed_to(rev, &service((rev as u8..40).map(|last| (last, 80))));
        }
        assert_eq!((records.endpoints.len(), records.removed.len()), (11, FEWEST_REMOVED));
        let oldest = records.removed[0].0;
        assert_eq!(records.floor, oldest - 1, "revision {oldest} is the oldest one whose removals are all known");
    }

    #[test]
    fn a_changed_requirement_raises_the_floor() {
        let plain = service([(1, 80)]);
        let filter = SourceFilter { targets: vec![[10, 96, 0, 1].into()], source_ranges: Vec::new() };
        let filtered = Service { source_filters: vec![filter], ..plain.clone() };
        let first = Records::of_service(1, 0, &plain);
        let second = first.changed_to(2, &filtered);
        assert_eq!((second.floor, second.head_rev), (2, 2));
        assert_eq!(second.changed_to(3, &filtered).floor, 2);
        assert_eq!(second.changed_to(3, &plain).floor, 3);
    }
}
