//! The difference between a plan and what HNS holds, and the owners of HNS's objects. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::{
    hcn::{
        Guid,
        schema::{Endpoint, LoadBalancer},
    },
    inventory::Inventory,
    plan::{
        Frontend, Plan, Planned,
        remote::{self, Host},
    },
};

/// What we know about HNS's objects beyond their documents.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Load balancers that we wrote: each document as we wrote it, and as HNS returned it then. HNS may express the same
    /// settings differently.
    written: BTreeMap<Guid, (LoadBalancer, LoadBalancer)>,
    /// Load balancers that we own because they serve a planned frontend, whichever program created them.
    adopted: BTreeSet<Guid>,
    /// Endpoints that we wrote. HNS may not return all of their values.
    endpoints: BTreeMap<Guid, Endpoint>,
}

impl Memory {
    /// Records the document that we wrote (`wanted`), and the one that HNS then returned (`shown`). Returns whether both
    /// distribute packets to the same ports over the same endpoints. If so, `shown` counts as equal to `wanted` from now on.
    pub fn wrote(&mut self, id: Guid, wanted: &LoadBalancer, shown: &LoadBalancer) -> bool {
        let (wanted, shown) = (normal(wanted), normal(shown));
        let does = does_the_same(&wanted, &shown);
        if does {
            self.written.insert(id, (wanted, shown));
        } else {
            self.written.remove(&id);
        }
        self.adopted.insert(id);
        does
    }

    /// Records an endpoint that was written.
    pub fn wrote_endpoint(&mut self, id: Guid, wanted: &Endpoint) {
        self.endpoints.insert(id, wanted.clone());
    }

    /// Records that we own the load balancers in `kept`, and forgets objects that no longer exist.
    pub fn adopt(&mut self, kept: &BTreeSet<Guid>, inventory: &Inventory) {
        self.adopted.extend(kept);
        self.adopted.retain(|id| inventory.balancers().contains_key(id));
        self.written.retain(|id, _| inventory.balancers().contains_key(id));
        self.endpoints.retain(|id, _| inventory.has_endpoint(*id));
    }

    /// Forgets an object that was deleted.
    pub fn lost(&mut self, id: Guid) {
        self.written.remove(&id);
        self.adopted.remove(&id);
        self.endpoints.remove(&id);
    }

    /// Whether a load balancer in HNS is in the desired state: its document equals the desired document, or equals the document
    /// that HNS returned after the backend wrote the desired one.
    pub fn holds(&self, id: Guid, wanted: &LoadBalancer, shown: &LoadBalancer) -> bool {
        let (wanted, shown) = (normal(wanted), normal(shown));
        // HNS may show a source address that was not written.
        let shown_source = shown.source_vip.filter(|_| wanted.source_vip.is_some());
        wanted == LoadBalancer { source_vip: shown_source, ..shown.clone() }
            || self.written.get(&id).is_some_and(|(wrote, showed)| (wrote, showed) == (&wanted, &shown))
    }

    /// Whether an endpoint in HNS is in the desired state. HNS returns more values than were written, and may omit some.
    pub fn holds_endpoint(&self, id: Guid, wanted: &Endpoint, found: &Endpoint) -> bool {
        let addresses = |endpoint: &Endpoint| endpoint.addresses().collect::<BTreeSet<_>>();
        let wrote_other = self.endpoints.get(&id).is_some_and(|wrote| wrote != wanted);
        let same_provider = found.provider().is_none_or(|provider| wanted.provider() == Some(provider));
        wanted.is_remote() == found.is_remote()
            && addresses(wanted) == addresses(found)
            && (!wanted.is_remote() || (wanted.mac() == found.mac() && same_provider && !wrote_other))
    }
}

/// Returns a document without its identifier and unknown flags, and with sorted lists.
fn normal(balancer: &LoadBalancer) -> LoadBalancer {
    let mut balancer = LoadBalancer { id: None, flags: balancer.flags.without_unknown(), ..balancer.clone() };
    for mapping in &mut balancer.port_mappings {
        mapping.flags = mapping.flags.without_unknown();
    }
    balancer.host_compute_endpoints.sort_unstable();
    balancer.frontend_vips.sort_unstable();
    balancer.port_mappings.sort_unstable();
    balancer
}

