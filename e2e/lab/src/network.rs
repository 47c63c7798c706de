//! Builds a topology: namespaces, links, addresses and routes.
//!
//! ```text
//!  pod 10.180.0.N ── eth0/podN ── node ── uplink/uplink ── router ── client/eth0 ── client
//!                                  └─ outside/node ── outside   └─── podN/eth0 ──── remote pod 10.180.1.N
//! ```
//!
//! The router sends every packet of the client and of remote pods to the node, like a network in which the node announces all
//! Service addresses. The outside world has every address that nothing else has, so it answers packets that leave the node
//! untranslated. Replies of remote pods to the client do not pass the node, as in reality; so a missing masquerade is detected.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use crate::namespace::{Namespace, ip_batch, remove};
use crate::topology::{CLIENT, CLIENT_GATEWAY, CLIENT_TWO, NODE, Place, Pod, ROUTER, Topology, of_family};

/// A running network. Dropping this value removes the network.
#[derive(Debug)]
pub struct Network {
    topology: Topology,
    node: Namespace,
    router: Namespace,
    outside: Namespace,
    client: Namespace,
    pods: BTreeMap<Pod, Namespace>,
}

impl Network {
    /// Builds a network. All addresses are usable when this returns.
    ///
    /// # Errors
    /// Returns an error if the process is not root, `ip` is missing, or the links do not come up.
    pub fn build(topology: Topology) -> anyhow::Result<Self> {
        let network = Self::create(topology)?;
        network.set_sysctls()?;
        ip_batch(None, network.links()).context("creating the links of a network")?;
        network.node.ip(network.node_lines())?;
        network.router.ip(network.router_lines())?;
        network.outside.ip(outside_lines())?;
        network.client.ip(client_lines())?;
        for (pod, namespace) in &network.pods {
            namespace.ip(pod_lines(*pod))?;
        }
        await_links(&network.node, 2 + network.pods_at(Place::Local).count())?;
        await_links(&network.router, 2 + network.pods_at(Place::Remote).count())?;
        for namespace in [&network.outside, &network.client].into_iter().chain(network.pods.values()) {
            await_links(namespace, 1)?;
        }
        Ok(network)
    }

    /// The topology that the network was built from.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The node: the namespace that a backend programs.
    pub fn node(&self) -> &Namespace {
        &self.node
    }

    /// The router between the node, the client and the remote pods.
    pub fn router(&self) -> &Namespace {
        &self.router
    }

    /// The external client.
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The outside world: it has every address that nothing else has.
    pub fn outside(&self) -> &Namespace {
        &self.outside
    }

    /// The pod that has `address`.
    ///
    /// # Errors
    /// Returns an error if no pod of this network has the address.
    pub fn pod(&self, address: IpAddr) -> anyhow::Result<&Namespace> {
        let pod = Pod::at(address).ok_or_else(|| anyhow!("{address} is not a pod address of the lab"))?;
        self.pods.get(&pod).ok_or_else(|| anyhow!("this network has no pod {address}: add it to the topology"))
    }

    /// The namespace of a server at `address`: a pod, the node, the client, or else the outside world.
    ///
    /// # Errors
    /// Returns an error if the address belongs to a pod that this network does not have.
    pub fn namespace_of(&self, address: IpAddr) -> anyhow::Result<&Namespace> {
        if Pod::at(address).is_some() {
            self.pod(address)
        } else if self.topology.node_has(address) || address.is_loopback() {
            Ok(&self.node)
        } else if CLIENT.contains(&address) || CLIENT_TWO.contains(&address) {
            Ok(&self.client)
        } else {
            Ok(&self.outside)
        }
    }

