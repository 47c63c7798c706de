//! [`Listings`]: the plan of a backend other than nft, and what the kernel holds of it, also in a sysdump. Pure.

use std::collections::{BTreeMap, BTreeSet};

use localnet_client::inspect::{Listing, Place};
use localnet_proto::sysdump::{self, Sysdump};

/// What the kernel should hold, and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listings {
    /// The plan for the state.
    pub planned: Listing,
    /// The live state.
    pub live: Listing,
}

/// The lists in a sysdump, by the name of the backend.
pub fn recorded(sysdump: &Sysdump) -> BTreeMap<String, Listings> {
    sysdump.listings.iter().map(|of| (of.backend.clone(), Listings::from_wire(of))).collect()
}

impl Listings {
    /// The lists of a backend, for a sysdump.
    pub fn to_wire(&self, backend: &str) -> sysdump::Listing {
        let lines = |lines: &Vec<String>| sysdump::Lines { lines: lines.clone() };
        let places: BTreeSet<&Place> = self.planned.keys().chain(self.live.keys()).collect();
        let place = |place: &Place| {
            let (live, planned) = (self.live.get(place), self.planned.get(place));
            sysdump::Place {
                table: place.table.clone(),
                name: place.name.clone(),
                live: live.map(lines),
                planned: planned.filter(|_| planned != live).map(lines),
                is_planned: planned.is_some(),
            }
        };
        sysdump::Listing { backend: backend.to_owned(), places: places.into_iter().map(place).collect() }
    }

    fn from_wire(of: &sysdump::Listing) -> Self {
        let (mut planned, mut live) = (Listing::new(), Listing::new());
        for of in &of.places {
            let place = Place { table: of.table.clone(), name: of.name.clone() };
            let lines = of.planned.as_ref().or(of.live.as_ref()).filter(|_| of.is_planned);
            planned.extend(lines.map(|lines| (place.clone(), lines.lines.clone())));
            live.extend(of.live.as_ref().map(|lines| (place, lines.lines.clone())));
        }
        Self { planned, live }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_survive_a_sysdump() {
        let of = |places: &[(&str, &[&str])]| -> Listing {
            let place = |name: &str| Place { table: "ip nat".to_owned(), name: name.to_owned() };
            let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
            places.iter().map(|(name, of)| (place(name), lines(of))).collect()
        };
        let listings = Listings {
            planned: of(&[("equal", &["a", "b"]), ("different", &["a"]), ("empty", &[]), ("missing", &["a"])]),
            live: of(&[("equal", &["a", "b"]), ("different", &[]), ("empty", &[]), ("unplanned", &["c"])]),
        };
        let content = Sysdump { listings: vec![listings.to_wire("ipvs")], ..Sysdump::default() };
        assert_eq!(recorded(&content), BTreeMap::from([("ipvs".to_owned(), listings)]));
    }
}
