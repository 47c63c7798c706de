//! The clients of UDP Services, the kernel's connection tracking, and the part of the backend that deletes stale flows.
//!
//! A client keeps sending from a port until the flow ends, so the packets of a tracked flow never meet the rules again.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use localnet_client::{
    served::{Served, To},
    vips::VipKey,
};
use localnet_linux::conntrack::{
    Commit, Conntrack, Due, Error, Flow, Queue, Reconciler, Selection, Status, Tuple, testing::Fake,
};
use localnet_linux_backend::live;
use localnet_proto::{Protocol, Snapshot};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IteratorRandom as _};
use tokio::time::Instant;

use crate::{ledger::Ledger, trace::Trace};

/// The number of clients of each VIP, and how many ports each of them sends from. While one flow lasts, others begin.
const CLIENTS: u8 = 2;
const PORTS: u16 = 4;
/// The pause before a follow-up, and before a retry.
const FOLLOW_UP: Duration = Duration::from_secs(1);

/// The tracked flows, and the clients. Clones share them.
#[derive(Clone, Debug)]
pub struct Flows(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rng: StdRng,
    ledger: Ledger,
    trace: Trace,
    /// The VIPs that the clients know.
    vips: BTreeSet<VipKey>,
    table: Fake,
    /// How many backends have cleaned up flows.
    cleaners: u32,
    fails: bool,
    /// Whether the backend could not end flows, and has to try again.
    owes: bool,
    /// Whether the cleaner does not get to run.
    is_busy: bool,
    late: u32,
    /// The repairs by accident (see [`Ledger::accidents`]) after which flows were checked.
    accidents: u64,
    /// The flows that have appeared again. They do not do so twice.
    repeated: BTreeSet<u32>,
}

