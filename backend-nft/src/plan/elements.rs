//! A VIP as elements of the sets and maps.

use std::net::IpAddr;

use localnet_linux::nft::{Element, ElementKey, Tuple, Verdict};
use localnet_proto::Verdict as WhenEmpty;

use super::{
    ChainNames,
    service::{Exposure, Hairpin, Vip, VipKey},
    sets::{Pool, SetId},
    slots,
};

/// Says every element of a VIP.
pub fn of_vip(key: &VipKey, vip: &Vip, names: &ChainNames, mut emit: impl FnMut(SetId, Element)) {
    let comment = || vip.comment.clone();
    let tuple = tuple(key);
    let member = || Element::new(tuple.clone()).comment(comment());

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

    // Seen by packets that were not translated only, so it does no harm where one of the two pools serves.
    let local_is_empty = vip.exposure == Exposure::ExternalLocal && vip.local_endpoints.is_empty();
    if vip.endpoints.is_empty() || local_is_empty {
        let verdict = match vip.when_empty {
            WhenEmpty::Reject => Verdict::Goto(names.reject().clone()),
            WhenEmpty::Drop => Verdict::Drop,
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
    if endpoints.is_empty() {
        return;
    }
    let chain = names.chain(pool, slots(endpoints.len())).clone();
    let verdict = match pool {
        Pool::Cluster => Verdict::Goto(chain),
        // Back to `external-local`, which ends there: a miss must not go on to the endpoints of the cluster.
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

/// Which chains that pick are in use, seen from an element of a VIP.
pub fn pools_of(vip: &Vip) -> impl Iterator<Item = (Pool, u32)> {
    let local = (Pool::Local, &vip.local_endpoints);
    [(Pool::Cluster, &vip.endpoints), local]
        .into_iter()
        .filter(|(_, endpoints)| !endpoints.is_empty())
        .map(|(pool, endpoints)| (pool, slots(endpoints.len())))
}
