//! nft's syntax: a transaction as a script for `nft -f`, and a table as `nft list table` of version 1.0.6 prints it.
//!
//! Both share one function per kind of object, because the script differs from the listing only in its verbs.

use localnet_core::Family;

use super::comment::comment_text;
use super::text_value::{duration, millis_text, tuple_text};
use super::userdata::{INDEX_EXAMPLE_MODULUS, needs_typeof};
use super::{
    Change, Element, ElementData, ElementKey, Field, FieldType, Generator, Hook, HookPoint, Set, SetData, Table,
    TableContent, Transaction, family_name,
};

/// Renders the transaction as a script for `nft -f`, with one change and one element per line.
pub fn script(transaction: &Transaction) -> String {
    let mut out = String::new();
    for change in transaction.changes() {
        write_change(&mut out, change);
        out.push('\n');
    }
    out
}

/// Renders the table as `nft list table` prints it.
pub fn listing(content: &TableContent) -> String {
    let family = content.table.family;
    let mut blocks = Vec::new();
    for (set, elements) in &content.sets {
        let mut block = format!("\t{} {} {{\n", set_word(set), set.name);
        for line in declaration(set, family) {
            block += &format!("\t\t{line}\n");
        }
        block += &listed_elements(set, elements);
        blocks.push(block + "\t}\n");
    }
    for chain in &content.chains {
        let mut block = format!("\tchain {} {{\n", chain.name);
        if let Some(comment) = &chain.comment {
            block += &format!("\t\t{}\n", comment_text(comment));
        }
        if let Some(hook) = chain.hook {
            block += &format!("\t\t{}\n", hook_text(hook));
        }
        for rule in &chain.rules {
            block += &format!("\t\t{}\n", rule.line(family));
        }
        blocks.push(block + "\t}\n");
    }
    format!("table {} {{\n{}}}\n", table_text(&content.table), blocks.join("\n"))
}

/// The change in nft's syntax, without the body of a chain, set or map, and without elements: `add set ip localnet hairpin`
pub(super) fn head(change: &Change) -> String {
    let of = |verb: &str, table: &Table, name: &str| format!("{verb} {} {name}", table_text(table));
    match change {
        Change::AddTable(table) => format!("add table {}", table_text(table)),
        Change::DeleteTable(table) => format!("delete table {}", table_text(table)),
        Change::AddChain(table, chain) => of("add chain", table, &chain.name),
        Change::FlushChain(table, chain) => of("flush chain", table, chain),
        Change::DeleteChain(table, chain) => of("delete chain", table, chain),
        Change::AddRule(table, chain, rule) => of("add rule", table, chain) + " " + &rule.line(table.family),
        Change::AddSet(table, set) => of(&format!("add {}", set_word(set)), table, &set.name),
        Change::FlushSet(table, set) => of(&format!("flush {}", set_word(set)), table, &set.name),
        // `delete set` also deletes maps.
        Change::DeleteSet(table, set) => of("delete set", table, set),
        Change::AddElements(table, set, _) => of("add element", table, &set.name),
        Change::DeleteElements(table, set, _) => of("delete element", table, &set.name),
    }
}

fn write_change(out: &mut String, change: &Change) {
    out.push_str(&head(change));
    match change {
        Change::AddChain(_, chain) => {
            let mut body = String::new();
            if let Some(hook) = chain.hook {
                body += &format!(" {}", hook_text(hook));
            }
            if let Some(comment) = &chain.comment {
                body += &format!(" {};", comment_text(comment));
            }
            if !body.is_empty() {
                out.push_str(&format!(" {{{body} }}"));
            }
        }
        Change::AddSet(table, set) => {
            let body: String = declaration(set, table.family).iter().map(|line| format!(" {line};")).collect();
            out.push_str(&format!(" {{{body} }}"));
        }
        Change::AddElements(_, set, elements) => write_elements(out, elements, |element| element_line(set, element)),
        Change::DeleteElements(_, set, elements) => {
            write_elements(out, elements, |element| key_text(set, &element.key));
        }
        _ => {}
    }
}

