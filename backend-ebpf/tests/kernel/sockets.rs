//! What processes see: the addresses and errors of sockets that use VIPs.

use std::{
    io::{self, Read as _},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use localnet_client::vips::Config;
use localnet_lab::{Namespace, Protocol, Sandbox};
use localnet_proto::{Changes, Snapshot};

use crate::{ENDPOINTS, backend, network, state};

const VIP: &str = "172.30.0.1:80";
/// The same VIP for a process that uses IPv6 sockets for both families.
const MAPPED: &str = "[::ffff:172.30.0.1]:80";

/// Runs `work` in the namespaces of the node and of a pod, beside a backend with this state.
fn inside(protocol: Protocol, state: &Snapshot, work: impl Fn() -> anyhow::Result<()> + Sync) {
    let _sandbox = Sandbox::enter().unwrap();
    let (network, _servers) = network(protocol, &ENDPOINTS);
    let mut backend = backend(Config::default()).unwrap();
    backend.apply(state, &Changes::everything()).unwrap().whole().unwrap();
    let pod = |address: &str| network.pod(address.parse().unwrap());
    let places: [&Namespace; 2] = [network.node(), pod(ENDPOINTS[0]).unwrap()];
    for place in places {
        place.run(&work).unwrap();
    }
}

fn udp(bind: &str) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(bind)?;
    socket.set_read_timeout(Some(Duration::from_secs(3)))?;
    Ok(socket)
}

/// The server that answers, and the sender of the answer.
fn answer(socket: &UdpSocket) -> io::Result<(IpAddr, SocketAddr)> {
    let mut buffer = [0; 256];
    let (length, from) = socket.recv_from(&mut buffer)?;
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    let by: SocketAddr = text.split(' ').next().and_then(|by| by.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((by.ip(), from))
}

#[test]
fn tcp_sockets_see_the_vip_as_their_peer() {
    inside(Protocol::Tcp, &state("TCP", &ENDPOINTS), || {
        for to in [VIP, MAPPED] {
            let to: SocketAddr = to.parse()?;
            let mut stream = TcpStream::connect(to)?;
            assert_eq!(stream.peer_addr()?, to);
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            assert!(text.starts_with("10.180.0."), "{text}");
        }
        Ok(())
    });
}

#[test]
fn connected_udp_sockets_see_the_vip_as_their_peer() {
    inside(Protocol::Udp, &state("UDP", &ENDPOINTS), || {
        for (bind, to) in [("0.0.0.0:0", VIP), ("[::]:0", MAPPED)] {
            let (socket, to) = (udp(bind)?, to.parse::<SocketAddr>()?);
            socket.connect(to)?;
            assert_eq!(socket.peer_addr()?, to);
            socket.send(b"?")?;
            assert_eq!(answer(&socket)?.1, to);
        }
        Ok(())
    });
}

#[test]
fn the_answers_to_a_udp_socket_without_a_connection_come_from_the_vip_and_from_one_endpoint() {
    inside(Protocol::Udp, &state("UDP", &ENDPOINTS), || {
        for (bind, to) in [("0.0.0.0:0", VIP), ("[::]:0", MAPPED)] {
            let (socket, to) = (udp(bind)?, to.parse::<SocketAddr>()?);
            let mut by = Vec::new();
            for _ in 0..12 {
                socket.send_to(b"?", to)?;
                let (endpoint, from) = answer(&socket)?;
                assert_eq!(from, to);
                by.push(endpoint);
            }
            by.dedup();
            assert_eq!(by.len(), 1, "{by:?}");
            // Answers of servers that the socket reached without a VIP keep their address.
            let direct: SocketAddr = "10.180.0.2:8080".parse()?;
            let direct = if bind.contains("::") { format!("[::ffff:{}]:8080", direct.ip()).parse()? } else { direct };
            if direct.ip().to_canonical() != by[0] {
                socket.send_to(b"?", direct)?;
                assert_eq!(answer(&socket)?.1, direct);
            }
        }
        Ok(())
    });
}

#[test]
fn a_reject_is_a_refused_connection_for_each_kind_of_socket() {
    inside(Protocol::Tcp, &state("UDP", &[]), || {
        for to in [VIP, MAPPED, "172.30.0.1:81", "[fd00:172:30::1]:80"] {
            let to: SocketAddr = to.parse()?;
            let socket = udp(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
            for error in [
                TcpStream::connect(to).map(drop).unwrap_err(),
                socket.send_to(b"?", to).map(drop).unwrap_err(),
                socket.connect(to).unwrap_err(),
            ] {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{to}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_drop_fails_with_a_refused_permission() {
    let mut dropped = state("TCP", &[]);
    let mut service = (*dropped.services.values().next().unwrap().clone()).clone();
    service.ports[0].when_empty_v4.internal = localnet_proto::Verdict::Drop;
    dropped.services.insert(service.key.clone(), service.into());
    inside(Protocol::Tcp, &dropped, || {
        let error = TcpStream::connect(VIP.parse::<SocketAddr>()?).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        Ok(())
    });
}

#[test]
fn with_session_affinity_all_sockets_of_a_pod_use_one_endpoint() {
    let mut affine = state("TCP", &ENDPOINTS);
    let mut service = (*affine.services.values().next().unwrap().clone()).clone();
    service.client_ip_affinity = Some(600.into());
    affine.services.insert(service.key.clone(), service.into());
    inside(Protocol::Tcp, &affine, || {
        let mut by = Vec::new();
        for _ in 0..16 {
            // The local address of a socket in a pod differs by endpoint only if the endpoint is the pod itself.
            let mut stream = TcpStream::connect(VIP.parse::<SocketAddr>()?)?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            by.push(text.split(' ').next().unwrap_or_default().to_owned());
        }
        by.dedup();
        assert_eq!(by.len(), 1, "{by:?}");
        Ok(())
    });
}

#[test]
fn a_connected_udp_socket_ends_with_its_endpoint_in_every_namespace() {
    let _sandbox = Sandbox::enter().unwrap();
    let (network, _servers) = network(Protocol::Udp, &ENDPOINTS);
    let mut backend = backend(Config::default()).unwrap();
    let mut apply = |state: &Snapshot| backend.apply(state, &Changes::everything()).unwrap().whole().unwrap();
    apply(&state("UDP", &ENDPOINTS[..1]));
    let connect = |to: &'static str| {
        move || {
            let socket = udp("0.0.0.0:0")?;
            socket.connect(to)?;
            socket.send(b"?")?;
            answer(&socket)?;
            Ok(socket)
        }
    };
    let pod = network.pod(ENDPOINTS[1].parse().unwrap()).unwrap();
    let by_vip = [network.node(), pod].map(|place| place.run(connect(VIP)).unwrap());
    let direct = pod.run(connect("10.180.0.1:8080")).unwrap();
    apply(&state("UDP", &ENDPOINTS));
    by_vip.iter().for_each(|socket| assert_eq!(socket.send(b"?").unwrap(), 1));
    apply(&state("UDP", &ENDPOINTS[1..]));
    for socket in &by_vip {
        let mut ended = socket.recv(&mut [0; 256]);
        // The answer to the last datagram may be in the queue.
        while ended.is_ok() {
            ended = socket.recv(&mut [0; 256]);
        }
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
    direct.send(b"?").unwrap();
    answer(&direct).unwrap();
}
