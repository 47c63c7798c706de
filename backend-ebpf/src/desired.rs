//! The desired and the applied content of the eBPF maps, updated as Services change. Pure.
//!
//! ```text
//!  Snapshot, Changes ──► client::vips (one owner for each VIP) ──► plan::vip ──► DiffStores ──► Changes of the maps
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use localnet_client::{
    Diagnostic, DiffStore,
    vips::{self, Config, Hairpin, Program, Vips},
};
use localnet_proto::{Changes, Service, Snapshot};

use crate::{
    decide::UDP,
    kernel::{Change, Content},
    layout::{EndpointKey, Endpoints, GROUP, MemberKey, PortId, Socket, Vip, VipKey},
    plan,
};

/// The desired and the applied content of the maps.
#[derive(Debug)]
pub struct Desired {
    /// The VIPs of the node.
    pub vips: Vips,
    tables: Tables,
    /// Whether the applied content is known.
    is_known: bool,
}

#[derive(Debug, Default)]
struct Tables {
    vips: DiffStore<VipKey, Vip>,
    endpoints: DiffStore<EndpointKey, Endpoints>,
    members: DiffStore<MemberKey, ()>,
    /// The endpoints of each Service port and scope, and how many VIPs use them.
    groups: BTreeMap<(PortId, u32), Group>,
    /// The endpoints that may answer the UDP sockets of each VIP.
    serving: BTreeMap<Socket, Arc<[SocketAddr]>>,
    /// UDP VIPs that changed, with the endpoints that served them before.
    moved: Vec<(Socket, Arc<[SocketAddr]>)>,
}

#[derive(Debug)]
struct Group {
    vips: usize,
    /// The number of places in the map `endpoints`.
    slots: usize,
    endpoints: Arc<[SocketAddr]>,
    has_members: bool,
}

impl Desired {
    /// An empty desired state; the applied state is unknown.
    pub fn new(config: Config) -> Self {
        let vips = Vips::new(config).leaving_connections();
        let why = "processes of this node reach random endpoints, because most sockets have no source address yet when they connect";
        Self { vips: vips.choosing_at_random(why), tables: Tables::default(), is_known: false }
    }

    /// Plans `state`. `changes` contains everything that differs from the previous state. Returns the new diagnostics of what
    /// is not programmed.
    pub fn update(&mut self, state: &Snapshot, changes: &Changes) -> Vec<Diagnostic> {
        self.vips.update(state, changes, &mut self.tables).notices
    }

    /// Whether the applied content is known.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Sets the applied content, as read from the maps.
    pub fn adopt(&mut self, found: Content) {
        let Content { vips, endpoints, members } = found;
        self.is_known = true;
        self.tables.vips.adopt(vips);
        self.tables.endpoints.adopt(endpoints);
        self.tables.members.adopt(members.into_iter().map(|key| (key, ())));
    }

    /// Marks the applied content as unknown.
    pub fn forget(&mut self) {
        self.is_known = false;
        self.tables.vips.forget();
        self.tables.endpoints.forget();
        self.tables.members.forget();
    }

    /// Records that the maps have the desired content.
    pub fn commit(&mut self) {
        self.tables.vips.commit();
        self.tables.endpoints.commit();
        self.tables.members.commit();
    }

    /// The changes from the applied to the desired content. After each change, every VIP still leads to one of its present or
    /// previous endpoints: new endpoints precede the VIPs that count them, and old endpoints follow.
    pub fn changes(&self) -> Vec<Change> {
        let Tables { vips, endpoints, members, .. } = &self.tables;
        let (vips, endpoints, members) = (vips.diff(), endpoints.diff(), members.diff());
        let mut changes = Vec::new();
        changes.extend(endpoints.set.iter().map(|set| Change::Endpoints(*set.key, Some(*set.value))));
        changes.extend(members.set.iter().map(|set| Change::Member(*set.key, true)));
        changes.extend(vips.set.iter().map(|set| Change::Vip(*set.key, Some(*set.value))));
        changes.extend(vips.removed.iter().map(|(key, _)| Change::Vip(**key, None)));
        changes.extend(members.removed.iter().map(|(key, ())| Change::Member(**key, false)));
        changes.extend(endpoints.removed.iter().map(|(key, _)| Change::Endpoints(**key, None)));
        changes
    }

