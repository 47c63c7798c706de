//! Computes the load balancers for frontends, as documents. It is deterministic and never fails: what HNS cannot express is
//! skipped with a diagnostic.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use localnet_client::{Code, Diagnostic, Subject};
use localnet_proto::{Family, Protocol, ServiceKey};

use super::{
    Address, Frontend, Use, Want,
    remote::{self, Host, Place},
    want::Sources,
};
use crate::{
    Options,
    hcn::{
        Features, Guid,
        schema::{Distribution, Endpoint, LoadBalancer, LoadBalancerFlags, NetworkType, PortMapping, PortMappingFlags},
    },
    inventory::Inventory,
};

/// What a plan depends on besides the state.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The objects that HNS holds.
    pub inventory: &'a Inventory,
    /// The options of the operator.
    pub options: &'a Options,
    /// The features of this HNS.
    pub features: Features,
    /// The node's address and interface; known in an overlay network only.
    pub host: Option<&'a Host>,
    /// The addresses of local endpoints, each with the number of Service ports that have an endpoint at this address.
    pub local: &'a BTreeMap<IpAddr, usize>,
}

/// What HNS should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The endpoints that we create.
    pub endpoints: BTreeMap<Guid, Endpoint>,
    /// All endpoints that the planned load balancers refer to, ours or not.
    pub used: BTreeSet<Guid>,
    /// The load balancers.
    pub balancers: BTreeMap<Frontend, Planned>,
    /// What is not programmed, and why; sorted.
    pub skipped: Vec<Diagnostic>,
}

/// A planned load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The Service that the load balancer belongs to.
    pub service: ServiceKey,
    /// The document, without identifier and with sorted lists.
    pub document: LoadBalancer,
}

/// Plans all frontends.
pub fn plan(wants: &BTreeMap<Frontend, Want>, surroundings: &Surroundings<'_>) -> Plan {
    let mut planner = Planner { around: surroundings, plan: Plan::default() };
    planner.source_vip();
    for (frontend, want) in wants {
        planner.add(frontend, want);
    }
    planner.health_checks(wants);
    let mut plan = planner.plan;
    plan.skipped.sort_unstable();
    plan.skipped.dedup();
    plan
}

struct Planner<'a> {
    around: &'a Surroundings<'a>,
    plan: Plan,
}

/// The endpoints of a load balancer, as identifiers in HNS.
#[derive(Debug, Default)]
struct Resolved {
    ids: BTreeSet<Guid>,
    /// Whether any endpoint is outside the subnets of the network.
    off_the_network: bool,
}

