//! Packets meet rules in the words of `iptables-save`.

use super::*;
use crate::shadow::verdict::testing::{LOCAL, packet, short};

/// In the words of `iptables-save`: a Service with two endpoints, an external address with policy Local and source ranges, a
/// NodePort, and a Service without endpoints.
const SAVED: &str = r#"*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
-A INPUT -s 198.51.100.0/24 -j DROP
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.9/32 -p udp -m comment --comment "shop/empty:dns has no endpoints" -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-PROXY-FIREWALL -d 192.0.2.1/32 -p tcp -m comment --comment "shop/web:http traffic not accepted by KUBE-FW-A" -m tcp --dport 80 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
-A PREROUTING -j IGNORED
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "a \"quoted\" word" -j MASQUERADE --random-fully
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -d 192.0.2.1/32 -p tcp -m tcp --dport 80 -j KUBE-FW-A
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-EXT-A
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30081 -m limit --limit 1/sec -j KUBE-EXT-A
-A KUBE-FW-A -s 203.0.113.0/25 -j KUBE-EXT-A
-A KUBE-EXT-A -s 10.180.0.0/16 -j KUBE-SVC-A
-A KUBE-EXT-A -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-EXT-A -m addrtype --src-type LOCAL -j KUBE-SVC-A
-A KUBE-EXT-A -j KUBE-SVL-A
-A KUBE-SVL-A -j KUBE-SEP-1
-A KUBE-SVC-A ! -s 10.180.0.0/16 -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-1 --mask 255.255.255.255 --rsource -j KUBE-SEP-1
-A KUBE-SVC-A -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-1
-A KUBE-SVC-A -j KUBE-SEP-2
-A KUBE-SEP-1 -s 10.180.0.1/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-1 -p tcp -m recent --set --name KUBE-SEP-1 --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.180.0.1:8080
-A KUBE-SEP-2 -s 10.180.1.1/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-2 -p tcp -m tcp -j DNAT --to-destination 10.180.1.1:8080
COMMIT
"#;

fn verdicts(tables: &Tables, from: &str, to: &str, protocol: Protocol) -> String {
    match tables.verdicts(&packet(from, to, protocol), &LOCAL) {
        Ok(verdicts) => short(&verdicts),
        Err(Unknown(rule)) => format!("unknown: {}", rule.split(" -m limit ").last().unwrap_or_default()),
    }
}

#[test]
fn packets_follow_the_rules() {
    use Protocol::{Tcp, Udp};
    let tables = Tables::parse(SAVED);
    assert!(tables.has_kube_proxy());
    for (from, to, protocol, expected) in [
        ("10.180.0.9", "10.96.0.1:80", Tcp, "10.180.0.1 S, 10.180.1.1"),
        ("10.180.0.1", "10.96.0.1:80", Tcp, "10.180.0.1 M S, 10.180.1.1"),
        ("203.0.113.1", "10.96.0.1:80", Tcp, "10.180.0.1 M S, 10.180.1.1 M"),
        ("10.180.0.9", "10.96.0.1:81", Tcp, "untouched"),
        ("10.180.0.9", "10.96.0.1:80", Udp, "untouched"),
        ("10.180.0.9", "10.96.0.9:53", Udp, "reject"),
        // The node's own packets pass no chain of the hook OUTPUT of this table.
        ("192.168.0.2", "10.96.0.9:53", Udp, "untouched"),
        ("203.0.113.1", "192.0.2.1:80", Tcp, "10.180.0.1 S"),
        ("203.0.113.200", "192.0.2.1:80", Tcp, "drop"),
        ("203.0.113.1", "192.168.0.2:30080", Tcp, "10.180.0.1 S"),
        ("10.180.0.9", "192.168.0.2:30080", Tcp, "10.180.0.1 S, 10.180.1.1"),
        ("192.168.0.2", "192.168.0.2:30080", Tcp, "10.180.0.1 M S, 10.180.1.1 M"),
        ("203.0.113.1", "192.168.0.2:30081", Tcp, "unknown: --limit 1/sec -j KUBE-EXT-A"),
        ("198.51.100.1", "192.168.0.2:22", Tcp, "untouched"),
    ] {
        assert_eq!(verdicts(&tables, from, to, protocol), expected, "{from} {to} {protocol}");
    }
}

#[test]
fn each_removed_rule_of_a_service_changes_a_verdict() {
    use Protocol::{Tcp, Udp};
    let packets = |tables: &Tables| {
        let mut all = Vec::new();
        for from in ["10.180.0.9", "10.180.0.1", "10.180.1.1", "203.0.113.1", "203.0.113.200", "192.168.0.2"] {
            for to in ["10.96.0.1:80", "192.0.2.1:80", "192.168.0.2:30080", "192.168.0.2:30081"] {
                all.push(verdicts(tables, from, to, Tcp));
            }
            all.push(verdicts(tables, from, "10.96.0.9:53", Udp));
        }
        all
    };
    let whole = packets(&Tables::parse(SAVED));
    // These have no effect on the first packet of a new client: rules of other programs, invalid packets, the mark after its
    // last use, and remembered clients.
    let without_effect =
        ["DROP\n", "IGNORED", "INVALID", "0x4000/0x0", "ACCEPT", "--rcheck", "EXTERNAL", "KUBE-FORWARD"];
    for line in SAVED.lines().filter(|line| line.contains("-A ")) {
        let without: String = SAVED.lines().filter(|of| *of != line).map(|of| format!("{of}\n")).collect();
        let is_noticed = packets(&Tables::parse(&without)) != whole;
        let has_effect =
            !without_effect.iter().any(|part| format!("{line}\n").contains(part)) || line.contains("FIREWALL");
        assert_eq!(is_noticed, has_effect, "{line}");
    }
}

#[test]
fn destinations_are_those_of_services() {
    let all: Vec<String> =
        Tables::parse(SAVED).destinations().map(|(to, protocol)| format!("{to}/{protocol}")).collect();
    for to in ["10.96.0.1:80/TCP", "192.0.2.1:80/TCP", "10.96.0.9:53/UDP"] {
        assert!(all.contains(&to.to_owned()), "{to}: {all:?}");
    }
}
