//! Compares the fake kernel of the unit tests and of the simulation with the real one.

use std::sync::Arc;

use localnet_linux::nft::{
    Chain, Element, ElementKey, Error, Field, FieldType, Kernel, Rule, Set, Statement, Table, Transaction, Tuple,
    Verdict, testing::FakeKernel,
};
use localnet_nft::Netlink;
use localnet_proto::Family;

use crate::network;

fn table() -> Table {
    Table::new(Family::V4, "localnet-contract")
}

fn addresses() -> Arc<Set> {
    Arc::new(Set::new("addresses", [FieldType::Ipv4Addr]).size(3))
}

fn targets() -> Arc<Set> {
    Arc::new(Set::verdict_map("targets", [FieldType::Ipv4Addr]))
}

fn ranges() -> Arc<Set> {
    Arc::new(Set::new("ranges", [FieldType::Ipv4Addr]).interval())
}

fn chain(name: &str) -> Arc<Chain> {
    Arc::new(Chain::new(name))
}

fn key(last: u8) -> Tuple {
    Tuple::new().address([10, 0, 0, last].into())
}

fn element(last: u8) -> Element {
    Element::new(key(last))
}

fn leads(last: u8, to: &str) -> Element {
    Element::verdict(key(last), Verdict::Goto(to.into()))
}

/// What a transaction does.
type Step = fn(&mut Transaction);

/// The transactions one after the other, each with the error number if it is refused.
const STEPS: &[(&str, Step, Option<i32>)] = &[
    ("a chain in a missing table", |t| _ = t.declare_chain(&table(), &chain("a")), Some(2)),
    ("a missing table is deleted", |t| _ = t.delete_table(&table()), Some(2)),
    (
        "a table with chains and sets",
        |t| {
            t.add_table(&table()).declare_chain(&table(), &chain("a")).add_set(&table(), &addresses());
            t.add_set(&table(), &targets()).add_set(&table(), &ranges());
        },
        None,
    ),
    ("the same again", |t| _ = t.add_table(&table()).declare_chain(&table(), &chain("a")), None),
    (
        "another declaration of a set",
        |t| {
            t.add_set(&table(), &Arc::new(Set::new("addresses", [FieldType::Ipv6Addr]).size(3)));
        },
        Some(17),
    ),
    ("elements", |t| _ = t.add_elements(&table(), &addresses(), vec![element(1), element(2)]), None),
    ("an element again", |t| _ = t.add_elements(&table(), &addresses(), vec![element(1)]), None),
    (
        "an element that is missing",
        |t| {
            // The first change must have no effect.
            t.add_elements(&table(), &addresses(), vec![element(3)]);
            t.delete_elements(&table(), &addresses(), vec![element(9)]);
        },
        Some(2),
    ),
    (
        "more elements than the set may have",
        |t| {
            t.add_elements(&table(), &addresses(), vec![element(3), element(4)]);
        },
        Some(23),
    ),
    (
        "an element that leads to a missing chain",
        |t| {
            t.add_elements(&table(), &targets(), vec![leads(1, "b")]);
        },
        Some(2),
    ),
    (
        "an element that leads to a new chain",
        |t| {
            t.declare_chain(&table(), &chain("b")).add_elements(&table(), &targets(), vec![leads(1, "b")]);
        },
        None,
    ),
    (
        "the element with another verdict",
        |t| {
            t.add_elements(&table(), &targets(), vec![leads(1, "a")]);
        },
        Some(17),
    ),
    ("a chain that an element leads to is deleted", |t| _ = t.delete_chain(&table(), &"b".into()), Some(16)),
    (
        "a rule that leads to a missing chain",
        |t| {
            t.add_rule(&table(), &"a".into(), &Rule::new([Statement::jump("c")]));
        },
        Some(2),
    ),
    (
        "a rule with a missing set",
        |t| {
            t.add_rule(&table(), &"a".into(), &Rule::new([Statement::is_in([Field::DestinationAddress], "nothing")]));
        },
        Some(2),
    ),
    (
        "rules",
        |t| {
            t.add_rule(&table(), &"a".into(), &Rule::new([Statement::is_in([Field::DestinationAddress], "addresses")]));
            t.add_rule(&table(), &"a".into(), &Rule::new([Statement::jump("b")]));
        },
        None,
    ),
    ("a set that a rule uses is deleted", |t| _ = t.delete_set(&table(), &"addresses".into()), Some(16)),
    (
        "an element is moved",
        |t| {
            t.delete_elements(&table(), &targets(), vec![leads(1, "b")]);
            t.add_elements(&table(), &targets(), vec![leads(1, "a")]);
        },
        None,
    ),
    ("a chain that a rule leads to is deleted", |t| _ = t.delete_chain(&table(), &"b".into()), Some(16)),
    (
        "the rules are replaced",
        |t| {
            t.flush_chain(&table(), &"a".into()).add_rule(&table(), &"a".into(), &Rule::new([Statement::Reject]));
        },
        None,
    ),
    ("the chain is unused", |t| _ = t.delete_chain(&table(), &"b".into()), None),
    ("a missing chain is deleted", |t| _ = t.delete_chain(&table(), &"b".into()), Some(2)),
    ("a missing set is deleted", |t| _ = t.delete_set(&table(), &"nothing".into()), Some(2)),
    (
        "a range",
        |t| {
            t.add_elements(&table(), &ranges(), vec![Element::new(ElementKey::range(key(1), key(9)))]);
        },
        None,
    ),
    (
        "a range that overlaps",
        |t| {
            t.add_elements(&table(), &ranges(), vec![Element::new(ElementKey::range(key(5), key(12)))]);
        },
        Some(17),
    ),
    ("a set is flushed", |t| _ = t.flush_set(&table(), &addresses()), None),
    (
        "the table is deleted and created again",
        |t| {
            t.delete_table(&table()).add_table(&table()).add_set(&table(), &addresses());
        },
        None,
    ),
];

/// The error number, and the index of the refused change.
fn refusal(kernel: &mut impl Kernel, transaction: &Transaction) -> Option<(Option<i32>, Option<usize>)> {
    let error = kernel.apply(transaction).err()?;
    let change = if let Error::Refused { change, .. } = error { Some(change) } else { None };
    Some((error.errno(), change))
}

/// The elements of a set, sorted.
fn held(kernel: &mut impl Kernel, set: &Set) -> Result<Option<Vec<Element>>, Error> {
    let mut elements = kernel.elements(&table(), set)?;
    elements.iter_mut().for_each(|elements| elements.sort_by(|one, other| one.key.cmp(&other.key)));
    Ok(elements)
}

#[test]
fn the_fake_kernel_refuses_and_holds_what_the_real_one_does() {
    let compare = || {
        let (mut fake, mut netlink) = (FakeKernel::default(), Netlink::open()?);
        for (what, step, errno) in STEPS {
            let mut transaction = Transaction::new();
            step(&mut transaction);
            // The last change is at fault.
            let expected = errno.map(|errno| (Some(errno), Some(transaction.changes().len() - 1)));
            assert_eq!(refusal(&mut fake, &transaction), expected, "the fake: {what}");
            assert_eq!(refusal(&mut netlink, &transaction), expected, "the kernel: {what}");
            for set in [addresses(), targets(), ranges()] {
                assert_eq!(held(&mut fake, &set)?, held(&mut netlink, &set)?, "{what}");
            }
        }
        Ok(())
    };
    network().node().run(compare).unwrap();
}
