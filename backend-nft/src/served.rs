//! The command `dump`: reads back what the tables serve. Pure, except for [`read`].
//!
//! It reads elements only, not rules. The rules are the same for all services, and tests with packets verify them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::Context as _;
use localnet_client::{
    served::{Entry, Served, To},
    vips::VipKey,
};
use localnet_linux::nft::{Element, ElementData, Socket, Table, TableDump, Tuple, Verdict};
use localnet_proto::Family;
use localnet_proto::Verdict as WhenEmpty;

use crate::plan::{
    TABLE,
    elements::read_vip,
    names,
    sets::SetId::{
        self, AffinityEndpoints, AffinityLocalSlots, AffinitySlots, AffinityTimeouts, Endpoints, ExternalLocal,
        LocalEndpoints, LocalServices, NoEndpoints, Services,
    },
};

/// The number of bytes of an index.
const INDEX: usize = 4;

/// Reads both tables of this network namespace. A table that does not exist serves nothing.
///
/// # Errors
/// Returns an error if nf_tables cannot be read.
pub fn read() -> anyhow::Result<Served> {
    let mut socket = Socket::open().context("open nf_tables")?;
    let mut served = Served::default();
    for family in Family::BOTH {
        if let Some(table) = socket.table(&Table::new(family, TABLE)).context("read the table")? {
            served.0.append(&mut of(&table).0);
        }
    }
    Ok(served)
}

/// What a table serves.
pub fn of(table: &TableDump) -> Served {
    let sockets =
        |set: SetId| each(table, set).filter_map(|element| Some((element.key.start(), socket(&element.data)?)));
    let endpoints = by_vip(sockets(Endpoints));
    let local_endpoints = by_vip(sockets(LocalEndpoints));
    let affine: BTreeMap<&Tuple, SocketAddr> = sockets(AffinityEndpoints).collect();
    let in_slots = |set: SetId| {
        let keys = each(table, set).map(|element| element.key.start());
        by_vip(keys.filter_map(|key| Some((key, *affine.get(key)?))))
    };
    let (all, local) = (in_slots(AffinitySlots), in_slots(AffinityLocalSlots));
    let affinity: BTreeMap<VipKey, u32> =
        each(table, AffinityTimeouts).filter_map(|element| indexed(element.key.start())).collect();
    let members = |set: SetId| each(table, set).filter_map(|element| read_vip(element.key.start()));
    let (services, local_services): (BTreeSet<_>, BTreeSet<_>) =
        (members(Services).collect(), members(LocalServices).collect());
    let verdicts: BTreeMap<VipKey, WhenEmpty> = each(table, NoEndpoints)
        .filter_map(|element| Some((read_vip(element.key.start())?, verdict(&element.data))))
        .collect();
    let by_policy: BTreeSet<VipKey> = members(ExternalLocal).collect();
    let vips = services.iter().chain(&local_services).chain(all.keys()).chain(local.keys()).chain(verdicts.keys());
    let keys: BTreeSet<VipKey> = vips.copied().collect();
    let entry = |key: VipKey| {
        let to = |serves: bool, plain: &ByVip, affine: &ByVip| {
            // An endpoint is served only if an element of `services` leads to it.
            let plain = plain.get(&key).filter(|_| serves).into_iter().flatten();
            let mut endpoints = plain.chain(affine.get(&key).into_iter().flatten()).copied().peekable();
            let verdict = verdicts.get(&key).copied();
            match (endpoints.peek().is_some(), verdict) {
                (true, _) => Some(To::new(endpoints, WhenEmpty::Reject)),
                (false, verdict) => verdict.map(To::Nothing),
            }
        };
        let outside = by_policy.contains(&key).then(|| to(local_services.contains(&key), &local_endpoints, &local));
        let entry = Entry {
            to: to(services.contains(&key), &endpoints, &all),
            outside: outside.flatten(),
            affinity: affinity.get(&key).copied(),
        };
        (key, entry.plain())
    };
    Served(keys.into_iter().map(entry).collect())
}

type ByVip = BTreeMap<VipKey, Vec<SocketAddr>>;

fn each(table: &TableDump, set: SetId) -> impl Iterator<Item = &Element> {
    table.set(set.name()).into_iter().flat_map(|set| &set.elements)
}

fn by_vip<'a>(elements: impl Iterator<Item = (&'a Tuple, SocketAddr)>) -> ByVip {
    let mut by_vip = ByVip::new();
    for (key, endpoint) in elements {
        if let Some((vip, _)) = indexed(key) {
            by_vip.entry(vip).or_default().push(endpoint);
        }
    }
    by_vip
}

/// Splits a key into a VIP and the number behind it.
fn indexed(key: &Tuple) -> Option<(VipKey, u32)> {
    let (vip, index) = key.as_bytes().split_last_chunk::<INDEX>()?;
    Some((read_vip(&Tuple::from_bytes(vip))?, u32::from_ne_bytes(*index)))
}

fn verdict(data: &ElementData) -> WhenEmpty {
    match data {
        ElementData::Verdict(Verdict::Drop) => WhenEmpty::Drop,
        ElementData::Verdict(Verdict::Goto(chain)) if **chain == *names::UNSERVED_LOCAL => WhenEmpty::Drop,
        _ => WhenEmpty::Reject,
    }
}

/// The address and port in an element's value.
fn socket(data: &ElementData) -> Option<SocketAddr> {
    let ElementData::Value(value) = data else { return None };
    let (address, [high, low, _, _]) = value.as_bytes().split_last_chunk::<4>()?;
    let address = match address.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
    };
    Some(SocketAddr::new(address, u16::from_be_bytes([*high, *low])))
}
