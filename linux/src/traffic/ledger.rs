//! [`Ledger`]: adds up the traffic of flows by Service port and endpoint. Pure.
//!
//! Each count only grows. A flow counts once, whether the ledger learns about it from dumps of the table, from the event of its
//! end, or from both. If that event is lost, the traffic since the last dump is missing, and nothing else.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    hash::{BuildHasher as _, RandomState},
    mem,
    net::SocketAddr,
    sync::Arc,
};

use localnet_core::{Protocol, ServiceKey};

use crate::conntrack::{Counters, Endpoints, Flow, Frontend, Status, TcpState, Volume};

/// The largest number of open flows whose traffic is counted while they last. All other flows are counted when they end. A known
/// flow takes about 40 bytes, so all of them take about 20 MB.
const MAX_FLOWS: usize = 1 << 18;
/// The largest number of endpoints that have totals of their own. The traffic of other endpoints is in the totals of their ports.
const MAX_ENDPOINTS: usize = 4096;
/// The row of the ports that have no totals of their own.
const REST: u32 = u32::MAX;

/// The port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    /// The Service.
    pub service: ServiceKey,
    /// The name of the port; empty if it has none.
    pub port: Arc<str>,
    /// The transport protocol.
    pub protocol: Protocol,
}

/// What a frontend belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The port of the Service.
    pub port: PortName,
    /// The endpoints that may answer.
    pub endpoints: Endpoints,
    /// Those of them that get new connections. The connections of all other endpoints drain.
    pub eligible: Endpoints,
}

localnet_core::names! {
    /// Why a packet that opens a connection gets no endpoint, with the label of metrics.
    Reason {
        /// The Service has no endpoint that may answer. The packet is rejected.
        NoEndpoints = "no_endpoints",
        /// A traffic policy allows only endpoints of this node, and there is none. The packet is dropped.
        NoLocalEndpoint = "no_local_endpoint",
        /// The source ranges of the Service do not contain the sender. The packet is dropped.
        SourceRanges = "source_ranges",
    }
}

/// How many packets were refused, by reason.
pub type Refused = BTreeMap<Reason, u64>;

/// A frontend, and what it belongs to now; `None` if it was deleted.
pub type Change = (Frontend, Option<Served>);

/// Counted traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// The flows that have begun.
    pub connections: u64,
    /// From clients to endpoints.
    pub original: Volume,
    /// From endpoints to clients.
    pub reply: Volume,
}

impl Total {
    fn add(&mut self, connections: u64, more: Counters) {
        self.connections += connections;
        for (volume, more) in [(&mut self.original, more.original), (&mut self.reply, more.reply)] {
            volume.packets = volume.packets.saturating_add(more.packets);
            volume.bytes = volume.bytes.saturating_add(more.bytes);
        }
    }
}

/// Connections whose endpoint gets no new ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    /// How many the last dump has shown. Of TCP, only established connections count.
    pub open: u64,
    /// How many TCP connections have ended while they were established, because something has deleted them.
    pub closed: u64,
    /// How many the dump in progress has shown.
    next: u64,
}

impl Drains {
    fn end_dump(&mut self, complete: bool) {
        let next = mem::take(&mut self.next);
        if complete {
            self.open = next;
        }
    }
}

/// The traffic of a port since its first flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortTotals {
    /// The port.
    pub port: PortName,
    /// The traffic of all endpoints, including former ones.
    pub total: Total,
    /// The traffic of each endpoint.
    pub endpoints: Vec<(SocketAddr, Total, Drains)>,
    /// The packets that would have opened a connection.
    pub refused: Refused,
    /// The draining connections of all endpoints.
    pub drains: Drains,
}

/// The traffic of the node's Services since the ledger began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The ports that have totals of their own, sorted by name.
    pub ports: Vec<PortTotals>,
    /// The traffic of all other ports together.
    pub rest: Total,
    /// The refused packets of all other ports together.
    pub rest_refused: Refused,
    /// The draining connections of all other ports together.
    pub rest_drains: Drains,
    /// The flows whose ends the kernel could not report. Most of their traffic is counted if they lasted for some seconds.
    pub lost: u64,
}

