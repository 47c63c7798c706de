//! Compares the documents with those that HNS is known to accept, and parses garbage.

use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use super::*;

const ID: &str = "00000000-0000-0000-0000-00000000000a";

fn guid() -> Guid {
    ID.parse().unwrap()
}

fn value(document: &impl Serialize) -> Value {
    serde_json::from_str(&write(document)).unwrap()
}

/// An answer of HNS either fails to parse or survives writing and reading unchanged.
#[test]
fn fuzz_documents_of_hcn() {
    let seeds = [
        r#"{"ID":"00000000-0000-0000-0000-00000000000a","FrontendVIPs":["10.20.30.41"],"PortMappings":[{"Protocol":6,"InternalPort":8080}],"SchemaVersion":{"Major":2,"Minor":0},"Flags":1}"#,
        r#"["00000000-0000-0000-0000-00000000000a","x",1]"#,
        "",
    ];
    localnet_fuzz::target("hcn", &seeds.map(str::as_bytes), |bytes| {
        let json = String::from_utf8_lossy(bytes);
        match read::<LoadBalancer>("load balancer", &json) {
            Ok(document) => {
                assert_eq!(read::<LoadBalancer>("load balancer", &write(&document)).unwrap(), document);
                format!("{document:?}")
            }
            Err(odd) => odd.why,
        }
    });
}

