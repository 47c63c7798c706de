//! Packets meet rules in the notation of nft.

use super::*;
use crate::shadow::verdict::testing::{LOCAL, packet, short};

/// In the notation of nft, in a form that [`table`] completes: the chains and maps of mode nftables with one Service.
const RULES: &[(&str, &str)] = &[
    (
        "pre",
        r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":"new"}},{"jump":{"target":"firewall-check"}}"#,
    ),
    ("firewall-check", r#"{"vmap":{"key":VIP,"data":"@firewall-ips"}}"#),
    (
        "firewall-web",
        r#"{"match":{"op":"!=","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"set":[{"prefix":{"addr":"203.0.113.0","len":25}},{"range":["10.180.0.8","10.180.0.9"]}]}}},{"drop":null}"#,
    ),
    ("nat", r#"{"jump":{"target":"services"}}"#),
    (
        "services",
        r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"daddr"}},"right":"@cluster-ips"}},{"match":{"op":"!=","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"10.180.0.0","len":16}}}},MARK"#,
    ),
    ("services", r#"{"vmap":{"key":VIP,"data":"@service-ips"}}"#),
    (
        "services",
        r#"{"match":{"op":"==","left":{"fib":{"result":"type","flags":["daddr"]}},"right":"local"}},{"vmap":{"key":{"concat":[{"meta":{"key":"l4proto"}},{"payload":{"protocol":"th","field":"dport"}}]},"data":"@service-nodeports"}}"#,
    ),
    ("external-web", "MARK"),
    ("external-web", r#"{"goto":{"target":"service-web"}}"#),
    (
        "service-web",
        r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"tcp"}},{"dnat":{"family":"ip","addr":{"map":{"key":{"numgen":{"mode":"random","mod":2,"offset":0}},"data":{"set":[[0,{"concat":["10.180.0.1",8080]}],[1,{"concat":["10.180.1.1",8080]}]]}}}}}"#,
    ),
    (
        "service-sticky",
        r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":"@affinity-1"}},{"goto":{"target":"endpoint-1"}}"#,
    ),
    (
        "service-sticky",
        r#"{"vmap":{"key":{"numgen":{"mode":"random","mod":1,"offset":0}},"data":{"set":[[0,{"goto":{"target":"endpoint-1"}}]]}}}"#,
    ),
    (
        "endpoint-1",
        r#"{"set":{"op":"update","elem":{"payload":{"protocol":"ip","field":"saddr"}},"set":"@affinity-1"}}"#,
    ),
    (
        "endpoint-1",
        r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"udp"}},{"dnat":{"addr":"10.180.0.1","port":53}}"#,
    ),
    ("check", r#"{"vmap":{"key":VIP,"data":"@no-endpoint-services"}}"#),
    (
        "check",
        r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"daddr"}},"right":"@cluster-ips"}},{"reject":{"type":"icmp","expr":"port-unreachable"}}"#,
    ),
    (
        "post",
        r#"{"match":{"op":"!=","left":{"&":[{"meta":{"key":"mark"}},16384]},"right":0}},{"mangle":{"key":{"meta":{"key":"mark"}},"value":{"^":[{"meta":{"key":"mark"}},16384]}}},{"masquerade":{"flags":"fully-random"}}"#,
    ),
    (
        "post",
        r#"{"match":{"op":"in","left":{"ct":{"key":"status"}},"right":"dnat"}},{"match":{"op":"==","left":{"concat":[{"payload":{"protocol":"ip","field":"saddr"}},{"payload":{"protocol":"ip","field":"daddr"}},{"meta":{"key":"l4proto"}},{"payload":{"protocol":"th","field":"dport"}}]},"right":"@hairpin-connections"}},{"masquerade":null}"#,
    ),
];
const VIP: &str = r#"{"concat":[{"payload":{"protocol":"ip","field":"daddr"}},{"meta":{"key":"l4proto"}},{"payload":{"protocol":"th","field":"dport"}}]}"#;
const MARK: &str = r#"{"mangle":{"key":{"meta":{"key":"mark"}},"value":{"|":[{"meta":{"key":"mark"}},16384]}}}"#;
const SETS: &str = r#"
    {"set":{"name":"cluster-ips","type":"ipv4_addr","elem":["10.96.0.1","10.96.0.2"]}},
    {"set":{"name":"affinity-1","flags":["timeout"]}},
    {"set":{"name":"hairpin-connections","type":["ipv4_addr","ipv4_addr","inet_proto","inet_service"],"elem":[{"concat":["10.180.0.1","10.180.0.1","tcp",8080]}]}},
    {"map":{"name":"service-ips","type":["ipv4_addr","inet_proto","inet_service"],"elem":[[{"concat":["10.96.0.1","tcp",80]},{"goto":{"target":"service-web"}}],
        [{"concat":["192.0.2.1","tcp",80]},{"goto":{"target":"external-web"}}],
        [{"concat":["10.96.0.2","udp",53]},{"goto":{"target":"service-sticky"}}]]}},
    {"map":{"name":"service-nodeports","type":["inet_proto","inet_service"],"elem":[[{"concat":["tcp",30080]},{"goto":{"target":"external-web"}}]]}},
    {"map":{"name":"firewall-ips","type":["ipv4_addr","inet_proto","inet_service"],"elem":[[{"concat":["192.0.2.1","tcp",80]},{"goto":{"target":"firewall-web"}}]]}},
    {"map":{"name":"no-endpoint-services","type":["ipv4_addr","inet_proto","inet_service"],"elem":[[{"elem":{"val":{"concat":["192.0.2.9","tcp",80]},"comment":"shop/empty"}},{"drop":null}]]}}"#;

