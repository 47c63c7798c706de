//! A ruleset with every statement, field and kind of set: nft's text and our netlink messages have the same effect.

use std::sync::Arc;

use localnet_core::{Family, Protocol};
use localnet_linux::nft::{
    AddressField, Chain, ChainKind, Element, ElementKey, Field, FieldType, Generator, HookPoint, InterfacePattern, Op,
    Set, Socket, Statement, Table, TableContent, Transaction, Tuple, Verdict, listing, script,
};

use crate::listing::{assert_same, nft};
use crate::namespace::isolated;

/// A table of that family with everything that the plain values can represent.
pub(crate) fn everything(family: Family) -> TableContent {
    let address = |v4: &str, v6: &str| match family {
        Family::V4 => v4.parse().unwrap(),
        Family::V6 => v6.parse().unwrap(),
    };
    let net = |v4: &str, v6: &str| match family {
        Family::V4 => v4.parse().unwrap(),
        Family::V6 => v6.parse().unwrap(),
    };
    let vip = address("10.96.0.1", "fd00:96::1");
    let pod = address("10.244.1.7", "fd00:244::7");
    let kind = FieldType::address(family);
    use FieldType::{Ifname, Index, InetProto, InetService, Mark, Priority};

    let services = Set::verdict_map("services", [kind, InetProto, InetService]).size(1000).comment("virtual addresses");
    let endpoints = Set::map("endpoints", [kind, InetProto, InetService, Index], [kind, InetService]).size(4000);
    let hairpin = Set::new("hairpin", [kind, kind, InetProto, InetService]);
    let affinity = Set::new("affinity", [kind, kind, InetProto, InetService]).size(1000).dynamic(Some(10_800));
    let clients = Set::new("clients", [kind, InetService]).size(100).dynamic(None);
    let networks = Set::new("networks", [kind]).interval();
    let ranges = Set::verdict_map("ranges", [kind, InetProto, InetService, kind]).interval().comment("source ranges");
    let cidrs = Set::verdict_map("cidrs", [kind]).interval();
    let plain = Set::new("plain", [kind]).comment("a single field");
    let ports = Set::new("ports", [InetService]);
    let protocols = Set::verdict_map("protocols", [InetProto]);
    let marks = Set::new("marks", [Mark, Ifname]);
    let devices = Set::new("interfaces", [Ifname]);
    let priorities = Set::map("priorities", [kind, InetProto, InetService], [Priority]).size(1000).comment("numbers");
    let sticky = Set::new("sticky", [kind, Priority]).size(100).dynamic(None);
    let counted = Set::new("counted", [kind, InetProto, InetService]).size(100).dynamic(Some(3600));
    let slots = Set::verdict_map("slots", [Index]).comment("by number");
    let addresses = Set::map("addresses", [InetService], [kind]);
    let mut sets: Vec<(Set, Vec<Element>)> = Vec::new();
    sets.push((
        services,
        vec![
            Element::verdict(Tuple::new().address(vip).protocol(Protocol::Tcp).port(80), Verdict::Goto("lb-2".into()))
                .comment("default/web:http"),
            Element::verdict(Tuple::new().address(vip).protocol(Protocol::Udp).port(53), Verdict::Jump("lb-2".into())),
            Element::verdict(Tuple::new().address(vip).protocol(Protocol::Sctp).port(9), Verdict::Drop),
            Element::verdict(Tuple::new().address(vip).protocol(Protocol::Tcp).port(10), Verdict::Accept),
            Element::verdict(Tuple::new().address(vip).protocol(Protocol::Tcp).port(11), Verdict::Return),
        ],
    ));
    let slot = |port, index| Tuple::new().address(vip).protocol(Protocol::Tcp).port(port).index(index);
    sets.push((
        endpoints,
        vec![
            Element::value(slot(80, 0), Tuple::new().address(pod).port(8080)).comment("default/web:http"),
            Element::value(slot(80, 1), Tuple::new().address(pod).port(8081)),
            Element::value(slot(81, 300), Tuple::new().address(pod).port(8081)),
        ],
    ));
    sets.push((
        hairpin,
        vec![Element::new(Tuple::new().address(pod).address(pod).protocol(Protocol::Tcp).port(8080)).comment("é ok")],
    ));
    sets.push((affinity, vec![]));
    sets.push((clients, vec![]));
    sets.push((
        networks,
        vec![
            Element::new(ElementKey::prefix(net("10.0.0.0/8", "fd00::/16"))).comment("pods"),
            Element::new(ElementKey::prefix(net("11.0.0.0/8", "fd01::/16"))),
            Element::new(Tuple::new().address(address("192.168.1.1", "fe80::1"))),
            Element::new(ElementKey::range(
                Tuple::new().address(address("192.168.2.1", "fe80::10")),
                Tuple::new().address(address("192.168.2.7", "fe80::17")),
            )),
            Element::new(ElementKey::prefix(net("255.255.255.0/24", "ffff::/16"))).comment("up to the last"),
        ],
    ));
    let range = |port: u16, source| {
        let start = Tuple::new().address(vip).protocol(Protocol::Tcp).port(port);
        match ElementKey::prefix(source) {
            key if key.end().is_some() => {
                ElementKey::range(start.clone().address(source.network()), start.address(source.broadcast()))
            }
            _ => start.address(source.addr()).into(),
        }
    };
    sets.push((
        ranges,
        vec![
            Element::verdict(range(80, net("203.0.113.0/24", "2001:db8::/32")), Verdict::Return).comment("office"),
            Element::verdict(range(80, net("203.0.114.1/32", "2001:db9::1/128")), Verdict::Drop),
        ],
    ));
    sets.push((
        cidrs,
        vec![
            Element::verdict(ElementKey::prefix(net("172.30.0.0/16", "fd00:30::/112")), Verdict::Drop),
            Element::verdict(Tuple::new().address(vip), Verdict::Accept),
        ],
    ));
    sets.push((
        plain,
        vec![Element::new(Tuple::new().address(vip)).comment("one"), Element::new(Tuple::new().address(pod))],
    ));
    sets.push((ports, (1..=7).map(|port| Element::new(Tuple::new().port(port * 1000))).collect()));
    sets.push((
        protocols,
        vec![
            Element::verdict(Tuple::new().protocol(Protocol::Tcp), Verdict::Accept),
            Element::verdict(Tuple::new().protocol(Protocol::Sctp), Verdict::Drop),
        ],
    ));
    sets.push((marks, vec![Element::new(Tuple::new().mark(0x4000).interface("eth0"))]));
    sets.push((
        devices,
        vec![Element::new(Tuple::new().interface("cilium_host")), Element::new(Tuple::new().interface("a"))],
    ));
    sets.push((slots, vec![Element::verdict(Tuple::new().index(3), Verdict::Goto("lb-2".into()))]));
    sets.push((addresses, vec![Element::value(Tuple::new().port(80), Tuple::new().address(pod))]));

    sets.push((
        priorities,
        [0, 1, 0xab_cdef, u32::MAX]
            .into_iter()
            .zip(80..)
            .map(|(number, port)| {
                let key = Tuple::new().address(vip).protocol(Protocol::Tcp).port(port);
                Element::value(key, Tuple::new().priority(number)).comment("default/web:http")
            })
            .collect(),
    ));
    sets.push((sticky, vec![]));
    sets.push((counted, vec![]));

    let service = [Field::DestinationAddress, Field::Protocol, Field::DestinationPort];
    let slot_of = |generator| [service.as_slice(), &[Field::Index(generator)]].concat();
    let flow = [Field::SourceAddress, Field::DestinationAddress, Field::Protocol, Field::DestinationPort];
    let from = |op, prefix| Statement::Address(AddressField::Source, op, prefix);
    let to = |op, prefix| Statement::Address(AddressField::Destination, op, prefix);
    let accept = || Statement::Verdict(Verdict::Accept);
    let chains = vec![
        Chain::new("lb-2")
            .comment("two endpoints")
            .rule(Statement::dnat(slot_of(Generator::Random(2)), "endpoints"))
            .rule(Statement::dnat(slot_of(Generator::Constant(3)), "endpoints"))
            .rule(Statement::dnat(slot_of(Generator::Constant(0)), "endpoints")),
        Chain::base("prerouting", ChainKind::Nat, HookPoint::Prerouting, -100)
            .comment("translates destinations")
            .rule([Statement::ConnectionNew, Statement::vmap(service, "services")])
            .rule([
                Statement::Local(AddressField::Destination, Op::Eq),
                to(Op::Ne, net("127.0.0.0/8", "fe00::/8")),
                accept(),
            ])
            .rule([
                Statement::Local(AddressField::Source, Op::Ne),
                Statement::Address(AddressField::Destination, Op::Eq, vip.into()),
                Statement::MarkOr(0x4000),
            ])
            .rule([
                Statement::InputInterface(Op::Eq, InterfacePattern::Prefix("cali".into())),
                Statement::Verdict(Verdict::Return),
            ])
            .rule([
                Statement::InputInterface(Op::Ne, InterfacePattern::Exact("eth0".into())),
                Statement::Verdict(Verdict::Drop),
            ])
            .rule([
                Statement::InputInterface(Op::Ne, InterfacePattern::Prefix("veth".into())),
                Statement::InputInterface(Op::Eq, InterfacePattern::Exact("lo".into())),
                accept(),
            ])
            .rule([
                from(Op::Ne, net("10.0.0.0/13", "fd00::/13")),
                Statement::is_in(flow, "hairpin"),
                Statement::jump("lb-2"),
            ])
            .rule([
                to(Op::Eq, net("10.0.0.0/22", "fd00::/50")),
                Statement::is_not_in(flow, "hairpin"),
                Statement::goto("lb-2"),
            ])
            .rule([
                from(Op::Eq, net("0.0.0.0/0", "::/0")),
                Statement::Address(AddressField::Source, Op::Eq, pod.into()),
                accept(),
            ])
            .rule([Statement::Protocol(Op::Eq, Protocol::Tcp), accept()])
            .rule([Statement::is_in([Field::DestinationAddress], "networks"), Statement::TcpOpens, accept()])
            .rule([Statement::Protocol(Op::Ne, Protocol::Sctp), Statement::MarkHas(Op::Ne, 0x4000), accept()])
            .rule([Statement::Update(flow.into(), "affinity".into(), Some(5400))])
            .rule([
                Statement::Update(vec![Field::SourceAddress, Field::SourcePort], "clients".into(), Some(60)),
                accept(),
            ])
            .rule([Statement::is_in([Field::DestinationAddress], "networks"), accept()])
            .rule([Statement::is_in([Field::Mark, Field::InputInterface], "marks"), accept()])
            .rule([Statement::is_in([Field::InputInterface], "interfaces"), accept()])
            .rule([Statement::PriorityMap(service.into(), "priorities".into()), Statement::goto("lb-2")])
            .rule([Statement::is_in([Field::SourceAddress, Field::Priority], "sticky"), Statement::jump("lb-2")])
            .rule([
                Statement::Update(vec![Field::SourceAddress, Field::Priority], "sticky".into(), Some(60)),
                Statement::PriorityNone,
            ])
            .rule(Statement::Count(service.into(), "counted".into()))
            .rule([Statement::is_in([Field::SourcePort], "ports"), accept()])
            .rule([Statement::is_in([Field::OriginalDestinationAddress], "plain"), accept()])
            .rule(Statement::vmap([Field::Protocol], "protocols"))
            .rule(Statement::vmap([Field::Index(Generator::Random(5))], "slots"))
            .rule(Statement::vmap([Field::SourceAddress], "cidrs"))
            .rule(Statement::vmap(
                [Field::DestinationAddress, Field::Protocol, Field::DestinationPort, Field::SourceAddress],
                "ranges",
            )),
        Chain::base("output", ChainKind::Filter, HookPoint::Output, -105)
            .rule([Statement::ConnectionNew, Statement::ConnectionDnat, accept()])
            .rule([Statement::is_in([Field::DestinationAddress], "plain"), Statement::Reject])
            .rule(localnet_linux::nft::Rule::new([Statement::Reject]).comment("no endpoints")),
        Chain::base("forward", ChainKind::Filter, HookPoint::Forward, 5),
        Chain::base("input", ChainKind::Filter, HookPoint::Input, -5).comment("empty"),
        Chain::base("postrouting", ChainKind::Nat, HookPoint::Postrouting, 100).rule([
            Statement::MarkHas(Op::Eq, 0x4000),
            Statement::MarkXor(0x4000),
            Statement::Masquerade,
        ]),
    ];
    TableContent {
        table: Table::new(family, "everything"),
        sets: sets.into_iter().map(|(set, elements)| (Arc::new(set), elements)).collect(),
        chains,
    }
}

