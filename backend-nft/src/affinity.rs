//! Which endpoint has which slot, for the VIPs of services with session affinity, and where clients are to be forgotten.
//!
//! The one state of this backend that depends on history. It is in the kernel too, from where a new process takes it up. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use localnet_client::vips::{Vip, VipKey};
use localnet_linux::nft::{Element, ElementData, Family, Tuple};

use crate::{
    kernel::Found,
    plan::{
        affinity::{self, Shape, Uses},
        elements, family_of,
        sets::SetId,
        stable_slots::Slots,
    },
};

/// The slots of both families.
#[derive(Debug, Default)]
pub struct Affinity {
    vips: BTreeMap<VipKey, Slots>,
    /// Those that are programmed now; others have only slots that were left.
    programmed: BTreeSet<VipKey>,
    /// VIPs that changed since the last commit.
    touched: BTreeSet<VipKey>,
    /// Slots without endpoint whose clients are to be forgotten.
    departed: BTreeMap<Departed, BTreeSet<VipKey>>,
    uses: [Uses; 2],
    /// Whether the kernel's slots were taken up.
    adopted: [bool; 2],
    none: Slots,
}

/// A slot that lost the endpoints of some VIPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Departed {
    /// Of which table.
    pub family: Family,
    /// Its number.
    pub slot: u32,
}

impl Affinity {
    /// The slots of a VIP; none for one without affinity.
    pub fn slots(&self, key: &VipKey) -> &Slots {
        self.vips.get(key).unwrap_or(&self.none)
    }

    /// A VIP is to be programmed: its endpoints get their slots.
    pub fn program(&mut self, key: &VipKey, vip: &Vip) {
        if vip.affinity.is_none() {
            return;
        }
        let slots = self.vips.entry(*key).or_default();
        slots.assign(&affinity::endpoints_of(vip));
        self.uses[family_of(key.family()) as usize].add(vip, slots);
        self.programmed.insert(*key);
        self.touched.insert(*key);
    }

    /// A VIP was taken out. Its slots stay for now: it may be programmed again before anyone hears of it.
    pub fn unprogram(&mut self, key: &VipKey, vip: &Vip) {
        if vip.affinity.is_some() {
            self.uses[family_of(key.family()) as usize].remove(vip, self.vips.get(key).unwrap_or(&self.none));
            self.programmed.remove(key);
            self.touched.insert(*key);
        }
    }

    /// VIPs that are not programmed now have lost their endpoints.
    pub fn settle(&mut self) {
        for key in self.touched.difference(&self.programmed) {
            if let Some(slots) = self.vips.get_mut(key) {
                slots.assign(&BTreeSet::new());
            }
        }
    }

    /// What chains and sets of a family depend on.
    pub fn shape(&self, family: Family) -> Shape {
        self.uses[family as usize].shape()
    }

    /// The VIPs of a family that are programmed.
    pub fn programmed(&self, family: Family) -> impl Iterator<Item = &VipKey> {
        self.programmed.iter().filter(move |key| family_of(key.family()) == family)
    }

    /// The kernel holds what was programmed in a family.
    pub fn commit(&mut self, family: Family) {
        let of_family = |key: &VipKey| family_of(key.family()) == family;
        let (touched, others) = std::mem::take(&mut self.touched).into_iter().partition(of_family);
        self.touched = others;
        let touched: BTreeSet<VipKey> = touched;
        for key in touched {
            let Some(slots) = self.vips.get_mut(&key) else { continue };
            slots.commit();
            for slot in slots.left() {
                self.departed.entry(Departed { family, slot }).or_default().insert(key);
            }
            self.drop_if_empty(&key);
        }
    }

    fn drop_if_empty(&mut self, key: &VipKey) {
        if self.vips.get(key).is_some_and(Slots::is_empty) {
            self.vips.remove(key);
        }
    }

    /// The kernel's table was read. The first time its slots are taken up, and every VIP must be programmed again, of which
    /// none may be now. Clients of slots that nobody has are to be forgotten.
    pub fn adopt(&mut self, family: Family, found: Option<&Found>) {
        let sets = || found.iter().flat_map(|found| &found.sets).flatten();
        if !std::mem::replace(&mut self.adopted[family as usize], true) {
            let mut used: BTreeMap<VipKey, Vec<_>> = BTreeMap::new();
            for (_, elements) in sets().filter(|(set, _)| *set.name == *SetId::AffinityEndpoints.name()) {
                for element in elements {
                    if let Some((vip, slot, endpoint)) = read_endpoint(element) {
                        used.entry(vip).or_default().push((endpoint, slot));
                    }
                }
            }
            self.vips.retain(|key, _| family_of(key.family()) != family);
            self.touched.extend(used.keys());
            self.vips.extend(used.into_iter().map(|(vip, used)| (vip, Slots::found(used))));
        }
        for (set, elements) in sets() {
            let Some(slot) = affinity::slot_of_clients(&set.name) else { continue };
            let vips: BTreeSet<VipKey> = elements.iter().filter_map(|element| vip_of_client(family, element)).collect();
            for vip in vips {
                if self.vips.entry(vip).or_default().leave(slot) {
                    self.touched.insert(vip);
                }
            }
        }
    }

    /// Slots that have lost endpoints for good, and the VIPs of these.
    pub fn departed(&self) -> Vec<(Departed, BTreeSet<VipKey>)> {
        self.departed.iter().map(|(slot, vips)| (*slot, vips.clone())).collect()
    }

    /// The clients that these VIPs had in a slot are forgotten.
    pub fn purged(&mut self, departed: &Departed) {
        for key in self.departed.remove(departed).unwrap_or_default() {
            if let Some(slots) = self.vips.get_mut(&key) {
                slots.purged(departed.slot);
                self.drop_if_empty(&key);
            }
        }
    }
}

/// The VIP to which the client of an element of a set of clients went.
pub fn vip_of_client(family: Family, element: &Element) -> Option<VipKey> {
    let client = family.address_type().padded_len();
    elements::read_vip(&Tuple::from_bytes(element.key.start().as_bytes().get(client..)?))
}

fn read_endpoint(element: &Element) -> Option<(VipKey, u32, SocketAddr)> {
    let ElementData::Value(value) = &element.data else { return None };
    let (vip, slot) = element.key.start().as_bytes().split_last_chunk::<4>()?;
    let (address, [high, low, ..]) = value.as_bytes().split_last_chunk::<4>()?;
    let address: IpAddr = match *address {
        [a, b, c, d] => [a, b, c, d].into(),
        _ => <[u8; 16]>::try_from(address).ok()?.into(),
    };
    let endpoint = SocketAddr::new(address, u16::from_be_bytes([*high, *low]));
    Some((elements::read_vip(&Tuple::from_bytes(vip))?, u32::from_ne_bytes(*slot), endpoint))
}