impl Flows {
    /// A table without flows, with clients whose packets follow from `seed`.
    pub fn new(seed: u64, ledger: Ledger, trace: Trace) -> Self {
        let (rng, table, vips) = (StdRng::seed_from_u64(seed), Fake::default(), BTreeSet::new());
        Self(Arc::new(Mutex::new(State {
            rng,
            ledger,
            trace,
            vips,
            table,
            cleaners: 0,
            fails: false,
            owes: false,
            is_busy: false,
            late: 0,
            accidents: 0,
            repeated: BTreeSet::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some clients send a packet. A packet without a flow meets the rules.
    pub fn send(&self) {
        let state = &mut *self.lock();
        let served = state.ledger.served();
        // Some clients have ended.
        let State { rng, table, .. } = state;
        table.flows.retain(|_| rng.random_bool(0.9));
        state.vips.extend(served.0.keys().filter(|vip| vip.protocol == Protocol::Udp && is_cluster_ip(vip)));
        for vip in &state.vips {
            for client in 0..CLIENTS {
                let destination = SocketAddr::new(vip.address, vip.port);
                let last = 200 + u16::from(client);
                let source = match vip.address {
                    IpAddr::V4(_) => IpAddr::from([10, 1, 0, 200 + client]),
                    IpAddr::V6(_) => IpAddr::from([0xfd00, 1, 0, 0, 0, 0, 0, last]),
                };
                let port = 40_000 + state.rng.random_range(0..PORTS);
                let original = Tuple { source: SocketAddr::new(source, port), destination };
                let is_tracked = state.table.flows.iter().any(|flow| flow.original == original);
                if is_tracked || state.rng.random() {
                    continue;
                }
                let Some(endpoint) = receiver(&served, vip, &mut state.rng) else { continue };
                let translated = (endpoint != destination).then_some(endpoint);
                state.table.send(original, |_| translated);
                if let Some(flow) = state.table.flows.last().copied() {
                    // The endpoint answers.
                    state.table.send(flow.reply, |_| None);
                    state.trace.add(format_args!("new flow {flow}"));
                }
            }
        }
    }

    /// Sets whether flows can be neither read nor deleted.
    pub fn set_failing(&self, fails: bool) {
        self.lock().fails = fails;
    }

    /// Sets whether the cleaner does not get to run, as on a busy machine.
    pub fn set_busy(&self, is_busy: bool) {
        self.lock().is_busy = is_busy;
    }

    /// Lets the next `count` deleted flows appear again, as if packets were in flight while the rules changed.
    pub fn set_late(&self, count: u32) {
        self.lock().late = count;
    }

    /// Ends the flows to endpoints that are stale, as a backend does that chooses endpoints for sockets. `is_stale` gets the VIP and
    /// the endpoint. Returns whether that was possible.
    pub fn end(&self, is_stale: impl Fn(SocketAddr, SocketAddr) -> bool) -> bool {
        let mut state = self.lock();
        if !state.fails {
            let flows = &mut state.table.flows;
            flows.retain(|flow| !is_translated(flow) || !is_stale(flow.original.destination, flow.reply.source));
        }
        state.owes = state.fails;
        !state.fails
    }

    /// Whether [`Self::end`] has failed, and has not been called again.
    pub fn owes(&self) -> bool {
        self.lock().owes
    }

    /// Forgets all flows: nothing can end them any more.
    pub fn lose(&self) {
        self.lock().table.flows.clear();
    }

    /// Checks that no flow is stale. The kernel must hold `state`, and the backend must have nothing left to do.
    fn check_stale(&self, state: &Snapshot) {
        let mut inner = self.lock();
        let accidents = inner.ledger.accidents();
        if std::mem::replace(&mut inner.accidents, accidents) != accidents {
            inner.table.flows.clear();
        }
        let profile = inner.ledger.profile();
        if !profile.has_flows || inner.ledger.is_damaged() || inner.fails || inner.owes {
            return;
        }
        // A backend knows only those former VIPs that it or the tables have held.
        let knows_former = inner.cleaners == 1 && !inner.ledger.was_damaged();
        let known = inner.table.flows.iter().filter(|flow| profile.sees_all_flows || is_translated(flow));
        for flow in known {
            let destination = flow.original.destination;
            let service = state.services.values().find(|service| {
                service.cluster_ips.contains(&destination.ip())
                    && service
                        .ports
                        .iter()
                        .any(|port| (port.port, port.protocol) == (destination.port(), Protocol::Udp))
            });
            let is_stale = match service {
                Some(service) => !service.endpoints.iter().any(|endpoint| {
                    let may_answer = endpoint.scopes.is_eligible() || endpoint.scopes.established;
                    let mut addresses = endpoint.ports.iter().map(|port| SocketAddr::new(endpoint.address, port.port));
                    may_answer && addresses.any(|address| address == flow.reply.source)
                }),
                None => knows_former && is_translated(flow),
            };
            if is_stale {
                inner.ledger.violated("no-stale-flow", format!("{flow} remains"));
            }
        }
    }
}

fn is_translated(flow: &Flow) -> bool {
    flow.status.has(Status::DESTINATION_NAT)
}

fn is_cluster_ip(vip: &VipKey) -> bool {
    match vip.address {
        IpAddr::V4(address) => address.octets()[..2] == [10, 96],
        IpAddr::V6(address) => address.segments()[..2] == [0xfd00, 0x96],
    }
}

/// Where the rules send a new flow: to an endpoint, or, without a rule, to the VIP itself.
fn receiver(served: &Served, vip: &VipKey, rng: &mut StdRng) -> Option<SocketAddr> {
    match served.0.get(vip).and_then(|entry| entry.to.as_ref()) {
        Some(To::Endpoints(endpoints)) => endpoints.iter().choose(rng).copied(),
        Some(To::Nothing(_)) => None,
        None => Some(SocketAddr::new(vip.address, vip.port)),
    }
}

impl Conntrack for Flows {
    fn dump(&mut self, selection: Selection, visit: &mut dyn FnMut(&Flow)) -> Result<(), Error> {
        let state = &mut *self.lock();
        if state.fails {
            return Err(Error::Interrupted);
        }
        state.table.dump(selection, visit)
    }

    fn delete(&mut self, flows: &[Flow]) -> Result<usize, Error> {
        let state = &mut *self.lock();
        let deleted = state.table.delete(flows)?;
        for flow in flows {
            state.trace.add(format_args!("deleted flow {flow}"));
            state.ledger.flow_deleted(flow);
            if state.late > 0 && !state.repeated.contains(&flow.id) {
                state.late -= 1;
                state.repeated.insert(state.table.repeat(flow));
            }
        }
        Ok(deleted)
    }
}

/// Deletes stale flows after each commit, as the thread of the real `Cleaner` does.
#[derive(Debug)]
pub struct Cleaning {
    reconciler: Reconciler,
    /// The commits that it has not processed yet.
    queue: Queue,
    flows: Flows,
    next: Option<Instant>,
    /// The state that the kernel holds; `None` after a sync that has failed, or that lacks Services.
    state: Option<Snapshot>,
}

impl Cleaning {
    /// Knows no frontend yet.
    pub fn new(flows: Flows) -> Self {
        flows.lock().cleaners += 1;
        Self { reconciler: Reconciler::new(), queue: Queue::default(), flows, next: None, state: None }
    }

    /// Queues a commit whose rules are in force.
    pub fn committed(&mut self, commit: Commit) {
        self.queue.put(commit);
    }

    /// Cleans up after a sync. `state`: what the kernel holds completely, if anything.
    pub fn after_sync(&mut self, state: Option<&Snapshot>) {
        self.state = state.cloned();
        self.work(false);
    }

    /// When the next run is due.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Processes the queue, and does what is due.
    pub fn run(&mut self) {
        self.work(true);
    }

    /// Processes the queue. Then reads the flows and deletes the stale ones, if that is due: `is_late` is whether so is a run that has
    /// to wait some time.
    fn work(&mut self, is_late: bool) {
        if self.flows.lock().is_busy {
            self.next.get_or_insert_with(|| Instant::now() + FOLLOW_UP);
            if is_late {
                self.next = Some(Instant::now() + FOLLOW_UP);
            }
            return;
        }
        std::mem::take(&mut self.queue).apply(&mut self.reconciler);
        let due = self.reconciler.due();
        if due == Due::Now || is_late && due != Due::Nothing {
            // An error leaves the run due.
            _ = self.reconciler.run(&mut self.flows.clone());
            self.next = None;
        }
        match self.reconciler.due() {
            Due::Nothing => self.next = None,
            Due::Now | Due::Soon | Due::Later => _ = self.next.get_or_insert_with(|| Instant::now() + FOLLOW_UP),
        }
        self.check();
    }

    fn check(&self) {
        let is_idle = self.queue.is_empty() && self.reconciler.due() == Due::Nothing;
        if let Some(state) = self.state.as_ref().filter(|_| is_idle) {
            self.flows.check_stale(state);
        }
    }
}

/// The node around a backend. The addresses of its interfaces are unknown. Clones share it.
#[derive(Clone, Debug)]
pub struct Node(Arc<Mutex<Cleaning>>);

impl Node {
    /// A node whose flows are cleaned by `cleaning`.
    pub fn new(cleaning: Cleaning) -> Self {
        Self(Arc::new(Mutex::new(cleaning)))
    }

    /// What cleans the flows.
    pub fn cleaning(&self) -> MutexGuard<'_, Cleaning> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl live::Node for Node {
    async fn addresses(&mut self) -> Option<Vec<IpAddr>> {
        None
    }

    async fn changed_addresses(&mut self) -> Vec<IpAddr> {
        std::future::pending().await
    }

    // The model checks flows only between two steps, so never during a sync.
    fn begin_sync(&mut self) {}

    fn end_sync(&mut self) {}

    fn committed(&mut self, commit: Commit) {
        self.cleaning().committed(commit);
    }
}