pub(crate) fn load(content: &TableContent) -> Socket {
    let mut transaction = Transaction::new();
    transaction.add_content(content.clone());
    let mut socket = Socket::open().unwrap();
    socket.commit(&transaction).unwrap_or_else(|error| panic!("{error}\n{}", script(&transaction)));
    socket
}

const LIST: [&str; 2] = ["list", "ruleset"];

fn netlink_lists_like_text(family: Family) {
    let content = everything(family);
    load(&content);
    let by_netlink = nft(&LIST, "");

    nft(&["flush", "ruleset"], "");
    let mut transaction = Transaction::new();
    transaction.add_content(content.clone());
    nft(&["-f", "-"], &script(&transaction));
    let by_text = nft(&LIST, "");
    assert_same(&by_netlink, &by_text, "netlink and text have the same effect");

    nft(&["flush", "ruleset"], "");
    nft(&["-f", "-"], &by_netlink);
    assert_same(&nft(&LIST, ""), &by_netlink, "the listing of the netlink ruleset reloads");

    assert_same(&listing(&content), &by_netlink, "our listing equals nft's");
}

#[test]
fn netlink_lists_like_text_v4() {
    isolated(|| netlink_lists_like_text(Family::V4));
}

#[test]
fn netlink_lists_like_text_v6() {
    isolated(|| netlink_lists_like_text(Family::V6));
}

