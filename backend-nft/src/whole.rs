//! The complete content of both tables for one state, delivered element by element. It is for callers that compare it
//! with something and keep nothing.
//!
//! The content equals what [`crate::desired`] keeps for a first state, without its stores. Pure.

use std::{net::IpAddr, sync::Arc};

use localnet_client::vips::{Config, Facts, Hairpin, Program, Vip, VipKey, Vips};
use localnet_linux::nft::{Element, ElementKey, Family, Set, TableContent};
use localnet_proto::{Changes, Snapshot};

use crate::{
    affinity::Affinity,
    desired::Pools,
    plan::{
        self, ChainNames,
        affinity::{self, Shape},
        chains, elements, family_of,
        sets::SetId,
    },
};

/// Receives the elements.
pub trait ElementSink {
    /// Adds an element. May be called again for the same key with another value.
    fn set(&mut self, family: Family, set: SetId, element: Element);
    /// Removes an element that was added before.
    fn remove(&mut self, family: Family, set: SetId, key: &ElementKey);
}

/// Both tables without their elements, and the data that they were planned with. Freeing that data takes as long as
/// delivering some of the elements, so a program that exits soon should not free it.
#[derive(Debug)]
pub struct Whole {
    /// The tables with their chains and empty sets. Empty before the node is known.
    pub tables: Vec<TableContent>,
    _vips: Vips,
}

/// Sets with their elements, for each family.
pub type History = [Vec<(Arc<Set>, Vec<Element>)>; 2];

/// Whether the contents of the set depend on history.
pub fn is_history(set: SetId) -> bool {
    matches!(set, SetId::AffinityVips | SetId::AffinityEndpoints)
}

/// Delivers all elements to `sink`.
///
/// The slots of session affinity depend on history, so they follow the sets in `history`. Those are the kernel's sets
/// of each family that [`is_history`] names.
pub fn deliver(
    state: &Snapshot,
    config: Config,
    local_addresses: Vec<IpAddr>,
    history: &History,
    sink: &mut impl ElementSink,
) -> Whole {
    let mut affinity = Affinity::default();
    for (family, sets) in Family::ALL.into_iter().zip(history) {
        affinity.adopt(family, sets.iter().map(|(set, elements)| (&**set, elements.as_slice())));
    }
    let mut vips = Vips::new(config);
    vips.set_local_addresses(local_addresses);
    let names = ChainNames::default();
    let mut delivery = Delivery { names: &names, pools: Family::ALL.map(|_| Pools::default()), affinity, sink };
    vips.update(state, &Changes::everything(), &mut delivery);
    let Delivery { pools, affinity, .. } = delivery;
    let table = |facts, family: Family| table(facts, family, &affinity.shape(family), &pools[family as usize], &names);
    let tables = vips.facts().map(|facts| Family::ALL.map(|family| table(facts, family)).into()).unwrap_or_default();
    Whole { tables, _vips: vips }
}

fn table(facts: &Facts, family: Family, affinity: &Shape, pools: &Pools, names: &ChainNames) -> TableContent {
    let has_affinity = affinity.slots() > 0;
    let sets = SetId::ALL.into_iter().filter(|id| has_affinity || !id.is_of_affinity());
    let sets = sets.map(|id| id.declaration(family, Set::size_for(0)));
    let clients = (0..affinity.slots()).map(|slot| affinity::clients(family, slot));
    let lb = pools.used().keys().map(|(pool, slots)| chains::lb(names, *pool, *slots));
    let fixed = chains::fixed(facts, family, has_affinity).into_iter();
    TableContent {
        table: plan::table(family),
        sets: sets.chain(clients).map(|set| (Arc::new(set), Vec::new())).collect(),
        chains: fixed.chain(lb).chain(affinity.chains()).collect(),
    }
}

struct Delivery<'a, H> {
    names: &'a ChainNames,
    pools: [Pools; 2],
    affinity: Affinity,
    sink: &'a mut H,
}

impl<H: ElementSink> Delivery<'_, H> {
    fn member(&mut self, set: SetId, address: IpAddr, element: Element, present: bool) {
        let family = Family::of(&address);
        if present { self.sink.set(family, set, element) } else { self.sink.remove(family, set, &element.key) }
    }
}

impl<H: ElementSink> Program for Delivery<'_, H> {
    fn program(&mut self, key: &VipKey, vip: &Vip) {
        self.affinity.program(key, vip);
        let family = family_of(key.family());
        let slots = self.affinity.slots(key, vip);
        elements::of_vip(key, vip, slots, self.names, |set, element| self.sink.set(family, set, element));
        self.pools[family as usize].add(vip);
    }

    fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        let family = family_of(key.family());
        let slots = self.affinity.slots(key, vip);
        elements::of_vip(key, vip, slots, self.names, |set, element| self.sink.remove(family, set, &element.key));
        self.affinity.unprogram(key, vip);
        self.pools[family as usize].remove(vip);
    }

    fn cluster_ip(&mut self, address: IpAddr, present: bool) {
        self.member(SetId::ClusterIps, address, elements::of_cluster_ip(address), present);
    }

    fn hairpin(&mut self, hairpin: &Hairpin, present: bool) {
        self.member(SetId::Hairpin, hairpin.endpoint.ip(), elements::of_hairpin(hairpin), present);
    }
}