impl Planner<'_> {
    fn skip(&mut self, service: &ServiceKey, code: Code, problem: String) {
        self.plan.skipped.push(Diagnostic::new(code, Subject::service(service), problem));
    }

    fn is_overlay(&self) -> bool {
        self.around.inventory.kind() == NetworkType::Overlay
    }

    /// Whether load balancers of a family are programmed, as in kube-proxy.
    fn has_family(&self, family: Family) -> bool {
        family == Family::V4 || has_ipv6(self.around.features, self.around.inventory.kind())
    }

    /// Plans the endpoint of the source VIP, which an overlay network needs.
    fn source_vip(&mut self) {
        let inventory = self.around.inventory;
        let overlay = self.is_overlay().then_some(self.around.options.source_vip).flatten();
        let (Some(address), Some(host), Some(network)) = (overlay, self.around.host, inventory.network()) else {
            return;
        };
        match inventory.local(address) {
            Some(there) if there != Guid::of_source_vip(address) => _ = self.plan.used.insert(there),
            _ => {
                let document = Endpoint::local(network, address, host.mac.clone());
                self.plan.endpoints.insert(Guid::of_source_vip(address), document);
            }
        }
    }

    fn add(&mut self, frontend: &Frontend, want: &Want) {
        if !self.has_family(frontend.family()) || want.sources == Sources::Nobody {
            return;
        }
        if want.sources == Sources::Some {
            let reason = format!("{frontend} admits all sources: HNS does not support loadBalancerSourceRanges");
            self.skip(&want.service, Code::HnsUnsupported, reason);
        }
        let Some(port) = target_port(&want.endpoints) else { return };
        let (chosen, others): (Vec<&SocketAddr>, Vec<&SocketAddr>) =
            want.endpoints.iter().partition(|endpoint| endpoint.port() == port);
        if !others.is_empty() {
            let others: Vec<String> = others.into_iter().map(ToString::to_string).collect();
            let reason = format!(
                "{frontend} uses port {port} of its endpoints: HNS supports one port for all endpoints, so {} are skipped",
                others.join(", ")
            );
            self.skip(&want.service, Code::HnsUnsupported, reason);
        }
        let keeps_destination = self.keeps_destination(want);
        let addresses = chosen.into_iter().map(SocketAddr::ip);
        let local_only = keeps_destination || want.external_local;
        let resolved = self.resolve(want, frontend, addresses, local_only);
        if resolved.ids.is_empty() {
            return;
        }
        self.plan.used.extend(&resolved.ids);
        if self.is_overlay()
            && want.r#use == Use::ClusterIp
            && let Address::Vip(address) = frontend.address
        {
            self.service_endpoint(address);
        }
        let affinity = want.affinity.is_some() && self.around.features.session_affinity;
        if want.affinity.is_some() && !affinity {
            self.skip(
                &want.service,
                Code::HnsUnsupported,
                format!("{frontend} has no session affinity: HNS supports it from version 12.0"),
            );
        }
        let mapping = PortMapping {
            protocol: frontend.protocol.number().into(),
            internal_port: port,
            external_port: frontend.port,
            distribution_type: if affinity { Distribution::SOURCE_IP } else { Distribution::CONNECTION },
            flags: mapping_flags(want.r#use, keeps_destination),
        };
        let direct = match want.r#use {
            Use::ClusterIp => self.around.options.dsr,
            Use::NodePort | Use::ExternalIp => want.external_local,
            Use::LoadBalancerIp => want.external_local || keeps_destination,
        };
        let flags = LoadBalancerFlags::DSR.when(direct && self.around.features.dsr);
        self.balancer(*frontend, &want.service, &resolved, mapping, flags);
    }

    /// Whether packets keep their destination. HNS supports that only with direct server return.
    fn keeps_destination(&self, want: &Want) -> bool {
        let concerned = matches!(want.r#use, Use::LoadBalancerIp | Use::NodePort);
        concerned && want.preserve_destination && self.around.features.dsr
    }

    fn balancer(
        &mut self,
        frontend: Frontend,
        service: &ServiceKey,
        resolved: &Resolved,
        mapping: PortMapping,
        flags: LoadBalancerFlags,
    ) {
        let vip = match frontend.address {
            Address::Vip(address) => Some(address),
            Address::Node(_) => None,
        };
        let document = LoadBalancer {
            id: None,
            host_compute_endpoints: resolved.ids.iter().copied().collect(),
            source_vip: self.source_of(resolved),
            frontend_vips: vip.into_iter().collect(),
            port_mappings: vec![mapping],
            flags: flags | LoadBalancerFlags::IPV6.when(frontend.family() == Family::V6),
            ..LoadBalancer::default()
        };
        self.plan.balancers.insert(frontend, Planned { service: service.clone(), document });
    }

    /// The source address of packets to remote endpoints. If an endpoint is outside the network, the source address is the node's
    /// address.
    fn source_of(&self, resolved: &Resolved) -> Option<IpAddr> {
        if !self.is_overlay() {
            return None;
        }
        match self.around.host {
            Some(host) if resolved.off_the_network => Some(host.address),
            _ => self.around.options.source_vip,
        }
    }

    fn resolve(
        &mut self,
        want: &Want,
        frontend: &Frontend,
        addresses: impl Iterator<Item = IpAddr>,
        local_only: bool,
    ) -> Resolved {
        let mut resolved = Resolved::default();
        let mut missing: Vec<String> = Vec::new();
        for address in addresses {
            if let Some(id) = self.around.inventory.local(address) {
                resolved.ids.insert(id);
            } else if self.around.local.contains_key(&address) {
                missing.push(address.to_string());
            } else if !local_only {
                let overlay = self.is_overlay();
                let place = remote::place(address, self.around.inventory.remote_subnets());
                resolved.off_the_network |= overlay && !matches!(place, Place::Subnet(_));
                resolved.ids.extend(self.remote(address));
            }
        }
        if !missing.is_empty() {
            let reason = format!(
                "{frontend} waits for HNS endpoints of local pods ({}): the CNI plugin has not created them, or the pods use the host's network",
                missing.join(", ")
            );
            self.skip(&want.service, Code::HnsEndpointMissing, reason);
        }
        resolved
    }

    /// Returns the remote endpoint for an address: an existing endpoint if it is correct, or else one that we plan.
    fn remote(&mut self, address: IpAddr) -> Option<Guid> {
        let inventory = self.around.inventory;
        let document = remote::document(
            inventory.network()?,
            inventory.kind(),
            inventory.remote_subnets(),
            self.around.host,
            address,
        );
        Some(self.endpoint(Guid::of_remote_endpoint(address), address, document))
    }

    /// Plans a remote endpoint for the address of a Service, as HNS expects in an overlay network. The endpoint is reached
    /// through this node.
    fn service_endpoint(&mut self, address: IpAddr) {
        let (Some(host), Some(network)) = (self.around.host, self.around.inventory.network()) else { return };
        let document = Endpoint::remote(network, address, host.mac.clone(), Some(host.address));
        let id = self.endpoint(Guid::of_remote_endpoint(address), address, document);
        self.plan.used.insert(id);
    }

    fn endpoint(&mut self, ours: Guid, address: IpAddr, document: Endpoint) -> Guid {
        let mut there = self.around.inventory.remotes(address);
        let right = there.find(|(id, found)| *id != ours && found.provider() == document.provider());
        match right {
            Some((id, _)) if !self.around.inventory.has_endpoint(ours) => id,
            _ => {
                self.plan.endpoints.insert(ours, document);
                ours
            }
        }
    }

    /// Plans load balancers that forward health checks to the node, because external load balancers send the checks to the VIP.
    /// There is one TCP load balancer per address and health check port, however many ports the Service has.
    fn health_checks(&mut self, wants: &BTreeMap<Frontend, Want>) {
        let options = self.around.options;
        let Some((gateway, families)) = self.around.inventory.gateway().filter(|_| options.forward_health_check_vip)
        else {
            return;
        };
        for (frontend, want) in wants.iter().filter(|(_, want)| want.r#use == Use::LoadBalancerIp) {
            let port = want.health_port.unwrap_or(options.health_port);
            let check = Frontend { protocol: Protocol::Tcp, port, ..*frontend };
            let served = self.plan.balancers.contains_key(frontend);
            if !served || !families.contains(&check.family()) || wants.contains_key(&check) {
                continue;
            }
            let keeps_destination = self.keeps_destination(want);
            let flags = PortMappingFlags::USE_MUX | PortMappingFlags::PRESERVE_DIP;
            let mapping = PortMapping {
                protocol: Protocol::Tcp.number().into(),
                internal_port: port,
                external_port: port,
                distribution_type: Distribution::CONNECTION,
                flags: flags.when(keeps_destination),
            };
            let resolved = Resolved { ids: [gateway].into(), off_the_network: false };
            self.plan.used.insert(gateway);
            self.balancer(check, &want.service, &resolved, mapping, LoadBalancerFlags::default());
        }
    }
}