/// The traffic of the flows to a backend's frontends.
#[derive(Debug)]
pub struct Ledger {
    /// The largest number of ports that have totals of their own.
    max_ports: usize,
    frontends: HashMap<Frontend, Owner>,
    /// The row of each port that has totals of its own. No row number is used twice.
    rows: HashMap<PortName, u32>,
    totals: BTreeMap<u32, Row>,
    next_row: u32,
    rest: Total,
    rest_refused: Refused,
    rest_drains: Drains,
    /// How many endpoints have totals of their own.
    endpoints: usize,
    /// The open flows, by a hash of what identifies them.
    flows: HashMap<u64, Known>,
    hasher: RandomState,
    dump: Dump,
    /// The number of the dump.
    round: u32,
    /// Whether a dump has shown the flows that are older than the ledger.
    started: bool,
    lost: u64,
}

/// The dump in progress.
#[derive(Debug, Default)]
struct Dump {
    in_progress: bool,
    /// The flows that have ended since the dump began. It may still show them.
    ended: HashSet<u64>,
}

#[derive(Debug)]
struct Owner {
    served: Served,
    /// How many more dumps to remember a deleted frontend for, because the events of its flows may still come; `None` if the
    /// frontend exists.
    leaves_after: Option<u8>,
}

/// The totals of a port.
#[derive(Debug)]
struct Row {
    port: PortName,
    total: Total,
    endpoints: BTreeMap<SocketAddr, OfEndpoint>,
    refused: Refused,
    drains: Drains,
    /// The frontends whose flows were counted.
    frontends: BTreeSet<Frontend>,
    /// The last dump in which a flow was seen.
    round: u32,
}

#[derive(Debug, Default)]
struct OfEndpoint {
    total: Total,
    drains: Drains,
    /// The last dump in which a flow was seen.
    round: u32,
}

/// What is already counted of an open flow. The packets are kept modulo 2³², which is enough for differences.
#[derive(Clone, Copy, Debug)]
struct Known {
    row: u32,
    packets: [u32; 2],
    bytes: [u64; 2],
    /// The last dump in which a flow was seen.
    round: u32,
}

impl Known {
    fn new(row: u32, counted: Counters, round: u32) -> Self {
        let Counters { original, reply } = counted;
        let packets = [original.packets as u32, reply.packets as u32];
        Self { row, packets, bytes: [original.bytes, reply.bytes], round }
    }

    /// The traffic since `self`. Another program may have set the kernel's counters to zero; then the flow counts from there.
    fn until(&self, now: Counters) -> Counters {
        let since = |at: usize, now: Volume| match now.bytes.checked_sub(self.bytes[at]) {
            Some(bytes) => Volume { packets: (now.packets as u32).wrapping_sub(self.packets[at]).into(), bytes },
            None => now,
        };
        Counters { original: since(0, now.original), reply: since(1, now.reply) }
    }
}

impl Ledger {
    /// An empty ledger, in which at most `max_ports` ports get totals of their own: the first that have traffic.
    pub fn new(max_ports: usize) -> Self {
        Self {
            max_ports,
            frontends: HashMap::new(),
            rows: HashMap::new(),
            totals: BTreeMap::new(),
            next_row: 0,
            rest: Total::default(),
            rest_refused: Refused::new(),
            rest_drains: Drains::default(),
            endpoints: 0,
            flows: HashMap::new(),
            hasher: RandomState::new(),
            dump: Dump::default(),
            round: 0,
            started: false,
            lost: 0,
        }
    }

    /// Records what a frontend belongs to.
    pub fn change(&mut self, (frontend, now): Change) {
        match (now, self.frontends.entry(frontend)) {
            (Some(served), entry) => _ = entry.insert_entry(Owner { served, leaves_after: None }),
            (None, Entry::Occupied(mut entry)) => entry.get_mut().leaves_after = Some(1),
            (None, Entry::Vacant(_)) => {}
        }
    }

    /// Begins a dump, which has to show all flows.
    pub fn begin_dump(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.dump.in_progress = true;
    }

