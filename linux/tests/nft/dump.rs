//! A dump equals the loaded ruleset.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use localnet_core::{Family, Protocol};
use localnet_linux::nft::{
    Chain, Element, ElementData, Expiry, Field, FieldType, Rule, Set, Socket, Statement, Table, TableContent,
    Transaction, Tuple, Verdict,
};

use crate::listing::nft;
use crate::namespace::isolated;
use crate::ruleset::{everything, load};

/// nft 1.0.6 has no type for a lookup of `ct original proto-dst`, so there is no listing to compare with.
#[test]
fn lookups_of_original_ports_are_read_back() {
    isolated(|| {
        for family in Family::BOTH {
            let key = [Field::OriginalDestinationAddress, Field::Protocol, Field::OriginalDestinationPort];
            let vips = [FieldType::address(family), FieldType::InetProto, FieldType::InetService];
            let chain = Chain::new("unserved")
                .rule(Statement::vmap(key, "no-endpoints"))
                .rule([Statement::is_not_in(key, "vips"), Statement::Verdict(Verdict::Drop)]);
            let sets = [Set::verdict_map("no-endpoints", vips), Set::new("vips", vips)];
            let content = TableContent {
                table: Table::new(family, "asked"),
                sets: sets.into_iter().map(|set| (Arc::new(set), Vec::new())).collect(),
                chains: vec![chain.clone()],
            };
            let mut socket = load(&content);
            let dump = socket.table(&content.table).unwrap().expect("the table exists");
            assert!(dump.chains[0].is(family, &chain), "{:#?}", dump.chains[0]);
        }
    });
}

#[test]
fn remaining_times_of_elements_are_written_and_read_back() {
    isolated(|| {
        for family in Family::BOTH {
            let table = Table::new(family, "expiring");
            let own = Set::new("own", [FieldType::InetService]).dynamic(None);
            let shared = Set::new("shared", [FieldType::InetService]).dynamic(Some(60));
            let sets = [own, shared].map(Arc::new);
            let content = TableContent {
                table: table.clone(),
                sets: sets.iter().map(|set| (set.clone(), Vec::new())).collect(),
                chains: vec![],
            };
            let mut socket = load(&content);
            let given = [Expiry { timeout: 60_000, left: 60_000 }, Expiry { timeout: 3_600_000, left: 30_000 }];
            for set in &sets {
                let elements =
                    (1..).zip(given).map(|(port, expiry)| Element::expiring(Tuple::new().port(port), expiry));
                let mut transaction = Transaction::new();
                transaction.add_elements(&table, set, elements.collect());
                socket.commit(&transaction).unwrap();
                let mut live = socket.elements(&table, set).unwrap().expect("the set exists");
                live.sort_unstable_by(|one, other| one.key.cmp(&other.key));
                assert_eq!(live.len(), given.len());
                for (live, given) in live.iter().zip(given) {
                    let ElementData::Expires(expiry) = live.data else { panic!("{live:?}") };
                    assert_eq!(expiry.timeout, given.timeout, "{}", set.name);
                    assert!((given.left - 20_000..=given.left).contains(&expiry.left), "{expiry:?}");
                }
            }
        }
    });
}

fn dump_equals_the_loaded_table(family: Family) {
    let content = everything(family);
    let mut socket = load(&content);
    let check = |socket: &mut Socket| {
        let dump = socket.table(&content.table).unwrap().expect("the table exists");
        assert_eq!(dump.chains.len(), content.chains.len());
        for (live, desired) in dump.chains.iter().zip(&content.chains) {
            for (live, desired) in live.rules.iter().zip(&desired.rules) {
                assert!(live.is(family, desired), "live {live:#?}\nwanted {desired:#?}");
            }
            assert!(live.is(family, desired), "{}", desired.name);
        }
        assert_eq!(dump.sets.len(), content.sets.len());
        for (live, (set, elements)) in dump.sets.iter().zip(&content.sets) {
            assert_eq!(live.set.as_deref(), Some(&**set));
            let order = |elements: &[Element]| {
                let mut elements = elements.to_vec();
                elements.sort_by(|a, b| a.key.cmp(&b.key));
                elements
            };
            assert_eq!(order(&live.elements), order(elements), "{}", set.name);
        }
    };
    check(&mut socket);

    let mut transaction = Transaction::new();
    transaction.add_content(content.clone());
    nft(&["flush", "ruleset"], "");
    nft(&["-f", "-"], &localnet_linux::nft::script(&transaction));
    check(&mut socket);

    let other = Table::new(family, "other");
    assert!(!socket.has_table(&other).unwrap());
    assert_eq!(socket.table(&other).unwrap(), None);
}

#[test]
fn dump_equals_the_loaded_table_v4() {
    isolated(|| dump_equals_the_loaded_table(Family::V4));
}

#[test]
fn dump_equals_the_loaded_table_v6() {
    isolated(|| dump_equals_the_loaded_table(Family::V6));
}

