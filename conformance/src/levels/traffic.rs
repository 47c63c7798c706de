//! Checks of the level `life` that send packets while the backend applies changes.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use localnet_lab::{Namespace, Outcome, Probe};
use localnet_proto::{Protocol, Service, Snapshot};
use rustix::process::Signal;

use super::{
    fixture::{Life, PODS, PodNetwork, web},
    states::{endpoint, state, vip},
};
use crate::{brain::Fault, claims::Claim, outcome::Verdict};

/// How many changes the brain publishes while the client sends traffic.
const CHANGES: u16 = 20;
/// How many connections test affinity. If a backend chose one of two endpoints at random, one test in 32,768 would pass.
const AFFINITY_PROBES: usize = 16;

/// The network for packets, if the kit runs as root and the backend makes all the claims in `needed`.
pub(super) fn lab<'a>(life: &Life<'a>, needed: &[Claim]) -> Result<&'a PodNetwork, Verdict> {
    let words: Vec<_> = needed.iter().map(|claim| claim.as_str()).collect();
    let missing = || Verdict::NotClaimed(format!("this check needs root, and the claims {}", words.join(", ")));
    life.claimed(needed).ok_or_else(missing)
}

/// The service with UDP instead of TCP on its first port. The kernel does not resend lost datagrams, so a check detects every
/// loss.
fn datagrams(mut service: Service) -> Service {
    service.ports[0].protocol = Protocol::Udp;
    service
}

pub(super) fn at(number: u16) -> SocketAddr {
    (vip(number), 80).into()
}

/// Every datagram to a service is answered while other services change. The check leaves the service's own endpoints
/// unchanged, because the replies of a removed endpoint may be lost.
pub(super) fn changes_interrupt_nothing(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let needed = [Claim::Udp, Claim::Ipv4, Claim::ClusterIp, Claim::Answers];
    let lab = match lab(life, &needed) {
        Ok(lab) => lab,
        Err(verdict) => return Ok(verdict),
    };
    let states = |change: u16| {
        let others = (2..2 + change % 3).map(|number| web(number, 1));
        state(std::iter::once(datagrams(web(1, 2))).chain(others))
    };
    let client = life.client(lab);
    life.start()?;
    life.bench.apply(&states(0))?;
    life.eventually(|_| answered(client, Protocol::Udp, at(1)).map(drop))?;
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let probing = scope.spawn(|| {
            let mut count = 0;
            while !ended.load(Ordering::Relaxed) {
                answered(client, Protocol::Udp, at(1))
                    .with_context(|| format!("datagram {count} while services changed"))?;
                count += 1;
            }
            anyhow::Ok(count)
        });
        let changed = (1..=CHANGES).try_for_each(|change| life.bench.apply(&states(change)).map(drop));
        ended.store(true, Ordering::Relaxed);
        let probed = probing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        changed?;
        anyhow::ensure!(probed? > 0, "no datagram was sent");
        Ok(Verdict::Passed)
    })
}

/// The endpoint that answers a new connection or datagram.
pub(super) fn answered(from: &Namespace, protocol: Protocol, to: SocketAddr) -> anyhow::Result<SocketAddr> {
    match from.probe(Probe::new(protocol, to))? {
        Outcome::Answer { by, .. } => Ok(by),
        other => bail!("a probe of {to} got {other} instead of an answer"),
    }
}

/// A restarted backend keeps its predecessor's rules until it has a complete state.
pub(super) fn half_an_answer(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let needed = [Claim::Tcp, Claim::Ipv4, Claim::ClusterIp, Claim::Answers, Claim::Source];
    let lab = match lab(life, &needed) {
        Ok(lab) => lab,
        Err(verdict) => return Ok(verdict),
    };
    let both = state([web(1, 2), web(2, 2)]);
    let client = life.client(lab);
    let served =
        |_: &mut Life<'_>| [at(1), at(2)].into_iter().try_for_each(|to| answered(client, Protocol::Tcp, to).map(drop));
    life.start()?;
    let revision = life.bench.apply(&both)?;
    life.eventually(served)?;
    let patience = life.bench.options.patience;
    let backend = life.bench.backend()?;
    backend.signal(Signal::KILL)?;
    backend.await_exit(patience)?;
    // The answer contains the token, the node and one service, and then hangs until the brain restarts.
    life.bench.brain.faults([Fault::Hang(3)]);
    life.bench.start_backend()?;
    life.bench.brain.wait(patience, "an answer", |log| (log.hung > 0).then_some(()))?;
    served(life).context("after a restart of the backend, before the brain's first answer is complete")?;
    life.bench.start_brain()?;
    life.bench.await_state(revision, &both)?;
    life.eventually(served)?;
    Ok(Verdict::Passed)
}

