//! Foreign rules that stop a packet, and reads of single elements.

use std::net::IpAddr;

use localnet_core::{Family, Protocol};
use localnet_linux::nft::{
    Element, HookPoint, Socket, Table, Tuple,
    foreign::{Fate, Packet, Part},
};

use crate::listing::nft;
use crate::namespace::isolated;
use crate::ruleset::{everything, load};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// TCP from 10.180.0.2 to port 8080 of an address.
fn to(destination: &str, point: HookPoint) -> Packet {
    let source = if destination.contains(':') { "fd00::2" } else { "10.180.0.2" };
    let (source, destination) = (Some(ip(source)), ip(destination));
    Packet { point, part: Part::Whole, source, destination, protocol: Protocol::Tcp, port: 8080 }
}

/// What stops a forwarded packet to 10.180.0.1:8080, with these rules in a chain of the forward hook.
fn stops(rules: &str) -> Vec<String> {
    stops_of(rules, to("10.180.0.1", HookPoint::Forward))
}

fn stops_of(rules: &str, packet: Packet) -> Vec<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let script =
        format!("add table inet fw\nadd chain inet fw forward {{ type filter hook forward priority 0; }}\n{rules}");
    isolated(move || {
        nft(&["-f", "-"], &script);
        let mut socket = Socket::open().unwrap();
        let others = socket.foreign_rules(&["ours"]).unwrap();
        let stops = socket.stops(&others, &packet);
        let lines = stops.iter().map(|stop| {
            let fate = if stop.fate == Fate::Dropped { "drop" } else { "reject" };
            let by = stop.handle.map_or("policy", |_| "rule");
            format!("{} {} {} {by} {fate}{}", stop.family, stop.table, stop.chain, if stop.certain { "" } else { "?" })
        });
        sender.send(lines.collect::<Vec<_>>()).unwrap();
    });
    receiver.recv().unwrap()
}

#[track_caller]
fn check(rules: &str, expected: &[&str]) {
    assert_eq!(stops(rules), expected, "{rules}");
}

const DROP: &[&str] = &["inet fw forward rule drop"];
const MAYBE: &[&str] = &["inet fw forward rule drop?"];

#[test]
fn only_matching_rules_stop_a_packet() {
    let rule = |rule: &str| format!("add rule inet fw forward {rule}\n");
    for matching in [
        "drop",
        "ip daddr 10.180.0.1 drop",
        "ip daddr 10.180.0.0/17 tcp dport 8080 drop",
        "ip saddr 10.180.0.2 drop",
        "ip saddr != 10.180.0.3 counter drop",
        "meta l4proto tcp drop",
        "meta nfproto ipv4 drop",
        "ct state new drop",
        "tcp dport != 80 drop",
        "tcp dport { 80, 8080 } drop",
        "ip daddr { 10.180.0.1, 10.180.0.9 } drop",
        "ip daddr . tcp dport { 10.180.0.1 . 8080 } drop",
        "tcp dport vmap { 80 : accept, 8080 : drop }",
        "tcp flags syn / fin,syn,rst,ack drop",
    ] {
        check(&rule(matching), DROP);
    }
    for not in [
        "ip daddr 10.180.0.3 drop",
        "ip6 daddr fd00::1 drop",
        "udp dport 8080 drop",
        "tcp dport 80 drop",
        "tcp dport { 80, 81 } drop",
        "tcp dport != { 8080 } drop",
        "ct state established,related drop",
        "ip daddr != 10.180.0.0/16 drop",
        "accept",
        "counter",
    ] {
        check(&rule(not), &[]);
    }
    for unknown in
        ["meta mark 7 drop", "iifname eth7 drop", "limit rate 5/second drop", "ip daddr 10.180.0.1 meta mark 1 drop"]
    {
        check(&rule(unknown), MAYBE);
    }
    check(&rule("reject"), &["inet fw forward rule reject"]);
}

