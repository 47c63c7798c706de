//! Tests of the programs and maps in the real kernel: in cgroups and network namespaces of their own. Needs root.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod cases;
mod contract;
mod sockets;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use localnet_client::{Backend as _, vips::Config};
use localnet_ebpf::{EbpfBackend, LinuxBackend as _, host::Host, kernel::Kernel as _};
use localnet_lab::{Network, Outcome, Probe, Protocol, Sandbox, Servers, Topology, serve::Endpoint, topology::Pod};
use localnet_nft::{Netlink, NftBackend};
use localnet_proto::{Changes, Snapshot};

const WEB: &str = "172.30.0.1:80";

/// One Service with these endpoints, which are pods.
pub(crate) fn state(protocol: &str, endpoints: &[&str]) -> Snapshot {
    let endpoint = |address: &&str| {
        format!(
            "{{address: \"{address}\", ports: [{{name: p, port: 8080}}], scopes: {{internal: true, external: true}}}}"
        )
    };
    let endpoints = endpoints.iter().map(endpoint).collect::<Vec<_>>().join(", ");
    serde_saphyr::from_str(&format!(
        "{{node: {{name: node-a, addresses: [192.168.0.2]}}, services: [
            {{service: default/web, type: NodePort, clusterIPs: [172.30.0.1, \"fd00:172:30::1\"],
              ports: [{{name: p, protocol: {protocol}, port: 80, nodePort: 30080}}], endpoints: [{endpoints}]}}]}}"
    ))
    .unwrap()
}

/// A network with these pods, and with servers at their port 8080.
pub(crate) fn network(protocol: Protocol, endpoints: &[&str]) -> (Network, Servers) {
    let address = |text: &&str| SocketAddr::new(text.parse().unwrap(), 8080);
    let endpoints: Vec<Endpoint> =
        endpoints.iter().map(address).map(|address| Endpoint { protocol, address }).collect();
    let pods = endpoints.iter().map(|endpoint| Pod::at(endpoint.address.ip()).unwrap()).collect();
    let network = Network::build(Topology { pods, ..Topology::default() }).unwrap();
    let servers = Servers::start(&network, endpoints).unwrap();
    (network, servers)
}

fn bpffs() -> &'static Path {
    Path::new(Sandbox::BPFFS)
}

/// A backend that has programmed nothing yet, in the sandbox of this thread.
pub(crate) fn backend(config: Config) -> anyhow::Result<EbpfBackend<Host>> {
    Ok(EbpfBackend::new(config, Host::open(bpffs(), Path::new(Sandbox::CGROUP))?))
}

/// The names in a folder, with those in its folders.
fn tree(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            names.extend(tree(&entry.path())?.into_iter().map(|inner| format!("{name}/{inner}")));
        }
        names.push(name);
    }
    names.sort();
    Ok(names)
}

pub(crate) const ENDPOINTS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];

fn apply(backend: &mut EbpfBackend<Host>, state: &Snapshot) {
    backend.apply(state, &Changes::everything()).unwrap().whole().unwrap();
}

fn probe(network: &Network, to: &str) -> Outcome {
    network.node().probe(Probe::new(Protocol::Tcp, to.parse().unwrap())).unwrap()
}

#[test]
fn a_backend_that_ends_leaves_programs_and_maps_that_the_next_one_adopts() {
    let _sandbox = Sandbox::enter().unwrap();
    let (network, _servers) = network(Protocol::Tcp, &ENDPOINTS);
    apply(&mut backend(Config::default()).unwrap(), &state("TCP", &ENDPOINTS));
    let before = tree(bpffs()).unwrap();
    assert_eq!(before.iter().filter(|name| name.matches('/').count() == 2).count(), 8 + 5, "{before:?}");
    let inode = |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(bpffs().join(name)).unwrap());
    let inodes: Vec<u64> = before.iter().map(|name| inode(name)).collect();
    assert!(matches!(probe(&network, WEB), Outcome::Answer { .. }));
    let mut next = backend(Config::default()).unwrap();
    apply(&mut next, &state("TCP", &ENDPOINTS[..1]));
    assert_eq!(tree(bpffs()).unwrap(), before);
    assert_eq!(before.iter().map(|name| inode(name)).collect::<Vec<_>>(), inodes, "all pins are the same");
    let by = |text: &str| SocketAddr::new(text.parse().unwrap(), 8080);
    for _ in 0..8 {
        assert!(matches!(probe(&network, WEB), Outcome::Answer { by: found, .. } if found == by(ENDPOINTS[0])));
    }
}

