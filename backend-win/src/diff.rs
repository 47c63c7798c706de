//! What differs between a plan and what HNS holds, and whose is what it holds. Pure.

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

/// What we know of HNS beyond what it says.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Load balancers that we wrote, and how HNS showed them then, which may be in other words.
    written: BTreeMap<Guid, (LoadBalancer, LoadBalancer)>,
    /// Load balancers that somebody else made and that do our work: they are ours now.
    adopted: BTreeSet<Guid>,
}

impl Memory {
    /// A load balancer was written, and shown so.
    pub fn wrote(&mut self, id: Guid, wanted: &LoadBalancer, shown: &LoadBalancer) {
        self.written.insert(id, (normal(wanted), normal(shown)));
        self.adopted.insert(id);
    }

    /// A load balancer is gone.
    pub fn lost(&mut self, id: Guid) {
        self.written.remove(&id);
        self.adopted.remove(&id);
    }

    /// Whether what HNS shows is what is wanted: in the same words, or in those that it had for it before.
    fn holds(&self, id: Guid, wanted: &LoadBalancer, shown: &LoadBalancer) -> bool {
        let (wanted, shown) = (normal(wanted), normal(shown));
        wanted == shown || self.written.get(&id).is_some_and(|(wrote, showed)| (wrote, showed) == (&wanted, &shown))
    }
}

/// A document without its identifier, and its lists in order.
fn normal(balancer: &LoadBalancer) -> LoadBalancer {
    let mut balancer = LoadBalancer { id: None, ..balancer.clone() };
    balancer.host_compute_endpoints.sort_unstable();
    balancer.frontend_vips.sort_unstable();
    balancer.port_mappings.sort_unstable();
    balancer
}

/// Who is who.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Where the cluster's ClusterIPs come from: nobody else makes load balancers there.
    pub service_cidrs: &'a [IpNet],
    /// The node's part in an overlay network.
    pub host: Option<&'a Host>,
}

impl Owner<'_> {
    /// Whether a load balancer that nobody wants is ours: by its identifier, because we took it over, or because it serves ClusterIPs.
    fn owns_balancer(&self, id: Guid, balancer: Option<&LoadBalancer>, memory: &Memory) -> bool {
        let serves_cluster_ips = || {
            let in_cidrs = |ip| self.service_cidrs.iter().any(|cidr| cidr.contains(ip));
            balancer.is_some_and(|one| !one.frontend_vips.is_empty() && one.frontend_vips.iter().all(in_cidrs))
        };
        id.is_ours() || memory.adopted.contains(&id) || serves_cluster_ips()
    }

    /// Whether an endpoint is ours: by its identifier, or because kube-proxy left it.
    fn owns_endpoint(&self, id: Guid, endpoint: &Endpoint) -> bool {
        id.is_ours() || remote::is_kube_proxys(endpoint, self.host)
    }
}

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Load balancers that go, or stand in the way of an endpoint's replacement.
    pub delete_balancers: BTreeSet<Guid>,
    /// Endpoints that are replaced: they are to be made anew.
    pub replace_endpoints: BTreeSet<Guid>,
    /// Endpoints that are made.
    pub create_endpoints: BTreeMap<Guid, Endpoint>,
    /// Load balancers that come or change.
    pub balancers: Vec<Write>,
    /// Endpoints that nobody needs any more.
    pub delete_endpoints: BTreeSet<Guid>,
    /// Frontends that are somebody else's, together with others.
    pub blocked: Vec<(Frontend, Guid)>,
}

/// A load balancer that comes or changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// What it is for.
    pub frontend: Frontend,
    /// What it is to be.
    pub planned: Planned,
    /// The one that has the frontend now.
    pub instead_of: Option<Guid>,
}

impl Diff {
    /// Nothing is to be done.
    pub fn is_empty(&self) -> bool {
        let Self { delete_balancers, replace_endpoints, create_endpoints, balancers, delete_endpoints, blocked: _ } =
            self;
        delete_balancers.is_empty()
            && replace_endpoints.is_empty()
            && create_endpoints.is_empty()
            && balancers.is_empty()
            && delete_endpoints.is_empty()
    }
}

