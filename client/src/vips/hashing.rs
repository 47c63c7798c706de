//! [`Hashing`]: consistent hashing, with the slot of each connection and the endpoint of each slot.
//!
//! The endpoints of the slots depend only on the set of endpoints and their weights, without a record of earlier slots, so all nodes
//! with the same endpoints choose alike. A new or removed endpoint moves few slots of others.
//!
//! Each pair of slot and endpoint has a cost, which is a hash. Slots prefer endpoints of a low cost, endpoints prefer slots of a low
//! cost, and an endpoint takes as many slots as its weight requires. Exactly one matching is stable (Gale and Shapley). If an endpoint
//! is removed, its slots go to the endpoints that they prefer next. Other slots change only as far as the numbers of slots of the remaining
//! endpoints require it.

use std::{
    collections::{BinaryHeap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use localnet_core::HashBy;

use super::Weights;

/// The number of slots for up to 48 endpoints.
pub const SLOTS: u32 = 1024;
/// The number of slots for more endpoints.
pub const MORE_SLOTS: u32 = 8192;
/// Up to this number of endpoints, [`SLOTS`] slots suffice.
const FEW: usize = 48;
/// How many of the [`SLOTS`] are divided for each endpoint beyond [`FEW`]. If all were divided at once, one more endpoint would move
/// almost all slots.
const DIVIDED: usize = 8;
/// How many offers a slot compares at once. More take time to sort, fewer have to be computed again.
const OFFERS: usize = 8;

/// How the endpoints of a VIP are chosen by hashing. Cloning is cheap, and all VIPs of a Service port share the result.
#[derive(Clone, Debug)]
pub struct Hashing {
    /// What is hashed.
    pub by: HashBy,
    /// The lists of endpoints that were placed, each with the endpoints of its slots.
    placed: Arc<Mutex<Vec<Placed>>>,
}

type Placed = (Arc<[SocketAddr]>, Arc<[SocketAddr]>);

impl PartialEq for Hashing {
    fn eq(&self, other: &Self) -> bool {
        self.by == other.by
    }
}

impl Eq for Hashing {}

impl Hashing {
    /// Hashing by these properties of a connection.
    pub fn new(by: HashBy) -> Self {
        Self { by, placed: Arc::default() }
    }

    /// The endpoint in each slot. `endpoints` are not empty, and sorted. All lists of endpoints of one value need the same weights.
    pub fn slots(&self, endpoints: &Arc<[SocketAddr]>, weights: &Weights) -> Arc<[SocketAddr]> {
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, slots)) = placed.iter().find(|(of, _)| of == endpoints) {
            return Arc::clone(slots);
        }
        let weighed: Vec<_> = endpoints.iter().map(|endpoint| (*endpoint, weights.of(endpoint))).collect();
        let slots: Arc<[SocketAddr]> = place(&weighed).into_iter().map(|index| endpoints[index as usize]).collect();
        placed.push((Arc::clone(endpoints), Arc::clone(&slots)));
        slots
    }
}

/// The number of slots for that many endpoints.
pub fn slots(endpoints: usize) -> u32 {
    if endpoints <= FEW { SLOTS } else { MORE_SLOTS }
}

/// The endpoint in each slot, as an index of `endpoints`, which are sorted and have weights of at least 1. If there are more endpoints
/// than slots, some have no slot.
pub fn place(endpoints: &[(SocketAddr, u32)]) -> Vec<u32> {
    let count = slots(endpoints.len());
    let sought = sought(endpoints);
    let quotas = quotas(&sought, count);
    let divided = (endpoints.len().saturating_sub(FEW) * DIVIDED) as u32;
    // The parts of an undivided slot have the same costs, so they mostly get the same endpoint.
    let key = |slot: u32| {
        let whole = slot / (count / SLOTS);
        if whole < divided { SLOTS + slot } else { whole }
    };
    let mut taken: Vec<BinaryHeap<Offer>> = vec![BinaryHeap::new(); endpoints.len()];
    let mut offers: Vec<VecDeque<Offer>> = vec![VecDeque::new(); count as usize];
    for mut slot in 0..count {
        // The endpoint that refused the slot last. All cheaper ones have refused it, too.
        let mut refused = None;
        loop {
            let offers = &mut offers[slot as usize];
            if offers.is_empty() {
                *offers = cheapest(&sought, key(slot), refused);
            }
            let Some((cost, index)) = offers.pop_front() else { break };
            let slots = &mut taken[index as usize];
            slots.push((cost, slot));
            if slots.len() <= quotas[index as usize] {
                break;
            }
            let Some((cost, other)) = slots.pop() else { break };
            (slot, refused) = (other, Some((cost, index)));
        }
    }
    let mut placed = vec![0; count as usize];
    for (index, slots) in (0..).zip(taken) {
        slots.into_iter().for_each(|(_, slot)| placed[slot as usize] = index);
    }
    placed
}

/// An endpoint that slots seek.
struct Sought {
    hash: u64,
    weight: u64,
}