/// With session affinity, all connections of a client reach the same endpoint.
pub(super) fn affinity(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let needed = [Claim::Tcp, Claim::Ipv4, Claim::ClusterIp, Claim::Answers, Claim::Affinity];
    let lab = match lab(life, &needed) {
        Ok(lab) => lab,
        Err(verdict) => return Ok(verdict),
    };
    let client = life.client(lab);
    life.start()?;
    life.bench.apply(&state([Service { client_ip_affinity: Some(600.into()), ..web(1, 2) }]))?;
    life.eventually(|_| answered(client, Protocol::Tcp, at(1)).map(drop))?;
    let mut met = BTreeSet::new();
    for _ in 0..AFFINITY_PROBES {
        met.insert(answered(client, Protocol::Tcp, at(1))?);
    }
    anyhow::ensure!(met.len() == 1, "despite session affinity, one client reached several endpoints: {met:?}");
    // Remove the endpoint. The client then moves to the other endpoint.
    let left: Vec<_> =
        PODS.iter().filter_map(|pod| pod.parse().ok()).filter(|pod| met.iter().all(|by| by.ip() != *pod)).collect();
    let endpoints = left.iter().map(|pod| endpoint(*pod, "http", 8080)).collect();
    life.bench.apply(&state([Service { client_ip_affinity: Some(600.into()), endpoints, ..web(1, 0) }]))?;
    life.eventually(|_| {
        let by = answered(client, Protocol::Tcp, at(1))?;
        anyhow::ensure!(left.contains(&by.ip()), "{by} answers, although it was removed");
        Ok(())
    })?;
    Ok(Verdict::Passed)
}

/// If an endpoint is removed, a UDP client that never changes its port gets another endpoint. Unless the backend deletes the
/// stale flow, connection tracking keeps the client at the removed endpoint forever.
pub(super) fn stale_udp(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let needed = [Claim::Udp, Claim::Ipv4, Claim::ClusterIp, Claim::Answers, Claim::Flows];
    let lab = match lab(life, &needed) {
        Ok(lab) => lab,
        Err(verdict) => return Ok(verdict),
    };
    let of = |pod: &str| -> anyhow::Result<Snapshot> {
        let mut service = datagrams(web(1, 0));
        service.endpoints = vec![endpoint(pod.parse()?, "http", 8080)];
        Ok(state([service]))
    };
    life.start()?;
    life.bench.apply(&of(PODS[0])?)?;
    let socket = life.client(lab).run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(at(1))?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        Ok(socket)
    })?;
    let answered_by = |pod: &str| {
        socket.send(b"?").context("failed to send a datagram")?;
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).context("no answer to a datagram")?;
        let answer = String::from_utf8_lossy(&buffer[..length]);
        anyhow::ensure!(answer.starts_with(&format!("{pod}:")), "the answer {answer:?} is not from the pod {pod}");
        Ok(())
    };
    life.eventually(|_| answered_by(PODS[0]))?;
    life.bench.apply(&of(PODS[1])?)?;
    if !life.serves_outside() {
        // The flow ends together with its connection, and the client connects again.
        life.eventually(|_| {
            anyhow::ensure!(socket.send(b"?").is_err(), "the socket is still connected to a removed endpoint");
            Ok(())
        })?;
        socket.connect(at(1)).context("failed to connect again")?;
    }
    life.eventually(|_| answered_by(PODS[1])).context("after the endpoint of a UDP flow was replaced")?;
    Ok(Verdict::Passed)
}
