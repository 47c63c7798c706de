//! Replaces names and addresses in a trace or a sysdump. The structure stays: equal names and addresses stay equal, addresses in a common CIDR
//! stay in a common CIDR, and every change stays a change of the same kind. Pure, except for the random key.

mod sysdump;

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use localnet_client::Snapshot;
use localnet_proto::{
    Digest, Endpoint, EndpointPort, Node, Port, Service, ServiceKey, SourceFilter, encode,
    history::{Broken, Change, ChangedObject, Entry, Past, Patch, Step, entry::Event, hunks, records},
};

/// Replaces names and addresses consistently.
#[derive(Debug, Default)]
pub struct Anonymiser {
    /// The replacement of each name, by its kind.
    names: HashMap<(String, String), Arc<str>>,
    /// The number of replacements of each kind.
    counts: HashMap<String, usize>,
    /// The key. Without it, nobody can compute the replacement of an address.
    key: RandomState,
    /// The state with its real names.
    past: Option<Past>,
    /// The digest of the anonymised state.
    digest: Digest,
}

impl Anonymiser {
    /// Replaces a full state. The next changes belong to it.
    pub fn state(&mut self, state: &Snapshot) -> Snapshot {
        self.past = Some(Past::from(state.clone()));
        let services = state.services.values().map(|service| {
            let service = self.service(service);
            (service.key.clone(), Arc::new(service))
        });
        let services = services.collect();
        let state = Snapshot { revision: state.revision, node: self.node(&state.node), services };
        self.digest = Digest::of(&state);
        state
    }

    /// Replaces an entry that is no full state.
    ///
    /// # Errors
    /// Returns an error if a change does not belong to the state.
    pub fn entry(&mut self, mut entry: Entry) -> Result<Entry, Broken> {
        match &mut entry.event {
            Some(Event::Change(change)) => self.change(change)?,
            Some(Event::Progress(progress)) => {
                let failed = progress.families.iter_mut().filter(|family| !family.error.is_empty());
                failed.for_each(|family| REMOVED.clone_into(&mut family.error));
            }
            Some(Event::Problem(problem)) => {
                problem.of = match problem.of.split_once(' ') {
                    Some((kind, name)) => self.object(kind, name),
                    None => std::mem::take(&mut problem.of),
                };
                problem.field.clear();
                if !problem.problem.is_empty() {
                    REMOVED.clone_into(&mut problem.problem);
                }
            }
            Some(Event::Drain(drain)) => {
                if let Some(service) = &mut drain.service {
                    service.name = self.name("Service", &service.name).to_string();
                    service.namespace = self.name("namespace", &service.namespace).to_string();
                }
                drain.port = self.name("port", &drain.port).to_string();
                drain.endpoint = match drain.endpoint.parse::<SocketAddr>() {
                    Ok(at) => SocketAddr::new(self.address(at.ip()), at.port()).to_string(),
                    Err(_) => REMOVED.to_owned(),
                };
            }
            Some(Event::Start(_) | Event::State(_)) | None => {}
        }
        Ok(entry)
    }

    fn change(&mut self, change: &mut Change) -> Result<(), Broken> {
        for ChangedObject { kind, namespace, name, .. } in &mut change.objects {
            *name = self.name(kind, name).to_string();
            *namespace = self.name("namespace", namespace).to_string();
        }
        if change.whole {
            change.digest = 0;
            return Ok(());
        }
        let steps = self.past.as_mut().ok_or(Broken::Whole(change.rev))?.forward(change)?;
        change.patches = steps.into_iter().map(|step| self.patch(step)).collect();
        change.digest = self.digest.0;
        Ok(())
    }

