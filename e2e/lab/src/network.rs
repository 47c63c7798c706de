//! Builds a topology: namespaces and links, with the addresses and routes of `lines`.
//!
//! ```text
//!  pod 10.180.0.N ── eth0/podN ── node ── uplink/uplink ── router ── client/eth0 ── client
//!                                  └─ outside/node ── outside   └─── podN/eth0 ──── remote pod 10.180.1.N
//! ```
//! If the topology has the other node, this node is between the router and the remote pods:
//! ```text
//!  router ── uplink2/uplink ── other node ── podN/eth0 ── remote pod 10.180.1.N
//!             outside ── node2/outside ─┘
//! ```
//!
//! The router sends every packet of the client and of remote pods to the node, like a network in which the node announces all
//! Service addresses. The other node serves its own pods, and is reached at its own addresses. The outside world has every address that nothing else has, so it answers packets that leave the node
//! untranslated. Replies of remote pods to the client do not pass the node, as in reality; so a missing masquerade is detected.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use crate::lines;
use crate::namespace::{Namespace, ip_batch, remove};
use crate::topology::{CLIENT, CLIENT_TWO, Place, Pod, Topology};

/// A running network. Dropping this value removes the network.
#[derive(Debug)]
pub struct Network {
    topology: Topology,
    node: Namespace,
    router: Namespace,
    outside: Namespace,
    client: Namespace,
    other_node: Option<Namespace>,
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
        network.node.ip(lines::node(&network.topology, Place::Local))?;
        if let Some(other_node) = &network.other_node {
            other_node.ip(lines::node(&network.topology, Place::Remote))?;
        }
        network.router.ip(lines::router(&network.topology))?;
        network.outside.ip(lines::outside(&network.topology))?;
        network.client.ip(lines::client())?;
        for (pod, namespace) in &network.pods {
            namespace.ip(lines::pod(*pod))?;
        }
        let remote_pods = network.topology.pods_at(Place::Remote).count();
        await_links(&network.node, 2 + network.topology.pods_at(Place::Local).count())?;
        if let Some(other_node) = &network.other_node {
            await_links(other_node, 2 + remote_pods)?;
        }
        let others = usize::from(network.other_node.is_some());
        await_links(&network.router, 2 + if others > 0 { others } else { remote_pods })?;
        await_links(&network.outside, 1 + others)?;
        for namespace in [&network.client].into_iter().chain(network.pods.values()) {
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

    /// The other node, which a backend may program, too.
    ///
    /// # Errors
    /// The network has no other node.
    pub fn other_node(&self) -> anyhow::Result<&Namespace> {
        self.other_node.as_ref().context("this network has no other node: set `other_node` in the topology")
    }

    /// A node.
    ///
    /// # Errors
    /// The network has no other node.
    pub fn node_at(&self, place: Place) -> anyhow::Result<&Namespace> {
        match place {
            Place::Local => Ok(&self.node),
            Place::Remote => self.other_node(),
        }
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

    /// The namespace of a server at `address`: a pod, a node, the client, or else the outside world.
    ///
    /// # Errors
    /// Returns an error if the address belongs to a pod that this network does not have.
    pub fn namespace_of(&self, address: IpAddr) -> anyhow::Result<&Namespace> {
        if Pod::at(address).is_some() {
            self.pod(address)
        } else if self.topology.node_has(address) || address.is_loopback() {
            Ok(&self.node)
        } else if self.topology.other_node_has(address) {
            self.other_node()
        } else if CLIENT.contains(&address) || CLIENT_TWO.contains(&address) {
            Ok(&self.client)
        } else {
            Ok(&self.outside)
        }
    }

    /// Every namespace of the network.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        let fixed = [&self.node, &self.router, &self.outside, &self.client];
        fixed.into_iter().chain(&self.other_node).chain(self.pods.values())
    }

    fn create(topology: Topology) -> anyhow::Result<Self> {
        static RUN: AtomicU32 = AtomicU32::new(0);
        let mut roles = ["node", "router", "outside", "client"].map(str::to_owned).to_vec();
        roles.extend(topology.other_node.then(|| "other-node".to_owned()));
        roles.extend(topology.pods.iter().map(|pod| format!("pod-{}", pod.addresses()[0])));
        let mut created = Namespace::create_all(RUN.fetch_add(1, Ordering::Relaxed), &roles)?.into_iter();
        let mut next = || created.next().context("fewer namespaces were created than requested");
        let (node, router, outside, client) = (next()?, next()?, next()?, next()?);
        let other_node = if topology.other_node { Some(next()?) } else { None };
        let pods = topology.pods.iter().copied().zip(created).collect();
        Ok(Self { topology, node, router, outside, client, other_node, pods })
    }

    /// Sets sysctls before there are links, because a new link copies most of them.
    fn set_sysctls(&self) -> anyhow::Result<()> {
        for namespace in self.namespaces() {
            namespace.sysctl(EVERYWHERE)?;
        }
        for namespace in [&self.node, &self.router].into_iter().chain(&self.other_node) {
            namespace.sysctl(FORWARDING)?;
        }
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
        let other_node = self.other_node.as_ref().map(Namespace::name);
        if let Some(other_node) = other_node {
            ends.push((lines::UPLINK_TO_OTHER.to_owned(), router, "uplink", other_node));
            ends.push(("outside".to_owned(), other_node, "node2", self.outside.name()));
        }
        for (pod, namespace) in &self.pods {
            let at = if pod.place == Place::Local { node } else { other_node.unwrap_or(router) };
            ends.push((lines::interface(*pod), at, "eth0", namespace.name()));
        }
        let line = |(number, (name, at, peer, peer_at)): (usize, &(String, &str, &str, &str))| {
            let (index, peer_index) = (10 + 2 * number, 11 + 2 * number);
            format!(
                "link add name {name} index {index} netns {at} type veth peer name {peer} index {peer_index} netns {peer_at}"
            )
        };
        ends.iter().enumerate().map(line).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let names: Vec<_> = self.namespaces().map(|namespace| namespace.name().to_owned()).collect();
        remove(&names);
    }
}

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

#[test]
fn only_routes_to_local_addresses_are_recognized() {
    let own = "fd0000100180000000000000000000fe 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000001 00000000 80200001     pod1";
    let other = "fd001000000000000000000000000002 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000001     pod1";
    assert_eq!(local_address(own), Some("fd0000100180000000000000000000fe"));
    for line in [other, "", "ff000000000000000000000000000000 08 0 00 0 00000100 00000006 00000000 80000001 pod1"] {
        assert_eq!(local_address(line), None, "{line}");
    }
}