/// Whether load balancers for IPv6 are programmed. As in kube-proxy, they never are in an overlay network.
pub fn has_ipv6(features: Features, kind: NetworkType) -> bool {
    features.ipv6 && kind != NetworkType::Overlay
}

/// Returns the port that most endpoints have; of equally frequent ports, the lowest. A load balancer of HNS has one port for
/// all endpoints, and packets to a port that an endpoint does not serve are lost.
fn target_port(endpoints: &[SocketAddr]) -> Option<u16> {
    let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
    endpoints.iter().for_each(|endpoint| *counts.entry(endpoint.port()).or_default() += 1);
    counts.into_iter().max_by_key(|(port, count)| (*count, std::cmp::Reverse(*port))).map(|(port, _)| port)
}

fn mapping_flags(r#use: Use, keeps_destination: bool) -> PortMappingFlags {
    let kept = (PortMappingFlags::USE_MUX | PortMappingFlags::PRESERVE_DIP).when(keeps_destination);
    match r#use {
        Use::ClusterIp => PortMappingFlags::default(),
        Use::NodePort => PortMappingFlags::LOCAL_ROUTED_VIP | PortMappingFlags::VIP_EXTERNAL_IP,
        Use::ExternalIp => PortMappingFlags::VIP_EXTERNAL_IP,
        Use::LoadBalancerIp => PortMappingFlags::VIP_EXTERNAL_IP | kept,
    }
}

#[cfg(test)]
mod tests;
