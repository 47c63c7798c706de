//! What is kept of objects only because readers of the draft `localnet.v1` may ask for it.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{ObjectReference, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use localnet_proto::{Facts, TargetRef};

/// The labels and annotations of Services that readers may select. Each list contains exact keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publish {
    /// Keys of labels.
    pub labels: Vec<String>,
    /// Keys of annotations.
    pub annotations: Vec<String>,
}

impl Publish {
    /// The facts about a Service, without the origins of its endpoints.
    pub(super) fn facts(&self, service: &Service) -> Facts {
        let ObjectMeta { uid, labels, annotations, .. } = &service.metadata;
        let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        let protocols = ports.filter_map(|port| {
            let protocol = port.app_protocol.as_deref().filter(|protocol| !protocol.is_empty())?;
            Some((port.name.as_deref().unwrap_or_default().into(), protocol.into()))
        });
        Facts {
            uid: uid.as_deref().unwrap_or_default().into(),
            app_protocols: protocols.collect(),
            labels: selected(labels.as_ref(), &self.labels),
            annotations: selected(annotations.as_ref(), &self.annotations),
            origins: BTreeMap::new(),
        }
    }
}

/// The object behind an endpoint.
pub(super) fn target(reference: ObjectReference) -> Arc<TargetRef> {
    let text = |text: Option<String>| text.unwrap_or_default().into();
    let ObjectReference { kind, namespace, name, uid, .. } = reference;
    Arc::new(TargetRef { kind: text(kind), namespace: text(namespace), name: text(name), uid: text(uid) })
}

fn selected(all: Option<&BTreeMap<String, String>>, keys: &[String]) -> BTreeMap<Arc<str>, Arc<str>> {
    let value = |key: &String| Some((key.as_str().into(), all?.get(key)?.as_str().into()));
    keys.iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use serde_json::json;

    use super::*;
    use crate::objects::reduce;

    fn texts(map: &BTreeMap<Arc<str>, Arc<str>>) -> String {
        map.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn only_published_metadata_is_kept() {
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "1-2",
                "labels": {"app": "web", "note": "label"}, "annotations": {"app": "annotation", "note": "a"},
            },
            "spec": {"ports": [
                {"name": "h", "port": 80, "appProtocol": "kubernetes.io/h2c"}, {"name": "e", "port": 81, "appProtocol": ""},
            ]},
        });
        let service: Service = serde_json::from_value(object).unwrap();
        let publish =
            Publish { labels: vec!["app".to_owned(), "absent".to_owned()], annotations: vec!["note".to_owned()] };
        let facts = reduce::service(service.clone(), Some(&publish)).facts.unwrap();
        assert_eq!(&*facts.uid, "1-2");
        let maps = [&facts.labels, &facts.annotations, &facts.app_protocols].map(texts);
        assert_eq!(maps, ["app=web", "note=a", "h=kubernetes.io/h2c"]);
        assert_eq!(reduce::service(service, None).facts, None);
    }

    #[test]
    fn the_object_behind_an_endpoint_is_kept_for_readers_of_the_draft() {
        let object = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "web-1", "namespace": "shop"},
            "endpoints": [
                {"addresses": ["10.1.0.1"], "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-x", "uid": "3"}},
                {"addresses": ["10.1.0.2"]},
            ],
        });
        let slice: EndpointSlice = serde_json::from_value(object).unwrap();
        let targets = |publish: Option<Publish>| {
            let endpoints = reduce::slice(slice.clone(), publish.as_ref()).endpoints.into_iter();
            endpoints.map(|endpoint| endpoint.target).collect::<Vec<_>>()
        };
        let pod = TargetRef { kind: "Pod".into(), namespace: "shop".into(), name: "web-x".into(), uid: "3".into() };
        assert_eq!(targets(Some(Publish::default())), [Some(Arc::new(pod)), None]);
        assert_eq!(targets(None), [None, None]);
    }
}
