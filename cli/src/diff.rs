//! `localnet diff`: compares the plan of the node's backend with the live state of the kernel. It changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use localnet_client::{Changes, Snapshot, inspect::Listing, vips::Config};
use localnet_linux::{
    nft::{Chain, ChainDump, Element, LiveTable, Set, TableContent, TableDump, element_line, family_name},
    traffic::Reason,
};
use localnet_nft::{
    desired::Desired,
    plan::sets::{SetId, Sets as _, refused_name},
};
use localnet_proto::Family;
use serde::Serialize;

use crate::{
    kernel::Live,
    origin::Origin,
    output::Show,
    style::{Style, Tone},
};

/// The differences between the plan and the kernel, in the notation of the backend's subsystem.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Differences {
    /// The objects that differ: all, or the first [`MOST`].
    pub differences: Vec<Difference>,
    /// The total number of differences.
    pub count: usize,
    /// The number of compared elements of nf_tables sets, and of compared lines of other subsystems.
    pub compared: usize,
    /// The configuration that the plan was computed with.
    pub configuration: Origin,
}

/// An object that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The table, such as `ip localnet` or `ip nat`; or `IPVS`, `interface` or `bpf`.
    pub table: String,
    /// The chain, set or map; or `virtual servers`, `programs`, or the name of the interface.
    pub place: String,
    /// The kind of difference: `missing` (only planned), `unplanned` (only in the kernel), or `differs`.
    pub what: &'static str,
    /// The rule, element or other line; or `the whole chain`, for example.
    pub text: String,
    /// For `differs`: the object that the kernel holds instead, if known.
    pub live: Option<String>,
}

/// The maximum number of differences that are listed without `--all`.
pub const MOST: usize = 200;

/// Plans the tables of both families for a state, as the backend does.
pub fn plan(state: &Snapshot, config: &Config, local: &[IpAddr]) -> Desired {
    let mut desired = Desired::new(config.clone());
    desired.vips.set_local_addresses(local.to_vec());
    // The returned diagnostics are ignored: the backend itself reports what it does not program.
    desired.update(state, &Changes::everything());
    desired.release();
    desired
}

/// Compares the planned tables with the live tables. At most `most` differences are listed.
pub fn differences(plan: &mut Desired, live: &Live, most: usize) -> Differences {
    // Whether the backend counts refused packets is not part of the state, so the kernel's table tells.
    let counts = |dump: &TableDump| Reason::ALL.into_iter().any(|reason| dump.set(&refused_name(reason)).is_some());
    if live.tables.iter().filter_map(|(_, dump)| dump.as_ref()).any(counts) {
        plan.count_refused();
    }
    for (family, dump) in live.tables.iter() {
        plan.adopt(family, dump.as_ref().map(slots));
    }
    let mut found = Differences::default();
    for planned in &plan.content() {
        let has_family = live.has[planned.table.family];
        let live = &live.tables[planned.table.family];
        // A host without IPv6 has no IPv6 table.
        if live.is_some() || has_family {
            found.compare(planned, live.as_ref());
        }
    }
    found.count = found.differences.len();
    found.differences.truncate(most);
    found
}

/// Compares a plan with the live state, both as text. At most `most` differences are listed.
pub fn of_listings(planned: &Listing, live: &Listing, most: usize) -> Differences {
    let mut found = Differences::default();
    for place in planned.keys().chain(live.keys()).collect::<BTreeSet<_>>() {
        let mut add = |what, text: &str| {
            let (table, place) = (place.table.clone(), place.name.clone());
            found.differences.push(Difference { table, place, what, text: text.to_owned(), live: None });
        };
        match (planned.get(place), live.get(place)) {
            (Some(planned), Some(live)) => {
                found.compared += planned.len();
                if planned == live {
                    continue;
                }
                let (wanted, held): (BTreeSet<_>, BTreeSet<_>) = (planned.iter().collect(), live.iter().collect());
                if wanted == held {
                    add("differs", "order of lines, or a line that occurs twice");
                }
                wanted.difference(&held).for_each(|line| add("missing", line));
                held.difference(&wanted).for_each(|line| add("unplanned", line));
            }
            (Some(_), None) => add("missing", "the whole chain or set"),
            (None, _) => add("unplanned", "the whole chain or set"),
        }
    }
    found.count = found.differences.len();
    found.differences.truncate(most);
    found
}