/// Whether two normalized documents balance the same ports to the same endpoints, whatever their other values are.
fn does_the_same(wanted: &LoadBalancer, shown: &LoadBalancer) -> bool {
    let ports = |balancer: &LoadBalancer| -> BTreeSet<(u32, u16, u16)> {
        let mappings = balancer.port_mappings.iter();
        mappings.map(|mapping| (mapping.protocol, mapping.external_port, mapping.internal_port)).collect()
    };
    wanted.host_compute_endpoints == shown.host_compute_endpoints
        && wanted.frontend_vips == shown.frontend_vips
        && ports(wanted) == ports(shown)
}

/// The facts that decide who owns an object.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// The ranges of the cluster's ClusterIPs. No other program creates load balancers there.
    pub service_cidrs: &'a [IpNet],
    /// The node's address and interface, for an overlay network.
    pub host: Option<&'a Host>,
}

impl Owner<'_> {
    /// Whether we own a load balancer that is not in the plan: it has one of our identifiers, was adopted, or serves only
    /// ClusterIPs.
    fn owns_balancer(&self, id: Guid, balancer: Option<&LoadBalancer>, memory: &Memory) -> bool {
        let serves_cluster_ips = || {
            let in_cidrs = |ip| self.service_cidrs.iter().any(|cidr| cidr.contains(ip));
            balancer.is_some_and(|one| !one.frontend_vips.is_empty() && one.frontend_vips.iter().all(in_cidrs))
        };
        id.is_ours() || memory.adopted.contains(&id) || serves_cluster_ips()
    }

    /// We own an endpoint if it has one of our identifiers or was created by kube-proxy.
    pub fn owns_endpoint(&self, id: Guid, endpoint: &Endpoint) -> bool {
        id.is_ours() || remote::is_kube_proxys(endpoint, self.host)
    }
}

/// The changes to HNS, in the order in which they are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Load balancers to delete, including those that prevent the replacement of an endpoint.
    pub delete_balancers: BTreeSet<Guid>,
    /// Endpoints to delete and create again.
    pub replace_endpoints: BTreeSet<Guid>,
    /// Planned endpoints that HNS does not have, by their identifiers.
    pub create_endpoints: BTreeMap<Guid, Endpoint>,
    /// Load balancers to create or change.
    pub balancers: Vec<Write>,
    /// Endpoints to delete, because nothing uses them.
    pub delete_endpoints: BTreeSet<Guid>,
    /// Planned frontends that belong to another program's load balancer. Because that load balancer also has other frontends,
    /// the planned frontends cannot be programmed.
    pub blocked: Vec<(Frontend, Guid)>,
    /// Load balancers that serve planned frontends, or will after these changes.
    pub kept: BTreeSet<Guid>,
}

/// A load balancer to create or change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The frontend that packets are sent to.
    pub frontend: Frontend,
    /// The planned load balancer.
    pub planned: Planned,
    /// The load balancer that has the frontend now, if any.
    pub instead_of: Option<Guid>,
}

impl Diff {
    /// Whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        let Self { delete_balancers, replace_endpoints, create_endpoints, balancers, delete_endpoints, .. } = self;
        delete_balancers.is_empty()
            && replace_endpoints.is_empty()
            && create_endpoints.is_empty()
            && balancers.is_empty()
            && delete_endpoints.is_empty()
    }
}

