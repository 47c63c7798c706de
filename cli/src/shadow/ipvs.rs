//! Evaluates kube-proxy's virtual servers, ipsets and rules in mode ipvs. Pure.
//!
//! ```text
//!  from other hosts: nat PREROUTING ─► filter INPUT ─► IPVS ─► filter OUTPUT ─► nat POSTROUTING
//!  from the node:    nat OUTPUT ─────────────────────► IPVS ─► filter OUTPUT ─► nat POSTROUTING
//! ```
//!
//! The hook INPUT only sees packets to the node's own addresses. Those of the interface kube-ipvs0 make VIPs such addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use localnet_client::route::{Origin, Packet};
use localnet_linux::ipvs::ServerState;
use localnet_proto::Protocol;

use super::{
    iptables::Tables,
    verdict::{Passing, Unknown, Verdict, Verdicts},
};

/// The rules of one address family, and the virtual servers.
#[derive(Debug)]
pub struct Ipvs {
    tables: Tables,
    servers: BTreeMap<(SocketAddr, Protocol), Server>,
    bound: BTreeSet<IpAddr>,
}

#[derive(Debug)]
struct Server {
    destinations: Vec<SocketAddr>,
    sticky: bool,
}

impl Ipvs {
    /// `tables` have the sets that their rules name. `bound` are the addresses of kube-ipvs0.
    pub fn new(tables: Tables, servers: &[ServerState], bound: BTreeSet<IpAddr>) -> Self {
        let server = |state: &ServerState| {
            let destinations = state.destinations.iter().map(|state| state.destination);
            // Destinations with weight 0 keep their connections, and get no new ones.
            let destinations = destinations.filter(|of| of.weight > 0).map(|of| of.address).collect();
            let frontend = state.server.frontend;
            let server = Server { destinations, sticky: state.server.persistence.is_some() };
            ((frontend.address, frontend.protocol), server)
        };
        Self { tables, servers: servers.iter().map(server).collect(), bound }
    }

    /// The destinations that the virtual servers name, without NodePorts and the virtual servers of other programs: those with an
    /// address of kube-ipvs0.
    pub fn destinations(&self) -> impl Iterator<Item = (SocketAddr, Protocol)> {
        self.servers.keys().filter(|(to, _)| self.bound.contains(&to.ip())).copied()
    }

    /// What the virtual servers and rules do with a packet.
    ///
    /// # Errors
    /// Returns an error if the packet meets a rule that compares something unknown.
    pub fn verdicts(&self, packet: &Packet, local: &[IpAddr]) -> Result<Verdicts, Unknown> {
        let is_node = packet.origin == Origin::Node;
        // A packet of the node to one of its own addresses has this address as its source, too.
        let is_own = is_node && self.bound.contains(&packet.destination);
        let packet = Packet { source: if is_own { packet.destination } else { packet.source }, ..*packet };
        let passing = Passing { bound: &self.bound, ..Passing::new(&packet, local) };
        let to_node = passing.is_local(passing.to.ip());
        let first = if is_node { "OUTPUT" } else { "PREROUTING" };
        let before: &[&str] = match (is_node, to_node) {
            (true, _) => &[],
            (false, true) => &["INPUT"],
            (false, false) => &["FORWARD"],
        };
        let mut verdicts = Verdicts::new();
        for (_, passing) in self.tables.hook("nat", first, passing, &mut Vec::new())? {
            for passing in self.tables.passes(passing, before, &mut verdicts, &mut Vec::new())? {
                let server = self.servers.get(&(passing.to, packet.protocol)).filter(|_| is_node || to_node);
                if server.is_some_and(|server| server.destinations.is_empty()) {
                    verdicts.insert(Verdict::Reject);
                    continue;
                }
                let scheduled = |server: &Server| {
                    let to = |to: &SocketAddr| Passing { to: *to, translated: true, sticky: server.sticky, ..passing };
                    server.destinations.iter().map(to).collect::<Vec<_>>()
                };
                for passing in server.map_or_else(|| vec![passing], scheduled) {
                    let stays = passing.is_local(passing.to.ip());
                    let after: &[&str] = match (is_node, stays) {
                        (true, true) => &["OUTPUT", "INPUT"],
                        (true, false) => &["OUTPUT"],
                        (false, false) if passing.translated => &["OUTPUT"],
                        (false, _) => &[],
                    };
                    for passing in self.tables.passes(passing, after, &mut verdicts, &mut Vec::new())? {
                        self.tables.leave(passing, &mut verdicts, &mut Vec::new())?;
                    }
                }
            }
        }
        Ok(verdicts)
    }
}

#[cfg(test)]
mod tests {
    use localnet_linux::ipvs::{
        Connections, Destination, DestinationState, Frontend, Persistence, Scheduler, VirtualServer,
    };
    use localnet_proto::Family;

