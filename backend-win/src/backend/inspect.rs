//! [`Inspector`]: lists the planned and the live objects of HNS for the command `localnet`.
//!
//! HNS has no tool with a notation for people: its tools print JSON, in which identifiers stand for addresses. A line therefore
//! begins with what clients or packets name, as in `172.30.0.1:80/tcp: to 10.180.0.1:8080, remote 10.180.1.2:8080; DSR`. Whether
//! an object is as planned is not decided by its line, but as the backend decides it. Pure, except for [`Inspector`].

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use localnet_client::{
    inspect::{Inspect, Listing, Place},
    vips::Config,
};
use localnet_proto::{Changes, Family, Snapshot};

use super::WinBackend;
use crate::{
    Options,
    diff::{Diff, diff},
    hcn::{
        Guid,
        schema::{Distribution, Endpoint, LoadBalancer, LoadBalancerFlags, PortMapping, PortMappingFlags},
    },
    inventory,
    kernel::Kernel,
    plan::{Frontend, Plan},
};

/// The table of all places.
pub const TABLE: &str = "HNS";
/// The place of the network of the pods.
pub const NETWORKS: &str = "networks";
/// The place of the load balancers.
pub const BALANCERS: &str = "load balancers";
/// The place of the remote endpoints, and of the endpoint of the source VIP.
pub const ENDPOINTS: &str = "endpoints";

/// Lists what the backend plans, and what HNS holds of it.
#[derive(Debug)]
pub struct Inspector<K> {
    backend: WinBackend<K>,
    plan: Plan,
    /// Why the last state could not be planned.
    unplanned: Option<anyhow::Error>,
}

impl<K: Kernel> Inspector<K> {
    /// Inspects an HNS that a backend with these options programs.
    pub fn new(config: Config, options: Options, kernel: K) -> Self {
        Self { backend: WinBackend::new(config, options, kernel), plan: Plan::default(), unplanned: None }
    }
}

impl<K: Kernel> Inspect for Inspector<K> {
    /// If HNS does not have the network of the pods, the plan is this network.
    fn planned(&mut self, state: &Snapshot) -> Listing {
        match self.backend.plan(state, &Changes::everything()) {
            Ok((plan, _)) => {
                (self.plan, self.unplanned) = (plan, None);
                self.backend.planned_lines(&self.plan)
            }
            Err(error) => {
                self.unplanned = Some(error);
                listing(vec![self.backend.network_line()], Vec::new(), Vec::new())
            }
        }
    }

    async fn live(&mut self) -> anyhow::Result<Listing> {
        match self.unplanned.take() {
            Some(error) if is_missing(&error) => Ok(listing(Vec::new(), Vec::new(), Vec::new())),
            Some(error) => Err(error),
            None => {
                self.backend.refresh()?;
                Ok(self.backend.live_lines(&self.plan))
            }
        }
    }
}

/// Whether the error is that HNS lacks the network of the pods.
fn is_missing(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(inventory::Error::NoNetwork { .. }) => true,
        Some(inventory::Error::Which { there }) => there.is_empty(),
        _ => false,
    }
}

fn listing(networks: Vec<String>, balancers: Vec<String>, endpoints: Vec<String>) -> Listing {
    let place = |(name, mut lines): (&str, Vec<String>)| {
        lines.sort_unstable();
        (Place { table: TABLE.to_owned(), name: name.to_owned() }, lines)
    };
    [(NETWORKS, networks), (BALANCERS, balancers), (ENDPOINTS, endpoints)].map(place).into()
}

/// The lines that only the plan has, with `+`, and those that only HNS has, with `-`. Each begins with its place.
pub fn differences(planned: &Listing, live: &Listing) -> Vec<String> {
    let lines = |listing: &Listing| -> BTreeSet<String> {
        listing
            .iter()
            .flat_map(|(place, lines)| lines.iter().map(move |line| format!("{} {line}", place.name)))
            .collect()
    };
    let (planned, live) = (lines(planned), lines(live));
    let missing = planned.difference(&live).map(|line| format!("+ {line}"));
    missing.chain(live.difference(&planned).map(|line| format!("- {line}"))).collect()
}