/// Compares.
pub fn diff(plan: &Plan, inventory: &Inventory, memory: &Memory, owner: &Owner<'_>) -> Diff {
    let mut diff = Diff::default();
    for (id, wanted) in &plan.endpoints {
        if inventory.endpoint(*id).is_some_and(|found| same_endpoint(wanted, found)) {
            continue;
        }
        // One that is not understood is in the way as well.
        if inventory.has_endpoint(*id) {
            diff.replace_endpoints.insert(*id);
        }
        diff.create_endpoints.insert(*id, wanted.clone());
    }

    // Who has which frontend.
    let mut holders: BTreeMap<Frontend, Vec<Guid>> = BTreeMap::new();
    let mut kept: BTreeSet<Guid> = BTreeSet::new();
    for (id, balancer) in inventory.balancers() {
        let frontends = balancer.as_ref().map(Frontend::all_of).unwrap_or_default();
        let several = frontends.len() > 1;
        for frontend in frontends {
            if several && !id.is_ours() && plan.balancers.contains_key(&frontend) {
                diff.blocked.push((frontend, *id));
            }
            holders.entry(frontend).or_default().push(*id);
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
        // A second one in the place of one that is kept, as after two writers.
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
    diff
}

/// Whether an endpoint is what is wanted. HNS says more of it than was said to it.
fn same_endpoint(wanted: &Endpoint, found: &Endpoint) -> bool {
    let mac = |endpoint: &Endpoint| endpoint.mac_address.to_ascii_lowercase().replace(':', "-");
    let addresses = |endpoint: &Endpoint| endpoint.addresses().collect::<BTreeSet<_>>();
    wanted.is_remote() == found.is_remote()
        && addresses(wanted) == addresses(found)
        && (!wanted.is_remote() || (mac(wanted) == mac(found) && wanted.provider() == found.provider()))
}

#[cfg(test)]
mod tests {
    use localnet_proto::{Protocol, ServiceKey};

    use super::*;
    use crate::{
        hcn::{Kind, fake::FakeHcn, schema::PortMapping},
        plan::Address,
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

    /// HNS with one pod, and these load balancers.
    fn inventory(balancers: &[(Guid, LoadBalancer)]) -> (Inventory, Guid) {
        let mut fake = FakeHcn::with_network("cbr0", "L2Bridge", &[], &["10.0.0.1"]);
        let pod = fake.documents(Kind::Endpoint).next().unwrap().0;
        for (id, balancer) in balancers {
            fake.objects.insert((Kind::LoadBalancer, *id), serde_json::to_value(balancer).unwrap());
        }
        let mut inventory = Inventory::default();
        inventory.look(&mut fake, None, None).unwrap();
        (inventory, pod)
    }

    #[test]
    fn what_does_our_work_is_kept_whoever_made_it() {
        let (first, pod) = inventory(&[]);
        assert!(first.balancers().is_empty());
        for id in [frontend(1).id(), Guid::new(77)] {
            let (inventory, _) = inventory(&[(id, document(1, &[pod]))]);
            let plan = Plan { balancers: [(frontend(1), planned(document(1, &[pod])))].into(), ..Plan::default() };
            assert!(diff(&plan, &inventory, &Memory::default(), &NOBODY).is_empty(), "{id}");
            let other = Plan {
                balancers: [(frontend(1), planned(document(1, &[pod, Guid::new(9)])))].into(),
                ..Plan::default()
            };
            let changes = diff(&other, &inventory, &Memory::default(), &NOBODY);
            assert_eq!((changes.balancers[0].instead_of, changes.delete_balancers.len()), (Some(id), 0));
        }
    }

    #[test]
    fn what_nobody_wants_goes_if_it_is_ours() {
        let (_, pod) = inventory(&[]);
        let foreign = Guid::new(77);
        let (inventory, _) = inventory(&[(frontend(1).id(), document(1, &[pod])), (foreign, document(2, &[pod]))]);
        let gone =
            |memory: &Memory, owner: &Owner<'_>| diff(&Plan::default(), &inventory, memory, owner).delete_balancers;
        assert_eq!(gone(&Memory::default(), &NOBODY), [frontend(1).id()].into());
        let service_cidrs = ["172.30.0.0/16".parse().unwrap()];
        let of_cluster = Owner { service_cidrs: &service_cidrs, host: None };
        assert_eq!(gone(&Memory::default(), &of_cluster).len(), 2, "nobody else has load balancers at ClusterIPs");
        let mut memory = Memory::default();
        memory.wrote(foreign, &document(2, &[pod]), &document(2, &[pod]));
        assert_eq!(gone(&memory, &NOBODY).len(), 2, "it was taken over");
        memory.lost(foreign);
        assert_eq!(gone(&memory, &NOBODY).len(), 1);
    }

    #[test]
    fn other_words_for_what_was_written_are_no_difference() {
        let (_, pod) = inventory(&[]);
        let mut shown = document(1, &[pod]);
        shown.port_mappings[0].flags.0 = 64;
        let (inventory, _) = inventory(&[(frontend(1).id(), shown.clone())]);
        let plan = Plan { balancers: [(frontend(1), planned(document(1, &[pod])))].into(), ..Plan::default() };
        let mut memory = Memory::default();
        assert_eq!(diff(&plan, &inventory, &memory, &NOBODY).balancers.len(), 1);
        memory.wrote(frontend(1).id(), &document(1, &[pod]), &shown);
        assert!(diff(&plan, &inventory, &memory, &NOBODY).is_empty());
        memory.wrote(frontend(1).id(), &document(1, &[pod]), &document(1, &[pod]));
        assert_eq!(diff(&plan, &inventory, &memory, &NOBODY).balancers.len(), 1, "somebody changed it since");
    }

    #[test]
    fn a_load_balancer_of_somebody_else_that_does_more_is_left_alone() {
        let (_, pod) = inventory(&[]);
        let mut several = document(1, &[pod]);
        several.port_mappings.push(PortMapping { protocol: 17, external_port: 53, ..PortMapping::default() });
        let (inventory, _) = inventory(&[(Guid::new(77), several)]);
        let plan = Plan { balancers: [(frontend(1), planned(document(1, &[pod])))].into(), ..Plan::default() };
        let changes = diff(&plan, &inventory, &Memory::default(), &NOBODY);
        assert_eq!((changes.blocked.as_slice(), changes.is_empty()), (&[(frontend(1), Guid::new(77))][..], true));
    }
}