fn sought(endpoints: &[(SocketAddr, u32)]) -> Vec<Sought> {
    let divisor = endpoints.iter().fold(0, |divisor, (_, weight)| gcd(divisor, (*weight).max(1).into()));
    let mut copy = 0;
    let sought = endpoints.iter().enumerate().map(|(index, (endpoint, weight))| {
        copy = if index > 0 && endpoints[index - 1].0.ip() == endpoint.ip() { copy + 1 } else { 0 };
        Sought { hash: hash(endpoint.ip(), copy), weight: u64::from((*weight).max(1)) / divisor }
    });
    sought.collect()
}

/// A cost, and the number of an endpoint or slot.
type Offer = (u64, u32);

/// The next offers of the endpoints for the slot with this key, the cheapest first. `after`: the last offer that was refused.
fn cheapest(sought: &[Sought], key: u32, after: Option<Offer>) -> VecDeque<Offer> {
    let mut cheapest = VecDeque::with_capacity(OFFERS + 1);
    for offer in sought.iter().map(|endpoint| endpoint.cost(key)).zip(0..) {
        let is_cheap = cheapest.len() < OFFERS || cheapest.back() > Some(&offer);
        if is_cheap && Some(offer) > after {
            cheapest.insert(cheapest.partition_point(|other| *other < offer), offer);
            cheapest.truncate(OFFERS);
        }
    }
    cheapest
}

/// The same in each version, because nodes may have different versions. The port does not count: a client then reaches the same pod
/// through all ports of a Service.
fn hash(address: IpAddr, copy: u64) -> u64 {
    let address = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let bits = address.to_bits();
    mixed(mixed(mixed(copy) ^ (bits >> 64) as u64) ^ bits as u64)
}

/// Each bit of the result depends on each bit of `number` (SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Sought {
    /// What it costs to have the endpoint in the slot with this key. The endpoint is the cheapest one of a slot with a probability that
    /// follows its weight: an exponential distribution, divided by the weight.
    fn cost(&self, key: u32) -> u64 {
        let cost = minus_log2(mixed(self.hash ^ u64::from(key).wrapping_mul(0xd6e8_feb8_6659_fd93)));
        // A division takes longer than the rest.
        if self.weight == 1 { cost } else { cost / self.weight }
    }
}

/// The negative binary logarithm of `number` / 2⁶⁴ in units of 2⁻⁵², linear between powers of two. In integers, because all nodes must get
/// the same result.
fn minus_log2(number: u64) -> u64 {
    let zeros = number.leading_zeros();
    let fraction = number.checked_shl(zeros + 1).unwrap_or_default() >> 12;
    ((u64::from(zeros) + 1) << 52) - fraction
}

/// How many slots each endpoint takes: in proportion to its weight, and at least one while there are slots.
fn quotas(sought: &[Sought], slots: u32) -> Vec<usize> {
    let sum: u64 = sought.iter().map(|endpoint| endpoint.weight).sum();
    let share = |endpoint: &Sought| u64::from(slots) * endpoint.weight;
    let mut quotas: Vec<usize> =
        sought.iter().map(|endpoint| usize::try_from(share(endpoint) / sum).unwrap_or_default().max(1)).collect();
    let mut order: Vec<usize> = (0..sought.len()).collect();
    order.sort_unstable_by_key(|index| (std::cmp::Reverse(share(&sought[*index]) % sum), sought[*index].hash));
    let total: usize = quotas.iter().sum();
    // Fewer slots remain than there are endpoints.
    order.iter().take((slots as usize).saturating_sub(total)).for_each(|index| quotas[*index] += 1);
    for _ in slots as usize..total {
        if let Some(most) = (0..quotas.len()).max_by_key(|index| (quotas[*index], sought[*index].hash)) {
            quotas[most] -= 1;
        }
    }
    quotas
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The slot of a connection from `client`, as the kernel's expression `jhash … mod SLOTS` computes it.
pub fn slot(by: HashBy, client: SocketAddr, slots: u32) -> u32 {
    let mut key = match client.ip() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    if by == HashBy::Connection {
        // A port fills a register of four bytes.
        key.extend(client.port().to_be_bytes());
        key.extend([0; 2]);
    }
    ((u64::from(jhash(&key, HashBy::SEED)) * u64::from(slots)) >> 32) as u32
}

/// The kernel's `jhash` (`include/linux/jhash.h`), after Bob Jenkins' lookup3.
fn jhash(key: &[u8], seed: u32) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(key.len() as u32).wrapping_add(seed);
    let [mut a, mut b, mut c] = [start; 3];
    let word = |bytes: &[u8], index: usize| {
        let byte = |offset: usize| u32::from(bytes.get(4 * index + offset).copied().unwrap_or_default());
        byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
    };
    let mut rest = key;
    loop {
        a = a.wrapping_add(word(rest, 0));
        b = b.wrapping_add(word(rest, 1));
        c = c.wrapping_add(word(rest, 2));
        if rest.len() <= 12 {
            break;
        }
        for (rotation, (x, y, z)) in [4, 6, 8, 16, 19, 4].into_iter().zip([0, 1, 2].into_iter().cycle().map(turned)) {
            let mut words = [a, b, c];
            words[x] = words[x].wrapping_sub(words[z]) ^ words[z].rotate_left(rotation);
            words[z] = words[z].wrapping_add(words[y]);
            [a, b, c] = words;
        }
        rest = &rest[12..];
    }
    if rest.is_empty() {
        return c;
    }
    for (rotation, (x, _, z)) in [14, 11, 25, 16, 4, 14, 24].into_iter().zip([2, 0, 1].into_iter().cycle().map(turned))
    {
        let mut words = [a, b, c];
        words[x] = (words[x] ^ words[z]).wrapping_sub(words[z].rotate_left(rotation));
        [a, b, c] = words;
    }
    c
}

