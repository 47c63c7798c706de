//! The slices that kube-proxy still uses after they moved to another Service. Pure.
//!
//! kube-proxy stores a slice under the Service that its label names. When the label changes, it only updates the new Service, so
//! the former owner keeps the old slice. This is entry 14 of `docs/differences.md`.

use std::collections::BTreeMap;

use localnet_client::Snapshot;

use super::{
    alone::alone,
    cluster::{Cluster, Slice},
    scene::Scene,
};

/// Slices that have left their Service, by the names of the Service and of the slice.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Former(BTreeMap<String, BTreeMap<String, Slice>>);

impl Former {
    /// Clears the slices. When kube-proxy starts, it has exactly the slices of the API server.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Applies a change of the cluster.
    pub(crate) fn follow(&mut self, old: &Cluster, new: &Cluster) {
        let (old, new) = (owners(old), owners(new));
        for (name, (owner, slice)) in &old {
            match new.get(name) {
                Some((other, _)) if other == owner => {}
                Some(_) => {
                    _ = self.0.entry((*owner).to_owned()).or_default().insert((*name).to_owned(), (*slice).clone());
                }
                None => self.forget(owner, name),
            }
        }
        new.iter().for_each(|(name, (owner, _))| self.forget(owner, name));
    }

    fn forget(&mut self, owner: &str, slice: &str) {
        if let Some(slices) = self.0.get_mut(owner) {
            slices.remove(slice);
        }
    }

    /// The cluster with these slices, if there are any, and the state that would result. Endpoints and verdicts are as if no
    /// slice had moved.
    pub(crate) fn held(&self, scene: &Scene<'_>) -> Option<(Cluster, Snapshot)> {
        let (mut cluster, mut state) = (scene.cluster.clone(), scene.state.clone());
        let mut differs = false;
        for service in cluster.services.values_mut() {
            let Some(slices) = self.0.get(&service.name).filter(|slices| !slices.is_empty()) else { continue };
            service.slices.extend(slices.values().cloned());
            differs = true;
            let Ok(before) = alone(service, &cluster.node, &state.node) else { continue };
            for (key, before) in before.services {
                if let Some(now) = state.services.get_mut(&key) {
                    let now = std::sync::Arc::make_mut(now);
                    now.endpoints.clone_from(&before.endpoints);
                    now.ports.clone_from(&before.ports);
                }
            }
        }
        differs.then_some((cluster, state))
    }
}

/// The slices of a cluster by name, each with the name of its Service.
pub(crate) fn owners(cluster: &Cluster) -> BTreeMap<&str, (&str, &Slice)> {
    let mut owners = BTreeMap::new();
    for service in cluster.services.values() {
        owners.extend(service.slices.iter().map(|slice| (&*slice.name, (&*service.name, slice))));
    }
    owners
}

#[test]
fn a_slice_stays_with_its_former_owner_until_it_comes_back_or_goes_from_there() {
    let slice = |name: &str| Slice { name: name.to_owned(), v4: true, ports: vec![], endpoints: vec![] };
    let cluster = |of_one: &[&str], of_two: &[&str]| {
        let mut random = super::random::Random::new(1);
        let mut cluster = Cluster::random(&mut random);
        let mut services = std::mem::take(&mut cluster.services).into_values();
        for (slot, slices) in [of_one, of_two].into_iter().enumerate() {
            let slices = slices.iter().map(|name| slice(name)).collect();
            let name = format!("svc-{slot}");
            let service = super::cluster::Service { name, slices, ..services.next().unwrap() };
            cluster.services.insert(u8::try_from(slot).unwrap(), service);
        }
        cluster
    };
    let mut former = Former::default();
    let mut held = |old: &Cluster, new: &Cluster| {
        former.follow(old, new);
        former.0.get("svc-0").map_or(0, BTreeMap::len)
    };
    let (at_first, given, gone) = (cluster(&["a"], &[]), cluster(&[], &["a"]), cluster(&[], &[]));
    assert_eq!(held(&at_first, &given), 1);
    assert_eq!(held(&given, &gone), 1);
    assert_eq!(held(&gone, &at_first), 0);
    assert_eq!(held(&at_first, &given), 1);
    assert_eq!(held(&given, &at_first), 0);
    assert_eq!(held(&at_first, &gone), 0);
}
