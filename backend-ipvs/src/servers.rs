//! The desired and applied virtual servers, and the changes that turn one into the other.
//!
//! A destination that is no longer desired drains: with weight 0 it gets no new connections, and it is deleted when its last
//! connection has ended. The weight is the only record of this, so a restarted backend finds draining destinations in the kernel.
//! Datagrams have no connections that could end, so their destinations are deleted immediately.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    ops::Bound,
    time::Duration,
};

use localnet_linux::ipvs::{
    Change, Connections, Destination, DestinationState, Forwarding, Frontend, Refused, ServerState, VirtualServer,
};
use localnet_proto::{Family, Protocol};

use crate::plan::server::Plan;

/// The virtual servers of one network namespace that belong to this backend.
#[derive(Debug, Default)]
pub struct Servers {
    wanted: BTreeMap<Frontend, Plan>,
    /// The applied state; `None` if it is unknown.
    held: Option<BTreeMap<Frontend, Held>>,
    /// While the applied state is unknown: the virtual servers of the last one that was known.
    remembered: BTreeSet<Frontend>,
    /// The virtual servers whose desired and applied states may differ. While the applied state is unknown, all may differ, and
    /// this set is not maintained.
    dirty: BTreeSet<Frontend>,
    /// The draining destinations, each with the time when it was first checked, or `None` before that.
    draining: BTreeMap<(Frontend, SocketAddr), Option<Duration>>,
    /// The virtual servers (without an address in the key) and destinations that the kernel refuses, each with the reason.
    refused: BTreeMap<(Frontend, Option<SocketAddr>), String>,
    /// The refused virtual servers and destinations that are being retried, each with the reason of the earlier refusal.
    retried: BTreeMap<(Frontend, Option<SocketAddr>), String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    server: VirtualServer,
    destinations: BTreeMap<SocketAddr, Destination>,
}

impl Servers {
    /// Adds or replaces a desired virtual server.
    pub fn set(&mut self, plan: Plan) {
        let frontend = plan.server.frontend;
        self.touch(frontend);
        self.wanted.insert(frontend, plan);
    }

    /// Removes a virtual server from the desired state.
    pub fn remove(&mut self, frontend: &Frontend) {
        self.touch(*frontend);
        self.wanted.remove(frontend);
    }

    fn touch(&mut self, frontend: Frontend) {
        self.dirty.insert(frontend);
        let of = (frontend, None)..=(frontend, Some(LAST));
        // If the kernel accepts them now, flows to the VIP have begun untranslated.
        let again: Vec<_> = self.refused.range(of).map(|(key, _)| *key).collect();
        self.retried.extend(again.into_iter().filter_map(|key| self.refused.remove_entry(&key)));
    }

    /// The desired virtual servers, sorted.
    pub fn wanted(&self) -> impl Iterator<Item = &Plan> {
        self.wanted.values()
    }

    /// Whether this virtual server is desired.
    pub fn wants(&self, frontend: &Frontend) -> bool {
        self.wanted.contains_key(frontend)
    }

    /// Whether the applied state is known.
    pub fn is_known(&self) -> bool {
        self.held.is_some()
    }

    /// Forgets the applied state, but not which virtual servers it contained.
    pub fn forget(&mut self) {
        self.remembered.extend(self.held.take().into_iter().flat_map(BTreeMap::into_keys));
        self.dirty.clear();
    }

    /// Whether this virtual server is desired, or was in the last known applied state.
    pub fn knows(&self, frontend: &Frontend) -> bool {
        self.wants(frontend) || self.remembered.contains(frontend)
    }

    /// Lets the next changes retry what the kernel refused.
    pub fn retry_refused(&mut self) {
        self.dirty.extend(self.refused.keys().map(|(frontend, _)| *frontend));
        self.retried.append(&mut self.refused);
    }

