//! The answers to questions about a small cluster, most of them those of the Kubernetes DNS specification.

use std::{collections::BTreeMap, net::IpAddr};

use hickory_server::proto::rr::{Name, Record, RecordType};
use localnet_proto::v1::wire::{self, AddressKind, Protocol};

use crate::{
    answer::answer,
    names::{Names, Records},
    reader::State,
};

const TCP: i32 = Protocol::Tcp as i32;
const UDP: i32 = Protocol::Udp as i32;

fn service(addresses: &[&str], external_name: &str) -> wire::Service {
    let port = |name: &str, protocol, number| wire::ServicePort {
        name: name.to_owned(),
        protocol,
        number,
        ..wire::ServicePort::default()
    };
    let address =
        |address: &&str| wire::ServiceAddress { address: (*address).to_owned(), kind: AddressKind::ClusterIp.into() };
    let has_ports = !addresses.is_empty();
    wire::Service {
        addresses: addresses.iter().map(address).collect(),
        ports: if has_ports { vec![port("http", TCP, 80), port("dns", UDP, 53)] } else { Vec::new() },
        external_name: external_name.to_owned(),
        ..wire::Service::default()
    }
}

/// An endpoint. `ports` are pairs of a name and a number.
fn endpoint(address: &str, hostname: &str, ports: &[(&str, u32)]) -> wire::Endpoint {
    let port =
        |(name, number): &(&str, u32)| wire::EndpointPort { name: (*name).to_owned(), number: *number, protocol: TCP };
    wire::Endpoint {
        address: address.to_owned(),
        hostname: hostname.to_owned(),
        ports: ports.iter().map(port).collect(),
        ..wire::Endpoint::default()
    }
}

fn names() -> Names {
    let all = [
        ("web", service(&["10.96.0.10", "fd00:96::10"], ""), vec![endpoint("10.1.0.1", "", &[("http", 8080)])]),
        (
            "db",
            service(&[], ""),
            vec![
                endpoint("10.1.0.2", "db-0", &[("sql", 5432), ("admin", 5433)]),
                endpoint("10.1.0.3", "", &[("sql", 5432), ("admin", 5433)]),
                endpoint("fd00:1::", "", &[("sql", 5432)]),
            ],
        ),
        ("bare", service(&[], ""), vec![endpoint("10.1.0.4", "", &[])]),
        ("empty", service(&[], ""), vec![]),
        ("out", service(&[], "www.example.com"), vec![]),
        ("alias", service(&[], "web.shop.svc.cluster.local."), vec![]),
        ("loop-a", service(&[], "loop-b.shop.svc.cluster.local"), vec![]),
        ("loop-b", service(&[], "loop-a.shop.svc.cluster.local"), vec![]),
        ("self", service(&[], "x.self.shop.svc.cluster.local"), vec![]),
        ("dangling", service(&[], "gone.shop.svc.cluster.local"), vec![]),
        ("address", service(&[], "192.0.2.1"), vec![]),
    ];
    let mut names = Names::default();
    for (name, service, endpoints) in all {
        let endpoints: BTreeMap<_, _> =
            (0..).zip(endpoints).map(|(ordinal, of)| ((of.address.clone(), ordinal), of)).collect();
        names.set(&("shop".to_owned(), name.to_owned()), Some(&Records { service, endpoints }));
    }
    names
}

fn text(record: &Record) -> String {
    let data = record.data.to_string();
    format!("{} {} {data}", record.name, record.record_type()).replace("shop.svc.cluster.local.", "*")
}

/// Checks an answer: its code if that is not NOERROR, its records, and after a `+` the additional ones. `*` is
/// `shop.svc.cluster.local.`.
#[track_caller]
fn check(names: &Names, kind: RecordType, question: &str, expected: &[&str]) {
    let question = Name::from_ascii(question.replace('*', "shop.svc.cluster.local.")).unwrap();
    let domain = Name::from_ascii("cluster.local.").unwrap();
    let answer = answer(names, &domain, &question, kind).unwrap();
    let mut found: Vec<String> = answer.answers.iter().map(text).collect();
    found.extend(answer.additionals.iter().map(|record| format!("+ {}", text(record))));
    if answer.code != Default::default() {
        found.push(format!("{:?}", answer.code));
    }
    assert_eq!(found, expected, "{kind} {question}");
    let has_soa = answer.soa.is_some_and(|soa| soa.record_type() == RecordType::SOA);
    assert_eq!(has_soa, answer.answers.is_empty() && kind != RecordType::AXFR, "{kind} {question}");
}