    /// Every namespace of the network.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        [&self.node, &self.router, &self.outside, &self.client].into_iter().chain(self.pods.values())
    }

    fn create(topology: Topology) -> anyhow::Result<Self> {
        static RUN: AtomicU32 = AtomicU32::new(0);
        let mut roles = ["node", "router", "outside", "client"].map(str::to_owned).to_vec();
        roles.extend(topology.pods.iter().map(|pod| format!("pod-{}", pod.addresses()[0])));
        let mut created = Namespace::create_all(RUN.fetch_add(1, Ordering::Relaxed), &roles)?.into_iter();
        let mut next = || created.next().context("fewer namespaces were created than requested");
        let (node, router, outside, client) = (next()?, next()?, next()?, next()?);
        let pods = topology.pods.iter().copied().zip(created).collect();
        Ok(Self { topology, node, router, outside, client, pods })
    }

    /// Sets sysctls before there are links, because a new link copies most of them.
    fn set_sysctls(&self) -> anyhow::Result<()> {
        for namespace in self.namespaces() {
            namespace.sysctl(EVERYWHERE)?;
        }
        self.node.sysctl(FORWARDING)?;
        self.router.sysctl(FORWARDING)?;
        self.outside.sysctl(&[("net/ipv6/ip_nonlocal_bind", "1")])
    }

    /// The `ip` lines that create the links. Both ends of a link get different interface indexes: with equal ones the kernel delays
    /// the work after a link comes up by up to a second.
    fn links(&self) -> Vec<String> {
        let (node, router) = (self.node.name(), self.router.name());
        let mut ends = vec![
            ("uplink".to_owned(), router, "uplink", node),
            ("outside".to_owned(), node, "node", self.outside.name()),
            ("client".to_owned(), router, "eth0", self.client.name()),
        ];
        for (pod, namespace) in &self.pods {
            let at = if pod.place == Place::Local { node } else { router };
            ends.push((interface(*pod), at, "eth0", namespace.name()));
        }
        let line = |(number, (name, at, peer, peer_at)): (usize, &(String, &str, &str, &str))| {
            let (index, peer_index) = (10 + 2 * number, 11 + 2 * number);
            format!(
                "link add name {name} index {index} netns {at} type veth peer name {peer} index {peer_index} netns {peer_at}"
            )
        };
        ends.iter().enumerate().map(line).collect()
    }

    fn node_lines(&self) -> Vec<String> {
        let mut lines = up("lo");
        lines.extend(NODE.map(|address| add_address(address, network_length(address), "uplink")));
        lines.extend(
            self.topology.node_addresses.iter().map(|address| add_address(*address, host_length(*address), "uplink")),
        );
        lines.extend(up("uplink"));
        lines.push(format!("addr add {NODE_ON_OUTSIDE}/64 dev outside nodad"));
        lines.extend(up("outside"));
        // `onlink`, because the kernel cannot verify the gateway while the other end is down.
        for (router, [client, remote_pods]) in ROUTER.into_iter().zip(BEHIND_ROUTER) {
            lines.push(format!("route add {client} via {router} dev uplink onlink"));
            lines.push(format!("route add {remote_pods} via {router} dev uplink onlink"));
        }
        lines.push(format!("route add default via {OUTSIDE_V4} dev outside onlink src {}", NODE[0]));
        lines.push(format!("route add default via {OUTSIDE} dev outside src {}", NODE[1]));
        lines.extend(self.pods_at(Place::Local).flat_map(link_to_pod));
        lines
    }

    fn router_lines(&self) -> Vec<String> {
        let mut lines = up("lo");
        lines.extend(ROUTER.map(|address| add_address(address, network_length(address), "uplink")));
        lines.extend(up("uplink"));
        lines.extend(CLIENT_GATEWAY.map(|address| add_address(address, network_length(address), "client")));
        lines.extend(up("client"));
        lines.extend(NODE.map(|node| format!("route add default via {node} dev uplink onlink")));
        lines.extend(self.pods_at(Place::Remote).flat_map(link_to_pod));
        lines
    }

    fn pods_at(&self, place: Place) -> impl Iterator<Item = Pod> {
        self.pods.keys().copied().filter(move |pod| pod.place == place)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let names: Vec<_> = self.namespaces().map(|namespace| namespace.name().to_owned()).collect();
        remove(&names);
    }
}