/// Transactions that remove parts of `everything` and add them again, with every kind of change.
fn churn(content: &TableContent) -> Vec<Transaction> {
    let table = &content.table;
    let (mut delete, mut add, mut replace, mut rules) =
        (Transaction::new(), Transaction::new(), Transaction::new(), Transaction::new());
    for (set, elements) in &content.sets {
        delete.delete_elements(table, set, elements.clone());
        add.add_elements(table, set, elements.clone());
        replace.flush_set(table, set).add_elements(table, set, elements.clone());
    }
    // nft 1.0.6 accepts a rule with `dnat … map` only together with the map: "conflicting protocols: ip vs. th".
    for chain in content.chains.iter().filter(|chain| &*chain.name != "lb-2") {
        rules.flush_chain(table, &chain.name).add_rules(table, chain);
    }
    let scratch = Arc::new(Set::verdict_map("scratch", [FieldType::InetService]));
    let chain = Arc::new(Chain::new("scratch-chain").rule(Statement::Masquerade));
    rules.add_set(table, &scratch).add_chain(table, &chain);
    let element = Element::verdict(Tuple::new().port(1), Verdict::Goto(chain.name.clone()));
    rules.add_elements(table, &scratch, vec![element.clone()]);
    let mut undo = Transaction::new();
    undo.delete_elements(table, &scratch, vec![element]).delete_set(table, &scratch.name);
    undo.flush_chain(table, &chain.name).delete_chain(table, &chain.name);
    vec![delete, add, replace, rules, undo]
}