fn write_elements(out: &mut String, elements: &[Element], text: impl Fn(&Element) -> String) {
    out.push_str(" {\n");
    elements.iter().for_each(|element| out.push_str(&format!("\t{},\n", text(element))));
    out.push('}');
}

fn table_text(table: &Table) -> String {
    format!("{} {}", family_name(table.family), table.name)
}

fn set_word(set: &Set) -> &'static str {
    if set.is_map() { "map" } else { "set" }
}

/// The lines of a set's declaration, in nft's order.
fn declaration(set: &Set, family: Family) -> Vec<String> {
    let mut lines = vec![type_line(set, family)];
    if let Some(size) = set.size {
        lines.push(format!("size {size}"));
    }
    let flags = [(set.flags.interval, "interval"), (set.flags.dynamic, "dynamic"), (set.flags.timeout, "timeout")];
    let flags: Vec<&str> = flags.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    if !flags.is_empty() {
        lines.push(format!("flags {}", flags.join(",")));
    }
    if let Some(seconds) = set.timeout {
        lines.push(format!("timeout {}", duration(seconds)));
    }
    if let Some(comment) = &set.comment {
        lines.push(comment_text(comment));
    }
    lines
}

fn type_line(set: &Set, family: Family) -> String {
    let by_example = needs_typeof(set);
    let fields = |fields: &[FieldType]| {
        let names: Vec<String> =
            fields.iter().map(|field| if by_example { example(*field, family) } else { field.to_string() }).collect();
        names.join(" . ")
    };
    let word = if by_example { "typeof" } else { "type" };
    match &set.data {
        SetData::None => format!("{word} {}", fields(&set.key)),
        SetData::Verdict => format!("{word} {} : verdict", fields(&set.key)),
        SetData::Values(values) => format!("{word} {} : {}", fields(&set.key), fields(values)),
    }
}

/// An example expression of that type. `userdata.rs` stores the same example.
fn example(field: FieldType, family: Family) -> String {
    match field {
        FieldType::Ipv4Addr => "ip daddr".to_owned(),
        FieldType::Ipv6Addr => "ip6 daddr".to_owned(),
        FieldType::InetProto => Field::Protocol.text(family),
        FieldType::InetService => Field::DestinationPort.text(family),
        FieldType::Mark => Field::Mark.text(family),
        FieldType::Priority => Field::Priority.text(family),
        FieldType::Ifname => Field::InputInterface.text(family),
        FieldType::Index => Field::Index(Generator::Random(INDEX_EXAMPLE_MODULUS)).text(family),
    }
}

/// `type nat hook prerouting priority dstnat; policy accept;`
fn hook_text(hook: Hook) -> String {
    let Hook { kind, point, priority } = hook;
    format!("type {kind} hook {point} priority {}; policy accept;", priority_text(priority, point))
}

/// nft's name of a priority: relative to a standard priority that is at most ten away.
fn priority_text(priority: i32, point: HookPoint) -> String {
    const STANDARD: [(&str, i32, Option<HookPoint>); 6] = [
        ("raw", -300, None),
        ("mangle", -150, None),
        ("dstnat", -100, Some(HookPoint::Prerouting)),
        ("filter", 0, None),
        ("security", 50, None),
        ("srcnat", 100, Some(HookPoint::Postrouting)),
    ];
    let near = STANDARD.iter().find(|(_, value, _)| priority.abs_diff(*value) <= 10);
    match near {
        Some((name, value, only)) if only.is_none_or(|only| only == point) => match priority - value {
            0 => (*name).to_owned(),
            more @ 1.. => format!("{name} + {more}"),
            less => format!("{name} - {}", -less),
        },
        _ => priority.to_string(),
    }
}

/// Renders elements with nft's line breaks: five short numbers, two IPv4 addresses, or one of anything else per line.
fn listed_elements(set: &Set, elements: &[Element]) -> String {
    let per_line = match set.key.as_slice() {
        [FieldType::Ipv4Addr] => 2,
        [FieldType::Index | FieldType::Mark | FieldType::Priority | FieldType::InetProto | FieldType::InetService] => 5,
        _ => 1,
    };
    let lines: Vec<String> = elements
        .chunks(per_line)
        .map(|line| line.iter().map(|element| element_line(set, element)).collect::<Vec<_>>().join(", "))
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("\t\telements = {{ {} }}\n", lines.join(",\n\t\t\t     "))
}