/// The word that changes, the next one and the one before it, in a circle of three.
fn turned(word: usize) -> (usize, usize, usize) {
    (word, (word + 1) % 3, (word + 2) % 3)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn endpoints(hosts: impl IntoIterator<Item = u32>) -> Vec<(SocketAddr, u32)> {
        let endpoint = |host| (SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + host), 8080)), 1);
        hosts.into_iter().map(endpoint).collect()
    }

    /// The endpoint in each part of the hash values, whatever the number of slots.
    fn placed(endpoints: &[(SocketAddr, u32)]) -> Vec<SocketAddr> {
        let placed = place(endpoints);
        let parts = MORE_SLOTS as usize / placed.len();
        placed.iter().flat_map(|index| std::iter::repeat_n(endpoints[*index as usize].0, parts)).collect()
    }

    fn moved(before: &[SocketAddr], after: &[SocketAddr]) -> f64 {
        before.iter().zip(after).filter(|(before, after)| before != after).count() as f64 / before.len() as f64
    }

    /// How far more than its share the removal of an endpoint moves.
    fn excess(endpoints: &[(SocketAddr, u32)], gone: usize) -> f64 {
        let mut fewer = endpoints.to_vec();
        let (removed, _) = fewer.remove(gone);
        let before = placed(endpoints);
        let share = before.iter().filter(|endpoint| **endpoint == removed).count() as f64 / before.len() as f64;
        moved(&before, &placed(&fewer)) - share
    }

    /// Also when the number of slots changes.
    #[test]
    fn a_removed_or_added_endpoint_moves_its_share_and_at_most_five_percent() {
        // The more endpoints, the longer it takes, so of many, few are removed.
        for count in (2..=60_u32).chain((61..=200).step_by(13)).chain([176, 177]) {
            let all = endpoints((0..count).map(|host| host * 7919));
            for gone in (0..count as usize).step_by(if count <= 48 { 1 + count as usize / 3 } else { 101 }) {
                let excess = excess(&all, gone);
                assert!(excess <= 0.05, "{gone} of {count}: {excess}");
            }
        }
    }

    #[test]
    fn shares_are_even_and_the_order_of_ports_does_not_matter() {
        for count in [1, 2, 3, 7, 48, 49, 80, 112, 200] {
            let all = endpoints(0..count);
            let placed = placed(&all);
            for (endpoint, _) in &all {
                let share = placed.iter().filter(|of| *of == endpoint).count() as f64 * f64::from(count);
                assert!((share / f64::from(MORE_SLOTS) - 1.0).abs() <= 0.05, "{endpoint} of {count}: {share}");
            }
        }
        let ports =
            |port| endpoints(0..5).into_iter().map(move |(at, weight)| (SocketAddr::new(at.ip(), port), weight));
        assert_eq!(place(&ports(80).collect::<Vec<_>>()), place(&ports(443).collect::<Vec<_>>()));
    }

    #[test]
    fn more_endpoints_than_slots_are_placed() {
        let all = endpoints(0..MORE_SLOTS + 8);
        let mut placed = place(&all);
        placed.sort_unstable();
        placed.dedup();
        assert_eq!(placed.len(), MORE_SLOTS as usize);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn shares_follow_weights_and_a_removal_moves_little(
            weights in prop::collection::vec(prop_oneof![1..4_u32, 1..=100_u32], 2..24),
            seed in any::<u16>(),
        ) {
            let mut all = endpoints((0..).map(|host| host * 31 + u32::from(seed)).take(weights.len()));
            all.iter_mut().zip(&weights).for_each(|(endpoint, weight)| endpoint.1 = *weight);
            let placed = place(&all);
            let sum = f64::from(weights.iter().sum::<u32>());
            for (index, weight) in (0..).zip(&weights) {
                let share = placed.iter().filter(|of| **of == index).count() as f64 / placed.len() as f64;
                let wanted = f64::from(*weight) / sum;
                prop_assert!(share > 0.0 && (share - wanted).abs() <= 0.005, "{share} {wanted}");
            }
            for gone in 0..all.len().min(4) {
                let excess = excess(&all, gone);
                prop_assert!(excess <= 0.05, "{excess}");
            }
        }
    }
}