    fn patch(&mut self, step: Step) -> Patch {
        match step {
            Step::Node(pair) => {
                let [before, after] = [&pair.0, &pair.1].map(|node| self.node(node));
                self.digest = self.digest.without(Digest::of_node(&before)).and(Digest::of_node(&after));
                let [before, after] = [before, after].map(|node| records(&[encode::node_bytes(&node)]));
                Patch { hunks: hunks(&before, &after), ..Patch::default() }
            }
            Step::Service(key, before, after) => {
                let [before, after] = [before, after].map(|service| service.map(|service| self.service(&service)));
                let digest = |service: &Option<Service>| service.as_ref().map_or(Digest(0), Digest::of_service);
                self.digest = self.digest.without(digest(&before)).and(digest(&after));
                let [before, after] = [before, after].map(|service| {
                    service.map(|service| records(&encode::service_bytes(&service))).unwrap_or_default()
                });
                let ServiceKey { namespace, name } = self.key_of(&key);
                Patch { namespace: namespace.to_string(), name: name.to_string(), hunks: hunks(&before, &after) }
            }
        }
    }

    fn node(&mut self, node: &Node) -> Node {
        Node {
            name: self.name("node", &node.name).to_string(),
            addresses: node.addresses.iter().map(|address| self.address(*address)).collect(),
            zone: self.name("zone", &node.zone).to_string(),
            pod_cidrs: node.pod_cidrs.iter().map(|net| self.net(*net)).collect(),
            service_cidrs: node.service_cidrs.iter().map(|net| self.net(*net)).collect(),
            settings: None,
        }
    }

    fn service(&mut self, service: &Service) -> Service {
        let filters = service.source_filters.iter().map(|filter| SourceFilter {
            targets: self.addresses(&filter.targets),
            source_ranges: filter.source_ranges.iter().map(|net| self.net(*net)).collect(),
        });
        let source_filters = filters.collect();
        let ports = service.ports.iter().map(|port| Port { name: self.name("port", &port.name), ..*port });
        let mut ports: Vec<Port> = ports.collect();
        ports.sort_by(|one, other| one.name.cmp(&other.name));
        let mut endpoints: Vec<Endpoint> = service.endpoints.iter().map(|endpoint| self.endpoint(endpoint)).collect();
        endpoints.sort_unstable();
        Service {
            key: self.key_of(&service.key),
            cluster_ips: self.addresses(&service.cluster_ips),
            external_ips: self.addresses(&service.external_ips),
            load_balancer_ips: self.addresses(&service.load_balancer_ips),
            source_filters,
            ports,
            endpoints,
            ..service.without_endpoints()
        }
    }

    fn endpoint(&mut self, endpoint: &Endpoint) -> Endpoint {
        let ports = endpoint.ports.iter().map(|port| EndpointPort { name: self.name("port", &port.name), ..*port });
        let mut ports: Vec<EndpointPort> = ports.collect();
        ports.sort_unstable();
        let hostname = endpoint.hostname.as_ref().map(|hostname| self.name("host", hostname));
        Endpoint { address: self.address(endpoint.address), ports, hostname, ..*endpoint }
    }

    fn key_of(&mut self, key: &ServiceKey) -> ServiceKey {
        ServiceKey::new(self.name("namespace", &key.namespace), self.name("service", &key.name))
    }

    /// Replaces the name of an object, as problems contain it.
    fn object(&mut self, kind: &str, name: &str) -> String {
        match name.split_once('/') {
            Some((namespace, name)) => {
                let (namespace, name) = (self.name("namespace", namespace), self.name(kind, name));
                format!("{kind} {namespace}/{name}")
            }
            None => format!("{kind} {}", self.name(kind, name)),
        }
    }

    /// The replacement of a name, such as `service-3`. An empty name stays empty.
    fn name(&mut self, kind: &str, name: &str) -> Arc<str> {
        if name.is_empty() {
            return name.into();
        }
        let kind = kind.to_ascii_lowercase();
        let count = self.counts.entry(kind.clone()).or_default();
        let known = self.names.entry((kind, name.to_owned()));
        let new = |(kind, _): &(String, String)| {
            *count += 1;
            format!("{kind}-{count}").into()
        };
        Arc::clone(known.or_insert_with_key(new))
    }

    fn addresses(&self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = addresses.iter().map(|address| self.address(*address)).collect();
        addresses.sort_unstable();
        addresses
    }

    fn net(&self, net: IpNet) -> IpNet {
        IpNet::new(self.address(net.network()), net.prefix_len()).map_or(net, |net| net.trunc())
    }