/// Returns the slots of session affinity in a table. Only the kernel knows which endpoint has which slot, because earlier
/// states determine the slots.
fn slots(dump: &TableDump) -> LiveTable {
    let is_slots = |set: &Arc<Set>| SetId::of_name(&set.name).is_some_and(SetId::is_optional);
    let sets = dump.sets.iter().filter_map(|of| Some((of.set.clone().filter(is_slots)?, of.elements.clone())));
    LiveTable { sets: sets.map(Some).collect(), chains: Vec::new() }
}

impl Differences {
    /// Adds the differences of another subsystem. At most `most` differences are listed in total.
    pub fn append(&mut self, mut other: Self, most: usize) {
        self.differences.append(&mut other.differences);
        self.differences.truncate(most);
        self.count += other.count;
        self.compared += other.compared;
    }

    fn compare(&mut self, planned: &TableContent, live: Option<&TableDump>) {
        let family = planned.table.family;
        let table = format!("{} {}", family_name(family), planned.table.name);
        let (all, compared) = (&mut self.differences, &mut self.compared);
        let mut add = |place: &str, what, text: String, live| {
            all.push(Difference { table: table.clone(), place: place.to_owned(), what, text, live });
        };
        let Some(live) = live else {
            return add("", "missing", "the whole table".to_owned(), None);
        };
        for (set, elements) in &planned.sets {
            let name = &set.name;
            let Some(live) = live.set(name) else {
                add(name, "missing", "the whole set".to_owned(), None);
                continue;
            };
            // The sets with the clients of session affinity are not planned: packets fill these sets.
            if SetId::of_name(name).is_none() {
                continue;
            }
            *compared += elements.len();
            // Once both lists are sorted by key, one pass over them is enough. The live elements are usually sorted already, so
            // sorting them takes little time.
            let mut live: Vec<&Element> = live.elements.iter().collect();
            live.sort_unstable_by_key(|element| &element.key);
            let (mut live, mut unplanned) = (live.into_iter().peekable(), Vec::new());
            for element in elements {
                unplanned.extend(std::iter::from_fn(|| live.next_if(|live| live.key < element.key)));
                match live.next_if(|live| live.key == element.key) {
                    None => add(name, "missing", element_line(set, element), None),
                    Some(live) if live.data == element.data => {}
                    Some(live) => add(name, "differs", element_line(set, element), Some(element_line(set, live))),
                }
            }
            unplanned.extend(live);
            unplanned.iter().for_each(|element| add(name, "unplanned", element_line(set, element), None));
        }
        for live in live.sets.iter().filter(|live| !planned.sets.iter().any(|(set, _)| set.name == live.name)) {
            add(&live.name, "unplanned", "the whole set".to_owned(), None);
        }
        for chain in &planned.chains {
            let name = &chain.name;
            match live.chain(name) {
                None => add(name, "missing", "the whole chain".to_owned(), None),
                Some(live) if live.is(family, chain) => {}
                Some(live) => rules(family, chain, live, |what, text| add(name, what, text, None)),
            }
        }
        for live in live.chains.iter().filter(|live| !planned.chains.iter().any(|chain| chain.name == live.name)) {
            add(&live.name, "unplanned", "the whole chain".to_owned(), None);
        }
    }
}

