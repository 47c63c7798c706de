//! The fields of documents, with their types in Microsoft's [HNS schema]. HNS also takes the numbers of enumerations, which
//! hcsshim and kube-proxy send, instead of their names.
//!
//! [HNS schema]: https://learn.microsoft.com/virtualization/api/hcn/hns_schema

use serde_json::Value;

use crate::hcn::Kind;

/// The type of a field.
#[derive(Clone, Copy, Debug)]
enum Type {
    /// A string.
    Text,
    /// An object with fields of any type.
    Object,
    /// A number from 0 to this one.
    Number(u64),
    /// The name or the number of a value.
    Enumeration,
}

const UINT8: Type = Type::Number(u8::MAX as u64);
const UINT16: Type = Type::Number(u16::MAX as u64);
const UINT32: Type = Type::Number(u32::MAX as u64);

/// The fields of every document. `[]` stands for each item of a list.
const EVERY: &[(&str, Type)] = &[
    ("ID", Type::Text),
    ("Name", Type::Text),
    ("SchemaVersion", Type::Object),
    ("SchemaVersion.Major", UINT32),
    ("SchemaVersion.Minor", UINT32),
    ("Health", Type::Object),
    ("Flags", Type::Enumeration),
];

const ENDPOINT: &[(&str, Type)] = &[
    ("HostComputeNetwork", Type::Text),
    ("Policies[].Type", Type::Text),
    ("IpConfigurations[].IpAddress", Type::Text),
    ("IpConfigurations[].PrefixLength", UINT8),
    ("Dns", Type::Object),
    ("Routes[].NextHop", Type::Text),
    ("Routes[].DestinationPrefix", Type::Text),
    ("Routes[].Metric", UINT16),
    ("MacAddress", Type::Text),
];

const LOAD_BALANCER: &[(&str, Type)] = &[
    ("HostComputeEndpoints[]", Type::Text),
    ("SourceVIP", Type::Text),
    ("FrontendVIPs[]", Type::Text),
    ("PortMappings[].Protocol", Type::Enumeration),
    ("PortMappings[].InternalPort", UINT16),
    ("PortMappings[].ExternalPort", UINT16),
    ("PortMappings[].DistributionType", Type::Enumeration),
    ("PortMappings[].Flags", Type::Enumeration),
];

/// `EndpointPolicyType`.
pub(super) const ENDPOINT_POLICIES: &[&str] = &[
    "PortMapping",
    "ACL",
    "QOS",
    "L2Driver",
    "OutBoundNAT",
    "SDNRoute",
    "L4Proxy",
    "L4WFPPROXY",
    "ProviderAddress",
    "PortName",
    "EncapOverhead",
    "InterfaceConstraint",
    "Encryption",
    "VLAN",
    "InterfaceParameters",
    "Iov",
    "TierAcl",
];

/// Whether each known field of a document has its type. Fields may be missing.
pub(super) fn have_their_types(kind: Kind, document: &Value) -> bool {
    let own = if kind == Kind::Endpoint { ENDPOINT } else { LOAD_BALANCER };
    let mut fields = EVERY.iter().chain(own);
    fields.all(|(path, r#type)| {
        at(document, path).is_some_and(|values| values.into_iter().all(|value| r#type.has(value)))
    })
}

/// Returns the values at a path such as `PortMappings[].Protocol`; `None` if a part of the path is no object or no list.
pub(super) fn at<'a>(document: &'a Value, path: &str) -> Option<Vec<&'a Value>> {
    let mut values = vec![document];
    for part in path.split('.') {
        let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        let mut found = Vec::new();
        for value in values {
            match value.as_object()?.get(name).filter(|value| !value.is_null()) {
                None => {}
                Some(list) if is_list => found.extend(list.as_array()?),
                Some(value) => found.push(value),
            }
        }
        values = found;
    }
    Some(values)
}

impl Type {
    fn has(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Object => value.is_object(),
            Self::Number(most) => value.as_u64().is_some_and(|number| number <= most),
            Self::Enumeration => value.is_string() || UINT32.has(value),
        }
    }
}
