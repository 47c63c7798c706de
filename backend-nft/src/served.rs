//! The command `dump`: reads back what the tables serve. Pure, except for [`read`].
//!
//! It reads elements only, not rules. The rules are the same for all Services, and tests with packets verify them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    slice,
};

use anyhow::Context as _;
use localnet_client::{
    served::{Entry, Served, To},
    vips::VipKey,
};
use localnet_linux::nft::{Socket, TableDump, Tuple};
use localnet_linux_backend::elements::{of_set, read_endpoint, read_numbered, verdicts, vips};
use localnet_proto::{Affinity, Family, Verdict};

use crate::plan::{
    names,
    sets::SetId::{
        self, AffinityEndpoints, AffinityLocalSlots, AffinitySlots, AffinityTimeouts, Endpoints, ExternalLocal,
        LocalEndpoints, LocalServices, NoEndpoints, Services,
    },
    table,
};

/// Reads both tables of this network namespace. A table that does not exist serves nothing.
///
/// # Errors
/// Returns an error if nf_tables cannot be read.
pub fn read() -> anyhow::Result<Served> {
    let mut socket = Socket::open().context("cannot open nf_tables")?;
    let mut served = Served::default();
    for family in Family::BOTH {
        if let Some(table) = socket.table(&table(family)).context("cannot read the table")? {
            served.0.append(&mut of(&table).0);
        }
    }
    Ok(served)
}

/// What a table serves.
pub fn of(table: &TableDump) -> Served {
    let tables = slice::from_ref(table);
    let keys = |set: SetId| of_set(tables, set).map(|element| element.key.start());
    let sockets = |set: SetId| {
        of_set(tables, set).filter_map(|element| Some((element.key.start(), read_endpoint(&element.data)?)))
    };
    let endpoints = by_vip(sockets(Endpoints));
    let local_endpoints = by_vip(sockets(LocalEndpoints));
    let affine: BTreeMap<&Tuple, SocketAddr> = sockets(AffinityEndpoints).collect();
    let in_slots = |set: SetId| by_vip(keys(set).filter_map(|key| Some((key, *affine.get(key)?))));
    let (all, local) = (in_slots(AffinitySlots), in_slots(AffinityLocalSlots));
    let affinity: BTreeMap<VipKey, u32> = keys(AffinityTimeouts).filter_map(read_numbered).collect();
    let members = |set: SetId| vips(tables, set).collect::<BTreeSet<_>>();
    let (services, local_services) = (members(Services), members(LocalServices));
    let verdicts = verdicts(tables, NoEndpoints, &[names::UNSERVED_LOCAL, names::DROP_PORT]);
    let by_policy = members(ExternalLocal);
    let all_vips = services.iter().chain(&local_services).chain(all.keys()).chain(local.keys()).chain(verdicts.keys());
    let keys: BTreeSet<VipKey> = all_vips.copied().collect();
    let entry = |key: VipKey| {
        let to = |serves: bool, plain: &ByVip, affine: &ByVip| {
            // An endpoint is served only if an element of `services` leads to it.
            let plain = plain.get(&key).filter(|_| serves).into_iter().flatten();
            let mut endpoints = plain.chain(affine.get(&key).into_iter().flatten()).copied().peekable();
            let verdict = verdicts.get(&key).copied();
            match (endpoints.peek().is_some(), verdict) {
                (true, _) => Some(To::new(endpoints, Verdict::Reject)),
                (false, verdict) => verdict.map(To::Nothing),
            }
        };
        let outside = by_policy.contains(&key).then(|| to(local_services.contains(&key), &local_endpoints, &local));
        let entry = Entry {
            to: to(services.contains(&key), &endpoints, &all),
            outside: outside.flatten(),
            affinity: affinity.get(&key).map(|seconds| Affinity::from(*seconds)),
        };
        (key, entry.plain())
    };
    Served(keys.into_iter().map(entry).collect())
}

type ByVip = BTreeMap<VipKey, Vec<SocketAddr>>;

fn by_vip<'a>(elements: impl Iterator<Item = (&'a Tuple, SocketAddr)>) -> ByVip {
    let mut by_vip = ByVip::new();
    for (key, endpoint) in elements {
        if let Some((vip, _)) = read_numbered(key) {
            by_vip.entry(vip).or_default().push(endpoint);
        }
    }
    by_vip
}
