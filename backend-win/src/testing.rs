//! A fake HNS for tests. It stores documents as HNS does, refuses those that break one of its [`rules`], and has the problematic
//! behaviours that HNS has or may have.
//!
//! | behaviour | |
//! |---|---|
//! | two endpoints may have one address | an endpoint of a pod and a remote one, on Windows Server 2019 and 2022 |
//! | opening or deleting a missing object is an error | Azure/azure-container-networking#715; hnslib, `TestNotFoundError` |
//! | an endpoint without a name is named Ethernet | microsoft/Windows-Containers#631, kubernetes-sigs/sig-windows-tools#168 |
//! | a load balancer has few endpoints | [`FakeHcn::most_endpoints`] |
//! | a load balancer for SCTP is refused | [`FakeHcn::refuses_sctp`]; Kubernetes supports no SCTP on Windows |
//! | an endpoint can be deleted although a load balancer refers to it | [`FakeHcn::deletes_what_is_named`]; otherwise it is refused |
//! | the version promises a function that is not implemented | [`FakeHcn::modify_is_not_implemented`] |
//! | a change in place succeeds but changes nothing | [`FakeHcn::modify_does_nothing`]; Windows Server 2025 at first |
//! | calls fail for a while | [`FakeHcn::fail`] |
//! | objects disappear and others appear | [`FakeHcn::objects`] |
//! | an object does not have the requested identifier | [`FakeHcn::chooses_ids`] |
//! | a document is shown in a different form than written | [`FakeHcn::rewrites`] |

pub mod rules;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
};

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::{
    Kernel, Machine,
    hcn::{
        Failure, Features, Guid, Hcn, Kind, Version,
        schema::{self, LoadBalancer},
    },
};
use rules::{
    ENDPOINT_NOT_FOUND, HAS_REFERENCES, INVALID_ARGUMENT, INVALID_JSON, NETWORK_NOT_FOUND, NOT_FOUND, NOT_IMPLEMENTED,
    Request, failure,
};

/// A fake HNS.
#[derive(Clone, Debug)]
pub struct FakeHcn {
    /// The version that the fake HNS reports.
    pub version: Version,
    /// The documents of all objects. Tests may change them.
    pub objects: BTreeMap<(Kind, Guid), Value>,
    /// The hardware addresses of the node's interfaces, by address.
    pub interfaces: BTreeMap<IpAddr, String>,
    /// Whether load balancers cannot be changed, whatever the version is.
    pub modify_is_not_implemented: bool,
    /// Whether a change of a load balancer succeeds but has no effect.
    pub modify_does_nothing: bool,
    /// The number of endpoints that a load balancer may have.
    pub most_endpoints: usize,
    /// Whether a load balancer for SCTP is refused.
    pub refuses_sctp: bool,
    /// Whether an endpoint can be deleted although a load balancer refers to it.
    pub deletes_what_is_named: bool,
    /// Whether new objects get identifiers other than those requested.
    pub chooses_ids: bool,
    /// Changes a document before it is shown.
    pub rewrites: Option<fn(&mut Value)>,
    /// The calls that change something, one line each.
    pub log: Vec<String>,
    /// The number of calls that only read.
    pub questions: usize,
    failing: VecDeque<(&'static str, usize, Failure)>,
    next: u128,
}

/// The number of endpoints that a load balancer may have since an update of 2022 (awsdocs/amazon-eks-user-guide#591).
const MOST_ENDPOINTS: usize = 1024;

impl Default for FakeHcn {
    /// Returns an empty HNS of Windows Server 2022.
    fn default() -> Self {
        Self {
            version: Version::new(13, 3),
            objects: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            modify_is_not_implemented: false,
            modify_does_nothing: false,
            most_endpoints: MOST_ENDPOINTS,
            refuses_sctp: false,
            deletes_what_is_named: false,
            chooses_ids: false,
            rewrites: None,
            log: Vec::new(),
            questions: 0,
            failing: VecDeque::new(),
            next: 1,
        }
    }
}

impl FakeHcn {
    /// Returns an HNS with a network and one endpoint per pod address, as a CNI plugin creates them. The network has the subnets
    /// of these addresses.
    pub fn with_network(name: &str, kind: &str, remote_subnets: &[(&str, &str)], pods: &[&str]) -> Self {
        let mut fake = Self::default();
        fake.add_network(name, kind, remote_subnets);
        let subnets: BTreeSet<IpNet> = pods.iter().filter_map(|pod| subnet(pod.parse().ok()?)).collect();
        subnets.into_iter().for_each(|subnet| fake.add_subnet(name, subnet));
        pods.iter().for_each(|pod| _ = fake.add_pod(name, pod));
        fake
    }