    /// Counts a flow that the dump shows. Before that, [`Self::ended`] must have been called for all flows that ended before the
    /// kernel wrote this part of the dump.
    pub fn seen(&mut self, flow: &Flow, counters: Option<Counters>) {
        let Some(key) = self.key(flow).filter(|key| !self.dump.ended.contains(key)) else { return };
        let (counters, round) = (counters.unwrap_or_default(), self.round);
        let drains = self.drains(flow);
        let count = |drains: &mut Drains| drains.next += 1;
        if let Some(known) = self.flows.get_mut(&key) {
            let (more, row) = (known.until(counters), known.row);
            *known = Known::new(row, counters, round);
            self.add(row, flow.reply.source, 0, more);
            drains.then(|| self.drain(row, flow.reply.source, count));
        } else if self.flows.len() < MAX_FLOWS
            && let Some(row) = self.row(frontend(flow))
        {
            self.flows.insert(key, Known::new(row, counters, round));
            // The traffic of a flow that is older than the ledger counts from now on. An earlier run of the program has counted
            // the rest.
            let (connections, counters) = if self.started { (1, counters) } else { Default::default() };
            self.add(row, flow.reply.source, connections, counters);
            drains.then(|| self.drain(row, flow.reply.source, count));
        }
    }

    /// Counts a flow that has ended.
    pub fn ended(&mut self, flow: &Flow, counters: Option<Counters>) {
        let Some(key) = self.key(flow) else { return };
        let counters = counters.unwrap_or_default();
        if self.dump.in_progress {
            self.dump.ended.insert(key);
        }
        let is_closed = flow.tcp_state == Some(TcpState::ESTABLISHED) && self.drains(flow);
        if let Some(known) = self.flows.remove(&key) {
            self.add(known.row, flow.reply.source, 0, known.until(counters));
            is_closed.then(|| self.drain(known.row, flow.reply.source, |drains| drains.closed += 1));
        } else if self.started
            && let Some(row) = self.row(frontend(flow))
        {
            self.add(row, flow.reply.source, 1, counters);
        }
    }

    /// Counts traffic that the kernel has counted for an endpoint of a frontend. Traffic of unknown frontends does not count.
    pub fn balanced(&mut self, frontend: Frontend, endpoint: SocketAddr, more: Total) {
        let Total { connections, original, reply } = more;
        let Some(row) = self.row(frontend) else { return };
        self.add(row, endpoint, connections, Counters { original, reply });
    }

    /// Counts packets to a frontend that were refused.
    pub fn refused(&mut self, frontend: Frontend, reason: Reason, packets: u64) {
        let (row, round) = (self.row(frontend).unwrap_or(REST), self.round);
        let refused = match self.totals.get_mut(&row) {
            Some(row) => {
                row.round = round;
                &mut row.refused
            }
            None => &mut self.rest_refused,
        };
        *refused.entry(reason).or_default() += packets;
    }

    /// Adds flows whose ends the kernel could not report.
    pub fn lost(&mut self, flows: u64) {
        self.lost += flows;
    }

    /// Ends a dump. If it was complete, forgets what it did not show: flows whose ends were not reported, and ports and
    /// endpoints that have neither flows nor a Service.
    pub fn end_dump(&mut self, complete: bool) {
        self.dump = Dump::default();
        let rows = self
            .totals
            .values_mut()
            .flat_map(|row| row.endpoints.values_mut().map(|of| &mut of.drains).chain([&mut row.drains]));
        rows.chain([&mut self.rest_drains]).for_each(|drains| drains.end_dump(complete));
        if !complete {
            return;
        }
        self.started = true;
        let round = self.round;
        self.flows.retain(|_, known| known.round == round);
        self.frontends.retain(|_, owner| match &mut owner.leaves_after {
            None => true,
            Some(0) => false,
            Some(dumps) => {
                *dumps -= 1;
                true
            }
        });
        let frontends = &self.frontends;
        self.totals.retain(|_, row| {
            let Row { port, endpoints, frontends: used, .. } = row;
            used.retain(|frontend| frontends.get(frontend).is_some_and(|owner| owner.served.port == *port));
            let owners = || used.iter().filter_map(|frontend| frontends.get(frontend));
            endpoints.retain(|endpoint, of| {
                // The next report still contains an endpoint whose last connections were closed.
                let was_closed = of.drains.closed > 0 && of.round.wrapping_add(1) == round;
                of.round == round || was_closed || owners().any(|owner| owner.served.endpoints.contains(endpoint))
            });
            row.round == round || !used.is_empty()
        });
        self.rows.retain(|_, row| self.totals.contains_key(row));
        self.endpoints = self.totals.values().map(|row| row.endpoints.len()).sum();
    }

