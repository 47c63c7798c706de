//! What is kept of objects only because readers of the draft `localnet.v1` may ask for it.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{ObjectReference, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use localnet_proto::{Facts, TargetRef};

/// Maximum size, in bytes, of all published labels of a Service with their keys; the same of its annotations, and of its application
/// protocols. The API server accepts no more annotations for one object. Objects of other sources, such as files, may have more.
const MOST: usize = 256 << 10;
/// Maximum length, in bytes, of a UID and of the fields of a target. The API server accepts no longer names.
const LONGEST_NAME: usize = 253;

/// The labels and annotations of Services that readers may select. Each list contains exact keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publish {
    /// Keys of labels.
    pub labels: Vec<String>,
    /// Keys of annotations.
    pub annotations: Vec<String>,
}

impl Publish {
    /// The facts about a Service, without the origins of its endpoints. What exceeds the limits is left out, like what is unknown.
    pub(super) fn facts(&self, service: &Service) -> Facts {
        let ObjectMeta { uid, labels, annotations, .. } = &service.metadata;
        let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        let protocols = ports.filter_map(|port| {
            let protocol = port.app_protocol.as_deref().filter(|protocol| !protocol.is_empty())?;
            Some((port.name.as_deref().unwrap_or_default(), protocol))
        });
        Facts {
            uid: name(uid.as_deref()),
            app_protocols: limited(protocols),
            labels: selected(labels.as_ref(), &self.labels),
            annotations: selected(annotations.as_ref(), &self.annotations),
            origins: BTreeMap::new(),
        }
    }
}

/// The object behind an endpoint.
pub(super) fn target(reference: ObjectReference) -> Arc<TargetRef> {
    let ObjectReference { kind, namespace, name: of, uid, .. } = reference;
    Arc::new(TargetRef {
        kind: name(kind.as_deref()),
        namespace: name(namespace.as_deref()),
        name: name(of.as_deref()),
        uid: name(uid.as_deref()),
    })
}

fn selected(all: Option<&BTreeMap<String, String>>, keys: &[String]) -> BTreeMap<Arc<str>, Arc<str>> {
    limited(keys.iter().filter_map(|key| Some((key.as_str(), all?.get(key)?.as_str()))))
}

/// The entries, without those that do not fit into [`MOST`] bytes after the previous ones.
fn limited<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<Arc<str>, Arc<str>> {
    let mut room = MOST;
    let fitting = entries.into_iter().filter(|(key, value)| {
        let rest = room.checked_sub(key.len() + value.len());
        room = rest.unwrap_or(room);
        rest.is_some()
    });
    fitting.map(|(key, value)| (key.into(), value.into())).collect()
}

fn name<T: for<'a> From<&'a str>>(text: Option<&str>) -> T {
    text.filter(|text| text.len() <= LONGEST_NAME).unwrap_or_default().into()
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

    /// A file may contain such a Service. Without limits, its record would exceed what readers accept.
    #[test]
    fn oversized_metadata_is_left_out() {
        let (large, half) = ("x".repeat(MOST), "x".repeat(MOST / 2));
        let port = |name: &str, protocol: &str| json!({"name": name, "port": 80, "appProtocol": protocol});
        let object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "web", "uid": "x".repeat(LONGEST_NAME + 1), "labels": {"a": large, "b": "small"},
                "annotations": {"a": half, "b": half, "c": "small"},
            },
            "spec": {"ports": [port("h", &large), port("i", "small")]},
        });
        let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
        let publish = Publish { labels: keys(&["a", "b"]), annotations: keys(&["a", "b", "c"]) };
        let facts = publish.facts(&serde_json::from_value(object).unwrap());
        let lengths = |map: &BTreeMap<Arc<str>, Arc<str>>| {
            map.iter().map(|(key, value)| (key.to_string(), value.len())).collect::<Vec<_>>()
        };
        let of = |key: &str, length| (key.to_owned(), length);
        assert_eq!(lengths(&facts.labels), [of("b", 5)]);
        assert_eq!(lengths(&facts.annotations), [of("a", MOST / 2), of("c", 5)]);
        assert_eq!(lengths(&facts.app_protocols), [of("i", 5)]);
        assert_eq!(&*facts.uid, "");
        let reference = ObjectReference { name: Some(large), kind: Some("Pod".to_owned()), ..Default::default() };
        assert_eq!(*target(reference), TargetRef { kind: "Pod".into(), ..TargetRef::default() });
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