    /// Adds a network.
    pub fn add_network(&mut self, name: &str, kind: &str, remote_subnets: &[(&str, &str)]) -> Guid {
        let id = self.assign();
        let route = |(prefix, provider): &(&str, &str)| {
            json!({"Type": "RemoteSubnetRoute", "Settings": {"DestinationPrefix": prefix, "IsolationId": 4096, "ProviderAddress": provider,
                "DistributedRouterMacAddress": "00-15-5d-00-00-01"}})
        };
        let policies: Vec<Value> = remote_subnets.iter().map(route).collect();
        let network = json!({"ID": id, "Name": name, "Type": kind, "Policies": policies,
            "Ipams": [{"Type": "Static", "Subnets": []}], "Flags": 0, "Health": {"Extra": {}},
            "SchemaVersion": {"Major": 2, "Minor": 0}});
        self.objects.insert((Kind::Network, id), network);
        id
    }

    /// Adds a subnet to a network, whose local endpoints need an address in one of its subnets.
    pub fn add_subnet(&mut self, network: &str, subnet: IpNet) {
        let document = subnet_document(subnet);
        for network in self.named(Kind::Network, network) {
            let ipams = self.objects.get_mut(&(Kind::Network, network)).map(|network| &mut network["Ipams"]);
            match ipams.and_then(|ipams| ipams[0]["Subnets"].as_array_mut()) {
                Some(subnets) if !subnets.contains(&document) => subnets.push(document.clone()),
                _ => {}
            }
        }
    }

    /// Adds the endpoint of a pod.
    pub fn add_pod(&mut self, network: &str, address: &str) -> Guid {
        let id = self.assign();
        let network = self.named(Kind::Network, network).first().copied();
        let pod = json!({"ID": id, "Name": format!("pod-{address}"), "HostComputeNetwork": network, "Policies": [],
            "IpConfigurations": [{"IpAddress": address, "PrefixLength": 24}], "Dns": {}, "Routes": [{"NextHop": "10.0.0.1", "DestinationPrefix": "0.0.0.0/0"}],
            "MacAddress": "00-15-5d-12-34-56", "Flags": 0, "Health": {"Extra": {}}, "SchemaVersion": {"Major": 2, "Minor": 0}});
        self.objects.insert((Kind::Endpoint, id), pod);
        id
    }

    /// Makes the next `times` calls of a function fail.
    pub fn fail(&mut self, call: &'static str, times: usize, failure: Failure) {
        self.failing.push_back((call, times, failure));
    }

    /// Ends all failures.
    pub fn mend(&mut self) {
        self.failing.clear();
    }

    /// The documents of a kind, in the order of their identifiers.
    pub fn documents(&self, kind: Kind) -> impl Iterator<Item = (Guid, &Value)> {
        self.objects.iter().filter(move |((of, _), _)| *of == kind).map(|((_, id), document)| (*id, document))
    }

    /// The load balancers.
    pub fn load_balancers(&self) -> Vec<LoadBalancer> {
        self.documents(Kind::LoadBalancer).filter_map(|(_, document)| balancer(document)).collect()
    }

    fn assign(&mut self) -> Guid {
        self.next += 1;
        Guid::new(self.next)
    }