    /// The traffic until now.
    pub fn traffic(&self) -> Traffic {
        let totals = |row: &Row| PortTotals {
            port: row.port.clone(),
            total: row.total,
            endpoints: row.endpoints.iter().map(|(endpoint, of)| (*endpoint, of.total, of.drains)).collect(),
            refused: row.refused.clone(),
            drains: row.drains,
        };
        let mut ports: Vec<_> = self.totals.values().map(totals).collect();
        ports.sort_unstable_by(|a, b| a.port.cmp(&b.port));
        let Self { rest, rest_drains, lost, .. } = *self;
        Traffic { ports, rest, rest_refused: self.rest_refused.clone(), rest_drains, lost }
    }

    /// Identifies a flow to a frontend; `None` for other flows. The kernel may use one ID for two flows of a client, but only
    /// after the first one has ended.
    fn key(&self, flow: &Flow) -> Option<u64> {
        let identity = (flow.protocol, flow.original, flow.zone, flow.id);
        flow.status.has(Status::DESTINATION_NAT).then(|| self.hasher.hash_one(identity))
    }

    /// The row of a frontend; `None` if it is unknown. A port gets its row with its first traffic, while there is room.
    fn row(&mut self, frontend: Frontend) -> Option<u32> {
        let port = &self.frontends.get(&frontend)?.served.port;
        let row = match self.rows.get(port) {
            Some(row) => *row,
            None if self.rows.len() >= self.max_ports => return Some(REST),
            None => {
                let row = self.next_row;
                self.next_row = (row + 1) % REST;
                self.rows.insert(port.clone(), row);
                let (port, total) = (port.clone(), Total::default());
                let (endpoints, refused, drains, frontends) = Default::default();
                self.totals.insert(row, Row { port, total, endpoints, refused, drains, frontends, round: self.round });
                row
            }
        };
        if let Some(row) = self.totals.get_mut(&row) {
            row.frontends.insert(frontend);
        }
        Some(row)
    }

    fn add(&mut self, row: u32, endpoint: SocketAddr, connections: u64, more: Counters) {
        let Some(row) = self.totals.get_mut(&row) else {
            self.rest.add(connections, more);
            return;
        };
        row.round = self.round;
        row.total.add(connections, more);
        if self.endpoints >= MAX_ENDPOINTS && !row.endpoints.contains_key(&endpoint) {
            return;
        }
        let of_endpoint = row.endpoints.entry(endpoint).or_insert_with(|| {
            self.endpoints += 1;
            OfEndpoint::default()
        });
        of_endpoint.round = self.round;
        of_endpoint.total.add(connections, more);
    }
}

impl Ledger {
    /// Whether a flow is open, and its endpoint gets no new connections.
    fn drains(&self, flow: &Flow) -> bool {
        let owner = self.frontends.get(&frontend(flow)).filter(|owner| owner.leaves_after.is_none());
        flow.tcp_state.is_none_or(|state| state == TcpState::ESTABLISHED)
            && owner.is_some_and(|owner| !owner.served.eligible.contains(&flow.reply.source))
    }

    /// Counts a draining connection of an endpoint, in a row.
    fn drain(&mut self, row: u32, endpoint: SocketAddr, count: impl Fn(&mut Drains)) {
        let Some(row) = self.totals.get_mut(&row) else { return count(&mut self.rest_drains) };
        count(&mut row.drains);
        if let Some(of) = row.endpoints.get_mut(&endpoint) {
            count(&mut of.drains);
        }
    }
}

fn frontend(flow: &Flow) -> Frontend {
    Frontend::new(flow.protocol, flow.original.destination)
}

#[cfg(test)]
mod tests;