#[test]
fn verdicts_end_chains_as_they_do_in_the_kernel() {
    check("add rule inet fw forward accept\nadd rule inet fw forward drop\n", &[]);
    check("add rule inet fw forward meta mark 7 accept\nadd rule inet fw forward drop\n", MAYBE);
    check(
        "add chain inet fw sub\nadd rule inet fw sub drop\nadd rule inet fw forward tcp dport 8080 jump sub\n",
        &["inet fw sub rule drop"],
    );
    check(
        "add chain inet fw sub\nadd rule inet fw sub return\nadd rule inet fw forward jump sub\nadd rule inet fw forward drop\n",
        DROP,
    );
    check(
        "add chain inet fw sub\nadd rule inet fw sub accept\nadd rule inet fw forward goto sub\nadd rule inet fw forward drop\n",
        &[],
    );
    check("add chain inet fw sub\nadd rule inet fw forward goto sub\nadd rule inet fw forward drop\n", &[]);
    let policy = "add chain inet fw forward { policy drop; }\n";
    check(policy, &["inet fw forward policy drop"]);
    check(&format!("{policy}add rule inet fw forward ct state established accept\n"), &["inet fw forward policy drop"]);
    check(&format!("{policy}add rule inet fw forward ip daddr 10.180.0.0/16 accept\n"), &[]);
    check(&format!("{policy}add rule inet fw forward iifname eth0 accept\n"), &["inet fw forward policy drop?"]);
    // The verdict of one base chain does not skip those of other tables.
    check(
        "add rule inet fw forward accept\nadd table ip t\nadd chain ip t f { type filter hook forward priority 10; }\nadd rule ip t f drop\n",
        &["ip t f rule drop"],
    );
}

#[test]
fn only_chains_in_the_part_of_the_hook_count() {
    let late = "add chain inet fw late { type filter hook forward priority 100; policy drop; }\n";
    for (part, expected) in [
        (Part::Whole, &["inet fw late policy drop"][..]),
        (Part::Before(101), &["inet fw late policy drop"]),
        (Part::Before(100), &[]),
        (Part::After(99), &["inet fw late policy drop"]),
        (Part::After(100), &[]),
    ] {
        let packet = Packet { part, ..to("10.180.0.1", HookPoint::Forward) };
        assert_eq!(stops_of(late, packet), expected, "{part:?}");
    }
}

#[test]
fn other_families_hooks_and_excluded_tables_do_not_count() {
    let drop = "add rule inet fw forward drop\n";
    assert_eq!(stops_of(drop, to("fd00::1", HookPoint::Forward)), DROP);
    assert!(stops_of(drop, to("10.180.0.1", HookPoint::Input)).is_empty());
    let ours = "add table ip ours\nadd chain ip ours f { type filter hook forward priority 0; policy drop; }\n";
    check(ours, &[]);
    let v6 = "add table ip6 t\nadd chain ip6 t f { type filter hook forward priority 0; policy drop; }\n";
    check(v6, &[]);
    assert_eq!(stops_of(v6, to("fd00::1", HookPoint::Forward)), ["ip6 t f policy drop"]);
    let unknown = Packet { source: None, ..to("10.180.0.1", HookPoint::Forward) };
    assert_eq!(stops_of("add rule inet fw forward ip saddr 10.9.9.9 drop\n", unknown), MAYBE);
}

#[test]
fn one_element_is_read_by_its_key() {
    isolated(|| {
        for family in Family::BOTH {
            let content = everything(family);
            let mut socket = load(&content);
            let mut read = 0;
            for (set, elements) in content.sets.iter().filter(|(set, _)| !set.flags.interval) {
                for element in elements {
                    let found = socket.element(&content.table, set, element.key.start()).unwrap();
                    assert_eq!(found.as_ref(), Some(element), "{}", set.name);
                    read += 1;
                }
            }
            assert!(read > 3, "{read} elements");
            let (set, _) = content.sets.iter().find(|(set, _)| *set.name == *"plain").unwrap();
            let none: Option<Element> = socket.element(&content.table, set, &key(family)).unwrap();
            assert_eq!(none, None);
            let chains = socket.chains(&content.table).unwrap().expect("the table exists");
            assert_eq!(chains, socket.table(&content.table).unwrap().unwrap().chains);
            assert_eq!(socket.chains(&Table::new(family, "none")).unwrap(), None);
        }
    });
}

/// A key that is in no set.
fn key(family: Family) -> Tuple {
    Tuple::new().address(ip(if family == Family::V4 { "203.0.113.250" } else { "2001:db8:ffff::1" }))
}