    use super::*;
    use crate::shadow::{
        ipset,
        verdict::testing::{LOCAL, packet, short},
    };

    /// In the words of `iptables-save` and `ipset save`, and in lines of its own for virtual servers and the addresses of kube-ipvs0:
    /// a sticky Service with a NodePort, one without endpoints, an external IP, a load balancer address, and another one with policy
    /// Local and source ranges.
    const DUMP: &str = r#"*nat
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-LOAD-BALANCER -m comment --comment "with externalTrafficPolicy=local" -m set --match-set KUBE-LOAD-BALANCER-LOCAL dst,dst -j RETURN
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-LOCAL-TCP dst -j RETURN
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-POSTROUTING -m comment --comment "for solving hairpin purpose" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
-A KUBE-SERVICES -m comment --comment "Kubernetes service lb portal" -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES ! -s 10.180.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -m addrtype --dst-type LOCAL -j ACCEPT
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT
COMMIT
*filter
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT --reject-with icmp-port-unreachable
-A KUBE-IPVS-OUT-FILTER -s 192.0.2.1/32 -m ipvs --vproto 6 --vaddr 192.0.2.1 --vport 80 -j DROP
-A KUBE-NODE-PORT -m comment --comment "Kubernetes health check node port" -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
-A KUBE-SOURCE-RANGES-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j RETURN
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
COMMIT
create KUBE-LOOP-BACK hash:ip,port,ip family inet
create KUBE-CLUSTER-IP hash:ip,port family inet
create KUBE-EXTERNAL-IP hash:ip,port family inet
create KUBE-LOAD-BALANCER hash:ip,port family inet
create KUBE-LOAD-BALANCER-LOCAL hash:ip,port family inet
create KUBE-LOAD-BALANCER-FW hash:ip,port family inet
create KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net family inet
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
create KUBE-NODE-PORT-LOCAL-TCP bitmap:port range 0-65535
create KUBE-HEALTH-CHECK-NODE-PORT bitmap:port range 0-65535
create KUBE-IPVS-IPS hash:ip family inet
add KUBE-LOOP-BACK 10.180.0.1,tcp:8080,10.180.0.1
add KUBE-CLUSTER-IP 10.96.0.1,tcp:80
add KUBE-CLUSTER-IP 10.96.0.9,udp:53
add KUBE-EXTERNAL-IP 192.0.2.20,tcp:80
add KUBE-LOAD-BALANCER 192.0.2.1,tcp:80
add KUBE-LOAD-BALANCER 192.0.2.2,tcp:80
add KUBE-LOAD-BALANCER-LOCAL 192.0.2.1,tcp:80
add KUBE-LOAD-BALANCER-FW 192.0.2.1,tcp:80
add KUBE-LOAD-BALANCER-SOURCE-CIDR 192.0.2.1,tcp:80,203.0.113.0/25
add KUBE-NODE-PORT-TCP 30080
add KUBE-NODE-PORT-TCP 30081
add KUBE-NODE-PORT-LOCAL-TCP 30081
add KUBE-IPVS-IPS 10.96.0.1
add KUBE-IPVS-IPS 10.96.0.9
add KUBE-IPVS-IPS 192.0.2.1
add KUBE-IPVS-IPS 192.0.2.2
add KUBE-IPVS-IPS 192.0.2.20
server tcp 10.96.0.1:80 sticky 10.180.0.1:8080*1 10.180.1.1:8080*1 10.180.1.9:8080*0
server udp 10.96.0.9:53
server tcp 192.0.2.1:80 10.180.0.1:8080*1
server tcp 192.0.2.2:80 10.180.1.1:8080*1
server tcp 192.0.2.20:80 10.180.0.1:8080*1 192.168.0.2:8080*1
server tcp 192.168.0.2:30080 10.180.0.1:8080*1
server tcp 192.168.0.2:30081 10.180.0.1:8080*1
address 10.96.0.1
address 10.96.0.9
address 192.0.2.1
address 192.0.2.2
address 192.0.2.20
"#;

    fn read(dump: &str) -> Ipvs {
        let rest = |start: &'static str| dump.lines().filter_map(move |line| line.strip_prefix(start));
        let servers: Vec<ServerState> = rest("server ").map(server).collect();
        let bound = rest("address ").map(|address| address.parse().unwrap()).collect();
        let tables = Tables::with_sets(dump, &ipset::parse(dump));
        assert!(tables.has_kube_proxy());
        Ipvs::new(tables, &servers, bound)
    }