    fn named(&self, kind: Kind, name: &str) -> Vec<Guid> {
        self.documents(kind).filter(|(_, document)| document["Name"] == name).map(|(id, _)| id).collect()
    }

    fn may(&mut self, call: &'static str) -> Result<(), Failure> {
        let Some(at) = self.failing.iter().position(|(of, ..)| *of == call) else { return Ok(()) };
        let (_, times, failure) = &mut self.failing[at];
        let failure = failure.clone();
        *times = times.saturating_sub(1);
        if *times == 0 {
            self.failing.remove(at);
        }
        Err(failure)
    }

    fn ask(&mut self, call: &'static str) -> Result<(), Failure> {
        self.questions += 1;
        self.may(call)
    }

    fn notify(&mut self, call: &'static str, about: Guid) -> Result<(), Failure> {
        self.log.push(format!("{call} {about}"));
        self.may(call)
    }

    /// Returns a document as HNS shows it.
    fn shown(&self, document: &Value) -> String {
        let mut document = document.clone();
        if let Some(rewrite) = self.rewrites {
            rewrite(&mut document);
        }
        document.to_string()
    }

    fn show(&self, kind: Kind, id: Guid) -> Option<String> {
        Some(self.shown(self.objects.get(&(kind, id))?))
    }

    fn put(&mut self, kind: Kind, id: Guid, mut document: Value) -> String {
        document["ID"] = json!(id);
        let shown = self.shown(&document);
        self.objects.insert((kind, id), document);
        shown
    }

    /// Checks a document as HNS does before it accepts it.
    fn check(
        &self,
        call: &'static str,
        kind: Kind,
        id: Guid,
        network: Guid,
        changes: bool,
        document: &Value,
    ) -> Result<(), Failure> {
        let id = if self.chooses_ids && !changes { Guid::new(0) } else { id };
        let (version, most_endpoints) = (self.version, self.most_endpoints);
        let request = Request { kind, id, network, changes, document, objects: &self.objects, version, most_endpoints };
        match rules::broken(&request) {
            Some(rule) => Err(failure(call, rule.code, rule.detail)),
            None if self.refuses_sctp && balancer(document).is_some_and(|one| has_sctp(&one)) => {
                Err(failure(call, INVALID_ARGUMENT, ""))
            }
            None => Ok(()),
        }
    }

    /// The identifier of a new object.
    fn id_for(&mut self, id: Guid) -> Guid {
        if self.chooses_ids || id.number() == 0 { self.assign() } else { id }
    }
}

/// Parses a stored document.
fn balancer(document: &Value) -> Option<LoadBalancer> {
    schema::read("load balancer", &document.to_string()).ok()
}

fn has_sctp(balancer: &LoadBalancer) -> bool {
    balancer.port_mappings.iter().any(|mapping| mapping.protocol == 132)
}

/// The subnet of a pod's address.
fn subnet(pod: IpAddr) -> Option<IpNet> {
    IpNet::new(pod, if pod.is_ipv4() { 24 } else { 64 }).ok().map(|subnet| subnet.trunc())
}

/// A subnet whose gateway has its last address but one, so that pods may have the first ones.
fn subnet_document(subnet: IpNet) -> Value {
    let (gateway, all) = match subnet {
        IpNet::V4(subnet) => (IpAddr::from((u32::from(subnet.broadcast()) - 1).to_be_bytes()), "0.0.0.0/0"),
        IpNet::V6(subnet) => (IpAddr::from((u128::from(subnet.broadcast()) - 1).to_be_bytes()), "::/0"),
    };
    json!({"IpAddressPrefix": subnet, "Routes": [{"NextHop": gateway, "DestinationPrefix": all}]})
}

fn missing(call: &'static str, kind: Kind) -> Failure {
    let code = match kind {
        Kind::Network => NETWORK_NOT_FOUND,
        Kind::Endpoint => ENDPOINT_NOT_FOUND,
        Kind::LoadBalancer => NOT_FOUND,
    };
    failure(call, code, "")
}

/// Parses settings; `Value::Null` if they are not JSON.
fn parsed(settings: &str) -> Value {
    serde_json::from_str(settings).unwrap_or_default()
}

impl Hcn for FakeHcn {
    fn version(&mut self) -> Result<String, Failure> {
        self.ask("HNSCall")?;
        Ok(schema::write(&self.version))
    }

    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, Failure> {
        let call = match kind {
            Kind::Network => "HcnEnumerateNetworks",
            Kind::Endpoint => "HcnEnumerateEndpoints",
            Kind::LoadBalancer => "HcnEnumerateLoadBalancers",
        };
        self.ask(call)?;
        schema::answer(query, self.documents(kind)).map_err(|_| failure(call, INVALID_JSON, ""))
    }

