//! The rules by which the fake HNS refuses a document. Pure.
//!
//! Each rule names the public source that states it: Microsoft's documentation, Microsoft's libraries hcsshim and hnslib,
//! kube-proxy, or a public report of an HNS that refused such a document. The texts of the codes, and the code of a rule where
//! its comment names no other source, come from Microsoft's table [HCN Error Code]; the fields and their types from its
//! [HNS schema]. What no public source states is no rule: `docs/backends/windows.md` lists it as an open question.
//!
//! [HCN Error Code]: https://learn.microsoft.com/virtualization/api/hcn/reference/hcnhresult
//! [HNS schema]: https://learn.microsoft.com/virtualization/api/hcn/hns_schema

mod codes;
mod fields;

pub use codes::*;

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde_json::Value;

use crate::hcn::{
    Features, Guid, Kind, Version,
    schema::{self, Endpoint, IpConfiguration, LoadBalancer, LoadBalancerFlags, Network},
};

/// A request to create or change an object, and what HNS holds.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The kind of the object.
    pub kind: Kind,
    /// The requested identifier; 0 if HNS shall choose it.
    pub id: Guid,
    /// The network of a new endpoint.
    pub network: Guid,
    /// Whether the object exists and is to be changed.
    pub changes: bool,
    /// The settings. `Value::Null` if they are not JSON.
    pub document: &'a Value,
    /// The documents of all objects.
    pub objects: &'a BTreeMap<(Kind, Guid), Value>,
    /// The version of HNS.
    pub version: Version,
    /// The number of endpoints that a load balancer may have.
    pub most_endpoints: usize,
}

