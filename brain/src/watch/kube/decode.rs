//! Decodes the answers of the API server. An object that cannot be decoded does not affect the others.
//!
//! In the common case, the whole text is decoded in one pass. If that fails, the objects are decoded one by one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{
    Resource,
    core::{Status, WatchEvent},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

/// An object that cannot be decoded, because one of its fields does not have the type that the API prescribes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    /// The namespace. Empty for kinds without namespaces.
    pub(super) namespace: String,
    pub(super) name: String,
    /// The path of the field, for instance `spec.ports[1].port`. Empty if the problem concerns the object as a whole.
    pub(super) field: String,
    pub(super) problem: String,
}

/// An object of a list or of a change.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item<K> {
    Read(K),
    Unreadable(Unreadable),
}

/// A page of a list.
#[derive(Debug)]
pub(super) struct Page<K> {
    pub(super) items: Vec<Item<K>>,
    /// The `resourceVersion` of the list. It may be empty on every page except the last one.
    pub(super) version: String,
    /// The `continue` token of the next page. `None` on the last page.
    pub(super) more: Option<String>,
}

/// A decoded line of a watch.
#[derive(Debug)]
pub(super) enum Change<K> {
    /// The object was added or modified.
    Applied(Item<K>, String),
    /// The object was deleted.
    Deleted { namespace: String, name: String, version: String },
    /// The watch has delivered all changes up to this `resourceVersion`.
    Bookmark(String),
    /// The API server ends the watch with this status.
    Refused(Box<Status>),
}

/// A list in JSON. A document without `items` is an error, not an empty list.
#[derive(Deserialize)]
struct Listed<K> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(deserialize_with = "items", bound(deserialize = "K: Deserialize<'de>"))]
    items: Vec<K>,
}

/// Reads `null` as an empty list, because Go programs may write an empty list as `null`.
fn items<'de, K: Deserialize<'de>, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<K>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Decodes a page of a list.
///
/// # Errors
/// Returns an error if the text is not a list, or if it contains an item that cannot be decoded and has no name.
pub(super) fn page<K: DeserializeOwned>(text: &str) -> Result<Page<K>, serde_json::Error> {
    let (metadata, items) = match serde_json::from_str::<Listed<K>>(text) {
        Ok(Listed { metadata, items }) => (metadata, items.into_iter().map(Item::Read).collect()),
        Err(error) if error.is_data() => {
            let Listed { metadata, items } = serde_json::from_str::<Listed<Value>>(text)?;
            (metadata, items.iter().map(item).collect::<Option<_>>().ok_or(error)?)
        }
        Err(error) => return Err(error),
    };
    Ok(Page {
        items,
        version: metadata.resource_version.unwrap_or_default(),
        more: metadata.continue_.filter(|more| !more.is_empty()),
    })
}

/// Decodes a line of a watch.
///
/// # Errors
/// Returns an error if the line is not a change.
pub(super) fn change<K>(line: &str) -> Result<Change<K>, serde_json::Error>
where
    K: Resource + DeserializeOwned,
{
    match serde_json::from_str(line) {
        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
            let object: K = object;
            let version = object.meta().resource_version.clone().unwrap_or_default();
            Ok(Change::Applied(Item::Read(object), version))
        }
        Ok(WatchEvent::Deleted(object)) => {
            let meta = object.meta().clone();
            let [namespace, name, version] =
                [meta.namespace, meta.name, meta.resource_version].map(Option::unwrap_or_default);
            Ok(Change::Deleted { namespace, name, version })
        }
        Ok(WatchEvent::Bookmark(bookmark)) => Ok(Change::Bookmark(bookmark.metadata.resource_version)),
        Ok(WatchEvent::Error(status)) => Ok(Change::Refused(status)),
        Err(error) => unreadable(line).or_else(|| refused(line)).ok_or(error),
    }
}

/// Decodes as much as possible of a change whose object cannot be decoded completely.
fn unreadable<K: DeserializeOwned>(line: &str) -> Option<Change<K>> {
    let (object, deleted) = match serde_json::from_str(line).ok()? {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
        WatchEvent::Deleted(object) => (object, true),
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => return None,
    };
    let version = meta(&object, "resourceVersion").to_owned();
    if deleted {
        let (namespace, name) = (meta(&object, "namespace").to_owned(), meta(&object, "name").to_owned());
        return (!name.is_empty()).then_some(Change::Deleted { namespace, name, version });
    }
    Some(Change::Applied(item(&object)?, version))
}