    fn server(line: &str) -> ServerState {
        let words: Vec<&str> = line.split(' ').collect();
        let frontend = Frontend::new(ipset::protocol(words[0]).unwrap(), words[1].parse().unwrap());
        let mut server = VirtualServer::new(frontend, Scheduler::default());
        server.persistence = words.contains(&"sticky").then(|| Persistence::of_addresses(Family::V4, 10800));
        let destination = |word: &&str| {
            let (address, weight) = word.split_once('*')?;
            let destination = Destination::masqueraded(address.parse().unwrap(), weight.parse().unwrap());
            Some(DestinationState { destination, connections: Connections::default() })
        };
        ServerState { server, destinations: words.iter().filter_map(destination).collect() }
    }

    fn verdicts(ipvs: &Ipvs, from: &str, to: &str, protocol: Protocol) -> String {
        short(&ipvs.verdicts(&packet(from, to, protocol), &LOCAL).unwrap())
    }

    #[test]
    fn packets_follow_the_virtual_servers_and_the_rules() {
        use Protocol::{Tcp, Udp};
        let ipvs = read(DUMP);
        assert!(ipvs.tables.is_ipvs());
        for (from, to, protocol, expected) in [
            ("10.180.0.9", "10.96.0.1:80", Tcp, "10.180.0.1 S, 10.180.1.1 S"),
            ("10.180.0.1", "10.96.0.1:80", Tcp, "10.180.0.1 M S, 10.180.1.1 S"),
            ("203.0.113.1", "10.96.0.1:80", Tcp, "10.180.0.1 M S, 10.180.1.1 M S"),
            ("192.168.0.2", "10.96.0.1:80", Tcp, "10.180.0.1 M S, 10.180.1.1 M S"),
            ("10.180.0.9", "10.96.0.1:81", Tcp, "reject"),
            ("192.168.0.2", "10.96.0.1:81", Tcp, "reject"),
            ("10.180.0.9", "10.96.0.1:80", Udp, "reject"),
            ("10.180.0.9", "10.96.0.77:80", Tcp, "untouched"),
            ("10.180.0.9", "10.96.0.9:53", Udp, "reject"),
            ("192.168.0.2", "10.96.0.9:53", Udp, "reject"),
            ("203.0.113.1", "192.0.2.1:80", Tcp, "10.180.0.1"),
            ("203.0.113.200", "192.0.2.1:80", Tcp, "drop"),
            ("192.168.0.2", "192.0.2.1:80", Tcp, "drop"),
            ("203.0.113.200", "192.0.2.2:80", Tcp, "10.180.1.1 M"),
            ("10.180.0.9", "192.0.2.20:80", Tcp, "10.180.0.1 M, 192.168.0.2 M"),
            ("203.0.113.1", "192.0.2.20:81", Tcp, "reject"),
            ("203.0.113.1", "192.168.0.2:30080", Tcp, "10.180.0.1 M"),
            ("203.0.113.1", "192.168.0.2:30081", Tcp, "10.180.0.1"),
            ("192.168.0.2", "192.168.0.2:30081", Tcp, "10.180.0.1"),
            ("203.0.113.1", "192.168.0.2:22", Tcp, "untouched"),
        ] {
            assert_eq!(verdicts(&ipvs, from, to, protocol), expected, "{from} {to} {protocol}");
        }
        assert_eq!(ipvs.destinations().count(), 5);
    }

    #[test]
    fn each_removed_line_changes_a_verdict() {
        let packets = |ipvs: &Ipvs| {
            let mut all = Vec::new();
            for from in ["10.180.0.9", "10.180.0.1", "203.0.113.1", "203.0.113.200", "192.168.0.2"] {
                for ip in ["10.96.0.1", "10.96.0.9", "192.0.2.1", "192.0.2.2", "192.0.2.20"] {
                    all.extend([80, 81].map(|port| verdicts(ipvs, from, &format!("{ip}:{port}"), Protocol::Tcp)));
                }
                all.extend(
                    [30080, 30081].map(|port| verdicts(ipvs, from, &format!("192.168.0.2:{port}"), Protocol::Tcp)),
                );
                all.push(verdicts(ipvs, from, "10.96.0.9:53", Protocol::Udp));
            }
            all
        };
        let whole = packets(&read(DUMP));
        // These change nothing for the first packet of a connection to a Service.
        let without_effect = [
            " -j ACCEPT",
            "FORWARD ",
            "127.0.0.0/8",
            "0x4000/0x0",
            "HEALTH-CHECK",
            "health check",
            "KUBE-CLUSTER-IP 10.96.0.9",
            "KUBE-NODE-PORT-TCP 30081",
        ];
        let is_removable =
            |line: &&str| ["-A ", "add ", "server ", "address "].iter().any(|start| line.starts_with(start));
        for line in DUMP.lines().filter(is_removable) {
            let without: String = DUMP.lines().filter(|of| *of != line).map(|of| format!("{of}\n")).collect();
            let has_effect = !without_effect.iter().any(|part| line.contains(part));
            assert_eq!(packets(&read(&without)) != whole, has_effect, "{line}");
        }
    }
}