#[test]
fn a_service_with_a_cluster_ip_has_addresses_and_ports() {
    let names = names();
    check(&names, RecordType::A, "web.*", &["web.* A 10.96.0.10"]);
    check(&names, RecordType::AAAA, "WEB.*", &["WEB.* AAAA fd00:96::10"]);
    let glue = ["+ web.* A 10.96.0.10", "+ web.* AAAA fd00:96::10"];
    check(&names, RecordType::SRV, "_http._tcp.web.*", &["_http._tcp.web.* SRV 0 50 80 web.*", glue[0], glue[1]]);
    let all = ["web.* SRV 0 25 53 web.*", "web.* SRV 0 25 80 web.*", glue[0], glue[1]];
    check(&names, RecordType::SRV, "web.*", &all);
    check(&names, RecordType::SRV, "_http._udp.web.*", &["NXDomain"]);
    check(&names, RecordType::A, "10-1-0-1.web.*", &["10-1-0-1.web.* A 10.1.0.1"]);
    check(&names, RecordType::MX, "web.*", &[]);
    check(&names, RecordType::A, "x.y.z.web.*", &["NXDomain"]);
}

#[test]
fn a_headless_service_has_the_addresses_and_ports_of_its_endpoints() {
    let names = names();
    check(&names, RecordType::A, "db.*", &["db.* A 10.1.0.2", "db.* A 10.1.0.3"]);
    check(&names, RecordType::A, "db-0.db.*", &["db-0.db.* A 10.1.0.2"]);
    check(&names, RecordType::AAAA, "fd00-1--0.db.*", &["fd00-1--0.db.* AAAA fd00:1::"]);
    check(
        &names,
        RecordType::SRV,
        "_admin._tcp.db.*",
        &[
            "_admin._tcp.db.* SRV 0 50 5433 10-1-0-3.db.*",
            "_admin._tcp.db.* SRV 0 50 5433 db-0.db.*",
            "+ 10-1-0-3.db.* A 10.1.0.3",
            "+ db-0.db.* A 10.1.0.2",
        ],
    );
    check(&names, RecordType::A, "bare.*", &["bare.* A 10.1.0.4"]);
    check(&names, RecordType::SRV, "bare.*", &[]);
    check(&names, RecordType::A, "empty.*", &["NXDomain"]);
    check(&names, RecordType::A, "db-1.db.*", &["NXDomain"]);
}

#[test]
fn an_external_name_is_an_alias() {
    let names = names();
    check(&names, RecordType::CNAME, "out.*", &["out.* CNAME www.example.com."]);
    check(&names, RecordType::A, "out.*", &["out.* CNAME www.example.com."]);
    check(&names, RecordType::SRV, "out.*", &[]);
    check(&names, RecordType::A, "x.out.*", &["NXDomain"]);
    check(&names, RecordType::A, "alias.*", &["alias.* CNAME web.*", "web.* A 10.96.0.10"]);
    for name in ["loop-a.*", "self.*", "dangling.*"] {
        check(&names, RecordType::A, name, &[]);
    }
    check(&names, RecordType::CNAME, "address.*", &["NXDomain"]);
}

#[test]
fn a_pod_has_the_address_in_its_name() {
    let names = names();
    let check = |kind, name: &str, expected: &[&str]| {
        let full = |text: &str| text.replace('@', "shop.pod.cluster.local.");
        let expected: Vec<_> = expected.iter().map(|text| full(text)).collect();
        check(&names, kind, &full(name), &expected.iter().map(String::as_str).collect::<Vec<_>>());
    };
    check(RecordType::A, "10-1-0-1.@", &["10-1-0-1.@ A 10.1.0.1"]);
    check(RecordType::AAAA, "10-1-0-1.@", &[]);
    check(RecordType::AAAA, "fd00-1--1.@", &["fd00-1--1.@ AAAA fd00:1::1"]);
    check(RecordType::A, "fd00-1--1.@", &[]);
    check(RecordType::AAAA, "1--2-3.@", &["1--2-3.@ AAAA 1::2:3"]);
    check(RecordType::A, "0--ffff-a01-1.@", &["0--ffff-a01-1.@ A 10.1.0.1"]);
    check(RecordType::SRV, "10-1-0-1.@", &["10-1-0-1.@ SRV 0 100 0 10-1-0-1.@", "+ 10-1-0-1.@ A 10.1.0.1"]);
    check(RecordType::A, "y.x.10-1-0-1.@", &["y.x.10-1-0-1.@ A 10.1.0.1"]);
    for name in ["z.y.x.10-1-0-1.@", "256-1-0-1.@", "10-1-0.@", "web.@"] {
        check(RecordType::A, name, &["NXDomain"]);
    }
    check(RecordType::A, "@", &[]);
    check(RecordType::A, "10-1-0-1.other.pod.cluster.local.", &["10-1-0-1.other.pod.cluster.local. A 10.1.0.1"]);
}

