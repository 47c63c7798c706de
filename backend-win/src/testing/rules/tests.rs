//! For each rule, a document that breaks it, and the nearest one that does not. The fake HNS refuses the first with the code and
//! text of the rule, and takes the second.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::{
    hcn::{Failure, Hcn as _},
    testing::FakeHcn,
};

/// An object in HNS that a row begins with, and what the row changes in HNS and in the document.
type Change = fn(&mut FakeHcn, &mut Value);

struct Row {
    rule: Rule,
    kind: Kind,
    /// Changes a document that HNS accepts into one that breaks the rule.
    breaks: Change,
    /// Changes a document that HNS accepts into the nearest one that does not.
    keeps: Change,
    /// How the message of HNS begins.
    says: &'static str,
}

const E: Kind = Kind::Endpoint;
const B: Kind = Kind::LoadBalancer;

/// The first pod of [`hns`], and an identifier that no object has.
const POD: u128 = 3;
const FREE: u128 = 0x77;

const NOTHING: Change = |_, _| {};

fn rows() -> Vec<Row> {
    let row = |rule, kind, says, breaks, keeps| Row { rule, kind, breaks, keeps, says };
    vec![
        row(IS_JSON, E, "Invalid JSON document string. ", |_, it| *it = json!([]), NOTHING),
        row(IS_JSON, B, "Invalid JSON document string. ", |_, it| *it = json!("{}"), NOTHING),
        row(
            HAS_THE_TYPES,
            B,
            "Invalid JSON document string. ",
            |_, it| it["PortMappings"][0]["ExternalPort"] = json!(65_536),
            |_, it| it["PortMappings"][0]["ExternalPort"] = json!(65_535),
        ),
        row(
            HAS_THE_TYPES,
            B,
            "Invalid JSON document string. ",
            |_, it| it["FrontendVIPs"] = json!("172.30.0.9"),
            |_, it| it["FrontendVIPs"] = json!(["172.30.0.9"]),
        ),
        row(
            HAS_THE_TYPES,
            E,
            "Invalid JSON document string. ",
            |_, it| it["IpConfigurations"][0]["PrefixLength"] = json!(256),
            |_, it| it["IpConfigurations"][0]["PrefixLength"] = json!(24),
        ),
        row(HAS_THE_TYPES, E, "Invalid JSON document string. ", |_, it| it["Dns"] = json!("localhost"), NOTHING),
        row(
            HAS_A_SCHEMA_VERSION,
            B,
            "Invalid JSON document string. ",
            |_, it| _ = it.as_object_mut().unwrap().remove("SchemaVersion"),
            |_, it| it["SchemaVersion"] = json!({"Major": 2, "Minor": 11}),
        ),
        row(
            HNS_HAS_THE_SCHEMA,
            E,
            "The specified request is unsupported. ",
            |hns, _| hns.version = Version::new(9, 1),
            |hns, _| hns.version = Version::new(9, 2),
        ),
        row(
            NETWORK_EXISTS,
            E,
            "The network was not found. ",
            |hns, _| hns.objects.retain(|(kind, _), _| *kind != Kind::Network),
            NOTHING,
        ),
        row(
            ENDPOINT_ID_IS_FREE,
            E,
            "The object already exists. ",
            |hns, _| _ = hns.objects.insert((E, Guid::new(FREE)), json!({})),
            |hns, _| _ = hns.objects.insert((B, Guid::new(FREE)), json!({})),
        ),
        row(
            ENDPOINT_HAS_ADDRESSES,
            E,
            "IP address is either invalid or not part of any configured subnet(s). ",
            |_, it| it["IpConfigurations"][0]["IpAddress"] = json!("10.180.1"),
            |_, it| it["IpConfigurations"][0]["IpAddress"] = json!("fd00::1"),
        ),
        row(
            PREFIX_FITS,
            E,
            "The prefix provided is invalid. ",
            |_, it| it["IpConfigurations"][0]["PrefixLength"] = json!(33),
            |_, it| it["IpConfigurations"][0]["PrefixLength"] = json!(32),
        ),
        row(
            ADDRESS_IS_IN_A_SUBNET,
            E,
            "IP address is either invalid or not part of any configured subnet(s). ",
            |_, it| (it["Flags"], it["IpConfigurations"][0]["IpAddress"]) = (json!(0), json!("10.180.1.1")),
            |_, it| (it["Flags"], it["IpConfigurations"][0]["IpAddress"]) = (json!(0), json!("10.180.0.9")),
        ),
        row(
            ADDRESS_IS_NOT_RESERVED,
            E,
            "An address provided is invalid or reserved. ",
            |_, it| (it["Flags"], it["IpConfigurations"][0]["IpAddress"]) = (json!(0), json!("10.180.0.254")),
            |hns, it| {
                (it["Flags"], it["IpConfigurations"][0]["IpAddress"]) = (json!(0), json!("10.180.0.254"));
                network(hns)["Ipams"][0]["Subnets"][0]["Flags"] = json!(1);
            },
        ),
        row(
            ADDRESS_IS_FREE,
            E,
            "The object already exists. ",
            |_, it| (it["Flags"], it["IpConfigurations"][0]["IpAddress"]) = (json!(0), json!("10.180.0.1")),
            |_, it| it["IpConfigurations"][0]["IpAddress"] = json!("10.180.0.1"),
        ),
        row(
            POLICY_TYPE_IS_KNOWN,
            E,
            "Invalid policy type. ",
            |_, it| it["Policies"][0] = json!({"Type": "ROUTE", "Settings": {}}),
            |_, it| it["Policies"][0] = json!({"Type": "SDNRoute", "Settings": {}}),
        ),
        row(
            POLICY_HAS_ITS_SETTINGS,
            E,
            "The provided policy configuration is invalid or missing parameters. ",
            |_, it| it["Policies"][0]["Settings"] = json!({}),
            |_, it| it["Policies"] = json!([]),
        ),
        row(
            IDENTIFIERS_ARE_GUIDS,
            B,
            "Failed to interpret a parameter as a GUID. ",
            |_, it| it["HostComputeEndpoints"] = json!(["EPID-1"]),
            |_, it| it["HostComputeEndpoints"] = json!([Guid::new(POD).to_string().to_uppercase()]),
        ),
        row(
            HAS_ENDPOINTS,
            B,
            "The reference is invalid in the JSON document. A Reference is required",
            |_, it| it["HostComputeEndpoints"] = json!([]),
            NOTHING,
        ),
        row(
            ENDPOINTS_EXIST,
            B,
            "The endpoint was not found. ",
            |_, it| it["HostComputeEndpoints"] = json!([Guid::new(POD), Guid::new(FREE)]),
            |_, it| it["HostComputeEndpoints"] = json!([Guid::new(POD), Guid::new(POD + 1)]),
        ),
        row(
            VIPS_ARE_ADDRESSES,
            B,
            "IP address is either invalid or not part of any configured subnet(s). ",
            |_, it| it["FrontendVIPs"] = json!(["172.30.0.9", "172.30.0"]),
            |_, it| it["FrontendVIPs"] = json!(["172.30.0.9", "172.30.0.10"]),
        ),
        row(
            VIPS_ARE_ADDRESSES,
            B,
            "IP address is either invalid or not part of any configured subnet(s). ",
            |_, it| it["SourceVIP"] = json!("node"),
            |_, it| it["SourceVIP"] = json!("192.168.0.2"),
        ),
        row(
            HAS_INTERNAL_PORTS,
            B,
            "The internal port must exist and cannot be zero. ",
            |_, it| _ = it["PortMappings"][0].as_object_mut().unwrap().remove("InternalPort"),
            |_, it| it["PortMappings"][0]["InternalPort"] = json!(1),
        ),
        row(
            HNS_HAS_DIRECT_SERVER_RETURN,
            B,
            "The specified request is unsupported. ",
            |hns, it| (hns.version, it["Flags"]) = (Version::new(10, 1), json!(1)),
            |hns, it| (hns.version, it["Flags"]) = (Version::new(10, 2), json!(1)),
        ),
        row(
            HNS_HAS_IPV6,
            B,
            "The specified request is unsupported. ",
            |hns, it| (hns.version, it["Flags"]) = (Version::new(11, 9), json!(2)),
            |hns, it| (hns.version, it["Flags"]) = (Version::new(11, 10), json!(2)),
        ),
        row(
            HAS_NOT_TOO_MANY_ENDPOINTS,
            B,
            "The parameter is incorrect. Unable to initialize VFP LB rule: invalid number of destinations.",
            |hns, it| it["HostComputeEndpoints"] = many(hns, 65),
            |hns, it| it["HostComputeEndpoints"] = many(hns, 64),
        ),
        row(
            FRONTEND_IS_FREE,
            B,
            "The specified port already exists. ",
            |hns, it| taken(hns, it, "172.30.0.9", 6),
            |hns, it| taken(hns, it, "172.30.0.9", 17),
        ),
        row(
            FRONTEND_IS_FREE,
            B,
            "The specified port already exists. ",
            |hns, it| {
                it["FrontendVIPs"] = json!(["172.30.0.8", "172.30.0.9"]);
                taken(hns, it, "172.30.0.9", 6);
            },
            |hns, it| taken(hns, it, "172.30.0.10", 6),
        ),
        row(
            FRONTEND_IS_FREE,
            B,
            "The specified port already exists. ",
            |hns, it| {
                taken(hns, it, "172.30.0.9", 6);
                for document in hns.objects.values_mut().filter(|document| document["FrontendVIPs"].is_array()) {
                    _ = document.as_object_mut().unwrap().remove("FrontendVIPs");
                }
                _ = it.as_object_mut().unwrap().remove("FrontendVIPs");
            },
            |hns, it| {
                taken(hns, it, "172.30.0.9", 6);
                _ = it.as_object_mut().unwrap().remove("FrontendVIPs");
            },
        ),
        row(
            LOAD_BALANCER_ID_IS_FREE,
            B,
            "Cannot create a file when that file already exists. ",
            |hns, _| _ = hns.objects.insert((B, Guid::new(FREE)), json!({})),
            |hns, _| _ = hns.objects.insert((E, Guid::new(FREE)), json!({})),
        ),
    ]
}

