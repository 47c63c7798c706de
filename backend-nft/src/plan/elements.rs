//! Plans a VIP as elements of the sets and maps.

use std::net::IpAddr;

use localnet_client::vips::{Exposure, Hairpin, Vip, VipKey};
use localnet_linux::nft::{Element, ElementKey, Tuple, Verdict};
use localnet_proto::{Protocol, Verdict as WhenEmpty};

use super::{
    ChainNames, affinity,
    sets::{Pool, SetId},
    slots,
    stable_slots::Slots,
};

/// Emits every element of a VIP. `slots` has the slots of its endpoints if it has affinity.
pub fn of_vip(key: &VipKey, vip: &Vip, slots: &Slots, names: &ChainNames, mut emit: impl FnMut(SetId, Element)) {
    let comment = || vip.comment.clone();
    let tuple = tuple(key);
    let member = || Element::new(tuple.clone()).comment(comment());

    if vip.affinity.is_some() {
        affinity::of_vip(&tuple, vip, slots, &mut emit);
    }
    pool(&tuple, vip, Pool::Cluster, names, &mut emit);
    match vip.exposure {
        Exposure::Internal => {}
        Exposure::External if vip.endpoints.is_empty() => {}
        Exposure::External => emit(SetId::External, member()),
        Exposure::ExternalLocal => {
            pool(&tuple, vip, Pool::Local, names, &mut emit);
            if !vip.endpoints.is_empty() || !vip.local_endpoints.is_empty() {
                emit(SetId::ExternalLocal, member());
            }
        }
    }

    // Only packets that were not translated are looked up here, so the element is harmless if one of the two pools has
    // endpoints. `unserved-local` takes care of packets that keep their destination in translation.
    let local_is_empty = vip.exposure == Exposure::ExternalLocal && vip.local_endpoints.is_empty();
    if vip.endpoints.is_empty() || local_is_empty {
        let verdict = match vip.when_empty {
            WhenEmpty::Reject => Verdict::Goto(names.reject().clone()),
            WhenEmpty::Drop if vip.endpoints.is_empty() => Verdict::Drop,
            WhenEmpty::Drop => Verdict::Goto(names.unserved_local().clone()),
        };
        emit(SetId::NoEndpoints, Element::verdict(tuple.clone(), verdict).comment(comment()));
    }

    if let Some(sources) = &vip.sources {
        emit(SetId::Firewalled, member());
        for range in sources.iter() {
            let bound = |address: IpAddr| tuple.clone().address(address);
            let key = ElementKey::range(bound(range.network()), bound(range.broadcast()));
            emit(SetId::AllowedSources, Element::new(key));
        }
    }
}

fn pool(tuple: &Tuple, vip: &Vip, pool: Pool, names: &ChainNames, emit: &mut impl FnMut(SetId, Element)) {
    let endpoints = match pool {
        Pool::Cluster => &vip.endpoints,
        Pool::Local => &vip.local_endpoints,
    };
    if endpoints.is_empty() || vip.affinity.is_some() {
        return;
    }
    let chain = names.chain(pool, slots(endpoints.len())).clone();
    let verdict = match pool {
        Pool::Cluster => Verdict::Goto(chain),
        // Returns to `external-local`, which ends there: a packet without a match must not reach the
        // endpoints of the whole cluster.
        Pool::Local => Verdict::Jump(chain),
    };
    emit(pool.services(), Element::verdict(tuple.clone(), verdict).comment(vip.comment.clone()));
    for (slot, endpoint) in (0..).zip(endpoints.iter()) {
        let value = Tuple::new().address(endpoint.ip()).port(endpoint.port());
        emit(pool.endpoints(), Element::value(tuple.clone().index(slot), value));
    }
}

/// The key of a VIP.
pub fn tuple(key: &VipKey) -> Tuple {
    Tuple::new().address(key.address).protocol(key.protocol).port(key.port)
}

