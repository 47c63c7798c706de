//! Measures the rate of new connections and the throughput of TCP and UDP, through a VIP and directly to its endpoint.
//!
//! The server stands for a pod of another node, so the measured node forwards each packet.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};

use crate::{
    api::{self, Kind},
    cluster::Server,
    figures::{Flow, Traffic},
    packets::{await_all, time_to_connect},
    site::Site,
};

/// The destinations take turns, so that other activity on the machine affects them equally.
const TURNS: u32 = 5;
/// A payload that needs no fragments.
const DATAGRAM: [u8; 1_400] = [0; 1_400];
/// How often the server looks whether it should end.
const LOOK: Duration = Duration::from_millis(20);

/// Measures each kind of traffic to each destination for `length`.
pub(super) fn measure(site: &Site, length: Duration, give_up: Duration) -> anyhow::Result<Traffic> {
    let client = site.client();
    site.runtime.block_on(async {
        api::create(&client, Kind::EndpointSlices, [Server::slice(site.size).body].into_iter()).await?;
        api::create(&client, Kind::Services, [Server::service()].into_iter()).await
    })?;
    let everywhere = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let (tcp, udp) = site
        .outside()
        .run(|| Ok((TcpListener::bind(everywhere(Server::PORT))?, UdpSocket::bind(everywhere(Server::PORT))?)))?;
    let (received, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let streams = scope.spawn(|| read_streams(&tcp, &stop));
        let datagrams = scope.spawn(|| count_datagrams(&udp, &received, &stop));
        let measured = site.inside(|| {
            let [direct, vip] = [Server::direct(site.size), Server::vip()];
            await_all(&[vip], true, Instant::now() + give_up)?.context("the Service of the server does not answer")?;
            let (turn, mut traffic) = (length / TURNS, Traffic::default());
            for _ in 0..TURNS {
                let first = [site.size.direct(), site.size.vip(0)];
                for ((flow, to), first) in
                    [(&mut traffic.direct, direct), (&mut traffic.vip, vip)].into_iter().zip(first)
                {
                    // The listeners of the other measurements accept faster than the server, which reads.
                    flow.add(connections(first, turn)?, stream(to, turn)?, send_datagrams(to, turn, &received)?, TURNS);
                }
            }
            Ok(traffic)
        });
        stop.store(true, Ordering::Relaxed);
        for server in [streams, datagrams] {
            server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        measured
    })
}

impl Flow {
    /// Adds one of `turns` measurements to the means.
    fn add(&mut self, connections: f64, tcp: f64, udp: f64, turns: u32) {
        self.connections += connections / f64::from(turns);
        self.tcp_megabits += tcp / f64::from(turns);
        self.udp_megabits += udp / f64::from(turns);
    }
}

/// Connections per second, one after the other.
fn connections(to: SocketAddr, length: Duration) -> anyhow::Result<f64> {
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < length {
        time_to_connect(to)?;
        count += 1;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

/// Megabits per second of one TCP connection.
fn stream(to: SocketAddr, length: Duration) -> anyhow::Result<f64> {
    let mut stream = TcpStream::connect(to).with_context(|| format!("connecting to {to}"))?;
    let (began, block, mut sent) = (Instant::now(), vec![0; 256 << 10], 0);
    while began.elapsed() < length {
        sent += stream.write(&block)?;
    }
    stream.shutdown(Shutdown::Write)?;
    // The server closes the connection after it has read everything.
    ensure!(stream.read(&mut [0])? == 0, "the server never writes");
    Ok(megabits(sent, began.elapsed()))
}

/// Megabits per second that arrived in datagrams.
fn send_datagrams(to: SocketAddr, length: Duration, received: &AtomicUsize) -> anyhow::Result<f64> {
    let socket = UdpSocket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    socket.connect(to)?;
    let (began, before) = (Instant::now(), received.load(Ordering::Relaxed));
    while began.elapsed() < length {
        socket.send(&DATAGRAM).with_context(|| format!("sending to {to}"))?;
    }
    let took = began.elapsed();
    // Those on the way arrive.
    thread::sleep(LOOK);
    Ok(megabits(received.load(Ordering::Relaxed) - before, took))
}

fn megabits(bytes: usize, time: Duration) -> f64 {
    bytes as f64 * 8.0 / 1e6 / time.as_secs_f64()
}

/// Reads one connection after the other to its end.
fn read_streams(listener: &TcpListener, stop: &AtomicBool) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let mut block = vec![0; 256 << 10];
    while !stop.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        stream.set_nonblocking(false)?;
        // The connections whose rate is measured end with a reset.
        while stream.read(&mut block).is_ok_and(|read| read > 0) {}
    }
    Ok(())
}

fn count_datagrams(socket: &UdpSocket, received: &AtomicUsize, stop: &AtomicBool) -> anyhow::Result<()> {
    socket.set_read_timeout(Some(LOOK))?;
    let mut datagram = DATAGRAM;
    while !stop.load(Ordering::Relaxed) {
        if let Ok(bytes) = socket.recv(&mut datagram) {
            received.fetch_add(bytes, Ordering::Relaxed);
        }
    }
    Ok(())
}
