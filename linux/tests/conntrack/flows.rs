//! Clients, virtual addresses and endpoints on the loopback interface of a temporary network namespace, and the flows between them.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use localnet_core::{Family, Protocol};
use localnet_linux::conntrack::{Conntrack, Flow, Kernel, Selection, Status};

use crate::namespace::{self, run};

/// A timeout that no step reaches.
const PATIENCE: Duration = Duration::from_secs(10);

/// Addresses of clients and endpoints, and routes to addresses that no host has. The kernel adds the route to an IPv6 address of
/// its own some time after the address, so packets could arrive before it.
const NETWORK: &str = "
link set lo up
addr add 10.0.0.9/32 dev lo
addr add fd00::9/128 dev lo nodad
addr add 192.168.0.2/32 dev lo
route add local 10.244.0.0/16 dev lo
addr add fd00:10::2/128 dev lo nodad
addr add fd00:10::3/128 dev lo nodad
route add local fd00::9 dev lo table local
route add local fd00:10::2 dev lo table local
route add local fd00:10::3 dev lo table local
route add 10.96.0.0/16 dev lo src 10.0.0.9
route add 10.99.0.0/16 dev lo src 10.0.0.9
route add fd00:96::/64 dev lo
";

/// Runs `test` in a new network namespace with these addresses, which ends with the thread.
pub(crate) fn isolated(test: impl FnOnce() + Send + 'static) {
    namespace::isolated(|| {
        run("ip", &["-batch", "-"], NETWORK);
        test();
    });
}

/// Replaces the rules: packets to the first address of each pair go to the second.
pub(crate) fn redirect(rules: &[(Protocol, &str, &str)]) {
    let mut text = "add table inet test\nflush table inet test\n".to_owned();
    text += "add chain inet test output { type nat hook output priority -100; }\n";
    // The kernel tracks flows once a rule needs it.
    text += "add rule inet test output ct state new\n";
    for (protocol, from, to) in rules {
        let (from, family) = (address(from), if address(from).is_ipv4() { "ip" } else { "ip6" });
        let (ip, port, protocol) = (from.ip(), from.port(), protocol.as_lowercase());
        text +=
            &format!("add rule inet test output {family} daddr {ip} {protocol} dport {port} dnat {family} to {to}\n");
    }
    run("nft", &["-f", "-"], &text);
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The socket of an endpoint or a client.
pub(crate) fn udp(at: &str) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends from `client` to `destination`. The packet must arrive at `endpoint`, and the answer at the client.
#[track_caller]
pub(crate) fn exchange(client: &UdpSocket, destination: &str, endpoint: &UdpSocket) {
    client.send_to(b"question", destination).unwrap();
    let mut buffer = [0; 16];
    let (_, from) = endpoint.recv_from(&mut buffer).expect("the request arrives");
    endpoint.send_to(b"answer", from).unwrap();
    let (_, from) = client.recv_from(&mut buffer).expect("the answer arrives");
    assert_eq!(from, address(destination));
}

/// All flows of a family and protocol.
pub(crate) fn dump(kernel: &mut Kernel, family: Family, protocol: Protocol) -> Vec<Flow> {
    let mut flows = Vec::new();
    kernel.dump(Selection { family, protocol, established: false }, &mut |flow| flows.push(*flow)).unwrap();
    flows
}

/// One line per flow, with the properties that `conntrack -L` prints.
pub(crate) fn lines(flows: &[Flow]) -> BTreeSet<String> {
    let line = |flow: &Flow| {
        let unreplied = if flow.status.has(Status::SEEN_REPLY) { "" } else { "[UNREPLIED] " };
        let (original, reply) = (flow.original, flow.reply);
        let tuple = |tuple: localnet_linux::conntrack::Tuple| {
            let (source, destination) = (tuple.source, tuple.destination);
            let (from, to) = (source.ip(), destination.ip());
            format!("src={from} dst={to} sport={} dport={}", source.port(), destination.port())
        };
        let zone = match flow.zone {
            localnet_linux::conntrack::Zone::Both(0) => String::new(),
            other => format!(" {other:?}"),
        };
        format!("{} {} {unreplied}{} id={}{zone}", flow.protocol.as_lowercase(), tuple(original), tuple(reply), flow.id)
    };
    flows.iter().map(line).collect()
}

/// The same lines from the output of `conntrack -L`.
pub(crate) fn listed(family: Family, protocol: Protocol) -> BTreeSet<String> {
    let family = if family == Family::V4 { "ipv4" } else { "ipv6" };
    let listing = run("conntrack", &["-L", "-f", family, "-p", protocol.as_lowercase(), "-o", "id"], "");
    let line = |line: &str| {
        let mut words = vec![protocol.as_lowercase().to_owned()];
        let mut zone = String::new();
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some(("src" | "dst" | "sport" | "dport" | "id", _)) => words.push(word.to_owned()),
                Some(("zone", id)) => zone = format!(" Both({id})"),
                Some(("zone-orig", id)) => zone = format!(" Original({id})"),
                Some(("zone-reply", id)) => zone = format!(" Reply({id})"),
                _ if word == "[UNREPLIED]" => words.push(word.to_owned()),
                _ => {}
            }
        }
        words.join(" ") + &zone
    };
    listing.lines().map(line).collect()
}