/// The documents of kube-proxy v1.37, as its own types write them. The order of fields may differ.
#[test]
fn documents_equal_those_of_kube_proxy() {
    let mapping = PortMapping { protocol: 6, internal_port: 8080, external_port: 80, ..PortMapping::default() };
    let cluster_ip = LoadBalancer {
        host_compute_endpoints: vec![guid()],
        source_vip: Some("192.168.1.2".parse().unwrap()),
        frontend_vips: vec!["10.20.30.41".parse().unwrap()],
        port_mappings: vec![mapping],
        flags: LoadBalancerFlags::DSR,
        ..LoadBalancer::default()
    };
    assert_eq!(
        value(&cluster_ip),
        json!({"HostComputeEndpoints": [ID], "SourceVIP": "192.168.1.2", "FrontendVIPs": ["10.20.30.41"],
            "PortMappings": [{"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80}],
            "SchemaVersion": {"Major": 2, "Minor": 0}, "Flags": 1})
    );
    let node_port = LoadBalancer {
        host_compute_endpoints: vec![guid()],
        port_mappings: vec![PortMapping {
            distribution_type: Distribution::SOURCE_IP,
            flags: PortMappingFlags::LOCAL_ROUTED_VIP | PortMappingFlags::VIP_EXTERNAL_IP,
            ..mapping
        }],
        ..LoadBalancer::default()
    };
    assert_eq!(
        value(&node_port),
        json!({"HostComputeEndpoints": [ID], "SchemaVersion": {"Major": 2, "Minor": 0},
            "PortMappings": [{"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80, "DistributionType": 2, "Flags": 18}]})
    );
    let provider = Some("10.0.0.3".parse().unwrap());
    let remote = Endpoint::remote(guid(), "192.168.2.3".parse().unwrap(), "02-11-c0-a8-02-03".to_owned(), provider);
    assert_eq!(
        value(&remote),
        json!({"HostComputeNetwork": ID, "Policies": [{"Type": "ProviderAddress", "Settings": {"ProviderAddress": "10.0.0.3"}}],
            "IpConfigurations": [{"IpAddress": "192.168.2.3"}], "Dns": {}, "MacAddress": "02-11-c0-a8-02-03", "Flags": 1,
            "Health": {"Extra": {}}, "SchemaVersion": {"Major": 2, "Minor": 0}})
    );
    assert_eq!(value(&Query::all()), json!({"SchemaVersion": {"Major": 2, "Minor": 0}}));
    let query = json!({"SchemaVersion": {"Major": 2, "Minor": 0}, "Filter": "{\"Name\":\"cbr\\\"0\"}"});
    assert_eq!(value(&Query::named("cbr\"0")), query);
    let query =
        json!({"SchemaVersion": {"Major": 2, "Minor": 0}, "Filter": format!("{{\"VirtualNetwork\":\"{ID}\"}}")});
    assert_eq!(value(&Query::of_network(guid())), query);
}

#[test]
fn written_documents_parse_to_the_same_values() {
    let balancer = LoadBalancer {
        id: Some(guid()),
        host_compute_endpoints: vec![guid(), Guid::new(7)],
        source_vip: Some("fd00::1".parse().unwrap()),
        frontend_vips: vec!["fd00::2".parse().unwrap()],
        port_mappings: vec![PortMapping {
            protocol: 132,
            internal_port: 1,
            external_port: 65_535,
            ..PortMapping::default()
        }],
        flags: LoadBalancerFlags::DSR | LoadBalancerFlags::IPV6,
        ..LoadBalancer::default()
    };
    assert_eq!(read("load balancer", &write(&balancer)), Ok(balancer));
    let endpoint = Endpoint {
        id: Some(guid()),
        name: "Ethernet\u{e9}".to_owned(),
        ..Endpoint::remote(
            guid(),
            "fd00::1".parse().unwrap(),
            "02-11-00-00-00-00".to_owned(),
            Some("10.0.0.1".parse().unwrap()),
        )
    };
    let again: Endpoint = read("endpoint", &write(&endpoint)).unwrap();
    assert_eq!((again.provider(), again.is_remote()), (Some("10.0.0.1".parse().unwrap()), true));
    assert_eq!(again, endpoint);
}

#[test]
fn remote_subnets_are_read_from_policies() {
    let network: Network = read(
        "network",
        &json!({"ID": ID, "Name": "cbr0", "Type": "overlay", "Health": {"Extra": {}}, "Policies": [
            {"Type": "NetAdapterName", "Settings": {"NetworkAdapterName": "Ethernet"}},
            {"Type": "RemoteSubnetRoute", "Settings": {"DestinationPrefix": "192.168.2.0/24", "IsolationId": 4096, "ProviderAddress": "10.0.0.3"}},
            {"Type": "RemoteSubnetRoute", "Settings": {"DestinationPrefix": "nonsense", "ProviderAddress": "10.0.0.4"}},
            {"Type": "RemoteSubnetRoute", "Settings": null}, {"Type": "RemoteSubnetRoute"}, {}]})
        .to_string(),
    )
    .unwrap();
    assert_eq!(network.kind(), NetworkType::Overlay);
    let subnet = RemoteSubnet { prefix: "192.168.2.0/24".parse().unwrap(), provider: "10.0.0.3".parse().unwrap() };
    assert_eq!(network.remote_subnets(), [subnet]);
}

#[test]
fn unusual_documents_are_parsed_as_far_as_possible() {
    let balancer = |json: &str| read::<LoadBalancer>("load balancer", json);
    let empty = LoadBalancer::default();
    for json in [
        "{}",
        r#"{"ID":"","HostComputeEndpoints":null,"FrontendVIPs":null,"PortMappings":null,"SourceVIP":"","Flags":null}"#,
        r#"{"ID":7,"SchemaVersion":"2.0","Surprise":[1,2,3]}"#,
        r#"{"FrontendVIPs":["",null]}"#,
    ] {
        assert_eq!(balancer(json), Ok(empty.clone()), "{json}");
    }
    // An invalid address must not count as a missing one: a load balancer without addresses answers on all addresses of the node.
    for json in [
        r#"{"FrontendVIPs":["10.0.0"]}"#,
        r#"{"FrontendVIPs":"10.0.0.1"}"#,
        r#"{"PortMappings":[{"ExternalPort":65536}]}"#,
        "[]",
        "null",
        "",
        "{",
    ] {
        assert!(balancer(json).is_err(), "{json}");
    }
    let endpoint: Endpoint = read(
        "endpoint",
        r#"{"IpConfigurations":[{"IpAddress":"x"},{"IpAddress":"10.0.0.1"},{"IpAddress":null},{}],"MacAddress":null}"#,
    )
    .unwrap();
    assert_eq!(endpoint.addresses().collect::<Vec<_>>(), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(read_ids(""), Ok(vec![]));
    assert_eq!(read_ids("null"), Ok(vec![]));
    assert_eq!(read_ids(&format!("[\"{{{ID}}}\", 7, \"x\", null]")), Ok(vec![guid()]));
    assert!(read_ids("{}").is_err());
    assert!(read_version(r#"{"Major":"15"}"#).is_err());
}

/// Generates JSON whose keys include the names of fields.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    const NAMES: [&str; 14] = [
        "ID",
        "Name",
        "Type",
        "Policies",
        "Settings",
        "IpConfigurations",
        "IpAddress",
        "HostComputeEndpoints",
        "FrontendVIPs",
        "PortMappings",
        "Flags",
        "ErrorCode",
        "DestinationPrefix",
        "ProviderAddress",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop_oneof![Just(ID), Just("10.0.0.1"), Just("10.0.0.0/8"), Just("RemoteSubnetRoute"), Just("ProviderAddress")]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        let key = prop_oneof![3 => (0..NAMES.len()).prop_map(|at| NAMES[at].to_owned()), 1 => ".{0,6}"];
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((key, inner), 0..6).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn read_all(text: &str) {
    if let Ok(network) = read::<Network>("network", text) {
        _ = (network.kind(), network.is_for_pods(), network.remote_subnets());
    }
    if let Ok(endpoint) = read::<Endpoint>("endpoint", text) {
        _ = (endpoint.addresses().count(), endpoint.provider(), endpoint.is_remote());
        assert!(read::<Endpoint>("endpoint", &write(&endpoint)).is_ok());
    }
    if let Ok(balancer) = read::<LoadBalancer>("load balancer", text) {
        assert_eq!(read("load balancer", &write(&balancer)), Ok(balancer));
    }
    _ = (read_ids(text), read_version(text));
    _ = super::super::version::output(text.to_owned()).map(|output| read_version(&output));
    let failure = super::super::Failure { call: "Hcn", hresult: 0, record: text.to_owned() };
    assert!(failure.to_string().len() < 2_000, "{failure}");
    _ = failure.reason();
}

/// Inputs that once caused a panic or may cause one.
#[test]
fn known_garbage_is_parsed_without_a_panic() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = format!("{}1{}", r#"{"Policies":["#.repeat(5_000), "]}".repeat(5_000));
    for text in [
        &deep,
        &nested,
        "\u{feff}{}",
        "\"\\ud800\"",
        "{\"Flags\":-1}",
        "{\"Flags\":1e999}",
        "{\"ID\":\"\\u0000\"}",
        "nul",
        "{\"Policies\":[[]]}",
    ] {
        read_all(text);
    }
}

proptest! {
    #[test]
    fn any_json_is_parsed_without_a_panic(json in any_json()) {
        read_all(&json.to_string());
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(text in ".*", cut in any::<prop::sample::Index>(), json in any_json()) {
        read_all(&text);
        let json = json.to_string();
        let at = cut.index(json.len() + 1);
        if let Some(part) = json.get(..at) {
            read_all(part);
        }
    }
}