/// An HNS of Windows Server 2022 before the update that allows more than 64 endpoints.
fn hns() -> FakeHcn {
    let subnets = [("10.180.1.0/24", "192.168.0.3")];
    let mut hns = FakeHcn::with_network("cbr0", "Overlay", &subnets, &["10.180.0.1", "10.180.0.2"]);
    hns.most_endpoints = 64;
    hns
}

fn network(hns: &mut FakeHcn) -> &mut Value {
    hns.objects.iter_mut().find(|((kind, _), _)| *kind == Kind::Network).unwrap().1
}

/// The document of a remote endpoint, or of a load balancer.
fn document(hns: &FakeHcn, kind: Kind) -> Value {
    let network = hns.documents(Kind::Network).next().unwrap().0;
    if kind == Kind::Endpoint {
        let address = [10, 180, 1, 1].into();
        json!(Endpoint::remote(network, address, "02-11-0a-b4-01-01".to_owned(), Some([192, 168, 0, 3].into())))
    } else {
        json!({"HostComputeEndpoints": [Guid::new(POD)], "FrontendVIPs": ["172.30.0.9"],
            "PortMappings": [{"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80}],
            "SchemaVersion": {"Major": 2, "Minor": 0}})
    }
}

/// Adds endpoints, and returns their identifiers.
fn many(hns: &mut FakeHcn, count: u8) -> Value {
    (0..count).map(|number| json!(hns.add_pod("cbr0", &format!("10.180.0.{}", 100 + number)))).collect()
}

/// Lets another load balancer have the port of the document at an address.
fn taken(hns: &mut FakeHcn, document: &Value, vip: &str, protocol: u32) {
    let mut other = document.clone();
    other["FrontendVIPs"] = json!([vip]);
    other["PortMappings"][0]["Protocol"] = json!(protocol);
    other["PortMappings"][0]["InternalPort"] = json!(1);
    hns.objects.insert((Kind::LoadBalancer, Guid::new(0xf00)), other);
}

/// Sends the document that a change results in.
fn send(kind: Kind, change: Change) -> Result<String, Failure> {
    let mut hns = hns();
    let network = hns.documents(Kind::Network).next().unwrap().0;
    let mut document = document(&hns, kind);
    change(&mut hns, &mut document);
    let before = hns.objects.clone();
    let sent = if kind == Kind::Endpoint {
        hns.create_endpoint(network, Guid::new(FREE), &document.to_string())
    } else {
        hns.create_load_balancer(Guid::new(FREE), &document.to_string())
    };
    assert_eq!(sent.is_err(), hns.objects == before, "only an accepted document changes HNS: {document}");
    sent
}

#[test]
fn each_rule_refuses_what_breaks_it_and_nothing_else() {
    for Row { rule, kind, breaks, keeps, says } in rows() {
        let what = rule.demands;
        let failure = send(kind, breaks).expect_err(what);
        let record: Value = serde_json::from_str(&failure.record).unwrap();
        assert_eq!(
            (failure.hresult.cast_unsigned(), record["ErrorCode"].as_u64()),
            (rule.code, Some(rule.code.into())),
            "{what}"
        );
        assert_eq!((record["Error"].as_str(), &record["Success"]), (Some(says), &json!(false)), "{what}");
        send(kind, keeps).unwrap_or_else(|failure| panic!("{what}: {failure}"));
    }
}

#[test]
fn each_rule_has_a_row_and_a_source() {
    let names = |rules: &mut dyn Iterator<Item = &Rule>| rules.map(|rule| rule.demands).collect::<BTreeSet<_>>();
    let listed = names(&mut DOCUMENT.iter().chain(ENDPOINT).chain(LOAD_BALANCER));
    let rows = rows();
    assert_eq!(names(&mut rows.iter().map(|row| &row.rule)), listed);
    assert_eq!(listed.len(), DOCUMENT.len() + ENDPOINT.len() + LOAD_BALANCER.len());
    let text = include_str!("../rules.rs");
    let without: Vec<&str> = text
        .split("\n\n")
        .filter(|item| item.contains(": Rule = Rule {") && !item.trim_start().starts_with("/// Source: "))
        .collect();
    assert_eq!(without, [] as [&str; 0]);
    assert_eq!(text.matches(": Rule = Rule {").count(), listed.len());
}

/// A change in place follows the same rules, but does not collide with itself.
#[test]
fn a_change_in_place_follows_the_rules() {
    let mut hns = hns();
    hns.version = Version::new(15, 5);
    let id = Guid::new(FREE);
    let mut document = document(&hns, Kind::LoadBalancer);
    hns.create_load_balancer(id, &document.to_string()).unwrap();
    document["HostComputeEndpoints"] = json!([Guid::new(POD), Guid::new(POD + 1)]);
    hns.modify_load_balancer(id, &document.to_string()).unwrap();
    document["HostComputeEndpoints"] = json!([]);
    let failure = hns.modify_load_balancer(id, &document.to_string()).unwrap_err();
    assert_eq!(failure.hresult.cast_unsigned(), HAS_ENDPOINTS.code);
    assert_eq!(hns.load_balancers()[0].host_compute_endpoints.len(), 2);
}
