//! Checks of flows with hand-written rules: right expectations pass, and each wrong one fails.

use std::process::Command;

use localnet_lab::{Flows, Network, Servers, check_flows, probe_flows};

/// The rules that a backend would program for a Service with a local and a remote endpoint, and for Services without endpoints.
const RULES: &str = "
table ip byhand {
    chain prerouting { type nat hook prerouting priority dstnat; jump services; }
    chain output { type nat hook output priority -100; jump services; }
    chain services {
        ip daddr 172.30.0.41 ip saddr != 10.180.0.0/16 meta mark set 1
        ip daddr 172.30.0.41 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip to numgen random mod 2 map { 0: 10.180.0.1 . 80, 1: 10.180.1.1 . 80 }
        ip daddr 172.30.0.42 tcp dport 80 dnat to 10.180.0.1:8080
        fib daddr type local tcp dport 30080 meta mark set 1 dnat to 10.180.1.1:80
    }
    chain postrouting {
        type nat hook postrouting priority srcnat;
        meta mark 1 masquerade
        ip saddr . ip daddr { 10.180.0.1 . 10.180.0.1 } masquerade
    }
    chain input { type filter hook input priority filter; tcp dport 30081 reject; }
    chain forward { type filter hook forward priority filter; jump verdicts; }
    chain local { type filter hook output priority filter; jump verdicts; }
    chain verdicts {
        ip daddr 172.30.0.43 reject
        ip daddr 172.30.0.44 drop
    }
}
table ip6 byhand {
    chain prerouting { type nat hook prerouting priority dstnat; jump services; }
    chain output { type nat hook output priority -100; jump services; }
    chain services {
        ip6 daddr fd00:172:30::41 ip6 saddr != fd00:10:180::/48 meta mark set 1
        ip6 daddr fd00:172:30::41 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip6 to numgen random mod 2 map { 0: fd00:10:180::1 . 80, 1: fd00:10:180:1::1 . 80 }
    }
    chain postrouting {
        type nat hook postrouting priority srcnat;
        meta mark 1 masquerade
        ip6 saddr . ip6 daddr { fd00:10:180::1 . fd00:10:180::1 } masquerade
    }
    chain forward { type filter hook forward priority filter; jump verdicts; }
    chain local { type filter hook output priority filter; jump verdicts; }
    chain verdicts {
        ip6 daddr fd00:172:30::43 reject
        ip6 daddr fd00:172:30::44 drop
    }
}
";

fn program(network: &Network) -> anyhow::Result<()> {
    network.node().output_with_input(Command::new("nft").args(["-f", "-"]), RULES).map(drop)
}

/// Right expectations for every combination of protocol, family and sender.
fn right() -> String {
    let mut lines = "flows:\n".to_owned();
    let mut flow = |line: String| lines += &format!("- {{{line}}}\n");
    for proto in ["tcp", "udp", "sctp"] {
        for (net, pod, answers) in [
            ("172.30.0.", "10.180.0.", "'10.180.0.1:80', '10.180.1.1:80'"),
            ("fd00:172:30::", "fd00:10:180::", "'[fd00:10:180::1]:80', '[fd00:10:180:1::1]:80'"),
        ] {
            let vip = format!("proto: {proto}, to: '{net}41', port: 80");
            flow(format!("from: 'pod:{pod}2', {vip}, answers: [{answers}], source: kept"));
            flow(format!("from: client, {vip}, answers: [{answers}], source: masqueraded"));
            flow(format!("from: node, {vip}, answers: [{answers}], source: masqueraded"));
            for from in [format!("pod:{pod}2"), "client".to_owned(), "node".to_owned()] {
                flow(format!("from: '{from}', proto: {proto}, to: '{net}43', port: 80, outcome: reject"));
                flow(format!("from: '{from}', proto: {proto}, to: '{net}44', port: 80, outcome: drop"));
                flow(format!("from: '{from}', proto: {proto}, to: '{net}45', port: 80, outcome: untouched"));
            }
        }
    }
    flow("from: 'pod:10.180.0.1', proto: tcp, to: 172.30.0.42, port: 80, answers: ['10.180.0.1:8080'], source: masqueraded".into());
    flow("from: 'client:203.0.113.130', proto: tcp, to: 192.168.0.2, port: 30080, answers: ['10.180.1.1:80'], source: masqueraded".into());
    flow("from: 'remote-pod:10.180.1.1', proto: tcp, to: 192.168.0.2, port: 30080, answers: ['10.180.1.1:80'], source: masqueraded".into());
    flow("from: client, proto: tcp, to: 192.168.0.2, port: 30081, outcome: reject".into());
    flow("from: client, proto: tcp, to: 192.168.0.2, port: 30082, outcome: untouched".into());
    lines
}