/// Computes the changes that turn HNS's objects into the plan.
pub fn diff(plan: &Plan, inventory: &Inventory, memory: &Memory, owner: &Owner<'_>) -> Diff {
    let mut diff = Diff::default();
    for (id, wanted) in &plan.endpoints {
        if inventory.endpoint(*id).is_some_and(|found| memory.holds_endpoint(*id, wanted, found)) {
            continue;
        }
        // An endpoint whose document cannot be parsed must also be replaced.
        if inventory.has_endpoint(*id) {
            diff.replace_endpoints.insert(*id);
        }
        diff.create_endpoints.insert(*id, wanted.clone());
    }

    // The load balancers of each frontend.
    let mut holders: BTreeMap<Frontend, Vec<Guid>> = BTreeMap::new();
    let mut kept: BTreeSet<Guid> = BTreeSet::new();
    for (id, balancer) in inventory.balancers() {
        let frontends = balancer.as_ref().map(Frontend::all_of).unwrap_or_default();
        let several = frontends.len() > 1;
        for frontend in frontends {
            if several && !id.is_ours() && plan.balancers.contains_key(&frontend) {
                diff.blocked.push((frontend, *id));
            }
            // Skip a load balancer of ours that was given another frontend: it occupies the identifier of its original frontend.
            if !id.is_ours() || frontend.id() == *id {
                holders.entry(frontend).or_default().push(*id);
            }
        }
    }
    let blocked: BTreeSet<Frontend> = diff.blocked.iter().map(|(frontend, _)| *frontend).collect();
    for (frontend, planned) in plan.balancers.iter().filter(|(frontend, _)| !blocked.contains(*frontend)) {
        let there = holders.get(frontend).map(Vec::as_slice).unwrap_or_default();
        let is_right = |id: &&Guid| {
            let shown = inventory.balancers().get(*id).and_then(Option::as_ref);
            shown.is_some_and(|shown| memory.holds(**id, &planned.document, shown))
        };
        let pinned = planned.document.host_compute_endpoints.iter().any(|id| diff.replace_endpoints.contains(id));
        let right = there.iter().find(is_right).filter(|_| !pinned);
        if let Some(right) = right {
            kept.insert(*right);
            continue;
        }
        let first = there.first().copied();
        kept.extend(first);
        diff.balancers.push(Write { frontend: *frontend, planned: planned.clone(), instead_of: first });
    }

    for (id, balancer) in inventory.balancers() {
        let shown = balancer.as_ref();
        let pinned =
            shown.is_some_and(|one| one.host_compute_endpoints.iter().any(|id| diff.replace_endpoints.contains(id)));
        let frontends = shown.map(Frontend::all_of).unwrap_or_default();
        // Whether this is a duplicate of a load balancer that is kept. Two backends that run at the same time may leave
        // duplicates.
        let surplus = !kept.contains(id) && frontends.len() == 1 && plan.balancers.contains_key(&frontends[0]);
        let unwanted = !kept.contains(id) && owner.owns_balancer(*id, shown, memory);
        if (pinned && kept.contains(id)) || unwanted || surplus {
            diff.delete_balancers.insert(*id);
        }
    }
    for write in &mut diff.balancers {
        write.instead_of = write.instead_of.filter(|id| !diff.delete_balancers.contains(id));
    }

    let named: BTreeSet<Guid> = inventory
        .balancers()
        .iter()
        .filter(|(id, _)| !diff.delete_balancers.contains(id) && !kept.contains(id))
        .flat_map(|(_, balancer)| balancer.iter().flat_map(|one| one.host_compute_endpoints.iter().copied()))
        .collect();
    for (id, endpoint) in inventory.endpoints() {
        let needed = plan.used.contains(&id) || plan.endpoints.contains_key(&id) || named.contains(&id);
        if !needed && owner.owns_endpoint(id, endpoint) {
            diff.delete_endpoints.insert(id);
        }
    }
    kept.retain(|id| !diff.delete_balancers.contains(id));
    diff.kept = kept;
    diff
}

#[cfg(test)]
mod tests {
    use localnet_proto::{Protocol, ServiceKey};

    use super::*;
    use crate::{
        hcn::{
            Kind,
            schema::{Distribution, PortMapping},
        },
        plan::Address,
        testing::FakeHcn,
    };

    const NOBODY: Owner<'_> = Owner { service_cidrs: &[], host: None };

    fn frontend(last: u8) -> Frontend {
        Frontend { address: Address::Vip([172, 30, 0, last].into()), protocol: Protocol::Tcp, port: 80 }
    }

