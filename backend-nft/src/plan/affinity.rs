//! Session affinity: a client of a Service's port keeps its endpoint, whichever VIP of the port it connects to.
//!
//! ```text
//!  services: `affinity-vips` gives the ID of the Service port, which is kept in the packet's priority
//!     └─► affinity ─► lb-affinity-N ─┬─ client . ID is in `affinity-S`, the VIP uses slot S ─────► slot-S   for each slot S
//!                                    └─ else `affinity-picks`, at random ────────────────────────► slot-S
//!  slot-S: client . ID goes into `affinity-S` for the VIP's timeout, then translation to the endpoint in slot S
//! ```
//!
//! The priority is the only field of a packet that nothing else reads between the lookups (docs/decisions/0022).
//!
//! The number of sets and chains depends on the largest number of slots of one VIP, not on the number of Services.
//! Rules need the number of endpoints of a VIP, its timeout and its slots. Each of these numbers follows the VIP in the
//! key of a plain set. A verdict map would not do: older kernels would validate the whole map for each VIP.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use localnet_client::vips::Vip;
use localnet_linux::nft::{Chain, Element, Field, Generator, Name, Statement, Tuple, Verdict, spread};
use localnet_linux_backend::elements::of_slot;

use super::{
    names,
    sets::{Pool, SetId, Sets as _, VIP, clients_name},
    stable_slots::Slots,
};

/// Counts the users of each pool, size and timeout: the VIPs of one family that have session affinity.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    /// The number of VIPs, by pool and size, and then by the number of slots to search.
    pools: BTreeMap<(Pool, u32), BTreeMap<u32, usize>>,
    timeouts: BTreeMap<u32, usize>,
}

/// The pools in use with their sizes, and the timeouts in use. The chains and sets of session affinity depend on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// The number of slots in which to search for a client, by pool and size.
    pools: BTreeMap<(Pool, u32), u32>,
    /// The timeouts in seconds.
    timeouts: BTreeSet<u32>,
}

impl Uses {
    /// Adds a VIP.
    pub fn add(&mut self, vip: &Vip, slots: &Slots) {
        for (pool, size, top) in pools_of(vip, slots) {
            *self.pools.entry((pool, size)).or_default().entry(top).or_default() += 1;
            *self.timeouts.entry(timeout(vip)).or_default() += 1;
        }
    }

    /// Removes a VIP that was added with the same slots.
    pub fn remove(&mut self, vip: &Vip, slots: &Slots) {
        for (pool, size, top) in pools_of(vip, slots) {
            if let Some(tops) = self.pools.get_mut(&(pool, size)) {
                release(tops, top);
                if tops.is_empty() {
                    self.pools.remove(&(pool, size));
                }
            }
            release(&mut self.timeouts, timeout(vip));
        }
    }

    /// The pools, sizes and timeouts that at least one VIP uses.
    pub fn shape(&self) -> Shape {
        let top = |(pool, tops): (&_, &BTreeMap<u32, usize>)| Some((*pool, *tops.last_key_value()?.0));
        Shape { pools: self.pools.iter().filter_map(top).collect(), timeouts: self.timeouts.keys().copied().collect() }
    }
}

fn release(counts: &mut BTreeMap<u32, usize>, key: u32) {
    match counts.get_mut(&key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => _ = counts.remove(&key),
    }
}

/// The pools of a VIP with their sizes, and the number of slots to search. That number is a power of two, so that
/// chains change rarely.
fn pools_of(vip: &Vip, slots: &Slots) -> impl Iterator<Item = (Pool, u32, u32)> {
    let pools = [(Pool::Cluster, &vip.endpoints), (Pool::Local, &vip.local_endpoints)];
    pools.into_iter().filter(|(_, endpoints)| !endpoints.is_empty()).map(|(pool, endpoints)| {
        let last = endpoints.iter().filter_map(|endpoint| slots.of(endpoint)).max().unwrap_or_default();
        (pool, super::slots(vip.weights.count(endpoints)), last.saturating_add(1).next_power_of_two())
    })
}

