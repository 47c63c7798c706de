//! Writes many objects of a kind directly into etcd, as copies of one that the API server has created. With tens of thousands of
//! Services, an API server takes a large part of a second for each further one, because it counts all allocated addresses.

use anyhow::Context as _;
use data_encoding::BASE64;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};

/// The number of keys in a transaction. etcd accepts at most 128.
const TOGETHER: usize = 100;
/// The size of a transaction in bytes. etcd accepts 1.5 MiB.
const REQUEST: usize = 1 << 20;
/// The number of concurrent transactions.
const PARALLEL: usize = 4;

/// An object, and the key under which an API server stores it.
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) object: Value,
}

/// A copy of `made`, an object that the API server has created. The fields of `body` replace those of the original.
pub(crate) fn like(made: &Value, body: &Value, number: u32) -> Value {
    let mut object = made.clone();
    merge(&mut object, body);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        // etcd counts the versions.
        metadata.remove("resourceVersion");
        let old = metadata.get("uid").and_then(Value::as_str).unwrap_or_default();
        let uid = format!("{number:08x}{}", old.get(8..).unwrap_or_default());
        metadata.insert("uid".to_owned(), uid.into());
    }
    object
}

fn merge(object: &mut Value, with: &Value) {
    match (object, with) {
        (Value::Object(object), Value::Object(with)) => {
            for (name, value) in with {
                merge(object.entry(name).or_insert(Value::Null), value);
            }
        }
        (object, with) => *object = with.clone(),
    }
}

/// Writes entries through etcd's JSON gateway.
pub(crate) async fn put(etcd: &str, entries: impl Iterator<Item = Entry>) -> anyhow::Result<()> {
    // Any HTTP client works, and this one is a dependency already.
    let client = Client::try_from(Config::new(etcd.parse().context("reading the address of etcd")?))?;
    let put = |Entry { key, object }: Entry| {
        let [key, value] = [key, object.to_string()].map(|text| BASE64.encode(text.as_bytes()));
        json!({ "requestPut": { "key": key, "value": value } })
    };
    let puts: Vec<Value> = entries.map(put).collect();
    let largest = puts.iter().map(|put| put.to_string().len()).max().unwrap_or(1);
    let requests = puts.chunks((REQUEST / largest).clamp(1, TOGETHER)).map(|puts| {
        let body = json!({ "success": puts }).to_string();
        let request = Request::post("/v3/kv/txn").header("Content-Type", "application/json").body(body.into_bytes());
        let client = client.clone();
        async move {
            let answer: Value = client.request(request?).await.context("writing into etcd")?;
            anyhow::ensure!(answer["succeeded"] == true, "etcd has not written: {answer}");
            anyhow::Ok(())
        }
    });
    stream::iter(requests).buffer_unordered(PARALLEL).try_for_each(|()| async { Ok(()) }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_object_has_its_own_names_and_keeps_the_rest() {
        let made = json!({
            "metadata": { "name": "a", "uid": "12345678-1234", "resourceVersion": "7", "managedFields": [1] },
            "spec": { "clusterIP": "1.2.3.4", "type": "ClusterIP" },
        });
        let body = json!({ "metadata": { "name": "b" }, "spec": { "clusterIP": "1.2.3.5" } });
        let expected = json!({
            "metadata": { "name": "b", "uid": "0000000a-1234", "managedFields": [1] },
            "spec": { "clusterIP": "1.2.3.5", "type": "ClusterIP" },
        });
        assert_eq!(like(&made, &body, 10), expected);
    }
}