impl<K: Kernel> WinBackend<K> {
    /// What a sync would change: the lines that it adds to HNS, with `+`, and those that it removes, with `-`.
    pub fn changes(&self, plan: &Plan) -> Vec<String> {
        differences(&self.planned_lines(plan), &self.live_lines(plan))
    }

    fn planned_lines(&self, plan: &Plan) -> Listing {
        let balancers =
            plan.balancers.iter().map(|(frontend, planned)| self.planned_balancer(plan, frontend, &planned.document));
        let endpoints =
            plan.endpoints.values().map(endpoint).chain(self.adopted(plan).map(|(_, found)| endpoint(found)));
        listing(vec![self.network_line()], balancers.collect(), endpoints.collect())
    }

    fn live_lines(&self, plan: &Plan) -> Listing {
        let diff = diff(plan, &self.inventory, &self.memory, &self.owner());
        listing(vec![self.network_line()], self.live_balancers(plan, &diff), self.live_endpoints(plan, &diff))
    }

    fn network_line(&self) -> String {
        self.options.network.clone().unwrap_or_else(|| "the network of the pods".to_owned())
    }

    /// The planned load balancers, those to delete, and those of other programs with a planned frontend.
    fn live_balancers(&self, plan: &Plan, diff: &Diff) -> Vec<String> {
        let (mut lines, mut held) = (Vec::new(), BTreeSet::new());
        for (id, balancer) in self.inventory.balancers() {
            let is_ours = diff.kept.contains(id) || diff.delete_balancers.contains(id);
            let Some(shown) = balancer else {
                lines.extend(is_ours.then(|| format!("load balancer {id}: its document cannot be parsed")));
                continue;
            };
            for frontend in Frontend::all_of(shown) {
                let planned = plan.balancers.get(&frontend);
                let is_blocking = diff.blocked.contains(&(frontend, *id));
                if !is_ours && !is_blocking {
                    continue;
                }
                let of_plan = planned.map(|planned| self.planned_balancer(plan, &frontend, &planned.document));
                // Of several right load balancers, the backend keeps the first.
                let is_held = planned.is_some_and(|planned| self.memory.holds(*id, &planned.document, shown))
                    && held.insert(frontend);
                let own = self.balancer(&frontend, shown, |id| self.inventory.endpoint(id));
                lines.push(match of_plan {
                    Some(of_plan) if is_held => of_plan,
                    Some(of_plan) if of_plan == own || is_blocking => format!("{own}; load balancer {id}"),
                    _ => own,
                });
            }
        }
        lines
    }

    /// The planned endpoints, those to delete, and those of kube-proxy that the plan uses.
    fn live_endpoints(&self, plan: &Plan, diff: &Diff) -> Vec<String> {
        let mut lines = Vec::new();
        for (id, found) in self.inventory.endpoints() {
            if let Some(wanted) = plan.endpoints.get(&id) {
                let (of_plan, own) = (endpoint(wanted), endpoint(found));
                lines.push(match self.memory.holds_endpoint(id, wanted, found) {
                    true => of_plan,
                    false if of_plan == own => format!("{own}, endpoint {id}"),
                    false => own,
                });
            } else if diff.delete_endpoints.contains(&id) {
                lines.push(format!("{}, endpoint {id}", endpoint(found)));
            }
        }
        lines.extend(self.adopted(plan).map(|(_, found)| endpoint(found)));
        lines
    }

    /// The endpoints of kube-proxy that the plan uses.
    fn adopted<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (Guid, &'a Endpoint)> {
        let owner = self.owner();
        let is_adopted = move |id: &Guid, found: &Endpoint| {
            plan.used.contains(id) && !plan.endpoints.contains_key(id) && owner.owns_endpoint(*id, found)
        };
        self.inventory.endpoints().filter(move |(id, found)| is_adopted(id, found))
    }

