//! `values.schema.json` accepts exactly the existing values.

use anyhow::Context as _;
use serde_json::Value;

use crate::{chart, read, root, template};

/// Fields that the chart itself sets.
const OF_THE_CHART: [&str; 4] = ["apiVersion", "kind", "mode", "hostnameOverride"];

/// Collects the names of all fields below a value, joined by dots.
fn fields(value: &Value, path: &str, into: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match value.as_object() {
            Some(inner) if !inner.is_empty() => fields(value, &path, into),
            _ => into.push(path),
        }
    }
}

/// Collects the names of all fields that a schema allows.
fn allowed(schema: &Value, path: &str, into: &mut Vec<String>) {
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if schema["properties"].is_object() { allowed(schema, &path, into) } else { into.push(path) }
    }
}

fn schema() -> anyhow::Result<Value> {
    serde_json::from_str(&read(&chart("values.schema.json"))?).context("values.schema.json is no JSON")
}

#[test]
fn the_schema_allows_every_field_of_the_configuration() -> anyhow::Result<()> {
    let golden: Value = serde_saphyr::from_str(&read(&root().join("config/tests/golden/v1alpha2.yaml"))?)?;
    let (mut present, mut allowed_fields) = (Vec::new(), Vec::new());
    fields(&golden, "", &mut present);
    allowed(&schema()?["properties"]["config"], "", &mut allowed_fields);
    present.retain(|field| !OF_THE_CHART.contains(&field.as_str()));
    present.sort();
    allowed_fields.sort();
    assert_eq!(allowed_fields, present);
    Ok(())
}

#[test]
fn every_value_is_in_the_schema() -> anyhow::Result<()> {
    let values: Value = serde_saphyr::from_str(&read(&chart("values.yaml"))?)?;
    let schema = schema()?;
    let (mut present, mut allowed_fields) = (Vec::new(), Vec::new());
    fields(&values, "", &mut present);
    allowed(&schema, "", &mut allowed_fields);
    // Kubernetes objects, and fields of the configuration without a value in the chart.
    let is_in = |field: &String, all: &[String]| {
        all.iter().any(|other| {
            other == field || field.starts_with(&format!("{other}.")) || other.starts_with(&format!("{field}."))
        })
    };
    let unknown: Vec<_> = present.iter().filter(|field| !is_in(field, &allowed_fields)).collect();
    assert!(unknown.is_empty(), "the schema does not know {unknown:?}");
    let without: Vec<_> = allowed_fields
        .iter()
        .filter(|field| !field.starts_with("config.") && *field != "global" && !is_in(field, &present))
        .collect();
    assert!(without.is_empty(), "values.yaml does not have {without:?}");
    Ok(())
}

#[test]
fn invalid_values_are_refused() {
    for (set, complaint) in [
        ("bakend=nft", "bakend"),
        ("backend=kernelspace", "backend"),
        ("image.tags=a", "tags"),
        ("image.digests.localnet-nft=sha256:0a", "localnet-nft"),
        ("fullnameOverride=Services", "fullnameOverride"),
        ("socket.hostPath=run/localnet", "hostPath"),
        ("history.hostPath=var/lib", "hostPath"),
        ("history.size=16Mi", "size"),
        ("extraArgs.backend={dry-run}", "extraArgs"),
        ("config.linux.conntrack.maxPerCor=1", "maxPerCor"),
        ("config.mode=ipvs", "mode"),
        ("config.metricsBindAddress=10249", "metricsBindAddress"),
        ("config.metricsBindAddress=", "metricsBindAddress"),
        ("apiServer.port=0", "port"),
        ("cleanup={kube-proxy}", "cleanup"),
        ("cleanup={nft}", "its rules would be removed at each start"),
        ("podMonitor.enabled=true", "an address of loopback"),
        ("resources.brain.memory=1Mi", "memory"),
        // With these levels, nothing would be logged, not even the start.
        ("log.level=verbose", "level"),
        ("log.level=warning", "level"),
    ] {
        let flag = if set.contains('{') || set.contains("port") || set.contains("enabled") || set.ends_with("Cor=1") {
            "--set"
        } else {
            "--set-string"
        };
        let error = template("nft", &[flag, set]).expect_err(set).to_string();
        assert!(error.contains(complaint), "{set}: {error}");
    }
}