/// The VIP in the key of an element; `None` if the key is too short or has another protocol.
pub fn read_vip(key: &Tuple) -> Option<VipKey> {
    // Each field is padded to a multiple of four bytes.
    let (address, rest) = match key.as_bytes() {
        v4 if v4.len() == 12 => {
            let (address, rest) = v4.split_first_chunk::<4>()?;
            (IpAddr::from(*address), rest)
        }
        v6 => {
            let (address, rest) = v6.split_first_chunk::<16>()?;
            (IpAddr::from(*address), rest)
        }
    };
    let [number, _, _, _, high, low, _, _] = *rest else { return None };
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.number() == number)?;
    Some(VipKey { address, protocol, port: u16::from_be_bytes([high, low]) })
}

/// The element of a ClusterIP.
pub fn of_cluster_ip(address: IpAddr) -> Element {
    Element::new(Tuple::new().address(address))
}

/// The element of an endpoint that may reach itself.
pub fn of_hairpin(hairpin: &Hairpin) -> Element {
    let address = hairpin.endpoint.ip();
    let key = Tuple::new().address(address).address(address).protocol(hairpin.protocol).port(hairpin.endpoint.port());
    Element::new(key)
}

/// The chains that a VIP uses to pick endpoints, by pool and size.
pub fn pools_of(vip: &Vip) -> impl Iterator<Item = (Pool, u32)> {
    let local = (Pool::Local, &vip.local_endpoints);
    [(Pool::Cluster, &vip.endpoints), local]
        .into_iter()
        .filter(|(_, endpoints)| !endpoints.is_empty() && vip.affinity.is_none())
        .map(|(pool, endpoints)| (pool, slots(endpoints.len())))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

    use localnet_linux::nft::ElementData;
    use localnet_proto::ServiceKey;

    use super::*;

    fn endpoints(count: u8) -> Arc<[SocketAddr]> {
        (0..count).map(|host| SocketAddr::from(([10, 0, 0, host], 8080))).collect()
    }

    /// The number of elements in each set, and the chains that verdicts lead to, as text.
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
            if let ElementData::Verdict(verdict) = element.data {
                *target = match verdict {
                    Verdict::Goto(chain) | Verdict::Jump(chain) => format!(" {chain}"),
                    other => format!(" {other:?}").to_lowercase(),
                };
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
            (Internal, 2, 0, Reject, "services lb-2, endpoints ×2"),
            (Internal, 17, 0, Reject, "services lb-32, endpoints ×17"),
            (Internal, 0, 0, Reject, "no-endpoints reject-port"),
            (Internal, 0, 0, Drop, "no-endpoints drop"),
            (External, 1, 0, Drop, "external, services lb-1, endpoints"),
            (External, 0, 0, Drop, "no-endpoints drop"),
            (
                ExternalLocal,
                3,
                2,
                Drop,
                "external-local-vips, services lb-3, endpoints ×3, local-services lb-local-2, local-endpoints ×2",
            ),
            (ExternalLocal, 0, 0, Drop, "no-endpoints drop"),
            (
                ExternalLocal,
                3,
                0,
                Drop,
                "external-local-vips, services lb-3, endpoints ×3, no-endpoints unserved-local",
            ),
            (
                ExternalLocal,
                0,
                1,
                Reject,
                "external-local-vips, local-services lb-local-1, local-endpoints, no-endpoints reject-port",
            ),
            (ExternalLocal, 0, 0, Reject, "no-endpoints reject-port"),
        ] {
            assert_eq!(listed(exposure, cluster, local, when_empty), expected, "{exposure:?} {cluster} {local}");
        }
    }

    #[test]
    fn vips_are_read_back_from_their_elements() {
        let key = |address: &str, protocol, port| VipKey { address: address.parse().unwrap(), protocol, port };
        for vip in [
            key("172.30.0.1", Protocol::Tcp, 80),
            key("0.0.0.0", Protocol::Sctp, 65_535),
            key("fd00::1", Protocol::Udp, 53),
        ] {
            assert_eq!(read_vip(&super::tuple(&vip)), Some(vip));
        }
        let address: IpAddr = "172.30.0.1".parse().unwrap();
        for odd in [Tuple::new(), Tuple::new().address(address), Tuple::new().address(address).port(1).port(2).port(3)]
        {
            assert_eq!(read_vip(&odd), None);
        }
    }
}