/// How long clients of a VIP are remembered, in seconds, at least 1. The kernel treats 0 as forever.
pub fn timeout(vip: &Vip) -> u32 {
    vip.affinity.unwrap_or_default().seconds.max(1)
}

/// All endpoints of a VIP from both pools. An endpoint in both has only one slot.
pub fn endpoints_of(vip: &Vip) -> BTreeSet<SocketAddr> {
    vip.endpoints.iter().chain(&*vip.local_endpoints).copied().collect()
}

/// Emits the elements that a VIP has because of its affinity.
pub fn of_vip(tuple: &Tuple, vip: &Vip, slots: &Slots, emit: &mut impl FnMut(SetId, Element)) {
    let with = |number: u32| tuple.clone().index(number);
    if vip.endpoints.is_empty() && vip.local_endpoints.is_empty() {
        return;
    }
    let number = Tuple::new().priority(slots.number());
    emit(SetId::AffinityVips, Element::value(tuple.clone(), number).comment(vip.comment.clone()));
    emit(SetId::AffinityTimeouts, Element::new(with(timeout(vip))));
    for (pool, endpoints) in [(Pool::Cluster, &vip.endpoints), (Pool::Local, &vip.local_endpoints)] {
        if endpoints.is_empty() {
            continue;
        }
        let weighed = vip.weights.slots(endpoints);
        emit(pool.affinity_sizes(), Element::new(with(super::slots(weighed.len()))));
        // The picks have the order of the slots. Pick 0 is the fallback, so it leads to the lowest slot in use, whose chain has
        // existed for a long time. An endpoint with a greater weight has several picks.
        let mut picks: Vec<u32> = weighed.iter().filter_map(|endpoint| slots.of(endpoint)).collect();
        picks.sort_unstable();
        let in_use: BTreeSet<u32> = picks.iter().copied().collect();
        in_use.into_iter().for_each(|slot| emit(pool.affinity_slots(), Element::new(with(slot))));
        for (index, slot) in (0..).zip(picks) {
            emit(pool.affinity_picks(), Element::verdict(with(index), Verdict::Jump(slot_chain(slot))));
        }
    }
    for endpoint in endpoints_of(vip) {
        let Some(slot) = slots.of(&endpoint) else { continue };
        emit(SetId::AffinityEndpoints, of_slot(tuple, slot, &endpoint));
    }
}

fn slot_chain(slot: u32) -> Name {
    format!("slot-{slot}").into()
}

impl Shape {
    /// The number of slots. Each has a set of clients and a chain.
    pub fn slots(&self) -> u32 {
        self.pools.values().copied().max().unwrap_or_default()
    }

    /// The chains; none if no VIP has affinity.
    pub fn chains(&self) -> Vec<Chain> {
        if self.slots() == 0 {
            return Vec::new();
        }
        let dispatch = [Pool::Cluster, Pool::Local].map(|pool| self.dispatch(pool));
        let sizes = self.pools.iter().map(|((pool, size), top)| lb(*pool, *size, *top));
        let slots = (0..self.slots()).map(|slot| remembering(slot, &self.timeouts));
        dispatch.into_iter().chain(sizes).chain(slots).collect()
    }

    /// The chain that dispatches packets by the pool size of their VIP. Each VIP has one size. While the size changes, a
    /// packet may match neither size. For such a packet, the chain that searches the most slots is the fallback.
    fn dispatch(&self, pool: Pool) -> Chain {
        let chain = Chain::new(pool.affinity_chain()).comment("session affinity, by the number of endpoints");
        let sizes = || self.pools.iter().filter(|((of, _), _)| *of == pool).map(|((_, size), top)| (*size, *top));
        let Some((last, _)) = sizes().max_by_key(|(size, top)| (*top, *size)) else { return chain };
        let chain = sizes().filter(|(size, _)| *size != last).fold(chain, |chain, (size, _)| {
            let has_size = Statement::is_in(numbered(Generator::Constant(size)), pool.affinity_sizes().name());
            chain.rule([has_size, Statement::goto(lb_chain(pool, size))])
        });
        chain.rule(Statement::goto(lb_chain(pool, last)))
    }
}