    /// Replaces an address. Addresses with a common prefix get replacements with a common prefix of this length. The first 8 bits
    /// of an IPv4 address and the first 16 bits of an IPv6 address stay, so that special addresses stay special.
    fn address(&self, address: IpAddr) -> IpAddr {
        match address {
            _ if address.is_loopback() || address.is_unspecified() => address,
            IpAddr::V4(v4) => {
                // 169.254.0.0/16 contains link-local addresses.
                let kept = if v4.octets()[0] == 169 { 16 } else { 8 };
                let bits = self.bits(u128::from(v4.to_bits()) << 96, kept, 32) >> 96;
                u32::try_from(bits).map_or(address, |bits| Ipv4Addr::from_bits(bits).into())
            }
            IpAddr::V6(v6) => Ipv6Addr::from_bits(self.bits(v6.to_bits(), 16, 128)).into(),
        }
    }

    /// Flips bits from `kept` to `end`. Whether a bit is flipped depends on all bits before it.
    fn bits(&self, bits: u128, kept: u32, end: u32) -> u128 {
        (kept..end).fold(bits, |result, bit| {
            let before = bits >> (128 - bit);
            let flip = u128::from(self.key.hash_one((end, bit, before)) & 1);
            result ^ (flip << (127 - bit))
        })
    }
}