/// A rule of HNS.
#[derive(Clone, Copy)]
pub struct Rule {
    /// What the rule demands.
    pub demands: &'static str,
    /// The HRESULT for a document that breaks the rule.
    pub code: u32,
    /// The explanation that HNS appends to the text of the code; may be empty.
    pub detail: &'static str,
    breaks: fn(&Request<'_>) -> bool,
}

/// Returns the first rule that a request breaks.
pub fn broken(request: &Request<'_>) -> Option<&'static Rule> {
    let own = if request.kind == Kind::Endpoint { ENDPOINT } else { LOAD_BALANCER };
    DOCUMENT.iter().chain(own).find(|rule| (rule.breaks)(request))
}

/// The rules for every document, in the order in which they are checked.
pub const DOCUMENT: &[Rule] = &[IS_JSON, HAS_THE_TYPES, HAS_A_SCHEMA_VERSION, HNS_HAS_THE_SCHEMA];
/// The rules for endpoints, in the order in which they are checked.
pub const ENDPOINT: &[Rule] = &[
    NETWORK_EXISTS,
    ENDPOINT_ID_IS_FREE,
    ENDPOINT_HAS_ADDRESSES,
    PREFIX_FITS,
    ADDRESS_IS_IN_A_SUBNET,
    ADDRESS_IS_NOT_RESERVED,
    ADDRESS_IS_FREE,
    POLICY_TYPE_IS_KNOWN,
    POLICY_HAS_ITS_SETTINGS,
];
/// The rules for load balancers, in the order in which they are checked.
pub const LOAD_BALANCER: &[Rule] = &[
    IDENTIFIERS_ARE_GUIDS,
    HAS_ENDPOINTS,
    ENDPOINTS_EXIST,
    VIPS_ARE_ADDRESSES,
    HAS_INTERNAL_PORTS,
    HNS_HAS_DIRECT_SERVER_RETURN,
    HNS_HAS_IPV6,
    HAS_NOT_TOO_MANY_ENDPOINTS,
    FRONTEND_IS_FREE,
    LOAD_BALANCER_ID_IS_FREE,
];

/// Source: `HcnCreateEndpoint` and `HcnCreateLoadBalancer` take "a JSON document"; HCN Error Code, `HCN_E_INVALID_JSON`.
const IS_JSON: Rule = Rule {
    demands: "the settings are a JSON object",
    code: INVALID_JSON,
    detail: "",
    breaks: |request| !request.document.is_object(),
};

/// Source: HNS schema, "JSON type" and the structures `HostComputeEndpoint` and `HostComputeLoadBalancer`. No public source names
/// the code.
const HAS_THE_TYPES: Rule = Rule {
    demands: "each field has the JSON type and size of the schema",
    code: INVALID_JSON,
    detail: "",
    breaks: |request| !fields::have_their_types(request.kind, request.document),
};

/// Source: HNS schema, `Base`: the schema version should be present in all objects. hcsshim (`hcnv1schema_test.go`) shows that HNS
/// reads a document without it as one of the older schema, whose fields have other names. No public source names the code.
const HAS_A_SCHEMA_VERSION: Rule = Rule {
    demands: "the document names schema version 2",
    code: INVALID_JSON,
    detail: "",
    breaks: |request| request.document["SchemaVersion"]["Major"] != 2,
};

/// Source: hnslib, `hcnglobals.go`, `V2ApiSupport`. No public source names the code.
const HNS_HAS_THE_SCHEMA: Rule = Rule {
    demands: "HNS has at least version 9.2",
    code: REQUEST_UNSUPPORTED,
    detail: "",
    breaks: |request| !request.features().v2,
};

/// Source: HCN Error Code, `HCN_E_NETWORK_NOT_FOUND`; hnslib, `IsNetworkNotFoundError`.
const NETWORK_EXISTS: Rule = Rule {
    demands: "the network of a new endpoint exists",
    code: NETWORK_NOT_FOUND,
    detail: "",
    breaks: |request| !request.objects.contains_key(&(Kind::Network, request.network)),
};

/// Source: `HcnCreateEndpoint`, whose parameter `Id` identifies the new endpoint. The code is the one of an endpoint that exists
/// already (kubernetes/kubernetes#74766).
const ENDPOINT_ID_IS_FREE: Rule = Rule {
    demands: "no endpoint has the identifier of a new one",
    code: OBJECT_ALREADY_EXISTS,
    detail: "",
    breaks: |request| request.has_a_taken_id(),
};

/// Source: HCN Error Code, `HCN_E_INVALID_IP`.
const ENDPOINT_HAS_ADDRESSES: Rule = Rule {
    demands: "the addresses of an endpoint are IP addresses",
    code: INVALID_IP,
    detail: "",
    breaks: |request| request.texts("IpConfigurations[].IpAddress").any(|text| address(text).is_none()),
};

/// Source: HCN Error Code, `HCN_E_INVALID_PREFIX`.
const PREFIX_FITS: Rule = Rule {
    demands: "a prefix is not longer than its address",
    code: INVALID_PREFIX,
    detail: "",
    breaks: |request| {
        let configurations = request.endpoint().map(|endpoint| endpoint.ip_configurations).unwrap_or_default();
        let fits = |one: &IpConfiguration| IpNet::new(address(&one.ip_address)?, one.prefix_length).ok();
        configurations.iter().any(|one| fits(one).is_none())
    },
};

/// Source: kubernetes-sigs/sig-windows-tools#250: HNS refused a source VIP outside the network's subnets. kube-proxy
/// (`winkernel/proxier.go`) creates remote endpoints outside of them, so that the rule holds for local endpoints only.
const ADDRESS_IS_IN_A_SUBNET: Rule = Rule {
    demands: "the address of a local endpoint is in a subnet of its network",
    code: INVALID_IP,
    detail: "",
    breaks: |request| {
        let subnets: Vec<IpNet> = request.subnets().iter().filter_map(|(prefix, _)| *prefix).collect();
        let outside = |address: &IpAddr| !subnets.iter().any(|subnet| subnet.contains(address));
        !subnets.is_empty() && request.local_addresses().iter().any(outside)
    },
};

/// Source: HNS schema and hnslib (`hcnnetwork.go`), `SubnetFlags`: HNS reserves the gateway's address unless
/// `DoNotReserveGatewayAddress` is set; kubernetes/kubernetes#100962 and kubernetes-sigs/sig-windows-tools#71: HNS refused such a
/// source VIP.
const ADDRESS_IS_NOT_RESERVED: Rule = Rule {
    demands: "the address of a local endpoint is not the gateway of its subnet",
    code: ADDRESS_INVALID_OR_RESERVED,
    detail: "",
    breaks: |request| {
        let gateways: Vec<IpAddr> = request.subnets().into_iter().flat_map(|(_, gateways)| gateways).collect();
        request.local_addresses().iter().any(|address| gateways.contains(address))
    },
};

/// Source: kubernetes/kubernetes#74766 and microsoft/SDN#333: HNS refused the endpoint of a pod with the address of the node's own
/// endpoint. A local and a remote endpoint may share an address (`winkernel/hns.go`, `getAllEndpointsByNetwork`).
const ADDRESS_IS_FREE: Rule = Rule {
    demands: "no two local endpoints of a network have one address",
    code: OBJECT_ALREADY_EXISTS,
    detail: "",
    breaks: |request| {
        let wanted = request.local_addresses();
        if wanted.is_empty() {
            return false;
        }
        let others = request.objects.iter().filter(|((kind, id), _)| *kind == Kind::Endpoint && *id != request.id);
        let mut others = others.filter_map(|(_, document)| read::<Endpoint>(document));
        others.any(|other| {
            let same_network = other.host_compute_network == Some(request.network);
            same_network && !other.is_remote() && other.addresses().any(|address| wanted.contains(&address))
        })
    },
};

/// Source: HNS schema, `EndpointPolicyType`; microsoft/Windows-Containers#360 reports the code.
const POLICY_TYPE_IS_KNOWN: Rule = Rule {
    demands: "a policy of an endpoint has a type of the schema",
    code: INVALID_POLICY_TYPE,
    detail: "",
    breaks: |request| request.texts("Policies[].Type").any(|text| !fields::ENDPOINT_POLICIES.contains(&text)),
};

/// Source: HNS schema, `ProviderAddressEndpointPolicySetting`; projectcalico/calico#8465 and microsoft/hcsshim#1951 report the code
/// for policies with other settings than HNS expects.
const POLICY_HAS_ITS_SETTINGS: Rule = Rule {
    demands: "a policy ProviderAddress contains an address",
    code: INVALID_POLICY,
    detail: "",
    breaks: |request| {
        let policies = request.endpoint().map(|endpoint| endpoint.policies).unwrap_or_default();
        let mut ours = policies.iter().filter(|policy| policy.r#type == "ProviderAddress");
        ours.any(|policy| policy.settings["ProviderAddress"].as_str().and_then(address).is_none())
    },
};

/// Source: HNS schema, `Guid`; HCN Error Code, `HCN_E_GUID_CONVERSION_FAILURE`.
const IDENTIFIERS_ARE_GUIDS: Rule = Rule {
    demands: "the endpoints of a load balancer are identifiers",
    code: GUID_CONVERSION_FAILURE,
    detail: "",
    breaks: |request| request.texts("HostComputeEndpoints[]").any(|text| text.parse::<Guid>().is_err()),
};

/// Source: kubernetes/kubernetes#100384 and projectcalico/calico#5762: HNS refused load balancers of Services without endpoints.
const HAS_ENDPOINTS: Rule = Rule {
    demands: "a load balancer has an endpoint",
    code: INVALID_JSON_REFERENCE,
    detail: "A Reference is required",
    breaks: |request| request.texts("HostComputeEndpoints[]").next().is_none(),
};

/// Source: HCN Error Code, `HCN_E_ENDPOINT_NOT_FOUND`; hnslib, `IsEndpointNotFoundError`.
const ENDPOINTS_EXIST: Rule = Rule {
    demands: "the endpoints of a load balancer exist",
    code: ENDPOINT_NOT_FOUND,
    detail: "",
    breaks: |request| {
        let mut ids = request.texts("HostComputeEndpoints[]").filter_map(|text| text.parse().ok());
        ids.any(|id| !request.objects.contains_key(&(Kind::Endpoint, id)))
    },
};

/// Source: HCN Error Code, `HCN_E_INVALID_IP`.
const VIPS_ARE_ADDRESSES: Rule = Rule {
    demands: "the VIPs and the source VIP of a load balancer are IP addresses",
    code: INVALID_IP,
    detail: "",
    breaks: |request| {
        request.texts("FrontendVIPs[]").chain(request.texts("SourceVIP")).any(|text| address(text).is_none())
    },
};

/// Source: HCN Error Code, `HCN_E_INVALID_INTERNAL_PORT`.
const HAS_INTERNAL_PORTS: Rule = Rule {
    demands: "the internal port of a port mapping is not zero",
    code: INVALID_INTERNAL_PORT,
    detail: "",
    breaks: |request| {
        request.balancer().is_some_and(|one| one.port_mappings.iter().any(|port| port.internal_port == 0))
    },
};

/// Source: hnslib, `hcnglobals.go`, `DSRVersion`. No public source names the code.
const HNS_HAS_DIRECT_SERVER_RETURN: Rule = Rule {
    demands: "only an HNS from version 9.3 or 10.2 gets direct server return",
    code: REQUEST_UNSUPPORTED,
    detail: "",
    breaks: |request| request.has_flag(LoadBalancerFlags::DSR) && !request.features().dsr,
};

/// Source: hnslib, `hcnglobals.go`, `IPv6DualStackVersion`; HNS schema, `LoadBalancerFlags`: the flag is new in schema 2.8. No public
/// source names the code.
const HNS_HAS_IPV6: Rule = Rule {
    demands: "only an HNS from version 11.10 gets the flag IPv6",
    code: REQUEST_UNSUPPORTED,
    detail: "",
    breaks: |request| request.has_flag(LoadBalancerFlags::IPV6) && !request.features().ipv6,
};

/// Source: microsoft/Windows-Containers#93 and kubernetes/kubernetes#98680: HNS refused 65 endpoints. awsdocs/amazon-eks-user-guide#591:
/// since an update, 1,024 are possible.
const HAS_NOT_TOO_MANY_ENDPOINTS: Rule = Rule {
    demands: "a load balancer has no more endpoints than HNS supports",
    code: INVALID_ARGUMENT,
    detail: "Unable to initialize VFP LB rule: invalid number of destinations.",
    breaks: |request| request.texts("HostComputeEndpoints[]").count() > request.most_endpoints,
};

/// Source: hnslib, `IsPortAlreadyExistsError`; `winkernel/hns.go`, `createOrReplaceLoadbalancer`: the frontend consists of address,
/// protocol, port and family.
const FRONTEND_IS_FREE: Rule = Rule {
    demands: "no two load balancers have one frontend",
    code: PORT_ALREADY_EXISTS,
    detail: "",
    breaks: |request| {
        let Some(wanted) = request.balancer() else { return false };
        let itself = |id: Guid| request.changes && id == request.id;
        let others = request.objects.iter().filter(|((kind, id), _)| *kind == Kind::LoadBalancer && !itself(*id));
        others.filter_map(|(_, other)| read(other)).any(|other| collide(&wanted, &other))
    },
};

/// Source: kubernetes/kubernetes#139519 reports the code for a load balancer that exists already.
const LOAD_BALANCER_ID_IS_FREE: Rule = Rule {
    demands: "no load balancer has the identifier of a new one",
    code: ALREADY_EXISTS,
    detail: "",
    breaks: |request| request.has_a_taken_id(),
};

impl Request<'_> {
    fn features(&self) -> Features {
        Features::of(self.version)
    }

    fn has_a_taken_id(&self) -> bool {
        !self.changes && self.id.number() != 0 && self.objects.contains_key(&(self.kind, self.id))
    }

    /// The strings at a path, as in [`fields`].
    fn texts(&self, path: &'static str) -> impl Iterator<Item = &str> {
        fields::at(self.document, path).unwrap_or_default().into_iter().filter_map(Value::as_str)
    }

    fn endpoint(&self) -> Option<Endpoint> {
        read(self.document)
    }

    fn balancer(&self) -> Option<LoadBalancer> {
        read(self.document)
    }

    fn has_flag(&self, flag: LoadBalancerFlags) -> bool {
        self.balancer().is_some_and(|balancer| balancer.flags.contains(flag))
    }

    /// The addresses of the document, if it is one of a local endpoint.
    fn local_addresses(&self) -> Vec<IpAddr> {
        let endpoint = self.endpoint().filter(|endpoint| !endpoint.is_remote());
        endpoint.map(|endpoint| endpoint.addresses().collect()).unwrap_or_default()
    }

    /// The subnets of the network, each with the gateways that HNS reserves.
    fn subnets(&self) -> Vec<(Option<IpNet>, Vec<IpAddr>)> {
        let Some(network) = self.objects.get(&(Kind::Network, self.network)) else { return Vec::new() };
        let prefixes = read::<Network>(network).map(|network| network.ipams).unwrap_or_default();
        let prefixes =
            prefixes.iter().flat_map(|ipam| &ipam.subnets).map(|subnet| subnet.ip_address_prefix.parse().ok());
        let documents = fields::at(network, "Ipams[].Subnets[]").unwrap_or_default();
        let gateways = documents.into_iter().map(|subnet| {
            let reserves = subnet["Flags"].as_u64().unwrap_or_default() & DO_NOT_RESERVE_GATEWAY == 0;
            let hops = fields::at(subnet, "Routes[].NextHop").unwrap_or_default().into_iter();
            hops.filter(|_| reserves).filter_map(|hop| address(hop.as_str()?)).collect()
        });
        prefixes.zip(gateways).collect()
    }
}

/// The flag `DoNotReserveGatewayAddress` of a subnet.
const DO_NOT_RESERVE_GATEWAY: u64 = 1;

/// Parses a document of HNS; `None` if it is not one.
fn read<T: serde::de::DeserializeOwned>(document: &Value) -> Option<T> {
    schema::read("document", &document.to_string()).ok()
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// Whether two load balancers have the same port of the same address. Without an address, they use the node's.
fn collide(one: &LoadBalancer, other: &LoadBalancer) -> bool {
    let family = |balancer: &LoadBalancer| balancer.flags.contains(LoadBalancerFlags::IPV6);
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

#[cfg(test)]
mod tests;