/// The chain that remembers the client in a slot for one of these timeouts, and translates the packet to the slot's endpoint.
pub fn remembering(slot: u32, timeouts: &BTreeSet<u32>) -> Chain {
    let endpoint = numbered(Generator::Constant(slot));
    let chain = timeouts.iter().fold(Chain::new(slot_chain(slot)), |chain, seconds| {
        let has_timeout = numbered(Generator::Constant(*seconds));
        chain.rule([
            Statement::is_in(has_timeout, SetId::AffinityTimeouts.name()),
            Statement::Update(CLIENT.into(), clients_name(slot), Some(*seconds)),
        ])
    });
    // The priority is cleared before the translation, because the backend needs it only until then. If the slot has
    // no endpoint for the VIP, the next rule sets the priority again, and the search for the client continues.
    chain.rule([Statement::PriorityNone, Statement::dnat(endpoint, SetId::AffinityEndpoints.name())]).rule(numbering())
}

/// The chain that searches for the client, and then picks an endpoint at random. A slot may be released
/// while a packet is in the chain. If a lookup then misses, the packet continues at the next rule.
fn lb(pool: Pool, size: u32, top: u32) -> Chain {
    let pick = |modulus| Statement::vmap(numbered(Generator::Random(modulus)), pool.affinity_picks().name());
    let chain = (0..top).fold(Chain::new(lb_chain(pool, size)), |chain, slot| {
        chain.rule([
            Statement::is_in(CLIENT, clients_name(slot)),
            Statement::is_in(numbered(Generator::Constant(slot)), pool.affinity_slots().name()),
            Statement::jump(slot_chain(slot)),
        ])
    });
    // A pick takes two lookups, one of the chain and one of the endpoint. The endpoint may be removed in between, so the chain
    // may have to pick again.
    let tries = spread::tries(size).max(1);
    (0..tries).fold(chain, |chain, _| chain.rule(pick(size))).rule(pick(1))
}

fn lb_chain(pool: Pool, size: u32) -> Name {
    match pool {
        Pool::Cluster => format!("lb-affinity-{size}"),
        Pool::Local => format!("lb-affinity-local-{size}"),
    }
    .into()
}

/// Stores the ID of the VIP's Service port in the packet's priority. If the VIP has no affinity, the rest of the rule is
/// skipped.
pub fn numbering() -> Statement {
    Statement::PriorityMap(VIP.into(), SetId::AffinityVips.name().into())
}

/// The fields of a packet that identify a client.
const CLIENT: [Field; 2] = [Field::SourceAddress, Field::Priority];

/// The fields of a VIP, followed by a number.
fn numbered(generator: Generator) -> Vec<Field> {
    [VIP.as_slice(), &[Field::Index(generator)]].concat()
}