/// Replaces texts.
const REMOVED: &str = "removed";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use localnet_proto::{
        Affinity, Revision, Scopes,
        history::{EndpointDrain, FullState, Replay},
        sysdump::Sysdump,
        wire::{
            self, BackendReport, BackendWarning, BrainStatus, FamilyReport, Finding, ReceivedReport, ServiceReasons,
        },
    };
    use proptest::prelude::*;

    use super::*;

    /// For each Service: its name, and the last bytes of its endpoints' addresses.
    type Services = Vec<(u8, Vec<u8>)>;

    fn state(rev: u64, services: &Services, pods: u8) -> Snapshot {
        let services = services.iter().map(|(name, hosts)| {
            let key = ServiceKey::new(format!("secret-ns{}", name % 3), format!("secret-{name}"));
            let endpoint = |host: &u8| Endpoint {
                address: match host % 5 {
                    0 => Ipv6Addr::new(0xfd00, 0x10, 0, 0, 0, 0, 0, u16::from(*host)).into(),
                    half => [10, 244, half, *host].into(),
                },
                ports: vec![EndpointPort { name: "secret-port".into(), port: 8000 + u16::from(*host) }],
                local: host.is_multiple_of(2),
                hostname: (host.is_multiple_of(3)).then(|| format!("secret-host{host}").into()),
                scopes: Scopes { internal: true, external: host.is_multiple_of(2), ..Scopes::default() },
                weight: None,
            };
            let port = Port { name: "secret-port".into(), port: 80, node_port: Some(30_000), ..Port::default() };
            let filter = SourceFilter {
                targets: vec![[192, 0, 2, *name].into()],
                source_ranges: vec!["10.244.0.0/16".parse().unwrap()],
            };
            let mut endpoints: Vec<Endpoint> =
                hosts.iter().collect::<BTreeSet<_>>().into_iter().map(endpoint).collect();
            endpoints.sort_unstable();
            let service = Service {
                ports: vec![port],
                external_ips: vec![[192, 0, 2, *name].into()],
                source_filters: vec![filter],
                client_ip_affinity: Some(Affinity { seconds: 60 }),
                endpoints,
                ..Service::new(key.clone(), vec![[10, 96, 0, *name].into()])
            };
            (key, Arc::new(service))
        });
        let node = Node {
            name: "secret-node".to_owned(),
            addresses: vec![[192, 168, 7, 7].into()],
            zone: "secret-zone".to_owned(),
            pod_cidrs: vec![IpNet::new([10, 244, pods, 0].into(), 24).unwrap()],
            service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
            settings: None,
        };
        Snapshot { revision: Revision { instance: 7, rev }, node, services: services.collect() }
    }

    fn change(before: &Snapshot, after: &Snapshot) -> Entry {
        let content = |service: Option<&Arc<Service>>| {
            service.map(|service| records(&encode::service_bytes(service))).unwrap_or_default()
        };
        let keys: BTreeSet<_> = before.services.keys().chain(after.services.keys()).collect();
        let services = keys.into_iter().map(|key| Patch {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            hunks: hunks(&content(before.services.get(key)), &content(after.services.get(key))),
        });
        let [old, new] = [before, after].map(|state| records(&[encode::node_bytes(&state.node)]));
        let node = Patch { hunks: hunks(&old, &new), ..Patch::default() };
        let object = ChangedObject {
            kind: "Service".to_owned(),
            namespace: "secret-ns0".to_owned(),
            name: "secret-0".to_owned(),
            resource_version: 7,
            deleted: false,
        };
        let patches = services.chain([node]).filter(|patch| !patch.hunks.is_empty());
        let change = Change {
            rev: after.revision.rev,
            digest: Digest::of(after).0,
            objects: vec![object],
            patches: patches.collect(),
            ..Change::default()
        };
        Entry { time_millis: after.revision.rev, event: Some(Event::Change(change)) }
    }

    /// What stays of a state, whatever the names and addresses are: for each Service and for each pair of an endpoint and another
    /// endpoint or CIDR, whether they belong together.
    fn structure(state: &Snapshot) -> impl PartialEq + std::fmt::Debug + use<> {
        let nets: Vec<IpNet> = state.node.pod_cidrs.iter().chain(&state.node.service_cidrs).copied().collect();
        let mut services: Vec<String> = state
            .services
            .values()
            .map(|service| {
                let mut endpoints: Vec<String> = service
                    .endpoints
                    .iter()
                    .map(|of| {
                        let within: Vec<bool> = nets.iter().map(|net| net.contains(&of.address)).collect();
                        let filters = service.source_filters.iter().flat_map(|filter| &filter.source_ranges);
                        let admitted = filters.filter(|net| net.contains(&of.address)).count();
                        let users = state.services.values().flat_map(|service| &service.endpoints);
                        let users = users.filter(|other| other.address == of.address).count();
                        let ports: Vec<u16> = of.ports.iter().map(|port| port.port).collect();
                        let hostname = of.hostname.is_some();
                        format!("{within:?} {admitted} {users} {ports:?} {} {hostname} {:?}", of.local, of.scopes)
                    })
                    .collect();
                endpoints.sort_unstable();
                let ports: Vec<_> =
                    service.ports.iter().map(|port| (port.port, port.node_port, port.protocol)).collect();
                let neighbours = state.services.keys().filter(|other| other.namespace == service.key.namespace).count();
                let within: Vec<bool> = nets.iter().map(|net| net.contains(&service.cluster_ips[0])).collect();
                format!("{neighbours} {ports:?} {within:?} {:?} {endpoints:?}", service.client_ip_affinity)
            })
            .collect();
        services.sort_unstable();
        services
    }

    proptest! {
        #[test]
        fn the_structure_stays_and_the_names_go(
            steps in proptest::collection::vec(
                (proptest::collection::vec((0..6_u8, proptest::collection::vec(0..40_u8, 0..6)), 0..4), 0..3_u8), 1..6),
        ) {
            let states: Vec<Snapshot> =
                steps.iter().zip(1..).map(|((services, pods), rev)| state(rev, services, *pods)).collect();
            let (mut anonymiser, mut replay) = (Anonymiser::default(), Replay::default());
            let first = anonymiser.state(&states[0]);
            let part = FullState { items: encode::state_items(&first), digest: Digest::of(&first).0, continues: false };
            let mut trace = vec![Entry { time_millis: 1, event: Some(Event::State(part)) }];
            for pair in states.windows(2) {
                trace.push(anonymiser.entry(change(&pair[0], &pair[1])).unwrap());
            }
            for (entry, real) in trace.iter().zip(&states) {
                replay.take(entry).unwrap();
                let shown = replay.past().unwrap();
                prop_assert_eq!(shown.state.revision, real.revision);
                prop_assert_eq!(structure(&shown.state), structure(real));
                let text = format!("{entry:?} {:?}", shown.state);
                prop_assert!(!text.contains("secret"), "{}", text);
            }
        }
    }

    #[test]
    fn a_sysdump_keeps_its_structure_and_history() {
        let states = [(vec![(0, vec![1, 2])], 1), (vec![(0, vec![2, 3]), (1, vec![4])], 1), (vec![(1, vec![4, 6])], 2)];
        let states: Vec<Snapshot> =
            states.iter().zip(1..).map(|((services, pods), rev)| state(rev, services, *pods)).collect();
        let text = || "secret-text".to_owned();
        let family =
            FamilyReport { error: text(), applied_digest: Digest::of(&states[2]).0, ..FamilyReport::default() };
        let report = BackendReport {
            backend: "nft".to_owned(),
            families: vec![family],
            warnings: vec![BackendWarning { note: text(), ..BackendWarning::default() }],
            ..BackendReport::default()
        };
        let mut content = Sysdump {
            // The first change does not lead to the recorded states.
            history: vec![
                change(&states[1], &states[2]),
                change(&states[0], &states[1]),
                change(&states[1], &states[2]),
            ],
            status: Some(BrainStatus {
                digest: Digest::of(&states[2]).0,
                backends: vec![ReceivedReport { report: Some(report), age_millis: 1 }],
                ..BrainStatus::default()
            }),
            reasons: vec![ServiceReasons {
                findings: vec![Finding { problem: text(), ..Finding::default() }],
                ..ServiceReasons::default()
            }],
            ..Sysdump::default()
        };
        content.set_state(&states[2]);
        let anonymous = Anonymiser::default().sysdump(&content).unwrap();
        let shown = format!("{anonymous:?}");
        assert!(!shown.contains("secret"), "{shown}");
        let mut past = Past::from(anonymous.state().unwrap());
        let status = anonymous.status.unwrap();
        let applied = status.backends[0].report.as_ref().unwrap().families[0].applied_digest;
        assert_eq!([status.digest, applied], [past.digest.0; 2]);
        assert_eq!(anonymous.history.len(), 2);
        for (entry, real) in anonymous.history.iter().zip(&states[..2]).rev() {
            let Some(Event::Change(change)) = &entry.event else { panic!("{entry:?}") };
            past.back(change).unwrap();
            assert_eq!(structure(&past.state), structure(real));
        }
    }

    #[test]
    fn addresses_keep_their_prefixes_and_classes() {
        let anonymiser = Anonymiser::default();
        let of = |text: &str| anonymiser.address(text.parse().unwrap());
        for same in ["127.0.0.1", "::1", "0.0.0.0", "::"] {
            assert_eq!(of(same), same.parse::<IpAddr>().unwrap());
        }
        let net = anonymiser.net("10.244.3.0/24".parse().unwrap());
        assert!(
            net.contains(&of("10.244.3.9")) && !net.contains(&of("10.244.2.9")) && net.to_string().starts_with("10.")
        );
        assert!(of("169.254.1.1").to_string().starts_with("169.254."));
        assert!(of("fe80::1").to_string().starts_with("fe80:"));
        let several: BTreeSet<IpAddr> = (0..=255).map(|last| of(&format!("10.0.0.{last}"))).collect();
        assert_eq!(several.len(), 256);
    }

    #[test]
    fn the_names_in_a_drain_go() {
        let mut anonymiser = Anonymiser::default();
        let service = Some(wire::ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() });
        let (port, endpoint) = ("http".to_owned(), "10.1.2.3:8080".to_owned());
        let drain = EndpointDrain { service, port, protocol: 1, endpoint, open: 2, closed: 0 };
        let entry = Entry { time_millis: 1, event: Some(Event::Drain(drain)) };
        let text = format!("{:?}", anonymiser.entry(entry).unwrap());
        assert!(["shop", "web", "http", "10.1.2.3"].iter().all(|name| !text.contains(name)), "{text}");
        assert!(text.contains(":8080") && text.contains("open: 2"), "{text}");
        let of_state = anonymiser.key_of(&ServiceKey::new("shop", "web"));
        assert!(text.contains(&format!("name: {:?}", &*of_state.name)), "{text} names the Service as {of_state}");
    }
}