/// Link-local addresses on the link between node and outside world, which needs no others.
const NODE_ON_OUTSIDE: &str = "fe80::2";
const OUTSIDE: &str = "fe80::1";
/// The addresses from which the outside world sends ICMP errors.
const OUTSIDE_V4: &str = "192.0.2.1";
const OUTSIDE_V6: &str = "2001:db8:f::1";
const BEHIND_ROUTER: [[&str; 2]; 2] = [["203.0.113.0/24", "10.180.1.0/24"], ["2001:db8:2::/64", "fd00:10:180:1::/64"]];
/// The networks that the outside world reaches through the node.
const ELSEWHERE: [&[&str]; 2] = [
    &["192.168.0.0/24", "203.0.113.0/24", "10.180.0.0/16"],
    &["2001:db8::/64", "2001:db8:1::/64", "2001:db8:2::/64", "fd00:10:180::/48"],
];
const LINKS_TIMEOUT: Duration = Duration::from_secs(60);

const FORWARDING: &[(&str, &str)] = &[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")];
const EVERYWHERE: &[(&str, &str)] = &[
    // A new namespace copies some settings from the machine, so set them explicitly.
    ("net/ipv6/conf/all/disable_ipv6", "0"),
    ("net/ipv6/conf/default/disable_ipv6", "0"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/conf/default/send_redirects", "0"),
    ("net/ipv4/conf/all/accept_redirects", "0"),
    ("net/ipv4/conf/default/accept_redirects", "0"),
    // Rejects every packet. By default, the kernel sends a host six ICMP errors at once and then one per second, so a further
    // reject would look like silence.
    ("net/ipv4/icmp_ratelimit", "0"),
    ("net/ipv6/icmp/ratelimit", "0"),
    // Makes addresses usable at once.
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/all/accept_ra", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/conf/default/addr_gen_mode", "0"),
    // Disables the rate limit of ICMP errors, so that each probe gets its reject.
    ("net/ipv4/icmp_ratemask", "0"),
    ("net/ipv6/icmp/ratemask", "0"),
];

/// The `ip` lines of the outside world: every address is local, except those behind the node.
fn outside_lines() -> Vec<String> {
    let mut lines = up("lo");
    lines.push(format!("addr add {OUTSIDE_V4}/32 dev node"));
    lines.push(format!("addr add {OUTSIDE}/64 dev node nodad"));
    lines.push(format!("addr add {OUTSIDE_V6}/128 dev node nodad"));
    lines.extend(up("node"));
    for (node, elsewhere) in NODE.into_iter().zip(ELSEWHERE) {
        let via = if node.is_ipv4() { node.to_string() } else { NODE_ON_OUTSIDE.to_owned() };
        let route = |network| format!("route add {network} via {via} dev node onlink table local");
        lines.extend(elsewhere.iter().map(route));
    }
    lines.push("route add fe80::/64 dev node table local".to_owned());
    lines.push("route add local 0.0.0.0/0 dev lo table local".to_owned());
    lines.push("route add local ::/0 dev lo table local".to_owned());
    lines
}

/// Waits until the kernel finished its work after links came up: each link has a link-local address made from its hardware
/// address, and each of the namespace's addresses has a route. Before that, packets to an IPv6 address are lost.
fn await_links(namespace: &Namespace, links: usize) -> anyhow::Result<()> {
    let started = Instant::now();
    namespace.run(|| {
        let devices = std::fs::read_to_string("/proc/thread-self/net/dev").context("reading interfaces")?;
        let names = devices.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
        // The kernel queues this work, which delays it by seconds if there are many links. A query for a link makes it happen at
        // once.
        namespace.ip(names.map(|name| format!("link show dev {name}")))?;
        loop {
            let addresses = std::fs::read_to_string("/proc/thread-self/net/if_inet6").context("reading addresses")?;
            let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").context("reading routes")?;
            let made = |line: &&str| line.starts_with("fe80") && line.get(22..26) == Some("fffe");
            let local: BTreeSet<&str> = routes.lines().filter_map(local_address).collect();
            let is_routed = |line: &str| line.split_whitespace().next().is_some_and(|address| local.contains(address));
            if addresses.lines().filter(made).count() >= links && addresses.lines().all(is_routed) {
                return Ok(());
            }
            if started.elapsed() > LINKS_TIMEOUT {
                let name = namespace.name();
                bail!("the {links} links of {name} are not up after {LINKS_TIMEOUT:?}:\n{addresses}\n{routes}");
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    })
}

/// The local address that a line of `ipv6_route` leads to, in the notation of `if_inet6`; `None` for other routes.
fn local_address(route: &str) -> Option<&str> {
    const LOCAL: u32 = 1 << 31;
    let words: Vec<&str> = route.split_whitespace().collect();
    let [address, "80", .., flags, _] = words[..] else { return None };
    (u32::from_str_radix(flags, 16).ok()? & LOCAL != 0).then_some(address)
}

fn client_lines() -> Vec<String> {
    let mut lines = up("lo");
    lines.extend(CLIENT.map(|address| add_address(address, network_length(address), "eth0")));
    // With the full prefix length, so that the kernel never chooses them as a source address.
    lines.extend(CLIENT_TWO.map(add_unchosen_address));
    lines.extend(up("eth0"));
    lines.extend(CLIENT_GATEWAY.map(|gateway| format!("route add default via {gateway} dev eth0 onlink")));
    lines
}

fn pod_lines(pod: Pod) -> Vec<String> {
    let mut lines = up("lo");
    lines.extend(pod.addresses().map(|address| add_address(address, host_length(address), "eth0")));
    lines.extend(up("eth0"));
    for gateway in pod.gateways() {
        lines.push(format!("route add {gateway}/{} dev eth0", host_length(gateway)));
        let source = of_family(pod.addresses(), gateway);
        lines.push(format!("route add default via {gateway} dev eth0 onlink src {source}"));
    }
    lines
}

/// The `ip` lines for the node's (or router's) end of a pod's link, set up like the ptp CNI plugin does.
fn link_to_pod(pod: Pod) -> Vec<String> {
    let interface = interface(pod);
    let mut lines: Vec<_> =
        pod.gateways().into_iter().map(|gateway| add_address(gateway, host_length(gateway), &interface)).collect();
    lines.extend(up(&interface));
    lines
        .extend(pod.addresses().map(|address| format!("route add {address}/{} dev {interface}", host_length(address))));
    lines
}

/// The name of a pod's link on its node. All begin with `pod`.
fn interface(pod: Pod) -> String {
    format!("pod{}", pod.number)
}

fn up(interface: &str) -> Vec<String> {
    vec![format!("link set {interface} up")]
}

fn add_address(address: IpAddr, length: u8, interface: &str) -> String {
    let nodad = if address.is_ipv6() { " nodad" } else { "" };
    format!("addr add {address}/{length} dev {interface}{nodad}")
}

fn add_unchosen_address(address: IpAddr) -> String {
    let unchosen = if address.is_ipv6() { " nodad preferred_lft 0" } else { "" };
    format!("addr add {address}/{} dev eth0{unchosen}", host_length(address))
}

fn network_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

fn host_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[test]
fn only_routes_to_local_addresses_are_recognized() {
    let own = "fd0000100180000000000000000000fe 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000001 00000000 80200001     pod1";
    let other = "fd001000000000000000000000000002 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000001     pod1";
    assert_eq!(local_address(own), Some("fd0000100180000000000000000000fe"));
    for line in [other, "", "ff000000000000000000000000000000 08 0 00 0 00000100 00000006 00000000 80000001 pod1"] {
        assert_eq!(local_address(line), None, "{line}");
    }
}
