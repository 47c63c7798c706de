//! Plans a VIP as elements of the sets and maps.

use localnet_client::vips::{Exposure, Vip, VipKey};
use localnet_linux::nft::{Element, Tuple, Verdict};
use localnet_linux_backend::elements;
pub use localnet_linux_backend::elements::{choice, of_address, of_hairpin, read_endpoint, tuple};
use localnet_proto::Verdict as WhenEmpty;

use super::{
    ChainNames, Choice, affinity,
    sets::{Pool, SetId},
    stable_slots::Slots,
};

/// Emits every element of a VIP. If the VIP has affinity, `slots` has the slots of its endpoints.
pub fn of_vip(key: &VipKey, vip: &Vip, slots: &Slots, names: &ChainNames, mut emit: impl FnMut(SetId, Element)) {
    let comment = || vip.comment.clone();
    let tuple = tuple(key);
    let member = || Element::new(tuple.clone()).comment(comment());

    if vip.affinity.is_some() {
        affinity::of_vip(&tuple, vip, slots, &mut emit);
    }
    pool(&tuple, vip, Pool::Cluster, &mut emit);
    match vip.exposure {
        Exposure::Internal => {}
        Exposure::External if vip.endpoints.is_empty() => {}
        Exposure::External => emit(SetId::External, member()),
        Exposure::ExternalLocal => {
            pool(&tuple, vip, Pool::Local, &mut emit);
            if !vip.endpoints.is_empty() || !vip.local_endpoints.is_empty() {
                emit(SetId::ExternalLocal, member());
            }
        }
    }

    // Only packets that were not translated are looked up in this map. The element is therefore harmless if one of the
    // two pools has endpoints. `unserved-local` handles packets whose translation leaves the destination unchanged.
    let local_is_empty = vip.exposure == Exposure::ExternalLocal && vip.local_endpoints.is_empty();
    if vip.endpoints.is_empty() || local_is_empty {
        let verdict = match vip.when_empty {
            WhenEmpty::Reject => Verdict::Goto(names.reject.clone()),
            WhenEmpty::Drop if vip.endpoints.is_empty() => names.drop.clone(),
            WhenEmpty::Drop => Verdict::Goto(names.unserved_local.clone()),
        };
        emit(SetId::NoEndpoints, Element::verdict(tuple.clone(), verdict).comment(comment()));
    }

    if let Some(sources) = &vip.sources {
        emit(SetId::Firewalled, member());
        elements::of_sources(&tuple, sources).for_each(|element| emit(SetId::AllowedSources, element));
    }
}

/// The element that leads from the number of a choice to the chain that makes it.
pub fn of_size(pool: Pool, choice: Choice, names: &ChainNames) -> Element {
    let chain = names.chain(pool, choice);
    let verdict = match pool {
        Pool::Cluster => Verdict::Goto(chain),
        // A packet without a match returns to `external-local`, which accepts it untranslated, so that it does not
        // reach the endpoints of the whole cluster.
        Pool::Local => Verdict::Jump(chain),
    };
    Element::verdict(Tuple::new().priority(choice.number()), verdict)
}

fn pool(tuple: &Tuple, vip: &Vip, pool: Pool, emit: &mut impl FnMut(SetId, Element)) {
    let endpoints = match pool {
        Pool::Cluster => &vip.endpoints,
        Pool::Local => &vip.local_endpoints,
    };
    if endpoints.is_empty() || vip.affinity.is_some() {
        return;
    }
    let number = Tuple::new().priority(choice(vip, endpoints).number());
    emit(pool.services(), Element::value(tuple.clone(), number).comment(vip.comment.clone()));
    elements::of_slots(tuple, vip, endpoints, |element| emit(pool.endpoints(), element));
}

/// The chains that a VIP uses to pick endpoints, by pool and choice.
pub fn pools_of(vip: &Vip) -> impl Iterator<Item = (Pool, Choice)> {
    let local = (Pool::Local, &vip.local_endpoints);
    [(Pool::Cluster, &vip.endpoints), local]
        .into_iter()
        .filter(|(_, endpoints)| !endpoints.is_empty() && vip.affinity.is_none())
        .map(|(pool, endpoints)| (pool, choice(vip, endpoints)))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        net::{IpAddr, SocketAddr},
        sync::Arc,
    };

    use localnet_linux::nft::ElementData;
    use localnet_proto::{Protocol, ServiceKey};

    use super::*;
    use crate::plan::sets::Sets as _;

    fn endpoints(count: u8) -> Arc<[SocketAddr]> {
        (0..count).map(|host| SocketAddr::from(([10, 0, 0, host], 8080))).collect()
    }

    /// The number of elements in each set, and the chains that verdicts lead to or the numbers of slots, as text.
    fn listed(exposure: Exposure, cluster: u8, local: u8, when_empty: WhenEmpty) -> String {
        let key = VipKey { address: IpAddr::from([172, 30, 0, 1]), protocol: Protocol::Tcp, port: 80 };
        let vip = Vip {
            service: ServiceKey::new("default", "web"),
            port_name: "http".into(),
            comment: "default/web:http".into(),
            exposure,
            endpoints: endpoints(cluster),
            local_endpoints: endpoints(local),
            when_empty,
            ..Vip::default()
        };
        let mut listed: BTreeMap<SetId, (usize, String)> = BTreeMap::new();
        of_vip(&key, &vip, &Slots::default(), &ChainNames::default(), |set, element| {
            let (count, target) = listed.entry(set).or_default();
            *count += 1;
            match element.data {
                ElementData::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => *target = format!(" {chain}"),
                ElementData::Verdict(other) => *target = format!(" {other:?}").to_lowercase(),
                ElementData::Value(slots) if [SetId::Services, SetId::LocalServices].contains(&set) => {
                    *target = format!(" {}", u32::from_ne_bytes(slots.as_bytes().try_into().unwrap()));
                }
                ElementData::Value(_) | ElementData::None | ElementData::Expires(_) => {}
            }
        });
        let listed = listed.into_iter().map(|(set, (count, target))| match count {
            1 => format!("{}{target}", set.name()),
            _ => format!("{} ×{count}", set.name()),
        });
        listed.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn each_kind_of_vip_has_its_elements() {
        use Exposure::{External, ExternalLocal, Internal};
        use WhenEmpty::{Drop, Reject};
        for (exposure, cluster, local, when_empty, expected) in [
            (Internal, 2, 0, Reject, "services 2, endpoints ×2"),
            (Internal, 17, 0, Reject, "services 32, endpoints ×17"),
            (Internal, 0, 0, Reject, "no-endpoints reject-port"),
            (Internal, 0, 0, Drop, "no-endpoints drop"),
            (External, 1, 0, Drop, "external, services 1, endpoints"),
            (External, 0, 0, Drop, "no-endpoints drop"),
            (
                ExternalLocal,
                3,
                2,
                Drop,
                "external-local-vips, services 3, endpoints ×3, local-services 2, local-endpoints ×2",
            ),
            (ExternalLocal, 0, 0, Drop, "no-endpoints drop"),
            (ExternalLocal, 3, 0, Drop, "external-local-vips, services 3, endpoints ×3, no-endpoints unserved-local"),
            (
                ExternalLocal,
                0,
                1,
                Reject,
                "external-local-vips, local-services 1, local-endpoints, no-endpoints reject-port",
            ),
            (ExternalLocal, 0, 0, Reject, "no-endpoints reject-port"),
        ] {
            assert_eq!(listed(exposure, cluster, local, when_empty), expected, "{exposure:?} {cluster} {local}");
        }
    }
}