#[test]
fn each_rule_differs_from_every_other() {
    isolated(|| {
        let content = everything(Family::V4);
        let mut socket = load(&content);
        let dump = socket.table(&content.table).unwrap().unwrap();
        let desired: Vec<&Rule> = content.chains.iter().flat_map(|chain| &chain.rules).collect();
        let live: Vec<_> = dump.chains.iter().flat_map(|chain| &chain.rules).collect();
        for (at, live) in live.iter().enumerate() {
            for (other, desired) in desired.iter().enumerate() {
                assert_eq!(live.is(Family::V4, desired), at == other, "{live:?} {desired:?}");
            }
        }
    });
}

#[test]
fn changes_by_other_programs_show_in_a_dump() {
    isolated(|| {
        let content = everything(Family::V4);
        let mut socket = load(&content);
        let services = content.sets[0].0.clone();
        let before = socket.generation().unwrap();
        nft(&["delete", "element", "ip", "everything", "services", "{ 10.96.0.1 . tcp . 80 }"], "");
        nft(&["flush", "chain", "ip", "everything", "postrouting"], "");
        nft(&["add", "set", "ip", "everything", "alien", "{ type ether_addr; }"], "");
        nft(&["add", "chain", "ip", "everything", "drops", "{ type filter hook input priority 0; policy drop; }"], "");
        assert!(socket.generation().unwrap() > before);
        let dump = socket.table(&content.table).unwrap().unwrap();
        assert_eq!(dump.set("services").unwrap().elements.len(), 4);
        assert_eq!(socket.elements(&content.table, &services).unwrap().unwrap().len(), 4);
        assert!(dump.chain("postrouting").unwrap().rules.is_empty());
        assert_eq!(dump.set("alien").unwrap().set, None);
        assert!(dump.chain("drops").unwrap().foreign && !dump.chain("output").unwrap().foreign);
    });
}

#[test]
fn forty_thousand_elements_are_read_back() {
    isolated(|| {
        use FieldType::{Index, InetProto, InetService, Ipv4Addr as Address};
        let table = Table::new(Family::V4, "t");
        let set = Set::map("endpoints", [Address, InetProto, InetService, Index], [Address, InetService]).size(50_000);
        let set = Arc::new(set);
        let element = |number: u32| {
            let vip = IpAddr::V4(Ipv4Addr::from(0x0a60_0000 + number / 4));
            let pod = IpAddr::V4(Ipv4Addr::from(0x0af4_0000 + number));
            let key = Tuple::new().address(vip).protocol(Protocol::Tcp).port(80).index(number % 4);
            Element::value(key, Tuple::new().address(pod).port(8080))
                .comment(format!("default/web-{}:http", number / 4))
        };
        let desired: Vec<Element> = (0..40_000).map(element).collect();
        let mut transaction = Transaction::new();
        transaction.add_table(&table).add_set(&table, &set).add_elements(&table, &set, desired.clone());
        let mut socket = Socket::open().unwrap();
        let start = std::time::Instant::now();
        socket.commit(&transaction).unwrap();
        println!("loaded 40000 elements in {:?}", start.elapsed());
        let start = std::time::Instant::now();
        let mut live = socket.elements(&table, &set).unwrap().unwrap();
        println!("read 40000 elements in {:?}", start.elapsed());
        live.sort_by(|a, b| a.key.cmp(&b.key));
        assert!(live == desired, "{} elements", live.len());
    });
}

#[test]
fn a_table_that_changes_during_a_read_is_read_consistently() {
    isolated(|| {
        let table = Table::new(Family::V4, "t");
        let set = Arc::new(Set::verdict_map("all", [FieldType::Ipv4Addr]));
        let addresses = 0..5_000u32;
        let elements = |verdict: &Verdict| -> Vec<Element> {
            let key = |number| Tuple::new().address(IpAddr::V4(Ipv4Addr::from(number)));
            addresses.clone().map(|number| Element::verdict(key(number), verdict.clone())).collect()
        };
        let mut writer = Socket::open().unwrap();
        let mut reader = Socket::open().unwrap();
        let mut transaction = Transaction::new();
        transaction.add_table(&table).add_set(&table, &set);
        writer.commit(&transaction).unwrap();
        let states = [elements(&Verdict::Drop), elements(&Verdict::Accept)];
        std::thread::scope(|scope| {
            // The writer's socket stays in this namespace, whatever thread uses it.
            let written = scope.spawn(|| {
                for round in 0..60 {
                    let mut transaction = Transaction::new();
                    transaction.flush_set(&table, &set);
                    transaction.add_elements(&table, &set, states[round % 2].clone());
                    writer.commit(&transaction).unwrap();
                }
            });
            while !written.is_finished() {
                let live = reader.table(&table).unwrap().unwrap().sets.remove(0).elements;
                let drops = live.iter().filter(|element| element.data == states[0][0].data).count();
                assert!(
                    [0, 5_000].contains(&live.len()) && [0, live.len()].contains(&drops),
                    "{drops} of {}",
                    live.len()
                );
            }
        });
    });
}

#[test]
fn rules_that_differ_only_in_the_comment_differ() {
    isolated(|| {
        let content = everything(Family::V4);
        let mut socket = load(&content);
        let dump = socket.table(&content.table).unwrap().unwrap();
        let last = &dump.chain("output").unwrap().rules[2];
        assert!(last.is(Family::V4, &Rule::new([Statement::Reject]).comment("no endpoints")));
        assert!(!last.is(Family::V4, &Rule::new([Statement::Reject])), "the comment counts");
    });
}