    /// Replaces the applied state with `found`: our virtual servers, as they were read from the kernel.
    pub fn adopt(&mut self, found: impl IntoIterator<Item = ServerState>) {
        let held: BTreeMap<_, _> = found
            .into_iter()
            .map(|state| {
                let destinations = state.destinations.into_iter().map(|one| (one.destination.address, one.destination));
                (state.server.frontend, Held { server: state.server, destinations: destinations.collect() })
            })
            .collect();
        self.dirty = held.keys().chain(self.wanted.keys()).copied().collect();
        let mut before = std::mem::take(&mut self.draining);
        let all =
            held.iter().flat_map(|(frontend, held)| held.destinations.keys().map(|address| (*frontend, *address)));
        let draining = all.filter(|(frontend, address)| !self.serves(frontend, address));
        self.draining = draining.map(|key| (key, before.remove(&key).flatten())).collect();
        self.held = Some(held);
        self.remembered.clear();
    }

    /// Whether an endpoint is a desired destination of a virtual server.
    pub fn serves(&self, frontend: &Frontend, address: &SocketAddr) -> bool {
        self.wanted.get(frontend).is_some_and(|plan| plan.destinations.binary_search(address).is_ok())
    }

    /// Whether the live virtual servers equal the applied ones. Live virtual servers that are not in the applied state are
    /// ignored.
    pub fn are(&self, found: &[VirtualServer]) -> bool {
        let Some(held) = &self.held else { return false };
        let ours = found.iter().filter(|server| held.contains_key(&server.frontend));
        let mut count = 0;
        let same = ours.inspect(|_| count += 1).all(|server| held[&server.frontend].server == *server);
        same && count == held.len()
    }

    /// Whether the live destinations of a virtual server equal the applied ones.
    pub fn has(&self, frontend: &Frontend, found: &[DestinationState]) -> bool {
        let held = self.held.as_ref().and_then(|held| held.get(frontend));
        held.map(|held| &held.destinations).is_some_and(|held| {
            let is_held = |one: &DestinationState| held.get(&one.destination.address) == Some(&one.destination);
            held.len() == found.len() && found.iter().all(is_held)
        })
    }