    /// The deletions that make room in full maps: VIPs that are gone, and endpoints and members that no other VIP leads to in the applied
    /// content.
    pub fn deletions(&self) -> Vec<Change> {
        let Tables { vips, endpoints, members, .. } = &self.tables;
        let (vips, endpoints, members) = (vips.diff(), endpoints.diff(), members.diff());
        let replaced = vips.set.iter().filter_map(|set| set.replaces);
        let used: BTreeSet<_> = replaced.map(|vip| (vip.port, vip.scope)).collect();
        let mut changes = Vec::new();
        changes.extend(vips.removed.iter().map(|(key, _)| Change::Vip(**key, None)));
        let unused = members.removed.iter().filter(|(key, ())| !used.contains(&(key.port, key.scope)));
        changes.extend(unused.map(|(key, ())| Change::Member(**key, false)));
        let unused = endpoints.removed.iter().filter(|(key, _)| !used.contains(&(key.port, key.scope)));
        changes.extend(unused.map(|(key, _)| Change::Endpoints(**key, None)));
        changes
    }

    /// Whether UDP sockets may now have an endpoint that is stale, since the last call.
    pub fn take_moved(&mut self) -> bool {
        let moved = std::mem::take(&mut self.tables.moved);
        moved.iter().any(|(vip, before)| before.iter().any(|endpoint| self.is_stale(vip, &plan::socket(*endpoint))))
    }

    /// Whether an endpoint no longer serves the UDP sockets of a VIP.
    pub fn is_stale(&self, vip: &Socket, endpoint: &Socket) -> bool {
        let endpoint = plan::socket_addr(endpoint);
        self.tables.serving.get(vip).is_none_or(|serving| serving.binary_search(&endpoint).is_err())
    }

    /// The desired content.
    pub fn content(&self) -> Content {
        let Tables { vips, endpoints, members, .. } = &self.tables;
        Content {
            vips: vips.iter_desired().map(|(key, vip)| (*key, *vip)).collect(),
            endpoints: endpoints.iter_desired().map(|(key, endpoint)| (*key, *endpoint)).collect(),
            members: members.iter_desired().map(|(key, ())| *key).collect::<BTreeSet<_>>(),
        }
    }
}

impl Program for Tables {
    fn program(&mut self, key: &vips::VipKey, vip: &vips::Vip, _: &Service) {
        let Some((key, value)) = plan::vip(key, vip) else { return };
        self.vips.set(key, value);
        if key.protocol == UDP {
            self.serving.insert(key.to, vip.serving.clone());
        }
        let Vip { port, scope, .. } = value;
        let has_members = plan::has_members(&key, &value);
        let group = self.groups.entry((port, scope)).or_insert_with(|| {
            let slots = vip.weights.slots(&vip.endpoints);
            for (group, of) in (0..).zip(slots.chunks(GROUP)) {
                let mut endpoints = Endpoints::default();
                endpoints.iter_mut().zip(of).for_each(|(place, endpoint)| *place = plan::socket(*endpoint));
                self.endpoints.set(EndpointKey { port, scope, group }, endpoints);
            }
            for endpoint in vip.endpoints.iter().filter(|_| has_members) {
                self.members.set(MemberKey { port, scope, endpoint: plan::socket(*endpoint) }, ());
            }
            Group { vips: 0, slots: slots.len(), endpoints: vip.endpoints.clone(), has_members }
        });
        group.vips += 1;
    }

    fn unprogram(&mut self, key: &vips::VipKey, vip: &vips::Vip) {
        let Some((key, Vip { port, scope, .. })) = plan::vip(key, vip) else { return };
        self.vips.remove(&key);
        self.moved.extend(self.serving.remove(&key.to).filter(|_| key.protocol == UDP).map(|before| (key.to, before)));
        let Some(group) = self.groups.get_mut(&(port, scope)) else { return };
        group.vips -= 1;
        if group.vips > 0 {
            return;
        }
        let Some(group) = self.groups.remove(&(port, scope)) else { return };
        let (slots, endpoints, has_members) = (group.slots, group.endpoints, group.has_members);
        for (group, _) in (0..).zip((0..slots).step_by(GROUP)) {
            self.endpoints.remove(&EndpointKey { port, scope, group });
        }
        for endpoint in endpoints.iter().filter(|_| has_members) {
            self.members.remove(&MemberKey { port, scope, endpoint: plan::socket(*endpoint) });
        }
    }

    fn cluster_ip(&mut self, address: IpAddr, present: bool) {
        let (key, vip) = plan::unused_ports(address);
        if present { self.vips.set(key, vip) } else { self.vips.remove(&key) }
    }

    fn hairpin(&mut self, _: &Hairpin, _: bool) {}
}