impl Pool {
    /// The chain for VIPs with affinity.
    pub fn affinity_chain(self) -> &'static str {
        match self {
            Self::Cluster => names::AFFINITY,
            Self::Local => names::AFFINITY_LOCAL,
        }
    }

    fn affinity_sizes(self) -> SetId {
        match self {
            Self::Cluster => SetId::AffinitySizes,
            Self::Local => SetId::AffinityLocalSizes,
        }
    }

    fn affinity_slots(self) -> SetId {
        match self {
            Self::Cluster => SetId::AffinitySlots,
            Self::Local => SetId::AffinityLocalSlots,
        }
    }

    fn affinity_picks(self) -> SetId {
        match self {
            Self::Cluster => SetId::AffinityPicks,
            Self::Local => SetId::AffinityLocalPicks,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use localnet_client::vips::Exposure;
    use localnet_proto::ServiceKey;

    use super::*;

    fn vip(cluster: &[u8], local: &[u8], affinity: u32) -> Vip {
        let endpoints = |hosts: &[u8]| -> Arc<[SocketAddr]> {
            hosts.iter().map(|host| SocketAddr::from(([10, 0, 0, *host], 80))).collect()
        };
        Vip {
            service: ServiceKey::new("default", "web"),
            port_name: "http".into(),
            comment: "default/web:http".into(),
            exposure: Exposure::ExternalLocal,
            endpoints: endpoints(cluster),
            local_endpoints: endpoints(local),
            affinity: Some(affinity.into()),
            ..Vip::default()
        }
    }

    fn slots_of(vip: &Vip) -> Slots {
        let mut slots = Slots::new(7);
        slots.take(&endpoints_of(vip));
        slots
    }

    /// The numbers behind a VIP in each set, as text.
    fn listed(vip: &Vip) -> String {
        let mut listed: BTreeMap<SetId, Vec<String>> = BTreeMap::new();
        of_vip(&Tuple::new(), vip, &slots_of(vip), &mut |set, element| {
            let number = element.key.start().as_bytes().try_into().map(u32::from_ne_bytes);
            let number = number.map_or_else(|_| "present".to_owned(), |number| number.to_string());
            listed.entry(set).or_default().push(match element.data {
                localnet_linux::nft::ElementData::Verdict(Verdict::Jump(chain)) => format!("{number} {chain}"),
                _ => number,
            });
        });
        let listed = listed.into_iter().map(|(set, numbers)| format!("{} {}", set.name(), numbers.join(" ")));
        listed.collect::<Vec<_>>().join(", ").replace("affinity-", "")
    }

    #[test]
    fn an_endpoint_has_one_slot_in_both_pools() {
        for (cluster, local, expected) in [
            (&[][..], &[][..], ""),
            (&[1, 2], &[], "vips present, timeouts 600, sizes 2, slots 0 1, picks 0 slot-0 1 slot-1, endpoints 0 1"),
            (&[], &[3], "vips present, timeouts 600, local-sizes 1, local-slots 0, local-picks 0 slot-0, endpoints 0"),
            (
                &[1, 3],
                &[2, 3],
                "vips present, timeouts 600, sizes 2, slots 0 2, picks 0 slot-0 1 slot-2, \
                 local-sizes 2, local-slots 1 2, local-picks 0 slot-1 1 slot-2, endpoints 0 1 2",
            ),
        ] {
            assert_eq!(listed(&vip(cluster, local, 600)), expected, "{cluster:?} {local:?}");
        }
    }

    #[test]
    fn a_timeout_of_zero_becomes_one_second() {
        assert!(listed(&vip(&[1], &[], 0)).contains("timeouts 1,"));
    }

    #[test]
    fn used_chains_are_counted() {
        let vips = [vip(&[1, 2], &[], 60), vip(&[1, 2, 3], &[1], 600), vip(&[1, 2, 3], &[], 60), vip(&[], &[], 7)];
        let mut uses = Uses::default();
        assert_eq!(uses.shape(), Shape::default());
        vips.iter().for_each(|vip| uses.add(vip, &slots_of(vip)));
        let names = |uses: &Uses| {
            let chains = uses.shape().chains();
            chains.iter().map(|chain| format!("{} {}", chain.name, chain.rules.len())).collect::<Vec<_>>().join(", ")
        };
        let all = "affinity 2, affinity-local 1, lb-affinity-2 5, lb-affinity-3 7, lb-affinity-local-1 3, \
                   slot-0 4, slot-1 4, slot-2 4, slot-3 4";
        assert_eq!(names(&uses), all);
        uses.remove(&vips[2], &slots_of(&vips[2]));
        assert_eq!(names(&uses), all);
        uses.remove(&vips[1], &slots_of(&vips[1]));
        assert_eq!(names(&uses), "affinity 1, affinity-local 0, lb-affinity-2 5, slot-0 3, slot-1 3");
        [&vips[0], &vips[3]].into_iter().for_each(|vip| uses.remove(vip, &slots_of(vip)));
        assert_eq!(uses.shape(), Shape::default());
    }
}
