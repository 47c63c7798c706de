//! Transactions are atomic, and errors name the refused change.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Command, Stdio};
use std::sync::Arc;

use localnet_core::Family;
use localnet_linux::nft::{Change, Element, Error, FieldType, Rule, Set, Socket, Statement, Table, Transaction, Tuple};

use crate::listing::nft;
use crate::namespace::isolated;

fn table() -> Table {
    Table::new(Family::V4, "t")
}

fn addresses() -> Arc<Set> {
    Arc::new(Set::new("addresses", [FieldType::Ipv4Addr]))
}

fn element(number: u32) -> Element {
    Element::new(Tuple::new().address(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number))))
}

#[test]
fn the_refused_change_is_named_and_nothing_is_applied() {
    isolated(|| {
        let mut transaction = Transaction::new();
        transaction.add_table(&table());
        transaction.add_rule(&table(), &"absent".into(), &Rule::new([Statement::Masquerade]));
        transaction.add_set(&table(), &addresses());
        let error = Socket::open().unwrap().commit(&transaction).unwrap_err();
        assert_eq!((error.change(), error.errno()), (Some(1), Some(2)), "{error}");
        assert_eq!(
            error.to_string(),
            "the kernel refused change 1 (add rule ip t absent masquerade fully-random): No such file or directory (os error 2)"
        );
        assert_eq!(nft(&["list", "ruleset"], ""), "");
    });
}

#[test]
fn the_refused_element_is_named() {
    isolated(|| {
        let mut socket = Socket::open().unwrap();
        let mut transaction = Transaction::new();
        transaction.add_table(&table()).add_set(&table(), &addresses());
        transaction.add_elements(&table(), &addresses(), (0..20_000).map(element).collect());
        let sent = socket.commit(&transaction).unwrap();
        assert_eq!(sent.elements, 20_000);
        assert!(sent.messages < 20, "{sent:?}");

        let mut transaction = Transaction::new();
        transaction.delete_elements(&table(), &addresses(), (0..10_000).map(element).collect());
        let absent: Vec<Element> = (10_000..15_000).map(element).chain([element(30_000).comment("a/b:c")]).collect();
        transaction.delete_elements(&table(), &addresses(), absent);
        match socket.commit(&transaction).unwrap_err() {
            Error::Refused { change, element, what, errno, .. } => {
                assert_eq!((change, element, errno), (1, Some(5_000), 2));
                assert_eq!(what, "delete element ip t addresses 10.0.117.48, a/b:c");
            }
            other => panic!("{other}"),
        }
        assert_eq!(nft(&["list", "set", "ip", "t", "addresses"], "").matches("10.0.").count(), 20_000);

        let mut transaction = Transaction::new();
        transaction.delete_elements(&table(), &addresses(), (0..20_000).map(element).collect());
        socket.commit(&transaction).unwrap();
        assert!(!nft(&["list", "ruleset"], "").contains("elements"));
    });
}

#[test]
fn of_many_errors_the_first_is_named() {
    isolated(|| {
        let mut socket = Socket::open().unwrap();
        let mut transaction = Transaction::new();
        transaction.add_table(&table());
        for number in 0..30_000 {
            transaction.delete_chain(&table(), &format!("absent-{number}").into());
        }
        let error = socket.commit(&transaction).unwrap_err();
        assert_eq!((error.change(), error.errno()), (Some(1), Some(2)), "{error}");
        let mut transaction = Transaction::new();
        transaction.add_table(&table());
        assert_eq!(socket.commit(&transaction).unwrap().messages, 1, "the socket works after an error");
    });
}

#[test]
fn a_full_set_is_refused() {
    isolated(|| {
        let set = Arc::new(Set::new("small", [FieldType::Ipv4Addr]).size(10));
        let mut transaction = Transaction::new();
        transaction.add_table(&table()).add_set(&table(), &set);
        transaction.add_elements(&table(), &set, (0..11).map(element).collect());
        let error = Socket::open().unwrap().commit(&transaction).unwrap_err();
        assert_eq!((error.change(), error.errno()), (Some(2), Some(23)), "{error}");
    });
}

#[test]
fn without_the_capability_the_error_names_the_remedy() {
    isolated(|| {
        let mut socket = Socket::open().unwrap();
        let nobody = nix::unistd::Uid::from_raw(65_534);
        // The raw system call affects this thread alone.
        rustix::thread::set_thread_res_uid(rustix_uid(nobody), rustix_uid(nobody), rustix_uid(nobody)).unwrap();
        let mut transaction = Transaction::new();
        transaction.add_table(&table());
        let error = socket.commit(&transaction).unwrap_err();
        assert!(matches!(error, Error::NotPermitted), "{error}");
        assert!(error.to_string().contains("CAP_NET_ADMIN"));
        assert!(matches!(socket.table(&table()).unwrap_err(), Error::NotPermitted));
    });
}

/// An earlier version reported a table with an owner as a missing capability.
#[test]
fn a_table_of_another_owner_differs_from_a_missing_capability() {
    isolated(|| {
        let mut owner = Command::new("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut stdin = owner.stdin.take().unwrap();
        writeln!(stdin, "add table ip t {{ flags owner; }}").unwrap();
        let mut socket = Socket::open().unwrap();
        while socket.table(&table()).unwrap().is_none() {
            std::thread::yield_now();
        }
        let mut transaction = Transaction::new();
        transaction.add_table(&table()).delete_table(&table());
        let error = socket.commit(&transaction).unwrap_err();
        drop(stdin);
        owner.wait().unwrap();
        assert!(matches!(error, Error::Owned), "{error}");
        assert!(!error.to_string().contains("CAP_NET_ADMIN"), "{error}");
        // The kernel deleted the table with its owner.
        socket.commit(&transaction).unwrap();
    });
}

fn rustix_uid(uid: nix::unistd::Uid) -> rustix::process::Uid {
    rustix::process::Uid::from_raw(uid.as_raw())
}

#[test]
fn sets_are_flushed_and_replaced_in_one_transaction() {
    isolated(|| {
        let mut socket = Socket::open().unwrap();
        let mut transaction = Transaction::new();
        transaction.add_table(&table()).add_set(&table(), &addresses());
        transaction.add_elements(&table(), &addresses(), (0..3).map(element).collect());
        socket.commit(&transaction).unwrap();

        let mut transaction = Transaction::new();
        transaction.flush_set(&table(), &addresses());
        transaction.add_elements(&table(), &addresses(), vec![element(7)]);
        socket.commit(&transaction).unwrap();
        assert!(nft(&["list", "ruleset"], "").contains("elements = { 10.0.0.7 }"));

        let larger = Arc::new(Set::new("addresses", [FieldType::Ipv4Addr]).size(99));
        let mut transaction = Transaction::new();
        transaction.delete_set(&table(), &"addresses".into()).add_set(&table(), &larger);
        transaction.push(Change::AddElements(table(), larger, vec![element(8)]));
        socket.commit(&transaction).unwrap();
        let listing = nft(&["list", "ruleset"], "");
        assert!(listing.contains("size 99") && listing.contains("{ 10.0.0.8 }"), "{listing}");

        let mut transaction = Transaction::new();
        transaction.delete_table(&table());
        socket.commit(&transaction).unwrap();
        assert_eq!(nft(&["list", "ruleset"], ""), "");
        assert_eq!(socket.commit(&Transaction::new()).unwrap().messages, 0);
    });
}