/// The packets of a connection already have the endpoint's address, so only the rules of the nft backend let the kernel track it.
#[test]
fn a_connection_through_a_vip_needs_no_entry_of_connection_tracking() {
    const CLIENT: &str = "10.180.0.3";
    const CONNECTIONS: usize = 10;
    let sandbox = Sandbox::enter().unwrap();
    let (network, _servers) = network(Protocol::Tcp, &[ENDPOINTS[0], ENDPOINTS[1], CLIENT]);
    let state = state("TCP", &ENDPOINTS);
    let tracked = || -> anyhow::Result<usize> {
        let count = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count")?;
        Ok(count.trim().parse()?)
    };
    let clients = [network.node(), network.pod(CLIENT.parse().unwrap()).unwrap()];
    let new_entries = || -> anyhow::Result<[usize; 2]> {
        let mut of_clients = [0; 2];
        for (client, entries) in clients.iter().zip(&mut of_clients) {
            let before = network.node().run(tracked)?;
            for _ in 0..CONNECTIONS {
                let outcome = client.probe(Probe::new(Protocol::Tcp, WEB.parse()?))?;
                anyhow::ensure!(matches!(outcome, Outcome::Answer { .. }), "{outcome}");
            }
            *entries = network.node().run(tracked)? - before;
        }
        Ok(of_clients)
    };
    apply(&mut backend(Config::default()).unwrap(), &state);
    assert_eq!(new_entries().unwrap(), [0; 2], "the programs alone");
    let nft = || {
        let mut nft = NftBackend::new(Config::default(), Netlink::open()?);
        nft.apply(&state, &Changes::everything())?.whole()
    };
    network.node().run(nft).unwrap();
    assert_eq!(new_entries().unwrap(), [CONNECTIONS; 2], "beside the nft backend");
    assert_eq!(sandbox.outside(new_entries).unwrap(), [CONNECTIONS; 2], "the nft backend alone");
}

#[test]
fn cleanup_leaves_nothing() {
    let _sandbox = Sandbox::enter().unwrap();
    let (network, _servers) = network(Protocol::Tcp, &ENDPOINTS);
    // The kernel adds pins of its own to each BPF file system.
    let before = tree(bpffs()).unwrap();
    let mut backend = backend(Config::default()).unwrap();
    apply(&mut backend, &state("TCP", &ENDPOINTS));
    assert!(matches!(probe(&network, WEB), Outcome::Answer { .. }));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(backend.cleanup()).unwrap();
    assert_eq!(tree(bpffs()).unwrap(), before);
    // The kernel detaches a program a few milliseconds after the last pin is deleted, and announces it nowhere.
    let is_detached = (0..10_000).any(|_| !matches!(probe(&network, WEB), Outcome::Answer { .. }));
    assert!(is_detached, "a program still translates the VIP");
    Host::remove_pins(bpffs()).unwrap();
}

#[test]
fn deleted_pins_are_repaired() {
    let _sandbox = Sandbox::enter().unwrap();
    let (network, _servers) = network(Protocol::Tcp, &ENDPOINTS);
    let mut backend = backend(Config::default()).unwrap();
    let state = state("TCP", &ENDPOINTS);
    apply(&mut backend, &state);
    for (number, of) in ["/links-", "/maps-"].into_iter().enumerate() {
        assert!(backend.kernel_mut().is_attached());
        let pins = tree(bpffs()).unwrap();
        let pin = pins.iter().find(|name| name.contains(of) && name.ends_with(["connect4", "vips"][number])).unwrap();
        fs::remove_file(bpffs().join(pin)).unwrap();
        assert!(!backend.kernel_mut().is_attached(), "{pin}");
        backend.forget();
        apply(&mut backend, &state);
        assert!(matches!(probe(&network, WEB), Outcome::Answer { .. }), "{pin}");
    }
}

/// An update with another layout of the maps starts with empty maps.
#[test]
fn the_programs_of_another_version_serve_until_the_maps_are_filled() {
    let _sandbox = Sandbox::enter().unwrap();
    let (network, _servers) = network(Protocol::Tcp, &ENDPOINTS);
    let state = state("TCP", &ENDPOINTS);
    apply(&mut backend(Config::default()).unwrap(), &state);
    let folder = bpffs().join("localnet-ebpf");
    let folders = || -> Vec<PathBuf> {
        let found = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        found.collect()
    };
    for current in folders() {
        fs::rename(&current, format!("{}-old", current.display())).unwrap();
    }
    let mut updated = backend(Config::default()).unwrap();
    updated.kernel_mut().attach().unwrap();
    assert_eq!(folders().len(), 4);
    assert!(matches!(probe(&network, WEB), Outcome::Answer { .. }), "the maps are still empty");
    apply(&mut updated, &state);
    assert!(folders().iter().all(|folder| !folder.ends_with("-old")) && folders().len() == 2);
    assert!(matches!(probe(&network, WEB), Outcome::Answer { .. }));
}

#[test]
fn the_error_for_an_unsuitable_folder_names_the_flag_and_the_remedy() {
    let _sandbox = Sandbox::enter().unwrap();
    let text = |bpffs, cgroup| format!("{:#}", Host::open(bpffs, cgroup).unwrap_err());
    let none = bpffs().join("none");
    for (error, expected) in [
        (
            text(bpffs().parent().unwrap(), Path::new(Sandbox::CGROUP)),
            "is not a BPF file system: mount one with `mount -t bpf",
        ),
        (text(&none, Path::new(Sandbox::CGROUP)), "No such file"),
        (text(bpffs(), bpffs()), "is not a folder of cgroup v2: pass"),
        (format!("{:#}", Host::pinned(bpffs()).unwrap_err()), "does localnet-ebpf run with the same --bpffs?"),
    ] {
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
}
