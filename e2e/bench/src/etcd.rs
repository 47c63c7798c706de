//! Many objects of a kind, written straight into etcd after the first of them, which the API server has made. An API server with tens of
//! thousands of Services takes a good part of a second for each further one, as it counts all addresses that it has given away.

use anyhow::Context as _;
use data_encoding::BASE64;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};

/// Keys in a transaction: etcd takes 128 at most.
const TOGETHER: usize = 100;
/// Transactions under way at a time.
const PARALLEL: usize = 4;

/// An object, and the key that an API server keeps it under.
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) object: Value,
}

/// Another object like `made`, one that the API server has made: what `body` says replaces what is there, and the rest stays.
pub(crate) fn like(made: &Value, body: &Value, number: u32) -> Value {
    let mut object = made.clone();
    merge(&mut object, body);
    if let Some(metadata) = object["metadata"].as_object_mut() {
        // etcd counts them.
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

/// Writes them through etcd's JSON gateway.
pub(crate) async fn put(etcd: &str, entries: impl Iterator<Item = Entry>) -> anyhow::Result<()> {
    // It is an HTTP client like any other, and there already.
    let client = Client::try_from(Config::new(etcd.parse().context("reading the address of etcd")?))?;
    let put = |Entry { key, object }: Entry| {
        let [key, value] = [key, object.to_string()].map(|text| BASE64.encode(text.as_bytes()));
        json!({ "requestPut": { "key": key, "value": value } })
    };
    let puts: Vec<Value> = entries.map(put).collect();
    let requests = puts.chunks(TOGETHER).map(|puts| {
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