    fn properties(&mut self, kind: Kind, id: Guid) -> Result<String, Failure> {
        let call = match kind {
            Kind::Network => "HcnOpenNetwork",
            Kind::Endpoint => "HcnOpenEndpoint",
            Kind::LoadBalancer => "HcnOpenLoadBalancer",
        };
        self.ask(call)?;
        self.show(kind, id).ok_or_else(|| missing(call, kind))
    }

    fn create_endpoint(&mut self, network: Guid, id: Guid, settings: &str) -> Result<String, Failure> {
        const CALL: &str = "HcnCreateEndpoint";
        self.notify(CALL, id)?;
        let mut document = parsed(settings);
        self.check(CALL, Kind::Endpoint, id, network, false, &document)?;
        if document["Name"].as_str().is_none_or(str::is_empty) {
            document["Name"] = json!("Ethernet");
        }
        let id = self.id_for(id);
        Ok(self.put(Kind::Endpoint, id, document))
    }

    fn create_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure> {
        const CALL: &str = "HcnCreateLoadBalancer";
        self.notify(CALL, id)?;
        let document = parsed(settings);
        self.check(CALL, Kind::LoadBalancer, id, Guid::new(0), false, &document)?;
        let id = self.id_for(id);
        Ok(self.put(Kind::LoadBalancer, id, document))
    }

    fn modify_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure> {
        const CALL: &str = "HcnModifyLoadBalancer";
        self.notify(CALL, id)?;
        let Some(shown) = self.show(Kind::LoadBalancer, id) else {
            return Err(missing("HcnOpenLoadBalancer", Kind::LoadBalancer));
        };
        if self.modify_is_not_implemented || !Features::of(self.version).modify_load_balancer {
            return Err(failure(CALL, NOT_IMPLEMENTED, ""));
        }
        let document = parsed(settings);
        self.check(CALL, Kind::LoadBalancer, id, Guid::new(0), true, &document)?;
        Ok(if self.modify_does_nothing { shown } else { self.put(Kind::LoadBalancer, id, document) })
    }

    fn delete_endpoint(&mut self, id: Guid) -> Result<(), Failure> {
        const CALL: &str = "HcnDeleteEndpoint";
        self.notify(CALL, id)?;
        let is_named = self.load_balancers().iter().any(|balancer| balancer.host_compute_endpoints.contains(&id));
        if is_named && !self.deletes_what_is_named {
            return Err(failure(CALL, HAS_REFERENCES, ""));
        }
        self.objects.remove(&(Kind::Endpoint, id)).map(drop).ok_or_else(|| missing(CALL, Kind::Endpoint))
    }

    fn delete_load_balancer(&mut self, id: Guid) -> Result<(), Failure> {
        const CALL: &str = "HcnDeleteLoadBalancer";
        self.notify(CALL, id)?;
        self.objects.remove(&(Kind::LoadBalancer, id)).map(drop).ok_or_else(|| missing(CALL, Kind::LoadBalancer))
    }
}

impl Kernel for FakeHcn {
    fn interfaces(&mut self) -> anyhow::Result<BTreeMap<IpAddr, String>> {
        Ok(self.interfaces.clone())
    }
}

impl Machine for FakeHcn {
    fn open() -> anyhow::Result<Self> {
        anyhow::bail!("tests make their HNS themselves")
    }
}
