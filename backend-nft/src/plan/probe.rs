//! A transaction that shows what the kernel lacks.

use std::sync::Arc;

use localnet_client::vips::{Config, Facts, hashing::SLOTS};
use localnet_linux::nft::{Chain, Element, Set, Table, TableContent, Transaction};
use localnet_proto::{Family, HashBy, Node};

use super::{
    ChainNames, Choice, affinity, chains,
    sets::{self, Pool, SetId, Sets as _},
};

/// A transaction with the rules that choose endpoints by hashing, as [`probe`].
pub fn hashing() -> Transaction {
    let choice = Choice { by: Some(HashBy::Connection), slots: SLOTS };
    let sets = [SetId::Endpoints].map(|set| (Arc::new(set.declaration(Family::V4, 16)), Vec::new()));
    refused(sets.into(), vec![chains::lb(&ChainNames::default(), Pool::Cluster, choice)])
}

/// A transaction with each kind of set, chain and rule that the backend always uses, in a table of its own. Its last change deletes a
/// table that does not exist. So the kernel keeps nothing, and refuses an earlier change only if it lacks a feature.
pub fn probe() -> Transaction {
    let sets = SetId::ALL.iter().map(|(set, ..)| set.declaration(Family::V4, 16)).chain([sets::clients(Family::V4, 0)]);
    let mut chains = chains::fixed(&Facts::new(&Config::default(), &Node::default(), &[]), Family::V4, false, false);
    let choice = Choice { by: None, slots: 2 };
    chains.extend([chains::lb(&ChainNames::default(), Pool::Cluster, choice), affinity::remembering(0, &[1].into())]);
    refused(sets.map(|set| (Arc::new(set), Vec::new())).collect(), chains)
}

/// A transaction of which the kernel keeps nothing.
fn refused(sets: Vec<(Arc<Set>, Vec<Element>)>, chains: Vec<Chain>) -> Transaction {
    let mut probe = Transaction::new();
    probe.add_content(TableContent { table: Table::new(Family::V4, "localnet-check"), sets, chains });
    probe.delete_table(&Table::new(Family::V4, "localnet-absent"));
    probe
}
