//! Connections to a removed endpoint: they continue, even through a restart, and the endpoint is deleted once they have ended.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use localnet_client::vips::Config;
use localnet_ipvs::{Host, IpvsBackend, Options};
use localnet_lab::{Network, Topology};
use localnet_linux::{ipvs, sysctl::Settings};
use localnet_proto::{Changes, ServiceKey, Snapshot};
use localnet_vm::on_ipvs;
use rustix::net::sockopt;

const PODS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 180, 0, 1), Ipv4Addr::new(10, 180, 0, 2)];
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 180, 0, 3);
const VIP: &str = "172.30.0.1:80";
const PATIENCE: Duration = Duration::from_secs(120);

const STATE: &str = "{node: {name: n, addresses: [192.168.0.2]}, services: [
    {service: default/web, type: ClusterIP, clusterIPs: [172.30.0.1],
     ports: [{name: http, protocol: TCP, port: 80}], endpoints: [
     {address: 10.180.0.1, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true}},
     {address: 10.180.0.2, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true}}]}]}";

pub(crate) fn state() -> Snapshot {
    serde_saphyr::from_str(STATE).unwrap()
}

fn without(state: &Snapshot, pod: Ipv4Addr) -> Snapshot {
    let mut state = state.clone();
    let web = state.services.get_mut(&ServiceKey::new("default", "web")).unwrap();
    Arc::make_mut(web).endpoints.retain(|endpoint| endpoint.address != pod);
    state
}

/// Serves in a pod: sends the pod's number to each client, then echoes what it receives.
fn serve(network: &Network, number: u8) {
    let pod = network.pod(PODS[usize::from(number)].into()).unwrap();
    let listener = pod.run(|| Ok(TcpListener::bind("0.0.0.0:8080")?)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [number];
                while stream.write_all(&buffer).is_ok() && stream.read_exact(&mut buffer).is_ok() {}
            });
        }
    });
}

fn connect(network: &Network) -> (TcpStream, usize) {
    connect_to(network, VIP)
}

/// Opens a connection, and returns it with the number of the pod that accepted it.
pub(crate) fn connect_to(network: &Network, vip: &str) -> (TcpStream, usize) {
    let vip: SocketAddr = vip.parse().unwrap();
    let client = network.pod(CLIENT.into()).unwrap();
    let mut stream = client.run(|| Ok(TcpStream::connect_timeout(&vip, PATIENCE)?)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A reset closes the connection. IPVS forgets it after 10 seconds, but a regular close only after two minutes.
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    let mut number = [0];
    stream.read_exact(&mut number).unwrap();
    (stream, number[0].into())
}

fn is_answered(stream: &mut TcpStream) -> bool {
    let mut echoed = [0];
    stream.write_all(&[42]).is_ok() && stream.read_exact(&mut echoed).is_ok() && echoed == [42]
}

/// Runs a test in a network with two endpoints and a client.
pub(crate) fn in_network(test: impl FnOnce(&Network) + Send) {
    let addresses = PODS.iter().chain([&CLIENT]).map(ToString::to_string).collect::<Vec<_>>();
    let network = Network::build(Topology::with_pods(addresses.iter().map(String::as_str)).unwrap()).unwrap();
    [0, 1].into_iter().for_each(|number| serve(&network, number));
    test(&network);
}

/// Runs a new backend, which syncs with `state` and then calls `then`.
pub(crate) fn with_backend<T: Send>(
    network: &Network,
    options: Options,
    state: &Snapshot,
    then: impl AsyncFnOnce(&mut IpvsBackend<Host>) -> T + Send,
) -> T {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let host = Host::open()?;
            ipvs::apply_settings(&Settings::default(), false).into_iter().collect::<Result<Vec<_>, _>>()?;
            let mut backend = IpvsBackend::new(Config::default(), options, host);
            backend.apply(state, &Changes::everything()).await?.whole()?;
            Ok(then(&mut backend).await)
        })
    };
    network.node().run(work).unwrap()
}

#[test]
fn connections_survive_the_removal_of_their_endpoint_and_of_the_backend() {
    on_ipvs(|| {
        in_network(|network| {
            let all = state();
            with_backend(network, Options::default(), &all, async |_| ());
            let (mut long, gone) = connect(network);
            let rest = without(&all, PODS[gone]);
            let draining = with_backend(network, Options::default(), &rest, async |backend| backend.is_draining());
            assert!(draining);
            assert!(is_answered(&mut long), "it keeps its endpoint");
            for _ in 0..8 {
                assert_eq!(connect(network).1, 1 - gone, "new connections go elsewhere");
            }
            // The restarted backend still knows that the endpoint drains, and the connection continues.
            with_backend(network, Options::default(), &rest, async |backend| {
                assert!(backend.is_draining());
                backend.drain(Duration::ZERO).await.unwrap();
                assert!(backend.is_draining(), "a connection is left");
            });
            assert!(is_answered(&mut long));
            // The endpoint returns and keeps its connection.
            with_backend(network, Options::default(), &all, async |backend| assert!(!backend.is_draining()));
            assert!(is_answered(&mut long));
            assert!((0..8).any(|_| connect(network).1 == gone));
            // The endpoint is removed again, and the connection ends.
            with_backend(network, Options::default(), &rest, async |backend| {
                drop(long);
                let began = Instant::now();
                while backend.is_draining() {
                    backend.drain(began.elapsed()).await.unwrap();
                    assert!(began.elapsed() < PATIENCE, "the destination is never deleted");
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        });
    });
}

#[test]
fn the_drain_limit_cuts_connections() {
    on_ipvs(|| {
        in_network(|network| {
            let all = state();
            let options = Options { drain_limit: Some(Duration::from_secs(60)), ..Options::default() };
            with_backend(network, options.clone(), &all, async |_| ());
            let (mut long, gone) = connect(network);
            with_backend(network, options, &without(&all, PODS[gone]), async |backend| {
                for (now, draining) in [(0, true), (59, true), (60, false)] {
                    backend.drain(Duration::from_secs(now)).await.unwrap();
                    assert_eq!(backend.is_draining(), draining, "after {now} seconds");
                }
            });
            assert!(!is_answered(&mut long) || !is_answered(&mut long));
        });
    });
}