/// Adds the rules in which a planned chain and the kernel's chain differ.
fn rules(family: Family, planned: &Chain, live: &ChainDump, mut add: impl FnMut(&'static str, String)) {
    let missing = planned.rules.iter().filter(|rule| !live.rules.iter().any(|live| live.is(family, rule)));
    let missing: Vec<String> = missing.map(|rule| rule.line(family)).collect();
    let unplanned = live.rules.iter().filter(|live| !planned.rules.iter().any(|rule| live.is(family, rule)));
    let unplanned = unplanned.map(|rule| {
        let comment = rule.comment.as_ref().map(|comment| format!(" {comment:?}")).unwrap_or_default();
        format!("rule # handle {}{comment}", rule.handle)
    });
    let unplanned: Vec<String> = unplanned.collect();
    if missing.is_empty() && unplanned.is_empty() {
        add("differs", "order of rules, or declaration".to_owned());
    }
    missing.into_iter().for_each(|text| add("missing", text));
    unplanned.into_iter().for_each(|text| add("unplanned", text));
}

impl Show for Differences {
    fn human(&self, style: Style) -> String {
        if self.count == 0 {
            return format!(
                "{} ({} elements or rules compared)\n{}",
                style.paint(Tone::Good, "the kernel matches the plan"),
                self.compared,
                self.configuration.line()
            );
        }
        let mut by_place: BTreeMap<(&str, &str), Vec<&Difference>> = BTreeMap::new();
        for difference in &self.differences {
            by_place.entry((&difference.table, &difference.place)).or_default().push(difference);
        }
        let mut text = String::new();
        for ((table, place), differences) in by_place {
            // Virtual servers and interfaces are in no table.
            let word = if table.starts_with("ip") { "table " } else { "" };
            text.push_str(format!("{word}{table} {place}").trim_end());
            text.push('\n');
            for difference in differences {
                let mut line = |sign, tone, of: &str| {
                    text.push_str(&format!("  {}\n", style.paint(tone, &format!("{sign} {of}"))));
                };
                match (difference.what, &difference.live) {
                    ("missing", _) => line('+', Tone::Good, &difference.text),
                    ("unplanned", _) => line('-', Tone::Bad, &difference.text),
                    (_, Some(live)) => {
                        line('-', Tone::Bad, live);
                        line('+', Tone::Good, &difference.text);
                    }
                    (_, None) => line('~', Tone::Odd, &difference.text),
                }
            }
        }
        let more = self.count - self.differences.len();
        if more > 0 {
            text.push_str(&format!("and {more} more (--all)\n"));
        }
        text + "- is in the kernel but not in the plan, + is in the plan but not in the kernel\n"
            + &self.configuration.line()
    }

    fn names(&self) -> Vec<String> {
        self.differences.iter().map(|of| format!("{} {}", of.table, of.place)).collect()
    }
}

#[cfg(test)]
mod tests {
    use localnet_client::inspect::Place;
    use localnet_linux::nft::{ElementData, SetDump, Tuple};
    use localnet_nft::portions::Limits;
    use localnet_proto::ByFamily;

    use super::*;

    fn state() -> Snapshot {
        crate::source::read(
            "node: {name: n, addresses: [192.168.0.2]}
services:
- {service: shop/web, type: ClusterIP, clusterIPs: [10.96.0.1], ports: [{protocol: TCP, port: 80}], endpoints: [
    {address: 10.0.0.1, ports: [{port: 8080}], scopes: {internal: true, established: true}}]}
",
        )
        .unwrap()
    }

    /// Returns what the backend would program, as the kernel would report it.
    fn planned() -> TableDump {
        let mut desired = Desired::new(Config::default());
        desired.update(&state(), &Changes::everything());
        dump(&desired)
    }

    fn dump(desired: &Desired) -> TableDump {
        let content = desired.content().remove(0);
        let sets = content.sets.into_iter().map(|(set, elements)| SetDump {
            name: set.name.clone(),
            set: Some(set),
            elements,
        });
        TableDump { chains: vec![], sets: sets.collect(), generation: 1 }
    }

    fn compared(tables: ByFamily<Option<TableDump>>, state: &Snapshot, most: usize) -> Differences {
        differences(
            &mut plan(state, &Config::default(), &[]),
            &Live { tables, generation: 1, has: ByFamily::from_fn(|_| true) },
            most,
        )
    }

    /// Returns the differences in the sets. Comparing the rules needs a kernel.
    fn found(state: &Snapshot, dump: &TableDump) -> Vec<String> {
        let differences = compared(ByFamily::new(Some(dump.clone()), None), state, MOST);
        let of_sets =
            differences.differences.iter().filter(|of| of.table == "ip localnet" && of.text != "the whole chain");
        of_sets.map(|of| format!("{} {} {}", of.place, of.what, of.text)).collect()
    }

    #[test]
    fn differing_elements_are_listed() {
        let (state, mut dump) = (state(), planned());
        let found = |dump: &TableDump| found(&state, dump);
        assert!(found(&dump).is_empty());
        let of = |dump: &TableDump, name: &str| dump.sets.iter().position(|set| *set.name == *name).unwrap();
        let services = of(&dump, "services");
        let kept = dump.sets[services].elements[0].clone();
        dump.sets[services].elements.clear();
        assert_eq!(found(&dump), ["services missing 10.96.0.1 . tcp . 80 comment \"shop/web:80\" : 0:1"]);
        let two = ElementData::Value(Tuple::new().priority(2));
        dump.sets[services].elements.push(Element { data: two, ..kept.clone() });
        assert_eq!(found(&dump), ["services differs 10.96.0.1 . tcp . 80 comment \"shop/web:80\" : 0:1"]);
        dump.sets[services].elements[0] = kept;
        let cluster_ips = of(&dump, "cluster-ips");
        for address in ["10.96.0.9", "10.96.0.7"] {
            let element = Element::new(Tuple::new().address(address.parse().unwrap())).comment("foreign");
            dump.sets[cluster_ips].elements.push(element);
        }
        assert_eq!(
            found(&dump),
            ["7", "9"].map(|last| format!("cluster-ips unplanned 10.96.0.{last} comment \"foreign\""))
        );
        dump.sets.retain(|set| *set.name != *"hairpin");
        assert_eq!(found(&dump).len(), 3);
        assert_eq!(compared(ByFamily::default(), &state, MOST).differences[0].text.as_str(), "the whole table");
    }

    #[test]
    fn lines_are_compared_place_by_place() {
        let listing = |text: &str| -> Listing {
            let chains = text.split("; ").map(|chain| {
                let (name, rules) = chain.split_once(':').unwrap();
                let place = Place { table: "ip nat".to_owned(), name: name.to_owned() };
                (place, rules.split_whitespace().map(str::to_owned).collect())
            });
            chains.collect()
        };
        let planned = listing("A: 1 2; B: 3; C:");
        let found = |live: &str| {
            let found = of_listings(&planned, &listing(live), MOST);
            found.differences.into_iter().map(|of| format!("{} {} {}", of.place, of.what, of.text)).collect::<Vec<_>>()
        };
        assert_eq!(found("A: 1 2; B: 3; C:"), [""; 0]);
        assert_eq!(found("A: 1 4; B: 3; C:"), ["A missing 2", "A unplanned 4"]);
        let order = "differs order of lines, or a line that occurs twice";
        assert_eq!(found("A: 2 1; B: 3 3; C:"), [format!("A {order}"), format!("B {order}")]);
        assert_eq!(
            found("A: 1 2; B: 3; D: 3"),
            ["C missing the whole chain or set", "D unplanned the whole chain or set"]
        );
    }

    /// Returns the state of a Service with session affinity and these endpoints.
    fn sticky(hosts: &[u8]) -> Snapshot {
        let endpoints = hosts.iter().map(|host| {
            format!("{{address: 10.0.0.{host}, ports: [{{port: 8080}}], scopes: {{internal: true, external: true}}}}")
        });
        let endpoints = endpoints.collect::<Vec<_>>().join(", ");
        crate::source::read(&format!(
            "node: {{name: n, addresses: [192.168.0.2]}}
services:
- {{service: shop/web, type: ClusterIP, clusterIPs: [10.96.0.1], externalIPs: [192.168.9.9], clientIpAffinity: 600,
   ports: [{{protocol: TCP, port: 80}}], endpoints: [{endpoints}]}}
"
        ))
        .unwrap()
    }

    /// The kernel keeps the slots that endpoints have. A new plan would assign other slots.
    #[test]
    fn affinity_slots_are_compared_with_those_of_the_kernel() {
        let mut desired = Desired::new(Config::default());
        for hosts in [&[1, 2, 3][..], &[2, 3, 4], &[4, 5]] {
            desired.update(&sticky(hosts), &Changes::everything());
            for family in Family::BOTH {
                desired.tables()[family].changes(Limits { entered: usize::MAX, filled: usize::MAX });
                desired.commit(family);
            }
        }
        let (state, mut dump) = (sticky(&[4, 5]), dump(&desired));
        assert_eq!(found(&state, &dump), [""; 0]);
        let endpoints = dump.sets.iter_mut().find(|set| *set.name == *"affinity-endpoints").unwrap();
        let own = endpoints
            .elements
            .iter_mut()
            .find(|element| element.data == ElementData::Value(Tuple::new().address([10, 0, 0, 5].into()).port(8080)));
        own.unwrap().data = ElementData::Value(Tuple::new().address([10, 6, 6, 6].into()).port(8080));
        let wrong = found(&state, &dump);
        assert_eq!(wrong, ["affinity-endpoints differs 10.96.0.1 . tcp . 80 . 4 : 10.0.0.5 . 8080"]);
    }

    /// An address that two Services claim is compared with the plan of its owner.
    #[test]
    fn an_address_of_two_services_is_no_difference() {
        let mut state = state();
        let web = state.services.values().next().unwrap().clone();
        let key = localnet_proto::ServiceKey::new("shop", "copy");
        state.services.insert(key.clone(), Arc::new(localnet_proto::Service { key, ..Arc::unwrap_or_clone(web) }));
        let mut desired = Desired::new(Config::default());
        desired.update(&state, &Changes::everything());
        assert_eq!(found(&state, &dump(&desired)), [""; 0]);
    }

    /// As in `kubectl diff`, `-` marks the live state and `+` the desired state.
    #[test]
    fn minus_is_live_and_plus_is_planned() {
        let of = |what, text: &str, live: Option<&str>| Difference {
            table: "ip localnet".to_owned(),
            place: "services".to_owned(),
            what,
            text: text.to_owned(),
            live: live.map(str::to_owned),
        };
        let all = vec![
            of("missing", "new", None),
            of("unplanned", "old", None),
            of("differs", "a : 2", Some("a : 1")),
            of("differs", "order of rules, or declaration", None),
        ];
        let text = Differences { count: 4, differences: all, ..Differences::default() }.human(Style::default());
        let lines: Vec<&str> = text.lines().take(6).collect();
        let expected = ["table ip localnet services", "  + new", "  - old", "  - a : 1", "  + a : 2"];
        assert_eq!(lines, [&expected[..], &["  ~ order of rules, or declaration"]].concat());
    }

    #[test]
    fn differences_beyond_the_limit_are_counted() {
        let [all, some] = [MOST, 3].map(|most| compared(ByFamily::new(Some(planned()), None), &state(), most));
        assert_eq!((some.count, some.differences), (all.count, all.differences[..3].to_vec()));
        let differences =
            Differences { count: 5, differences: all.differences[..3].to_vec(), ..Differences::default() };
        assert!(differences.human(Style::default()).contains("and 2 more"));
    }
}
