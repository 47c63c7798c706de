//! The traffic of Services, as a backend counts and reports it.

use std::{
    net::SocketAddr,
    time::{SystemTime, UNIX_EPOCH},
};

use localnet_client::vips::{Vip, VipKey};
use localnet_linux::{
    conntrack::Volume,
    sysctl::{Set, Settings},
    traffic::{Counter, Drains, PortName, PortTotals, Reason, Refused, Source, Total, Traffic},
};
use localnet_proto::{
    traffic::{self as wire, EndpointTraffic, PortTraffic, RefusalReason, Refusals, TrafficReport, TrafficTotal},
    wire::Protocol,
};
use tracing::{info, warn};

const ACCOUNTING: &str = "proc/sys/net/netfilter/nf_conntrack_acct";
const EVENTS: &str = "proc/sys/net/netfilter/nf_conntrack_events";

/// The largest value of the flag `--traffic`. With more ports, a report could be larger than the 4 MiB that the brain accepts.
pub const MAX_PORTS: i64 = 10_000;

/// Counts the traffic of Services.
pub type TrafficCounter = Counter<TrafficReport>;

/// Starts to count the traffic of at most `max_ports` Service ports, in the calling thread's network namespace: the flows of connection
/// tracking, and what `source` reads. Returns `None` if `max_ports` is 0. Also sets the sysctl that lets the kernel count the packets and bytes of new connections. If that fails, logs a
/// warning, and only connections are counted.
pub fn start(
    backend: &'static str,
    max_ports: usize,
    source: impl FnOnce() -> Option<Box<dyn Source>>,
) -> Option<TrafficCounter> {
    if max_ports == 0 {
        return None;
    }
    let settings = Settings::default();
    if settings.get(EVENTS).is_ok_and(|events| events == 0) {
        warn!(
            "net.netfilter.nf_conntrack_events is 0, so the ends of connections are not counted: set the sysctl to 1 or 2"
        );
    }
    match init(max_ports, &settings) {
        Ok(Set::Already) => {}
        Ok(Set::From(_)) => {
            info!("net.netfilter.nf_conntrack_acct was set to 1, so that the kernel counts packets and bytes");
        }
        Err(error) => {
            warn!(
                "{error}; only connections are counted: run the command `init` with --traffic and more privileges, or set the sysctl yourself"
            );
        }
    }
    Counter::start(max_ports, true, source(), move |at, traffic| report(backend, at, traffic))
}

/// Starts to count what `source` reads of at most `max_ports` Service ports, in the calling thread's network namespace. Returns `None` if
/// `max_ports` is 0.
pub fn start_reading(
    backend: &'static str,
    max_ports: usize,
    source: impl FnOnce() -> Option<Box<dyn Source>>,
) -> Option<TrafficCounter> {
    let source = Some(max_ports).filter(|max_ports| *max_ports > 0).and_then(|_| source())?;
    Counter::start(max_ports, false, Some(source), move |at, traffic| report(backend, at, traffic))
}

/// Sets the sysctl that lets the kernel count the packets and bytes of new connections, unless `max_ports` is 0.
///
/// # Errors
/// Returns an error if the sysctl cannot be set.
pub fn init(max_ports: usize, settings: &Settings) -> anyhow::Result<Set> {
    if max_ports == 0 {
        return Ok(Set::Already);
    }
    Ok(settings.ensure(ACCOUNTING, 1)?)
}

/// The port that a VIP belongs to.
pub fn port(key: &VipKey, vip: &Vip) -> PortName {
    let port = match &*vip.port_name {
        "" => vip.port_number.to_string().into(),
        _ => vip.port_name.clone(),
    };
    PortName { service: vip.service.clone(), port, protocol: key.protocol }
}

fn report(backend: &str, at: SystemTime, traffic: Traffic) -> TrafficReport {
    let Traffic { ports, rest, rest_refused, rest_drains, lost } = traffic;
    let endpoint = |(endpoint, of, of_drains): (SocketAddr, Total, Drains)| EndpointTraffic {
        endpoint: endpoint.to_string(),
        total: Some(total(of)),
        drains: drains(of_drains),
    };
    let port = |PortTotals { port, total: of, endpoints, refused: why, drains: of_drains }| PortTraffic {
        service: Some((&port.service).into()),
        port: port.port.to_string(),
        protocol: Protocol::from(port.protocol).into(),
        total: Some(total(of)),
        endpoints: endpoints.into_iter().map(endpoint).collect(),
        refused: refused(&why),
        drains: drains(of_drains),
    };
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    TrafficReport {
        backend: backend.to_owned(),
        time_millis: since.as_millis().try_into().unwrap_or(u64::MAX),
        ports: ports.into_iter().map(port).collect(),
        rest: Some(total(rest)),
        lost,
        rest_refused: refused(&rest_refused),
        rest_drains: drains(rest_drains),
    }
}

fn refused(of: &Refused) -> Vec<Refusals> {
    let reason = |reason| match reason {
        Reason::NoEndpoints => RefusalReason::NoEndpoints,
        Reason::NoLocalEndpoint => RefusalReason::NoLocalEndpoint,
        Reason::SourceRanges => RefusalReason::SourceRanges,
    };
    of.iter().map(|(why, packets)| Refusals { reason: reason(*why).into(), packets: *packets }).collect()
}

fn drains(of: Drains) -> Option<wire::Drains> {
    let Drains { open, closed, .. } = of;
    (open > 0 || closed > 0).then_some(wire::Drains { open, closed })
}

fn total(of: Total) -> TrafficTotal {
    let volume = |Volume { packets, bytes }| Some(wire::Volume { packets, bytes });
    TrafficTotal { connections: of.connections, original: volume(of.original), reply: volume(of.reply) }
}
