//! A transaction that is too much for the kernel at once, as several: no commit holds it for long, and no VIP is without its rules.
//!
//! ```text
//!  in place   declarations, rules │ elements of VIPs a…b │ elements of VIPs c…d │ …           │ base chains
//!  anew       the same, under another name: the table there works on until the last portion replaces it, then back again
//! ```
//!
//! The elements of one VIP are never parted, in whichever sets they are. Nothing is entered by packets before all is there: base
//! chains that are new come last. Pure.

use std::collections::{BTreeMap, BTreeSet};

use localnet_linux::nft::{Change, Element, Family, Name, Table, Transaction};

use crate::plan::{self, sets::SetId};

/// So many elements go into one commit. Measured: 0.15 s.
pub const PORTION: usize = 65_536;

/// What has a key that begins with neither a VIP nor its address.
const HAIRPIN: &str = SetId::Hairpin.name();

/// How many elements it adds and deletes.
fn size(transaction: &Transaction) -> usize {
    transaction.changes().iter().filter_map(elements).map(|(_, elements)| elements.len()).sum()
}

/// The set and the elements that a change adds or deletes.
fn elements(change: &Change) -> Option<(&Name, &[Element])> {
    match change {
        Change::AddElements(_, set, elements) | Change::DeleteElements(_, set, elements) => Some((&set.name, elements)),
        _ => None,
    }
}

/// The changes of a table in place, in portions of about so many elements.
pub fn in_place(family: Family, transaction: Transaction, limit: usize) -> Vec<Transaction> {
    if size(&transaction) <= limit { vec![transaction] } else { cut(family, &transaction, limit, &Transaction::new()) }
}

/// A whole table, in portions of about so many elements. If one `is_there` already, each packet meets a complete one.
pub fn anew(family: Family, transaction: Transaction, is_there: bool, limit: usize) -> Vec<Transaction> {
    if size(&transaction) <= limit {
        return vec![transaction];
    }
    let [table, other] = [plan::table(family), plan::substitute(family)];
    let delete = |table: &Table| {
        let mut last = Transaction::new();
        last.push(Change::DeleteTable(table.clone()));
        last
    };
    if !is_there {
        return cut(family, &transaction, limit, &Transaction::new());
    }
    let mut portions = cut(family, &renamed(&transaction, &other), limit, &delete(&table));
    portions.extend(cut(family, &transaction, limit, &delete(&other)));
    portions
}

/// The same for a table of another name.
fn renamed(transaction: &Transaction, table: &Table) -> Transaction {
    let mut renamed = Transaction::new();
    for change in transaction.changes() {
        let mut change = change.clone();
        match &mut change {
            Change::AddTable(of)
            | Change::DeleteTable(of)
            | Change::AddChain(of, _)
            | Change::FlushChain(of, _)
            | Change::DeleteChain(of, _)
            | Change::AddRule(of, ..)
            | Change::AddSet(of, _)
            | Change::FlushSet(of, _)
            | Change::DeleteSet(of, _)
            | Change::AddElements(of, ..)
            | Change::DeleteElements(of, ..) => *of = table.clone(),
        }
        renamed.push(change);
    }
    renamed
}

fn cut(family: Family, transaction: &Transaction, limit: usize, end: &Transaction) -> Vec<Transaction> {
    let changes = transaction.changes();
    let entered: BTreeSet<&Name> = changes
        .iter()
        .filter_map(|change| match change {
            Change::AddChain(_, chain) if chain.hook.is_some() => Some(&chain.name),
            _ => None,
        })
        .collect();
    let is_entered = |change: &Change| match change {
        Change::AddChain(_, chain) => entered.contains(&chain.name),
        Change::AddRule(_, chain, _) => entered.contains(chain),
        _ => false,
    };
    // Packets meet a set that is replaced at once.
    let replaced: BTreeSet<&Name> = changes
        .iter()
        .filter_map(|change| match change {
            Change::DeleteSet(_, set) => Some(set),
            _ => None,
        })
        .collect();
    let is_cut =
        |change: &&Change| elements(change).is_some_and(|(set, _)| !replaced.contains(set) && **set != *HAIRPIN);

    let starts = starts(family, changes.iter().filter(is_cut), limit);
    let portion_of = |element: &Element| starts.partition_point(|start| *start <= vip(family, element));
    let mut portions = vec![Transaction::new(); starts.len() + 1];
    let mut last = Transaction::new();
    for change in changes {
        match change {
            Change::AddElements(table, set, elements) if is_cut(&change) => {
                for part in elements.chunk_by(|one, next| portion_of(one) == portion_of(next)) {
                    portions[portion_of(&part[0])].add_elements(table, set, part.to_vec());
                }
            }
            Change::DeleteElements(table, set, elements) if is_cut(&change) => {
                for part in elements.chunk_by(|one, next| portion_of(one) == portion_of(next)) {
                    portions[portion_of(&part[0])].delete_elements(table, set, part.to_vec());
                }
            }
            // Endpoints that reach themselves are known as long as anything leads to them.
            Change::DeleteElements(_, set, _) if *set.name == *HAIRPIN => _ = last.push(change.clone()),
            _ if is_entered(change) => _ = last.push(change.clone()),
            _ => _ = portions[0].push(change.clone()),
        }
    }
    for change in last.changes().iter().chain(end.changes()) {
        if let Some(portion) = portions.last_mut() {
            portion.push(change.clone());
        }
    }
    portions
}

/// The VIPs at which another portion begins than the first.
fn starts<'a>(family: Family, changes: impl Iterator<Item = &'a Change>, limit: usize) -> Vec<&'a [u8]> {
    let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
    for element in changes.filter_map(elements).flat_map(|(_, elements)| elements) {
        *counts.entry(vip(family, element)).or_default() += 1;
    }
    let mut starts = Vec::new();
    let mut held = 0;
    for (vip, count) in counts {
        if held > 0 && held + count > limit {
            starts.push(vip);
            held = 0;
        }
        held += count;
    }
    starts
}

/// What the key begins with: address, protocol and port, or the address alone, which sorts before its VIPs.
fn vip(family: Family, element: &Element) -> &[u8] {
    let key = element.key.start().as_bytes();
    let length = match family {
        Family::V4 => 4 + 4 + 4,
        Family::V6 => 16 + 4 + 4,
    };
    key.get(..length).unwrap_or(key)
}