/// Renders an element of a set on one line, as `nft list` prints it: `10.0.0.1 . tcp . 80 comment "x" : goto lb`
pub fn element_line(set: &Set, element: &Element) -> String {
    let mut text = key_text(set, &element.key);
    if let Some(comment) = &element.comment {
        text += &format!(" {}", comment_text(comment));
    }
    match (&element.data, &set.data) {
        (ElementData::None, _) => {}
        (ElementData::Verdict(verdict), _) => text += &format!(" : {verdict}"),
        (ElementData::Value(value), SetData::Values(fields)) => {
            text += &format!(" : {}", tuple_text(fields, value, value));
        }
        (ElementData::Value(value), _) => text += &format!(" : {value:?}"),
        (ElementData::Expires(expiry), _) => {
            text += &format!(" timeout {} expires {}", millis_text(expiry.timeout), millis_text(expiry.left));
        }
    }
    text
}

/// Renders the key as nft does.
pub(super) fn key_text(set: &Set, key: &ElementKey) -> String {
    tuple_text(&set.key, key.start(), key.end().unwrap_or(key.start()))
}

#[cfg(test)]
mod tests {
    use localnet_core::Protocol;

    use super::*;
    use crate::nft::{Chain, Rule, Statement, Tuple, Verdict};

    #[test]
    fn priorities_near_a_standard_priority_use_its_name() {
        #[track_caller]
        fn check(priority: i32, point: HookPoint, expected: &str) {
            assert_eq!(priority_text(priority, point), expected);
        }
        check(-100, HookPoint::Prerouting, "dstnat");
        check(-110, HookPoint::Prerouting, "dstnat - 10");
        check(-111, HookPoint::Prerouting, "-111");
        check(-100, HookPoint::Output, "-100");
        check(100, HookPoint::Postrouting, "srcnat");
        check(100, HookPoint::Input, "100");
        check(10, HookPoint::Forward, "filter + 10");
        check(11, HookPoint::Forward, "11");
        check(-301, HookPoint::Output, "raw - 1");
        check(i32::MIN, HookPoint::Output, "-2147483648");
    }

    #[test]
    fn a_script_has_one_change_per_line() {
        let table = Table::new(Family::V6, "t");
        let set = Set::verdict_map("m", [FieldType::Ipv6Addr, FieldType::InetProto]).size(9).comment("a\"b");
        let set = std::sync::Arc::new(set);
        let key = Tuple::new().address("fd00::1".parse().unwrap()).protocol(Protocol::Udp);
        let element = Element::verdict(key, Verdict::Goto("c".into())).comment("x/y:z");
        let chain = Chain::new("c").rule(Rule::new([Statement::Reject]).comment("why"));
        let mut transaction = Transaction::new();
        transaction
            .add_table(&table)
            .add_chain(&table, &chain.into())
            .add_set(&table, &set)
            .add_elements(&table, &set, vec![element.clone()])
            .add_elements(&table, &set, vec![])
            .delete_elements(&table, &set, vec![element])
            .flush_set(&table, &set)
            .delete_set(&table, &set.name)
            .flush_chain(&table, &"c".into())
            .delete_chain(&table, &"c".into())
            .delete_table(&table);
        let expected = [
            "add table ip6 t",
            "add chain ip6 t c",
            "add rule ip6 t c reject comment \"why\"",
            "add map ip6 t m { type ipv6_addr . inet_proto : verdict; size 9; comment \"a'b\"; }",
            "add element ip6 t m {",
            "\tfd00::1 . udp comment \"x/y:z\" : goto c,",
            "}",
            "delete element ip6 t m {",
            "\tfd00::1 . udp,",
            "}",
            "flush map ip6 t m",
            "delete set ip6 t m",
            "flush chain ip6 t c",
            "delete chain ip6 t c",
            "delete table ip6 t",
            "",
        ];
        assert_eq!(script(&transaction).lines().collect::<Vec<_>>(), expected[..expected.len() - 1]);
    }
}