    fn document(last: u8, endpoints: &[Guid]) -> LoadBalancer {
        LoadBalancer {
            host_compute_endpoints: endpoints.to_vec(),
            frontend_vips: vec![[172, 30, 0, last].into()],
            port_mappings: vec![PortMapping {
                protocol: 6,
                internal_port: 8080,
                external_port: 80,
                ..PortMapping::default()
            }],
            ..LoadBalancer::default()
        }
    }

    fn planned(document: LoadBalancer) -> Planned {
        Planned { service: ServiceKey::new("ns", "a"), document }
    }

    /// Returns an HNS with one pod and these load balancers.
    fn inventory(balancers: &[(Guid, LoadBalancer)]) -> (Inventory, Guid) {
        let mut fake = FakeHcn::with_network("cbr0", "L2Bridge", &[], &["10.0.0.1"]);
        let pod = fake.documents(Kind::Endpoint).next().unwrap().0;
        for (id, balancer) in balancers {
            fake.objects.insert((Kind::LoadBalancer, *id), serde_json::to_value(balancer).unwrap());
        }
        let mut inventory = Inventory::default();
        inventory.refresh(&mut fake, None, None).unwrap();
        (inventory, pod)
    }

    #[test]
    fn a_load_balancer_that_fits_the_plan_is_kept_even_if_foreign() {
        let (first, pod) = inventory(&[]);
        assert!(first.balancers().is_empty());
        for id in [frontend(1).id(), Guid::new(77)] {
            let (inventory, _) = inventory(&[(id, document(1, &[pod]))]);
            let plan = Plan { balancers: [(frontend(1), planned(document(1, &[pod])))].into(), ..Plan::default() };
            let changes = diff(&plan, &inventory, &Memory::default(), &NOBODY);
            assert!(changes.is_empty() && changes.kept == [id].into(), "{id}");
            let mut memory = Memory::default();
            memory.adopt(&changes.kept, &inventory);
            let gone = diff(&Plan::default(), &inventory, &memory, &NOBODY).delete_balancers;
            assert_eq!(gone, [id].into(), "an adopted load balancer is deleted when it is no longer planned");
            let other = Plan {
                balancers: [(frontend(1), planned(document(1, &[pod, Guid::new(9)])))].into(),
                ..Plan::default()
            };
            let changes = diff(&other, &inventory, &Memory::default(), &NOBODY);
            assert_eq!((changes.balancers[0].instead_of, changes.delete_balancers.len()), (Some(id), 0));
        }
    }

    #[test]
    fn unplanned_objects_are_deleted_only_if_they_are_ours() {
        let (_, pod) = inventory(&[]);
        let foreign = Guid::new(77);
        let (inventory, _) = inventory(&[(frontend(1).id(), document(1, &[pod])), (foreign, document(2, &[pod]))]);
        let gone =
            |memory: &Memory, owner: &Owner<'_>| diff(&Plan::default(), &inventory, memory, owner).delete_balancers;
        assert_eq!(gone(&Memory::default(), &NOBODY), [frontend(1).id()].into());
        let service_cidrs = ["172.30.0.0/16".parse().unwrap()];
        let of_cluster = Owner { service_cidrs: &service_cidrs, host: None };
        assert_eq!(gone(&Memory::default(), &of_cluster).len(), 2, "only proxies have load balancers at ClusterIPs");
        let mut memory = Memory::default();
        memory.wrote(foreign, &document(2, &[pod]), &document(2, &[pod]));
        assert_eq!(gone(&memory, &NOBODY).len(), 2, "adopted load balancers are ours");
        memory.lost(foreign);
        assert_eq!(gone(&memory, &NOBODY).len(), 1);
    }