fn every_change_has_the_same_effect_by_netlink_and_text(family: Family) {
    let content = everything(family);
    let mut socket = load(&content);
    let whole = nft(&LIST, "");
    let steps = churn(&content);
    let by_netlink: Vec<String> = steps
        .iter()
        .map(|step| {
            socket.commit(step).unwrap_or_else(|error| panic!("{error}"));
            nft(&LIST, "")
        })
        .collect();
    assert!(!by_netlink[0].contains("elements ="), "all elements are deleted: {}", by_netlink[0]);
    assert_same(&by_netlink[4], &whole, "netlink restores the table");
    for (step, listed) in steps.iter().zip(&by_netlink) {
        nft(&["-f", "-"], &script(step));
        assert_same(&nft(&LIST, ""), listed, "text and netlink have the same effect");
    }
    let all_at_once = steps[..3].iter().flat_map(Transaction::changes).fold(Transaction::new(), |mut all, change| {
        all.push(change.clone());
        all
    });
    socket.commit(&all_at_once).unwrap();
    assert_same(&nft(&LIST, ""), &whole, "one transaction deletes, adds, flushes and adds");
}

#[test]
fn every_change_has_the_same_effect_by_netlink_and_text_v4() {
    isolated(|| every_change_has_the_same_effect_by_netlink_and_text(Family::V4));
}

