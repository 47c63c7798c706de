//! A fake HNS for tests. It stores documents as HNS does, and has the problematic behaviours that HNS has or may have.
//!
//! | behaviour | |
//! |---|---|
//! | two endpoints may have one address | an endpoint of a pod and a remote one, on Windows Server 2019 and 2022 |
//! | a port that is taken is refused | `HCN_E_PORT_ALREADY_EXISTS`, whichever load balancer has it |
//! | deleting a missing object is an error | `ERROR_NOT_FOUND` |
//! | an endpoint can be deleted although a load balancer refers to it | [`FakeHcn::deletes_what_is_named`]; otherwise it is refused |
//! | the version promises a function that is not implemented | [`FakeHcn::modify_is_not_implemented`] |
//! | a change in place succeeds but changes nothing | [`FakeHcn::modify_does_nothing`]; Windows Server 2025 at first |
//! | calls fail for a while | [`FakeHcn::fail`] |
//! | objects disappear and others appear | [`FakeHcn::objects`] |
//! | an object does not have the requested identifier | [`FakeHcn::chooses_ids`] |
//! | a document is shown in a different form than written | [`FakeHcn::rewrites`] |

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
};

use serde_json::{Value, json};

use crate::{
    Kernel, Machine,
    hcn::{
        Failure, Features, Guid, Hcn, Kind, Version,
        schema::{self, LoadBalancer},
    },
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

const NOT_FOUND: u32 = 0x8007_0490;
const ALREADY_EXISTS: u32 = 0x8007_00b7;
const PORT_ALREADY_EXISTS: u32 = 0x803b_0013;
const ENDPOINT_NOT_FOUND: u32 = 0x803b_0002;
const INVALID_JSON: u32 = 0x803b_001b;
const HAS_REFERENCES: u32 = 0x803b_002c;
const NOT_IMPLEMENTED: u32 = 0x8000_4001;

impl Default for FakeHcn {
    /// Returns an empty HNS of Windows Server 2022.
    fn default() -> Self {
        Self {
            version: Version::new(13, 3),
            objects: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            modify_is_not_implemented: false,
            modify_does_nothing: false,
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
    /// Returns an HNS with a network and one endpoint per pod address, as a CNI plugin creates them.
    pub fn with_network(name: &str, kind: &str, remote_subnets: &[(&str, &str)], pods: &[&str]) -> Self {
        let mut fake = Self::default();
        fake.add_network(name, kind, remote_subnets);
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
        let network = json!({"ID": id, "Name": name, "Type": kind, "Policies": policies, "Ipams": [], "Flags": 0, "Health": {"Extra": {}},
            "SchemaVersion": {"Major": 2, "Minor": 0}});
        self.objects.insert((Kind::Network, id), network);
        id
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

    fn show(&self, kind: Kind, id: Guid) -> Option<String> {
        let mut document = self.objects.get(&(kind, id))?.clone();
        if let Some(rewrite) = self.rewrites {
            rewrite(&mut document);
        }
        Some(document.to_string())
    }

    fn put(&mut self, call: &'static str, kind: Kind, id: Guid, mut document: Value) -> Result<String, Failure> {
        document["ID"] = json!(id);
        self.objects.insert((kind, id), document);
        self.show(kind, id).ok_or_else(|| failure(call, NOT_FOUND))
    }

    fn id_for(&mut self, call: &'static str, kind: Kind, id: Guid) -> Result<Guid, Failure> {
        if self.chooses_ids || id.number() == 0 {
            return Ok(self.assign());
        }
        if self.objects.contains_key(&(kind, id)) { Err(failure(call, ALREADY_EXISTS)) } else { Ok(id) }
    }

    /// Checks a load balancer as HNS does before it accepts it.
    fn check(&self, call: &'static str, document: &Value, itself: Option<Guid>) -> Result<(), Failure> {
        let Some(wanted) = balancer(document) else { return Err(failure(call, INVALID_JSON)) };
        let missing = |id: &Guid| !self.objects.contains_key(&(Kind::Endpoint, *id));
        if wanted.host_compute_endpoints.iter().any(missing) {
            return Err(failure(call, ENDPOINT_NOT_FOUND));
        }
        let others = self.documents(Kind::LoadBalancer).filter(|(id, _)| Some(*id) != itself);
        let taken = others.filter_map(|(_, other)| balancer(other)).any(|other| collide(&wanted, &other));
        if taken { Err(failure(call, PORT_ALREADY_EXISTS)) } else { Ok(()) }
    }
}

/// Parses a stored document.
fn balancer(document: &Value) -> Option<LoadBalancer> {
    schema::read("load balancer", &document.to_string()).ok()
}

/// Whether two load balancers have the same port of the same address. Without an address, they use the node's.
fn collide(one: &LoadBalancer, other: &LoadBalancer) -> bool {
    let family = |balancer: &LoadBalancer| balancer.flags.contains(schema::LoadBalancerFlags::IPV6);
    let addresses = match (one.frontend_vips.is_empty(), other.frontend_vips.is_empty()) {
        (true, true) => true,
        (false, false) => one.frontend_vips.iter().any(|vip| other.frontend_vips.contains(vip)),
        _ => false,
    };
    let mut ports = one.port_mappings.iter().flat_map(|a| other.port_mappings.iter().map(move |b| (a, b)));
    family(one) == family(other)
        && addresses
        && ports.any(|(a, b)| (a.protocol, a.external_port) == (b.protocol, b.external_port))
}

fn failure(call: &'static str, code: u32) -> Failure {
    let text = match code {
        NOT_FOUND => "Element not found.",
        PORT_ALREADY_EXISTS => "The specified port already exists.",
        ENDPOINT_NOT_FOUND => "The endpoint was not found.",
        INVALID_JSON => "Invalid JSON document string.",
        HAS_REFERENCES => "The object is in use.",
        NOT_IMPLEMENTED => "Not implemented",
        _ => "The object already exists.",
    };
    Failure::new(call, code, json!({"Success": false, "Error": text, "ErrorCode": code}).to_string())
}

fn document(call: &'static str, settings: &str) -> Result<Value, Failure> {
    let document: Option<Value> = serde_json::from_str(settings).ok();
    document.filter(Value::is_object).ok_or_else(|| failure(call, INVALID_JSON))
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
        schema::answer(query, self.documents(kind)).map_err(|_| failure(call, INVALID_JSON))
    }

    fn properties(&mut self, kind: Kind, id: Guid) -> Result<String, Failure> {
        let call = match kind {
            Kind::Network => "HcnOpenNetwork",
            Kind::Endpoint => "HcnOpenEndpoint",
            Kind::LoadBalancer => "HcnOpenLoadBalancer",
        };
        self.ask(call)?;
        self.show(kind, id).ok_or_else(|| failure(call, NOT_FOUND))
    }

    fn create_endpoint(&mut self, network: Guid, id: Guid, settings: &str) -> Result<String, Failure> {
        const CALL: &str = "HcnCreateEndpoint";
        self.notify(CALL, id)?;
        if !self.objects.contains_key(&(Kind::Network, network)) {
            return Err(failure(CALL, NOT_FOUND));
        }
        let document = document(CALL, settings)?;
        let id = self.id_for(CALL, Kind::Endpoint, id)?;
        self.put(CALL, Kind::Endpoint, id, document)
    }

    fn create_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure> {
        const CALL: &str = "HcnCreateLoadBalancer";
        self.notify(CALL, id)?;
        let document = document(CALL, settings)?;
        self.check(CALL, &document, None)?;
        let id = self.id_for(CALL, Kind::LoadBalancer, id)?;
        self.put(CALL, Kind::LoadBalancer, id, document)
    }

    fn modify_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure> {
        const CALL: &str = "HcnModifyLoadBalancer";
        self.notify(CALL, id)?;
        let Some(shown) = self.show(Kind::LoadBalancer, id) else {
            return Err(failure("HcnOpenLoadBalancer", NOT_FOUND));
        };
        if self.modify_is_not_implemented || !Features::of(self.version).modify_load_balancer {
            return Err(failure(CALL, NOT_IMPLEMENTED));
        }
        let document = document(CALL, settings)?;
        self.check(CALL, &document, Some(id))?;
        if self.modify_does_nothing {
            return Ok(shown);
        }
        self.put(CALL, Kind::LoadBalancer, id, document)
    }

    fn delete_endpoint(&mut self, id: Guid) -> Result<(), Failure> {
        const CALL: &str = "HcnDeleteEndpoint";
        self.notify(CALL, id)?;
        let is_named = self.load_balancers().iter().any(|balancer| balancer.host_compute_endpoints.contains(&id));
        if is_named && !self.deletes_what_is_named {
            return Err(failure(CALL, HAS_REFERENCES));
        }
        self.objects.remove(&(Kind::Endpoint, id)).map(drop).ok_or_else(|| failure(CALL, NOT_FOUND))
    }

    fn delete_load_balancer(&mut self, id: Guid) -> Result<(), Failure> {
        const CALL: &str = "HcnDeleteLoadBalancer";
        self.notify(CALL, id)?;
        self.objects.remove(&(Kind::LoadBalancer, id)).map(drop).ok_or_else(|| failure(CALL, NOT_FOUND))
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
