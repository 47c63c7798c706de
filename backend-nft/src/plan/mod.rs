//! Plans the desired state of the kernel from a snapshot. Pure: no I/O, no clock, no environment, no logging.
//!
//! ```text
//!  client::vips::Facts ──► chains     the chains and their rules; none of them depends on a Service
//!  client::vips::Vip ────► elements   the elements of a VIP in each set and map
//! ```
//!
//! | object | what |
//! |---|---|
//! | [`sets`] | the sets and maps; a constant number |
//! | [`chains`] | the chains; a constant number, one `lb-N` for each size N in use, and at most eight for hashing |
//! | [`affinity`], [`stable_slots`] | what session affinity adds to both, while a Service has it |

pub mod affinity;
pub mod chains;
pub mod elements;
pub mod names;
pub mod probe;
pub mod sets;
pub mod stable_slots;

use std::collections::BTreeMap;

use localnet_client::vips::hashing;
use localnet_linux::nft::{Name, Table, Verdict};
use localnet_proto::{Family, HashBy};
use sets::Sets as _;

/// The name of both tables.
pub const TABLE: &str = "localnet";

/// The table of a family.
pub fn table(family: Family) -> Table {
    sets::SetId::table(family)
}

/// The table that processes a family's packets while the family's own table is replaced.
pub fn substitute(family: Family) -> Table {
    Table::new(family, SUBSTITUTE)
}

/// The name of both substitute tables.
pub const SUBSTITUTE: &str = "localnet-substitute";

pub use localnet_linux::nft::spread::{Choice, EXACT_SLOTS, slots};

/// The names of the chains that elements lead to. The names are created once, because many elements share them.
#[derive(Clone, Debug)]
pub struct ChainNames {
    cluster: Vec<Name>,
    local: Vec<Name>,
    /// The chains that choose by hashing.
    hashing: BTreeMap<(sets::Pool, Choice), Name>,
    /// The chain that rejects packets.
    pub reject: Name,
    /// The chain that drops traffic from outside if no endpoint is local.
    pub unserved_local: Name,
    /// The verdict that drops packets to a VIP without endpoints.
    pub drop: Verdict,
}

impl Default for ChainNames {
    fn default() -> Self {
        let sizes = || (1..=EXACT_SLOTS).chain((5..32).map(|power| 1 << power));
        let random = |pool| sizes().map(|slots| Choice { by: None, slots }.chain(prefix(pool))).collect();
        let hashing = |pool| {
            let choices = HashBy::ALL.into_iter().flat_map(|by| HASH_SLOTS.map(|slots| Choice { by: Some(by), slots }));
            choices.map(move |choice| ((pool, choice), choice.chain(prefix(pool))))
        };
        Self {
            cluster: random(sets::Pool::Cluster),
            local: random(sets::Pool::Local),
            hashing: hashing(sets::Pool::Cluster).chain(hashing(sets::Pool::Local)).collect(),
            reject: names::REJECT_PORT.into(),
            unserved_local: names::UNSERVED_LOCAL.into(),
            drop: Verdict::Drop,
        }
    }
}

/// The numbers of slots for hashing.
const HASH_SLOTS: [u32; 2] = [hashing::SLOTS, hashing::MORE_SLOTS];

fn prefix(pool: sets::Pool) -> &'static str {
    match pool {
        sets::Pool::Cluster => "lb",
        sets::Pool::Local => "lb-local",
    }
}

impl ChainNames {
    /// The names in a table that counts refused packets.
    pub fn counting() -> Self {
        Self { drop: Verdict::Goto(names::DROP_PORT.into()), ..Self::default() }
    }

    /// The chain that picks a slot.
    pub fn chain(&self, pool: sets::Pool, choice: Choice) -> Name {
        let Choice { by, slots } = choice;
        if by.is_some() {
            return self.hashing.get(&(pool, choice)).cloned().unwrap_or_else(|| choice.chain(prefix(pool)));
        }
        let index = if slots <= EXACT_SLOTS { slots.saturating_sub(1) } else { EXACT_SLOTS - 5 + slots.ilog2() };
        match pool {
            sets::Pool::Cluster => self.cluster[index as usize].clone(),
            sets::Pool::Local => self.local[index as usize].clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_its_chain() {
        let names = ChainNames::default();
        for endpoints in (1..100).chain([65_536, usize::MAX]) {
            let choice = Choice::random(endpoints);
            assert_eq!(*names.chain(sets::Pool::Cluster, choice), format!("lb-{}", choice.slots));
            assert_eq!(*names.chain(sets::Pool::Local, choice), format!("lb-local-{}", choice.slots));
        }
    }
}