#[test]
fn every_change_has_the_same_effect_by_netlink_and_text_v6() {
    isolated(|| every_change_has_the_same_effect_by_netlink_and_text(Family::V6));
}

/// A table with a rule and a range for each prefix length.
fn every_prefix(family: Family) -> TableContent {
    let address: std::net::IpAddr = match family {
        Family::V4 => "213.170.85.171".parse().unwrap(),
        Family::V6 => "d5aa:55ab:d5aa:55ab:d5aa:55ab:d5aa:55ab".parse().unwrap(),
    };
    let most = if family == Family::V4 { 32 } else { 128 };
    let prefix = |len| ipnet::IpNet::new(address, len).unwrap().trunc();
    let mut chain = Chain::new("prefixes");
    let mut sets = Vec::new();
    for len in 0..=most {
        for op in [Op::Eq, Op::Ne] {
            chain = chain.rule([
                Statement::Address(AddressField::Source, op, prefix(len)),
                Statement::Address(AddressField::Destination, op, prefix(len)),
                Statement::Verdict(Verdict::Accept),
            ]);
        }
        let set = Set::new(format!("prefix-{len}"), [FieldType::address(family)]).interval();
        sets.push((Arc::new(set), vec![Element::new(ElementKey::prefix(prefix(len)))]));
    }
    TableContent { table: Table::new(family, "prefixes"), sets, chains: vec![chain] }
}

fn every_prefix_length_is_listed_and_dumped(family: Family) {
    let content = every_prefix(family);
    let mut socket = load(&content);
    assert_same(&nft(&LIST, ""), &listing(&content), "nft lists the same prefixes");
    let dump = socket.table(&content.table).unwrap().unwrap();
    assert!(dump.chains[0].is(family, &content.chains[0]));
    for (found, (set, elements)) in dump.sets.iter().zip(&content.sets) {
        assert_eq!((found.set.as_deref(), &found.elements), (Some(&**set), elements));
    }
}

#[test]
fn every_prefix_length_is_listed_and_dumped_v4() {
    isolated(|| every_prefix_length_is_listed_and_dumped(Family::V4));
}

#[test]
fn every_prefix_length_is_listed_and_dumped_v6() {
    isolated(|| every_prefix_length_is_listed_and_dumped(Family::V6));
}
