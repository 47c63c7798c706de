//! Valid and invalid flows.

use super::*;

const EXAMPLE: &str = "
node:
  name: node-b
  detect_local: {cluster_cidr: [10.180.0.0/16, fd00:10:180::/48]}
  addresses: [192.168.1.2]
flows:
  - {from: 'pod:10.180.0.2', proto: tcp, to: 172.30.0.41, port: 80, answers: ['10.180.0.1:80', '10.180.1.1:80'], source: kept}
  - {from: 'pod:10.180.0.2', proto: sctp, to: 'fd00:172:30::41', port: 80, answers: ['[fd00:10:180::1]:80']}
  - {from: client, proto: udp, to: 172.30.0.41, port: 53, outcome: reject, because: nothing serves it}
  - {from: node, proto: udp, to: 1.2.3.5, port: 53, outcome: untouched}
";

#[test]
fn every_field_is_parsed() {
    let flows = Flows::parse(EXAMPLE).unwrap();
    assert_eq!(flows.node.name, "node-b");
    let cidrs = ["10.180.0.0/16", "fd00:10:180::/48"].map(|cidr| cidr.parse().unwrap()).to_vec();
    assert_eq!(flows.node.detect_local, Some(DetectLocal::ClusterCidr(cidrs)));
    let [tcp, sctp, reject, untouched] = &flows.flows[..] else { panic!("{flows:?}") };
    let by = ["10.180.0.1:80", "10.180.1.1:80"].map(|address| address.parse().unwrap()).into();
    assert_eq!(tcp.expect, Expect::Answers { by, source: Some(Source::Kept) });
    assert_eq!(sctp.from.source(sctp.to.ip()), "fd00:10:180::2".parse::<IpAddr>().unwrap());
    assert_eq!(reject.to_string(), "client → udp 172.30.0.41:53 (nothing serves it)");
    assert_eq!(untouched.expect, Expect::Untouched);
}

#[test]
fn the_topology_contains_the_pods_and_addresses_of_the_flows() {
    let flows = Flows::parse(EXAMPLE).unwrap();
    let endpoints = flows.endpoints();
    let named: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(
        named,
        ["tcp 10.180.0.1:80", "tcp 10.180.1.1:80", "udp 1.2.3.5:53", "udp 172.30.0.41:53", "sctp [fd00:10:180::1]:80"]
    );
    let mut expected = Topology::with_pods(["10.180.0.1", "10.180.0.2", "10.180.1.1"]).unwrap();
    expected.node_addresses = vec!["192.168.1.2".parse().unwrap()];
    assert_eq!(flows.topology(&endpoints), expected);
}

#[test]
fn each_detection_mode_is_parsed() {
    for (text, expected) in [
        ("node_cidr", DetectLocal::NodeCidr),
        ("{bridge_interface: br0}", DetectLocal::BridgeInterface("br0".to_owned())),
        ("{interface_name_prefix: pod}", DetectLocal::InterfaceNamePrefix("pod".to_owned())),
    ] {
        let flows = Flows::parse(&format!("node: {{detect_local: {text}}}\nflows: []")).unwrap();
        assert_eq!(flows.node.detect_local, Some(expected), "{text}");
        assert_eq!(flows.node.name, "node-a");
    }
}

#[test]
fn invalid_flows_are_refused_with_the_reason() {
    for (flow, reason) in [
        ("{from: client, proto: tcp, to: 1.2.3.4, port: 1}", "either answers"),
        ("{from: client, proto: tcp, to: 1.2.3.4, port: 1, answers: []}", "either answers"),
        ("{from: client, proto: tcp, to: 1.2.3.4, port: 1, outcome: reject, source: kept}", "either answers"),
        ("{from: client, proto: tcp, to: 1.2.3.4, port: 1, outcome: lost}", "lost"),
        ("{from: client, proto: icmp, to: 1.2.3.4, port: 1, outcome: drop}", "icmp"),
        ("{from: client, proto: tcp, to: 1.2.3.4, port: 1, outcome: drop, times: 3}", "times"),
        ("{from: 'pod:10.180.1.1', proto: tcp, to: 1.2.3.4, port: 1, outcome: drop}", "is not a pod"),
        ("{from: 'remote-pod:10.180.0.1', proto: tcp, to: 1.2.3.4, port: 1, outcome: drop}", "is not a remote-pod"),
        ("{from: 'client:1.1.1.1', proto: tcp, to: 1.2.3.4, port: 1, outcome: drop}", "none of client"),
        ("{from: 'pod:x', proto: tcp, to: 1.2.3.4, port: 1, outcome: drop}", "reading the address"),
        ("{from: 'client:203.0.113.2', proto: tcp, to: '::1', port: 1, outcome: drop}", "mixes address families"),
        ("{from: client, proto: tcp, to: '::1', port: 1, answers: ['10.180.0.1:80']}", "mixes address families"),
    ] {
        let error = Flows::parse(&format!("flows:\n  - {flow}\n")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains(reason), "{flow} gives {text}");
    }
}
