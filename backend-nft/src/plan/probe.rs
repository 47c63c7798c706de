//! A transaction that shows what the kernel lacks.

use std::sync::Arc;

use localnet_client::vips::{Config, Facts};
use localnet_linux::nft::{Table, TableContent, Transaction};
use localnet_proto::{Family, Node};

use super::{
    ChainNames, affinity, chains,
    sets::{self, Pool, SetId, Sets as _},
};

/// A transaction with each kind of set, chain and rule that the backend uses, in a table of its own. Its last change deletes a
/// table that does not exist. So the kernel keeps nothing, and refuses an earlier change only if it lacks a feature.
pub fn probe() -> Transaction {
    let sets = SetId::ALL.iter().map(|(set, ..)| set.declaration(Family::V4, 16)).chain([sets::clients(Family::V4, 0)]);
    let mut chains = chains::fixed(&Facts::new(&Config::default(), &Node::default(), &[]), Family::V4, false, false);
    chains.extend([chains::lb(&ChainNames::default(), Pool::Cluster, 2), affinity::remembering(0, &[1].into())]);
    let mut probe = Transaction::new();
    probe.add_content(TableContent {
        table: Table::new(Family::V4, "localnet-check"),
        sets: sets.map(|set| (Arc::new(set), Vec::new())).collect(),
        chains,
    });
    probe.delete_table(&Table::new(Family::V4, "localnet-absent"));
    probe
}
