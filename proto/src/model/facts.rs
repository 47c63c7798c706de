//! What only readers of `localnet.v1` get of a Service: facts that forwarding does not need, such as the Service's UID.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use super::EndpointPort;

/// Facts about a Service that forwarding does not need. Empty fields are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `appProtocol` of the ports, by the port's name.
    pub app_protocols: BTreeMap<Arc<str>, Arc<str>>,
    /// The labels that the operator of the brain has published.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// The annotations that the operator of the brain has published.
    pub annotations: BTreeMap<Arc<str>, Arc<str>>,
    /// Where the endpoints come from, for each port of each endpoint. Two Pods that use the host's network may serve different ports of
    /// one address.
    pub origins: BTreeMap<(IpAddr, EndpointPort), Origin>,
}

impl Facts {
    /// `None` if nothing is known.
    pub fn known(self) -> Option<Arc<Self>> {
        (self != Self::default()).then(|| self.into())
    }
}

/// Where an endpoint comes from. Empty fields are unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The node on which the endpoint runs.
    pub node: Arc<str>,
    /// The topology zone of the endpoint.
    pub zone: Arc<str>,
    /// The object behind the endpoint.
    pub target: Option<Arc<TargetRef>>,
}

impl Origin {
    /// What both origins agree on.
    #[must_use]
    pub fn common(self, other: &Self) -> Self {
        let same = |one: Arc<str>, other: &Arc<str>| if one == *other { one } else { Arc::default() };
        Self {
            node: same(self.node, &other.node),
            zone: same(self.zone, &other.zone),
            target: self.target.filter(|target| Some(target) == other.target.as_ref()),
        }
    }
}

/// Identifies a Kubernetes object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TargetRef {
    /// The kind, such as `Pod`.
    pub kind: Box<str>,
    /// The namespace; empty if there is none.
    pub namespace: Box<str>,
    /// The name.
    pub name: Box<str>,
    /// `metadata.uid`; empty if unknown.
    pub uid: Box<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_in_common_what_is_equal() {
        let target = |name: &str| Some(Arc::new(TargetRef { name: name.into(), ..TargetRef::default() }));
        let one = Origin { node: "a".into(), zone: "z".into(), target: target("web-1") };
        assert_eq!(one.clone().common(&one), one);
        let other = Origin { node: "b".into(), target: target("web-2"), ..one.clone() };
        assert_eq!(one.common(&other), Origin { zone: "z".into(), ..Origin::default() });
    }
}