    /// The line of a planned load balancer.
    fn planned_balancer(&self, plan: &Plan, frontend: &Frontend, document: &LoadBalancer) -> String {
        self.balancer(frontend, document, |id| plan.endpoints.get(&id).or_else(|| self.inventory.endpoint(id)))
    }

    /// The line of a load balancer. `found` returns an endpoint by its identifier.
    fn balancer<'a>(
        &self,
        frontend: &Frontend,
        document: &LoadBalancer,
        found: impl Fn(Guid) -> Option<&'a Endpoint>,
    ) -> String {
        let mapping = Frontend::mappings_of(document).into_iter().find(|(of, _)| of == frontend);
        let mapping = mapping.map(|(_, mapping)| mapping).unwrap_or_default();
        let gateway = self.inventory.gateway().map(|(id, _)| id);
        let mut endpoints: Vec<_> = document
            .host_compute_endpoints
            .iter()
            .map(|id| match found(*id) {
                _ if gateway == Some(*id) => format!("{}, port {}", self.options.root_endpoint, mapping.internal_port),
                Some(endpoint) => at_port(endpoint, frontend.family(), mapping.internal_port),
                None => format!("the missing endpoint {id}"),
            })
            .collect();
        endpoints.sort_unstable();
        let to = if endpoints.is_empty() { "no endpoint".to_owned() } else { endpoints.join(", ") };
        std::iter::once(format!("{frontend}: to {to}")).chain(options(document, mapping)).collect::<Vec<_>>().join("; ")
    }
}

/// The options of a load balancer that have no default value.
fn options(document: &LoadBalancer, mapping: PortMapping) -> impl Iterator<Item = String> {
    const OF_BALANCER: [(LoadBalancerFlags, &str); 2] =
        [(LoadBalancerFlags::DSR, "DSR"), (LoadBalancerFlags::IPV6, "IPv6")];
    const OF_PORT: [(PortMappingFlags, &str); 5] = [
        (PortMappingFlags::ILB, "ILB"),
        (PortMappingFlags::LOCAL_ROUTED_VIP, "LocalRoutedVIP"),
        (PortMappingFlags::USE_MUX, "UseMux"),
        (PortMappingFlags::PRESERVE_DIP, "PreserveDIP"),
        (PortMappingFlags::VIP_EXTERNAL_IP, "VipExternalIP"),
    ];
    let affinity = match mapping.distribution_type {
        Distribution::CONNECTION => None,
        Distribution::SOURCE_IP => Some("by source address".to_owned()),
        Distribution(other) => Some(format!("distribution {other}")),
    };
    let source = document.source_vip.map(|address| format!("source VIP {address}"));
    let flags = OF_BALANCER.iter().filter(|(flag, _)| document.flags.contains(*flag)).map(|(_, name)| *name);
    let of_port = OF_PORT.iter().filter(move |(flag, _)| mapping.flags.contains(*flag)).map(|(_, name)| *name);
    let flags: Vec<String> = flags.chain(of_port).map(str::to_owned).collect();
    affinity.into_iter().chain(source).chain(flags)
}

/// An endpoint of a load balancer: its address of this family, and the port.
fn at_port(endpoint: &Endpoint, family: Family, port: u16) -> String {
    let address = endpoint.addresses().find(|address| Family::of(*address) == family);
    let remote = if endpoint.is_remote() { "remote " } else { "" };
    match address {
        Some(address) => format!("{remote}{}", SocketAddr::new(address, port)),
        None => format!("{remote}an endpoint without {family} address, port {port}"),
    }
}

/// The line of an endpoint.
fn endpoint(endpoint: &Endpoint) -> String {
    let mut addresses: Vec<IpAddr> = endpoint.addresses().collect();
    addresses.sort_unstable();
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let addresses = addresses.join(" ");
    if !endpoint.is_remote() {
        return format!("{addresses}: local");
    }
    let provider = endpoint.provider().map(|provider| format!(", through {provider}")).unwrap_or_default();
    format!("{addresses}: remote, {}{provider}", endpoint.mac())
}