/// Decodes a status that is not wrapped in a change. Some servers send it in this form.
fn refused<K>(line: &str) -> Option<Change<K>> {
    let status: Status = serde_json::from_str(line).ok()?;
    (status.code != 0).then(|| Change::Refused(status.boxed()))
}

/// Decodes one object. If this fails, returns an [`Item::Unreadable`] for an object with a name, and `None` for an object
/// without a name.
fn item<K: DeserializeOwned>(object: &Value) -> Option<Item<K>> {
    let error = match serde_path_to_error::deserialize(object) {
        Ok(object) => return Some(Item::Read(object)),
        Err(error) => error,
    };
    let name = meta(object, "name").to_owned();
    let (field, problem) = (error.path().to_string(), error.inner().to_string());
    // `.` is the path of the object itself.
    let field = if field == "." { String::new() } else { field };
    (!name.is_empty())
        .then(|| Item::Unreadable(Unreadable { namespace: meta(object, "namespace").to_owned(), name, field, problem }))
}

fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use kube::ResourceExt as _;

    use super::*;

    const GOOD: &str =
        r#"{"metadata":{"namespace":"shop","name":"good","resourceVersion":"4"},"spec":{"ports":[{"port":80}]}}"#;
    const BAD: &str = r#"{"metadata":{"namespace":"shop","name":"bad","resourceVersion":"5"},"spec":{"ports":[{"port":80},{"port":"web"}]}}"#;

    fn bad() -> Unreadable {
        Unreadable {
            namespace: "shop".to_owned(),
            name: "bad".to_owned(),
            field: "spec.ports[1].port".to_owned(),
            problem: "invalid type: string \"web\", expected i32".to_owned(),
        }
    }

    #[test]
    fn an_undecodable_object_is_named_and_does_not_affect_the_others() {
        let text = format!(r#"{{"metadata":{{"resourceVersion":"9","continue":""}},"items":[{GOOD},{BAD},{GOOD}]}}"#);
        let page: Page<Service> = page(&text).unwrap();
        assert_eq!((page.version.as_str(), page.more), ("9", None));
        let names: Vec<_> = page
            .items
            .iter()
            .map(|item| match item {
                Item::Read(service) => service.name_any(),
                Item::Unreadable(unreadable) => {
                    assert_eq!(*unreadable, bad());
                    "?".to_owned()
                }
            })
            .collect();
        assert_eq!(names, ["good", "?", "good"]);
    }

    #[test]
    fn a_document_that_is_not_a_list_is_an_error() {
        for text in
            ["", "<html>", "{}", "[]", r#"{"items":[1]}"#, r#"{"items":[{"spec":{"ports":1}}]}"#, r#"{"items":{}}"#]
        {
            assert!(page::<Service>(text).is_err(), "{text}");
        }
        assert!(page::<Service>(r#"{"items":null}"#).unwrap().items.is_empty());
    }

    #[test]
    fn lines_of_a_watch_are_decoded() {
        let line = |kind: &str, object: &str| change::<Service>(&format!(r#"{{"type":"{kind}","object":{object}}}"#));
        assert!(matches!(line("ADDED", GOOD), Ok(Change::Applied(Item::Read(_), version)) if version == "4"));
        assert!(
            matches!(line("MODIFIED", BAD), Ok(Change::Applied(Item::Unreadable(unreadable), version)) if unreadable == bad() && version == "5")
        );
        for object in [GOOD, BAD] {
            assert!(matches!(line("DELETED", object), Ok(Change::Deleted { namespace, .. }) if namespace == "shop"));
        }
        let bookmark = r#"{"kind":"Service","apiVersion":"v1","metadata":{"resourceVersion":"8"}}"#;
        assert!(matches!(line("BOOKMARK", bookmark), Ok(Change::Bookmark(version)) if version == "8"));
        let status = r#"{"kind":"Status","code":410,"message":"too old","reason":"Expired","status":"Failure"}"#;
        assert!(matches!(line("ERROR", status), Ok(Change::Refused(status)) if status.code == 410));
        assert!(matches!(change::<Service>(status), Ok(Change::Refused(status)) if status.code == 410));
        for text in ["<html>", "{}", r#"{"type":"ADDED","object":1}"#] {
            assert!(change::<Service>(text).is_err(), "{text}");
        }
    }
}
