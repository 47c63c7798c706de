//! The size of a loss: how many Services or endpoints a list suddenly lacks (docs/decisions/0021-shrink-guard.md).

use std::collections::{BTreeSet, HashMap};

use localnet_proto::ServiceKey;

use crate::{
    Cluster, name_of,
    objects::{Kind, Object, SliceObject},
    sources, unnamespaced,
};

/// A loss of fewer Services or endpoints than this is never suspicious.
const MIN_LOSS: usize = 20;

/// The size of a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lack {
    /// How many Services or endpoints are missing.
    pub lost: usize,
    /// How many Services or endpoints existed before.
    pub of: usize,
}

impl Lack {
    /// Whether the loss is probably a mistake: at least `MIN_LOSS` are missing, and more than half of what existed
    /// before.
    pub fn is_suspicious(self) -> bool {
        self.lost >= MIN_LOSS && self.lost > self.of / 2
    }
}

impl Cluster {
    /// The objects of a source and a kind that are not in `objects`.
    pub fn missing(&self, source: usize, kind: Kind, objects: &[Object]) -> Vec<ServiceKey> {
        if !self.sources.is_single() {
            return self.sources.missing(source, kind, objects);
        }
        let gone = sources::not_in(objects);
        match kind {
            Kind::Service => self.services.keys().filter(|key| gone(key)).cloned().collect(),
            Kind::Slice => self.owners.keys().filter(|key| gone(key)).cloned().collect(),
            Kind::Node => self.node.iter().map(|node| unnamespaced(&node.name)).filter(gone).collect(),
            Kind::ServiceCidr => self.service_cidrs.keys().map(unnamespaced).filter(gone).collect(),
        }
    }

    /// The size of the loss, in Services or endpoints of a source, if `missing` were removed. `others` are the other objects of
    /// the same list.
    ///
    /// The loss of a Service is the number of its missing endpoints minus the number in its other slices, because endpoints
    /// may have moved to slices with new names. Endpoints of a deleted Service do not count. The total is 0 if only one
    /// Service loses endpoints.
    pub fn lack<'a>(
        &self,
        source: usize,
        kind: Kind,
        missing: &BTreeSet<ServiceKey>,
        others: impl Iterator<Item = &'a Object>,
    ) -> Lack {
        if kind == Kind::Service {
            return match self.sources.count(source, kind) {
                Some(of) => Lack { lost: missing.iter().filter(|key| self.sources.has(source, kind, key)).count(), of },
                None => {
                    let lost = missing.iter().filter(|key| self.services.contains_key(*key)).count();
                    Lack { lost, of: self.services.len() }
                }
            };
        }
        // The removal of a shadowed slice takes no effect.
        let is_own =
            |slice: &SliceObject| self.sources.is_single() || self.sources.is_effective(source, kind, &name_of(slice));
        let mut of_owners: HashMap<ServiceKey, (usize, usize)> = HashMap::new();
        for owner in missing.iter().filter_map(|name| self.owners.get(name)) {
            // The endpoints of a deleted Service are removed in any case.
            if !self.services.contains_key(owner) {
                continue;
            }
            of_owners.entry(owner.clone()).or_default();
        }
        for (owner, (lost, kept)) in &mut of_owners {
            let pushed = self.services.get(owner).is_some_and(|service| service.pushed);
            for slice in self.slices_of(owner, pushed).filter(|slice| is_own(slice)) {
                *if missing.contains(&name_of(slice)) { &mut *lost } else { &mut *kept } += slice.endpoints.len();
            }
        }
        for object in others {
            if let Object::Slice(slice) = object
                && !self.owners.contains_key(&name_of(slice))
                && let Some((_, kept)) = slice.owner().and_then(|owner| of_owners.get_mut(&owner))
            {
                *kept += slice.endpoints.len();
            }
        }
        // A loss in only one Service is most likely intended.
        let losses = of_owners.values().map(|(lost, kept)| lost.saturating_sub(*kept)).filter(|lost| *lost > 0);
        let lost = if losses.clone().count() > 1 { losses.sum() } else { 0 };
        // The total is needed only if something is lost, which is rare.
        let all = self.slices.values().flatten().filter(|slice| is_own(slice));
        let of = if lost == 0 { 0 } else { all.map(|slice| slice.endpoints.len()).sum() };
        Lack { lost, of }
    }
}