/// The table without one of its rules.
fn table(without: Option<usize>) -> Table {
    Table::parse(&listing(without)).unwrap()
}

fn listing(without: Option<usize>) -> String {
    let hook = |name, hook, priority| {
        format!(r#"{{"chain":{{"name":"{name}","type":"nat","hook":"{hook}","prio":{priority}}}}}"#)
    };
    let mut objects = vec![
        r#"{"metainfo":{"version":"1.0.6"}}"#.to_owned(),
        hook("nat", "prerouting", -100),
        hook("pre", "prerouting", -110),
        hook("nat", "output", -100),
        hook("check", "forward", 0),
        hook("check", "output", 0),
        hook("post", "postrouting", 100),
        SETS.to_owned(),
    ];
    for (_, (chain, statements)) in RULES.iter().enumerate().filter(|(index, _)| Some(*index) != without) {
        let statements = statements.replace("VIP", VIP).replace("MARK", MARK);
        objects.push(format!(r#"{{"rule":{{"chain":"{chain}","expr":[{statements}]}}}}"#));
    }
    format!(r#"{{"nftables":[{}]}}"#, objects.join(","))
}

fn verdicts(table: &Table, from: &str, to: &str, protocol: Protocol) -> String {
    short(&table.verdicts(&packet(from, to, protocol), &LOCAL).unwrap())
}

const PACKETS: &[(&str, &str, Protocol, &str)] = &[
    ("10.180.0.9", "10.96.0.1:80", Protocol::Tcp, "10.180.0.1, 10.180.1.1"),
    ("10.180.0.1", "10.96.0.1:80", Protocol::Tcp, "10.180.0.1 M, 10.180.1.1"),
    ("203.0.113.1", "10.96.0.1:80", Protocol::Tcp, "10.180.0.1 M, 10.180.1.1 M"),
    ("10.180.0.9", "10.96.0.1:81", Protocol::Tcp, "reject"),
    ("10.180.0.9", "10.96.0.2:53", Protocol::Udp, "10.180.0.1 S"),
    ("203.0.113.1", "192.0.2.1:80", Protocol::Tcp, "10.180.0.1 M, 10.180.1.1 M"),
    ("203.0.113.200", "192.0.2.1:80", Protocol::Tcp, "drop"),
    ("203.0.113.1", "192.0.2.9:80", Protocol::Tcp, "drop"),
    ("203.0.113.1", "192.168.0.2:30080", Protocol::Tcp, "10.180.0.1 M, 10.180.1.1 M"),
    ("203.0.113.1", "192.168.0.2:22", Protocol::Tcp, "untouched"),
    ("192.168.0.2", "10.96.0.1:81", Protocol::Tcp, "reject"),
];

#[test]
fn packets_follow_the_rules() {
    for (from, to, protocol, expected) in PACKETS {
        assert_eq!(verdicts(&table(None), from, to, *protocol), *expected, "{from} {to} {protocol}");
    }
}

/// Our images have no /etc/protocols, so their nft prints numbers. `localnet shadow` found no element of any map.
#[test]
fn packets_follow_rules_with_the_numbers_of_protocols() {
    let numbers = listing(None).replace(r#""tcp""#, "6").replace(r#""udp""#, "17");
    let table = Table::parse(&numbers).unwrap();
    for (from, to, protocol, expected) in PACKETS {
        assert_eq!(verdicts(&table, from, to, *protocol), *expected, "{from} {to} {protocol}");
    }
}

#[test]
fn each_removed_rule_changes_a_verdict() {
    for (index, rule) in RULES.iter().enumerate() {
        let without = table(Some(index));
        let is_noticed =
            PACKETS.iter().any(|(from, to, protocol, expected)| verdicts(&without, from, to, *protocol) != *expected);
        // A new client is not remembered.
        assert_eq!(is_noticed, !rule.1.contains(r#""right":"@affinity-1""#), "{rule:?}");
    }
}

#[test]
fn elements_are_values_prefixes_and_ranges() {
    let list = r#"[["10.96.0.1", 1], [{"prefix":{"addr":"10.96.0.0","len":24}}, 2], [{"range":["10.96.0.8","10.97.0.9"]}, 3]]"#;
    let elements = Elements::of(&serde_json::from_str(list).unwrap(), &[]);
    for (address, expected) in
        [("10.96.0.1", &[1, 2][..]), ("10.96.0.8", &[2, 3]), ("10.97.0.1", &[3]), ("10.97.0.10", &[])]
    {
        let found: Vec<_> = elements.find(&[address.to_owned()]).filter_map(Value::as_u64).collect();
        assert_eq!(found, expected, "{address}");
    }
}

#[test]
fn a_rule_that_compares_something_unknown_is_an_error_for_the_packets_that_meet_it() {
    let text = r#"{"nftables":[{"chain":{"name":"nat","hook":"prerouting","prio":-100}},
        {"rule":{"chain":"nat","expr":[{"match":{"op":"==","left":{"payload":{"protocol":"th","field":"dport"}},"right":80}},
        {"match":{"op":"==","left":{"meta":{"key":"skuid"}},"right":0}},{"drop":null}]}}]}"#;
    let table = Table::parse(text).unwrap();
    let packet = |port| Packet {
        source: IpAddr::from([203, 0, 113, 1]),
        destination: IpAddr::from([192, 0, 2, 1]),
        protocol: Protocol::Tcp,
        port,
        origin: Origin::Outside,
    };
    assert!(table.verdicts(&packet(80), &[]).unwrap_err().to_string().contains("skuid"));
    assert_eq!(table.verdicts(&packet(81), &[]), Ok([Verdict::Untouched].into()));
}