    #[test]
    fn a_normalized_document_is_no_difference() {
        let (_, pod) = inventory(&[]);
        let mut shown = document(1, &[pod]);
        // Unknown flags and an address that was not written are no difference.
        shown.port_mappings[0].flags.0 = 1 << 20;
        shown.flags.0 = 1 << 20;
        shown.source_vip = Some([10, 0, 0, 9].into());
        assert!(Memory::default().holds(frontend(1).id(), &document(1, &[pod]), &shown));
        shown.port_mappings[0].distribution_type = Distribution::SOURCE_IP;
        let (inventory, _) = inventory(&[(frontend(1).id(), shown.clone())]);
        let plan = Plan { balancers: [(frontend(1), planned(document(1, &[pod])))].into(), ..Plan::default() };
        let mut memory = Memory::default();
        assert_eq!(diff(&plan, &inventory, &memory, &NOBODY).balancers.len(), 1);
        assert!(memory.wrote(frontend(1).id(), &document(1, &[pod]), &shown));
        assert!(diff(&plan, &inventory, &memory, &NOBODY).is_empty());
        assert!(memory.wrote(frontend(1).id(), &document(1, &[pod]), &document(1, &[pod])));
        assert_eq!(diff(&plan, &inventory, &memory, &NOBODY).balancers.len(), 1, "another program changed it since");
    }

    #[test]
    fn hns_may_omit_the_location_of_a_remote_endpoint() {
        let remote = |provider: Option<[u8; 4]>| {
            let address = [10, 0, 1, 1].into();
            Endpoint::remote(Guid::new(1), address, remote::mac(address), provider.map(Into::into))
        };
        let (id, wanted) = (Guid::new(9), remote(Some([192, 168, 0, 3])));
        let mut memory = Memory::default();
        for (found, expected) in [
            (wanted.clone(), true),
            (remote(None), true),
            (remote(Some([192, 168, 0, 4])), false),
            (Endpoint { flags: 0, ..wanted.clone() }, false),
            (Endpoint { mac_address: "02-11-00-00-00-00".to_owned(), ..wanted.clone() }, false),
        ] {
            assert_eq!(memory.holds_endpoint(id, &wanted, &found), expected, "{found:?}");
        }
        memory.wrote_endpoint(id, &remote(Some([192, 168, 0, 4])));
        assert!(!memory.holds_endpoint(id, &wanted, &remote(None)), "the endpoint has moved to another node");
        memory.lost(id);
        assert!(memory.holds_endpoint(id, &wanted, &remote(None)));
    }

    #[test]
    fn a_changed_document_is_a_difference() {
        let pod = Guid::new(9);
        let wanted = document(1, &[pod, Guid::new(10)]);
        let mut other_port = wanted.clone();
        other_port.port_mappings[0].internal_port = 9;
        for shown in [document(1, &[pod]), document(2, &[pod, Guid::new(10)]), other_port] {
            let mut memory = Memory::default();
            assert!(!memory.wrote(frontend(1).id(), &wanted, &shown));
            assert!(!memory.holds(frontend(1).id(), &wanted, &shown));
        }
    }

    #[test]
    fn our_load_balancer_with_a_changed_frontend_is_deleted() {
        let (_, pod) = inventory(&[]);
        let plan = |last| (frontend(last), planned(document(last, &[pod])));
        let plan = Plan { balancers: [plan(1), plan(2)].into(), ..Plan::default() };
        // The load balancer with the identifier of the first frontend serves the second one.
        let (inventory, _) = inventory(&[(frontend(1).id(), document(2, &[pod]))]);
        let changes = diff(&plan, &inventory, &Memory::default(), &NOBODY);
        let written: Vec<_> = changes.balancers.iter().map(|write| (write.frontend, write.instead_of)).collect();
        assert_eq!(changes.delete_balancers, [frontend(1).id()].into());
        assert_eq!(written, [(frontend(1), None), (frontend(2), None)]);
    }

    #[test]
    fn a_foreign_load_balancer_with_more_frontends_stays() {
        let (_, pod) = inventory(&[]);
        let mut several = document(1, &[pod]);
        several.port_mappings.push(PortMapping { protocol: 17, external_port: 53, ..PortMapping::default() });
        let (inventory, _) = inventory(&[(Guid::new(77), several)]);
        let plan = Plan { balancers: [(frontend(1), planned(document(1, &[pod])))].into(), ..Plan::default() };
        let changes = diff(&plan, &inventory, &Memory::default(), &NOBODY);
        assert_eq!((changes.blocked.as_slice(), changes.is_empty()), (&[(frontend(1), Guid::new(77))][..], true));
    }
}