    /// At most `count` applied virtual servers, in sort order: first those after `last`, then from the start up to `last`.
    pub fn after(&self, last: Option<Frontend>, count: usize) -> Vec<Frontend> {
        let Some(held) = &self.held else { return Vec::new() };
        let behind = held.range((last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let from_the_first = last.into_iter().flat_map(|last| held.range(..=last));
        behind.chain(from_the_first).take(count).map(|(frontend, _)| *frontend).collect()
    }

    /// The deletions of virtual servers that are no longer desired.
    pub fn deletions(&self) -> Vec<Change> {
        let Some(held) = &self.held else { return Vec::new() };
        let gone = self.dirty.iter().filter(|frontend| !self.wants(frontend) && held.contains_key(frontend));
        gone.map(|frontend| Change::DeleteServer(*frontend)).collect()
    }

    /// The additions to virtual servers that have no destination for new connections. They come before the rules: until now, rules
    /// keep packets away from such a virtual server. If the rules changed first, packets would find it empty.
    pub fn first_destinations(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        let serves = |held: &Held| held.destinations.values().any(|one| one.weight > 0);
        for (plan, held) in self.dirty_plans(|_| true).filter(|(_, held)| held.is_some_and(|held| !serves(held))) {
            self.additions_to(plan, held, &mut changes);
        }
        changes
    }

    /// All changes except [`Self::deletions`] and [`Self::removals`], for the families that `has` selects.
    pub fn additions(&self, has: impl Fn(Family) -> bool) -> Vec<Change> {
        let mut changes = Vec::new();
        for (plan, held) in self.dirty_plans(has) {
            self.additions_to(plan, held, &mut changes);
        }
        changes
    }

    /// The removals of destinations that are no longer desired, for the families that `has` selects, except those of the virtual
    /// servers `incomplete`. The [`Self::additions`] must come first: without them, a virtual server may lose its last destination.
    pub fn removals(&self, has: impl Fn(Family) -> bool, incomplete: &BTreeSet<Frontend>) -> Vec<Change> {
        let mut changes = Vec::new();
        for (plan, held) in self.dirty_plans(has) {
            if let Some(held) = held.filter(|_| !incomplete.contains(&plan.server.frontend)) {
                removals_from(plan, held, &mut changes);
            }
        }
        changes
    }

    /// The desired virtual servers whose applied state, which is also returned, may differ, without those that the kernel refuses.
    fn dirty_plans(&self, has: impl Fn(Family) -> bool) -> impl Iterator<Item = (&Plan, Option<&Held>)> {
        let dirty = self.dirty.iter().filter(move |frontend| has(Family::of(frontend.address.ip())));
        let taken = dirty.filter(|frontend| !self.refused.contains_key(&(**frontend, None)));
        let known = self
            .held
            .as_ref()
            .map(|held| taken.filter_map(|frontend| Some((self.wanted.get(frontend)?, held.get(frontend)))));
        known.into_iter().flatten()
    }

    fn additions_to(&self, plan: &Plan, held: Option<&Held>, changes: &mut Vec<Change>) {
        let frontend = plan.server.frontend;
        match held {
            None => changes.push(Change::AddServer(plan.server.clone())),
            Some(held) if held.server != plan.server => changes.push(Change::UpdateServer(plan.server.clone())),
            Some(_) => {}
        }
        let there = |address: &SocketAddr| held.and_then(|held| held.destinations.get(address));
        let is_taken = |address: &&SocketAddr| !self.refused.contains_key(&(frontend, Some(**address)));
        for address in plan.destinations.iter().filter(is_taken) {
            let wanted = plan.destination(*address);
            match there(address) {
                Some(destination) if *destination == wanted => {}
                // The forwarding method cannot change without losing the connections.
                Some(destination) if destination.forwarding != Forwarding::MASQUERADE => {
                    changes.push(Change::DeleteDestination(frontend, *address));
                    changes.push(Change::AddDestination(frontend, wanted));
                }
                Some(_) => changes.push(Change::UpdateDestination(frontend, wanted)),
                None => changes.push(Change::AddDestination(frontend, wanted)),
            }
        }
    }

    /// Records which changes were sent, and which of them the kernel refused. Returns the new refusals.
    pub fn applied(&mut self, changes: &[Change], refused: &[Refused]) -> Vec<(Frontend, String)> {
        let mut news = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            match refused.iter().find(|refused| refused.change == index) {
                None => self.made(change),
                // After a shortage, the next sync reads the live state and sends the change again.
                Some(why) if why.is_shortage() => {}
                // The object was deleted already.
                Some(_) if matches!(change, Change::DeleteServer(_) | Change::DeleteDestination(..)) => {
                    self.made(change);
                }
                Some(why) => {
                    let key = match change {
                        Change::AddDestination(frontend, destination)
                        | Change::UpdateDestination(frontend, destination) => (*frontend, Some(destination.address)),
                        change => (*change.frontend(), None),
                    };
                    // Without a virtual server, the kernel refuses its destinations, too. They are not to blame: it may only have
                    // lacked the memory to add the virtual server.
                    if key.1.is_some() && self.held.as_ref().is_some_and(|held| !held.contains_key(&key.0)) {
                        continue;
                    }
                    let why = why.to_string();
                    let is_known = self.retried.get(&key) == Some(&why);
                    if self.refused.insert(key, why.clone()).is_none() && !is_known {
                        news.push((key.0, why));
                    }
                }
            }
        }
        news
    }

    /// Records that all changes were sent. Returns whether the kernel has accepted what it had refused before.
    pub fn settle(&mut self) -> bool {
        self.dirty.clear();
        std::mem::take(&mut self.retried).keys().any(|key| !self.refused.contains_key(key))
    }

    fn made(&mut self, change: &Change) {
        let Some(all) = &mut self.held else { return };
        match change {
            Change::AddServer(server) => {
                _ = all.insert(server.frontend, Held { server: server.clone(), destinations: BTreeMap::new() });
            }
            Change::DeleteServer(frontend) => {
                let gone = all.remove(frontend);
                let addresses = gone.iter().flat_map(|gone| gone.destinations.keys());
                addresses.for_each(|address| _ = self.draining.remove(&(*frontend, *address)));
            }
            Change::UpdateServer(server) => {
                if let Some(held) = all.get_mut(&server.frontend) {
                    held.server = server.clone();
                }
            }
            Change::AddDestination(frontend, destination) | Change::UpdateDestination(frontend, destination) => {
                if let Some(held) = all.get_mut(frontend) {
                    held.destinations.insert(destination.address, *destination);
                }
                let key = (*frontend, destination.address);
                match destination.weight {
                    0 => _ = self.draining.entry(key).or_default(),
                    _ => _ = self.draining.remove(&key),
                }
            }
            Change::DeleteDestination(frontend, address) => {
                if let Some(held) = all.get_mut(frontend) {
                    held.destinations.remove(address);
                }
                self.draining.remove(&(*frontend, *address));
            }
        }
    }

    /// The virtual servers with draining destinations; none while the applied state is unknown, because their destinations may then
    /// still serve, or serve again.
    pub fn draining(&self) -> BTreeSet<Frontend> {
        let known = self.is_known().then_some(&self.draining);
        known.into_iter().flat_map(BTreeMap::keys).map(|(frontend, _)| *frontend).collect()
    }

    /// The deletions of the drained destinations of a virtual server. `found`: the connections of all its destinations at the
    /// time `now`. `limit`: how long a destination may drain.
    pub fn drained(
        &mut self,
        frontend: &Frontend,
        now: Duration,
        limit: Option<Duration>,
        found: &[(SocketAddr, Connections)],
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        for ((_, address), since) in self.draining.range_mut((*frontend, FIRST)..=(*frontend, LAST)) {
            let since = *since.get_or_insert(now);
            let is_over = limit.is_some_and(|limit| now.saturating_sub(since) >= limit);
            // A destination that the kernel no longer has is deleted as well. The kernel refuses this deletion, and the refusal
            // then updates the applied state.
            let is_drained = match found.iter().find(|(of, _)| of == address) {
                Some((_, connections)) => connections.is_drained(),
                None => true,
            };
            if is_over || is_drained {
                changes.push(Change::DeleteDestination(*frontend, *address));
            }
        }
        changes
    }

    /// The virtual servers that the kernel refuses, and the virtual servers with a refused destination, each with the reason.
    pub fn refused(&self) -> impl Iterator<Item = (&Frontend, &String)> {
        self.refused.iter().map(|((frontend, _), why)| (frontend, why))
    }
}

/// The first and the last address in sort order.
const FIRST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
const LAST: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(std::net::Ipv6Addr::from_bits(u128::MAX)), u16::MAX);

/// Whether the removed destinations of a virtual server drain. Only TCP has connections that end.
fn drains(frontend: &Frontend) -> bool {
    frontend.protocol == Protocol::Tcp
}

fn removals_from(plan: &Plan, held: &Held, changes: &mut Vec<Change>) {
    let frontend = plan.server.frontend;
    let gone = held.destinations.iter().filter(|(address, _)| plan.destinations.binary_search(address).is_err());
    for (address, destination) in gone {
        if !drains(&frontend) {
            changes.push(Change::DeleteDestination(frontend, *address));
        } else if destination.weight > 0 {
            changes.push(Change::UpdateDestination(frontend, Destination { weight: 0, ..*destination }));
        }
    }
}

#[cfg(test)]
mod tests;
