//! Every configuration that was read can be written and read again, and no text makes the reader panic.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use localnet_config::{FIELDS, Mode, Platform, Reader, Version};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Values for a field, valid and invalid.
fn values(default: &Value) -> Vec<Value> {
    match default {
        Value::Bool(_) => vec![json!(true), json!(false), json!("true")],
        Value::Number(_) => [0, 1, 7, 14, 31, 32, -1, -1000, 1_000_000, 2_147_483_647, 4_294_967_295_i64]
            .map(|number| json!(number))
            .into_iter()
            .chain([json!(1.5), json!("7")])
            .collect(),
        Value::String(_) => [
            "",
            "0s",
            "1s",
            "30s",
            "1m30s",
            "250ms",
            "-1s",
            "9999h",
            "iptables",
            "ipvs",
            "nftables",
            "ClusterCIDR",
            "NodeCIDR",
            "BridgeInterface",
            "InterfaceNamePrefix",
            "SingleStack",
            "RequireDualStack",
            "10.0.0.1",
            "010.0.0.1",
            "fd00::1",
            "10.0.0.0/8",
            "10.0.0.0/8,fd00::/48",
            "0.0.0.0",
            "::",
            "10.0.0.1:80",
            "[::1]:80",
            "text",
            "json",
            "1.36",
            "Node-A",
            " a: b",
            "4Ki",
            "512",
            "wrr",
            "primary",
            "'\"\n\u{e9}",
            "~",
            "null",
            "yes",
            "1e3",
        ]
        .map(|text| json!(text))
        .into(),
        Value::Array(_) => vec![
            json!([]),
            json!(["primary"]),
            json!(["primary", "localhost", "all", "10.0.0.0/8"]),
            json!(["10.1.2.3/8"]),
            json!(["10.0.0.0/8", "fd00::/48"]),
            json!(["fd00::/48", "10.0.0.0/8", "10.0.0.0/9"]),
            json!(["10.0.0.1"]),
            json!(["fd00::1", "10.0.0.1"]),
            json!([""]),
            json!([{"filePattern": "a*", "verbosity": 3}, {"filePattern": "b"}]),
        ],
        _ => vec![
            json!({}),
            json!({"AllAlpha": true}),
            json!({"AllBeta": false, "Strange.Name": true}),
            json!({"WinDSR": false}),
        ],
    }
}

fn set(document: &mut Value, path: &str, value: Value) {
    let steps: Vec<_> = path.split('.').collect();
    let (last, sections) = steps.split_last().unwrap();
    let section = sections
        .iter()
        .fold(document, |section, step| section.as_object_mut().unwrap().entry(*step).or_insert_with(|| json!({})));
    section[*last] = value;
}

/// A document of either version with some of the fields.
fn document() -> impl Strategy<Value = Value> {
    let version = prop_oneof![Just(Version::V1alpha1), Just(Version::V1alpha2)];
    (
        version,
        prop::collection::vec((0..FIELDS.len(), any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
    )
        .prop_map(|(version, fields)| {
            let mut document = json!({});
            for (field, path, value) in fields {
                let field = &FIELDS[field];
                let places = match version {
                    Version::V1alpha1 => field.in_v1alpha1(),
                    Version::V1alpha2 => vec![*field],
                };
                if !places.is_empty() {
                    let field = path.get(&places);
                    set(&mut document, field.path, value.get(&values(&field.default_value())).clone());
                }
            }
            document["apiVersion"] = json!(format!("kubeproxy.config.k8s.io/{}", version.as_str()));
            document["kind"] = json!("KubeProxyConfiguration");
            document
        })
}

fn readers() -> [Reader; 3] {
    [
        Reader::kube_proxy(Platform::Linux),
        Reader::kube_proxy(Platform::Windows),
        Reader { platform: Platform::Linux, empty_mode: Mode::Nftables },
    ]
}

/// Regression: the written text had no `minSyncPeriod`, so it was 1s when it was read again.
#[test]
fn the_default_min_sync_period_of_mode_ipvs_round_trips() {
    let reader = Reader::kube_proxy(Platform::Linux);
    let read = |text: &str| reader.read(text).unwrap().config;
    let config = read("{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, mode: ipvs}");
    assert_eq!(read(&config.to_yaml()), config);
}

proptest! {
    #[test]
    fn documents_round_trip(document in document()) {
        for (text, reader) in [document.to_string(), serde_saphyr::to_string(&document).unwrap()].iter().zip(readers()) {
            // Each problem has a line number.
            let reading = match reader.read(text) {
                Ok(reading) => reading,
                Err(problems) => {
                    prop_assert!(!problems.0.is_empty() && problems.0.iter().all(|problem| problem.to_string().starts_with("line ")));
                    continue;
                }
            };
            let written = reading.config.to_yaml();
            let again = reader.read(&written);
            prop_assert!(again.is_ok(), "{written}\n{}", again.unwrap_err());
            let again = again.unwrap();
            prop_assert_eq!(&again.config, &reading.config, "{}", written);
            prop_assert_eq!(again.version, Version::V1alpha2);
            prop_assert!(again.lost.is_empty());
            // Unknown gates remain unknown. The written text causes no other warning.
            prop_assert!(again.warnings.iter().all(|warning| warning.field.starts_with("featureGates.")), "{:?}", again.warnings);
            prop_assert_eq!(again.config.to_yaml(), written);
        }
    }

    #[test]
    fn json_and_yaml_give_the_same_configuration(document in document()) {
        let reader = Reader::kube_proxy(Platform::Linux);
        let without_lines = |text: &str| reader.read(text).map_err(|problems| {
            problems.0.into_iter().map(|problem| (problem.field, problem.problem)).collect::<Vec<_>>()
        }).map(|reading| reading.config);
        prop_assert_eq!(without_lines(&document.to_string()), without_lines(&serde_saphyr::to_string(&document).unwrap()));
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>, text in "(?s).*") {
        for text in [String::from_utf8_lossy(&bytes).into_owned(), text] {
            for reader in readers() {
                let _ = reader.read(&text);
            }
        }
    }

    #[test]
    fn no_change_of_a_document_panics(document in document(), at: prop::sample::Index, with in "[\\[\\]{}:,&*!|>'\"%@`#~\\-\n 0-9a-z]{0,4}", length in 0_usize..8) {
        let mut text = serde_saphyr::to_string(&document).unwrap();
        let boundary = |at: usize| (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        let start = boundary(at.index(text.len()));
        let end = boundary((start + length).min(text.len()));
        text.replace_range(start..end, &with);
        for reader in readers() {
            let _ = reader.read(&text).map_err(|problems| problems.to_string());
        }
    }
}