#[test]
fn addresses_have_names() {
    let names = names();
    check(&names, RecordType::PTR, "10.0.96.10.in-addr.arpa.", &["10.0.96.10.in-addr.arpa. PTR web.*"]);
    check(&names, RecordType::PTR, "2.0.1.10.in-addr.arpa.", &["2.0.1.10.in-addr.arpa. PTR db-0.db.*"]);
    let v6 = Name::from("fd00:96::10".parse::<IpAddr>().unwrap()).to_ascii();
    check(&names, RecordType::PTR, &v6, &[&format!("{v6} PTR web.*")]);
    check(&names, RecordType::A, "10.0.96.10.in-addr.arpa.", &[]);
    check(&names, RecordType::PTR, "11.0.96.10.in-addr.arpa.", &["NXDomain"]);
    check(&names, RecordType::PTR, "96.10.in-addr.arpa.", &["NXDomain"]);
    check(&names, RecordType::PTR, "web.*", &[]);
}

#[test]
fn other_names_of_the_domain() {
    let names = names();
    check(&names, RecordType::TXT, "dns-version.cluster.local.", &["dns-version.cluster.local. TXT 1.1.0"]);
    for name in ["cluster.local.", "svc.cluster.local.", "*", "in-addr.arpa."] {
        check(&names, RecordType::A, name, &[]);
    }
    for name in ["other.svc.cluster.local.", "gone.*", "x.cluster.local."] {
        check(&names, RecordType::A, name, &["NXDomain"]);
    }
    check(&names, RecordType::SOA, "gone.*", &[]);
    check(&names, RecordType::AXFR, "cluster.local.", &["Refused"]);
    let soa = "cluster.local. SOA ns.dns.cluster.local. hostmaster.cluster.local. 11 7200 1800 86400 5";
    let domain = Name::from_ascii("cluster.local.").unwrap();
    let found = answer(&names, &domain, &domain, RecordType::SOA).unwrap();
    assert_eq!(found.answers.iter().map(text).collect::<Vec<_>>(), [soa]);
    let outside = Name::from_ascii("www.example.com.").unwrap();
    assert!(answer(&names, &domain, &outside, RecordType::A).is_none());
}

#[test]
fn a_service_that_is_gone_has_no_names() {
    let mut names = names();
    for name in ["web", "db", "bare", "empty", "out", "alias", "loop-a", "loop-b", "self", "dangling", "address"] {
        names.set(&("shop".to_owned(), name.to_owned()), None);
    }
    for (kind, name) in [(RecordType::A, "web.*"), (RecordType::A, "*"), (RecordType::PTR, "10.0.96.10.in-addr.arpa.")]
    {
        check(&names, kind, name, &["NXDomain"]);
    }
}

/// An answer with one Service and one endpoint. `base` is empty for a full state.
fn message(base: &str, digest: u64) -> wire::NextStateResponse {
    let endpoint = wire::Endpoint { digest: 2, address: "10.1.0.1".to_owned(), ..wire::Endpoint::default() };
    let update = wire::ServiceUpdate {
        key: Some(wire::ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() }),
        service: Some(wire::Service { digest: 5, ..wire::Service::default() }),
        endpoints: vec![endpoint],
        ..wire::ServiceUpdate::default()
    };
    wire::NextStateResponse {
        begin: Some(wire::Begin { revision: None, base: base.to_owned() }),
        node: Some(wire::NodeState { digest: 10, ..wire::NodeState::default() }),
        services: vec![update],
        commit: Some(wire::Commit { token: "t".to_owned(), digest }),
    }
}

#[test]
fn answers_that_lost_something_are_not_accepted() {
    let mut state = State::default();
    let found = state.accept(vec![message("", 17)]).unwrap();
    assert_eq!(found, (true, [("shop".to_owned(), "web".to_owned())].into()));
    // The same records again leave the sum unchanged.
    assert!(state.accept(vec![message("t", 17)]).is_some());
    let gone = wire::EndpointKey { address: "10.1.0.1".to_owned(), ordinal: 0 };
    let mut removal = message("t", 15);
    removal.services[0].endpoints.clear();
    removal.services[0].removed_endpoints = vec![gone];
    assert!(state.accept(vec![removal]).is_some());
    let mut removal = message("t", 10);
    removal.services[0] =
        wire::ServiceUpdate { removed: true, key: removal.services[0].key.clone(), ..Default::default() };
    assert!(state.accept(vec![removal]).is_some());
    let cut = wire::NextStateResponse { commit: None, ..message("t", 17) };
    for lost in [vec![], vec![cut], vec![message("other", 17)], vec![message("t", 18)]] {
        let mut state = State::default();
        state.accept(vec![message("", 17)]).unwrap();
        assert!(state.accept(lost.clone()).is_none(), "{lost:?}");
    }
}