fn served(flows: &Flows) -> (Network, Servers) {
    let endpoints = flows.endpoints();
    let network = Network::build(flows.topology(&endpoints)).expect("the network can be built");
    let servers = Servers::start(&network, endpoints).expect("the servers can be started");
    (network, servers)
}

#[test]
fn right_flows_pass() {
    let flows = Flows::parse(&right()).unwrap();
    let (network, _servers) = served(&flows);
    check_flows(&network, &flows, program).unwrap();
}

#[test]
fn every_wrong_expectation_fails_for_its_reason() {
    let wrong = [
        ("to: 172.30.0.41, port: 80, answers: ['10.180.0.1:80']", "an answer by 10.180.1.1:80"),
        (
            "to: 172.30.0.41, port: 80, answers: ['10.180.0.1:80', '10.180.1.1:80', '10.180.0.2:80']",
            "no answer by 10.180.0.2:80",
        ),
        (
            "to: 172.30.0.41, port: 80, answers: ['10.180.0.1:80', '10.180.1.1:80'], source: masqueraded",
            "which saw 10.180.0.2",
        ),
        ("to: 172.30.0.41, port: 80, outcome: reject", "got an answer by"),
        ("to: 172.30.0.41, port: 80, outcome: drop", "got an answer by"),
        ("to: 172.30.0.41, port: 80, outcome: untouched", "got an answer by"),
        ("to: 172.30.0.43, port: 80, answers: ['10.180.0.1:80']", "got a reject"),
        ("to: 172.30.0.43, port: 80, outcome: drop", "got a reject"),
        ("to: 172.30.0.43, port: 80, outcome: untouched", "got a reject"),
        ("to: 172.30.0.44, port: 80, outcome: reject", "got silence"),
        ("to: 172.30.0.44, port: 80, outcome: untouched", "got silence"),
        ("to: 172.30.0.46, port: 80, outcome: drop", "got an answer by 172.30.0.46:80"),
        ("to: 172.30.0.46, port: 80, outcome: reject", "got an answer by 172.30.0.46:80"),
    ];
    let lines: String =
        wrong.iter().map(|(line, _)| format!("- {{from: 'pod:10.180.0.2', proto: tcp, {line}}}\n")).collect();
    let flows = Flows::parse(&format!("flows:\n{lines}")).unwrap();
    let (network, _servers) = served(&flows);
    program(&network).unwrap();
    for (flow, (line, reason)) in flows.flows.iter().zip(wrong) {
        let error = probe_flows(&network, std::slice::from_ref(flow)).expect_err(line).to_string();
        assert!(error.contains(reason) && error.starts_with("1 of 1 flows are wrong"), "{line}: {error}");
    }
    let masqueraded = "{from: client, proto: tcp, to: 172.30.0.41, port: 80, answers: ['10.180.0.1:80', '10.180.1.1:80'], source: kept}";
    let flows = Flows::parse(&format!("flows: [{masqueraded}]")).unwrap();
    let error = probe_flows(&network, &flows.flows).unwrap_err().to_string();
    assert!(error.contains("which saw 10.180.0.254") || error.contains("which saw 192.168.0.2"), "{error}");
}

#[test]
fn without_masquerade_a_client_does_not_reach_a_remote_endpoint() {
    let text = "flows: [{from: client, proto: tcp, to: 192.168.0.2, port: 30080, answers: ['10.180.1.1:80']}]";
    let flows = Flows::parse(text).unwrap();
    let (network, _servers) = served(&flows);
    let forgotten = "table ip byhand { chain c { type nat hook prerouting priority dstnat; tcp dport 30080 dnat to 10.180.1.1:80; }; }";
    let error = check_flows(&network, &flows, |network| {
        network.node().output_with_input(Command::new("nft").args(["-f", "-"]), forgotten)
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("got silence"), "{error}");
}

#[test]
fn a_failure_of_the_program_is_reported() {
    let flows = Flows::parse("flows: []").unwrap();
    let (network, _servers) = served(&flows);
    let error =
        check_flows(&network, &flows, |_| -> anyhow::Result<()> { anyhow::bail!("no such table") }).unwrap_err();
    assert_eq!(format!("{error:#}"), "programming the node: no such table");
}
