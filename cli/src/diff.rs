//! `localnet diff`: the plan of the nft backend against what the kernel holds. Reads, and changes nothing.

use std::collections::{BTreeMap, HashMap};

use localnet_client::{Changes, Snapshot, vips::Config};
use localnet_linux::nft::{
    self, Element, ElementData, ElementKey, Set, TableContent, TableDump, element_line, rule_line,
};
use localnet_nft::{desired::Desired, plan::sets::SetId};
use serde::Serialize;

use crate::{
    kernel::{self, Kernel},
    output::{Show, Style, Tone},
};

/// What differs, in nft's words.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Differences {
    /// One for each thing.
    pub differences: Vec<Difference>,
    /// How many there are in all.
    pub count: usize,
    /// How many elements were compared.
    pub compared: usize,
}

/// Something that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The table: `ip localnet`.
    pub table: String,
    /// The chain, set or map.
    pub place: String,
    /// `missing` from the kernel, `unplanned` in it, or `differs`.
    pub what: &'static str,
    /// The rule or element; empty if it is about the whole place.
    pub text: String,
}

/// So many are named unless all are asked for.
pub const MOST: usize = 200;

/// What both tables should hold.
pub fn plan(state: &Snapshot, config: Config, local: Vec<std::net::IpAddr>) -> Vec<TableContent> {
    let mut desired = Desired::new(config);
    desired.set_local_addresses(local);
    // What is not programmed is said by the backend.
    desired.update(state, &Changes::everything());
    desired.content()
}

/// Compares both tables with the kernel's. What the kernel holds is read while the plan is made.
///
/// # Errors
/// The kernel does not show its tables.
pub fn differences(
    state: &Snapshot,
    config: Config,
    local: Vec<std::net::IpAddr>,
    kernel: &mut Kernel,
    most: usize,
    found: &mut Differences,
) -> Result<(), nft::Error> {
    let (planned, tables) = std::thread::scope(|scope| {
        let planned = scope.spawn(|| plan(state, config, local));
        let tables: Result<Vec<_>, _> = nft::Family::ALL.map(|family| kernel.table(family)).into_iter().collect();
        (planned.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), tables)
    });
    for (planned, table) in planned.iter().zip(tables?) {
        // A host without IPv6 has no such table.
        if table.is_some() || kernel::forwards(planned.table.family).is_some() {
            found.compare(planned, table.as_ref(), most);
        }
    }
    Ok(())
}

impl Differences {
    fn push(&mut self, most: usize, difference: impl FnOnce() -> Difference) {
        self.count += 1;
        if self.differences.len() < most {
            self.differences.push(difference());
        }
    }

    /// Compares a table as planned with the one in the kernel, if there is one.
    pub fn compare(&mut self, planned: &TableContent, found: Option<&TableDump>, most: usize) {
        let family = planned.table.family;
        let table = format!("{} {}", family.as_str(), planned.table.name);
        let difference =
            |place: &str, what, text: String| Difference { table: table.clone(), place: place.to_owned(), what, text };
        let Some(found) = found else {
            self.push(most, || difference("", "missing", "the whole table".to_owned()));
            return;
        };
        for (set, elements) in &planned.sets {
            match found.set(&set.name) {
                None => self.push(most, || difference(&set.name, "missing", "the whole set".to_owned())),
                Some(dump) => self.elements(set, elements, &dump.elements, most, &difference),
            }
        }
        let is_planned = |name: &str| planned.sets.iter().any(|(set, _)| *set.name == *name);
        for dump in found.sets.iter().filter(|dump| !is_planned(&dump.name)) {
            self.push(most, || difference(&dump.name, "unplanned", "the whole set".to_owned()));
        }
        for chain in &planned.chains {
            let Some(dump) = found.chain(&chain.name) else {
                self.push(most, || difference(&chain.name, "missing", "the whole chain".to_owned()));
                continue;
            };
            if dump.is(family, chain) {
                continue;
            }
            let mut said = false;
            for rule in chain.rules.iter().filter(|rule| !dump.rules.iter().any(|found| found.is(family, rule))) {
                said = true;
                self.push(most, || difference(&chain.name, "missing", rule_line(rule, family)));
            }
            for rule in dump.rules.iter().filter(|found| !chain.rules.iter().any(|rule| found.is(family, rule))) {
                said = true;
                let comment = rule.comment.as_ref().map(|comment| format!(" {comment:?}")).unwrap_or_default();
                self.push(most, || {
                    difference(&chain.name, "unplanned", format!("rule # handle {}{comment}", rule.handle))
                });
            }
            if !said {
                self.push(most, || difference(&chain.name, "differs", "order of rules, or declaration".to_owned()));
            }
        }
        let is_planned = |name: &str| planned.chains.iter().any(|chain| *chain.name == *name);
        for dump in found.chains.iter().filter(|dump| !is_planned(&dump.name)) {
            self.push(most, || difference(&dump.name, "unplanned", "the whole chain".to_owned()));
        }
    }

    fn elements(
        &mut self,
        set: &Set,
        planned: &[Element],
        found: &[Element],
        most: usize,
        difference: &impl Fn(&str, &'static str, String) -> Difference,
    ) {
        // What packets write, and the slots that only the kernel remembers, are no plan.
        if SetId::of_name(&set.name).is_none_or(is_of_slots) {
            return;
        }
        self.compared += planned.len();
        let held: HashMap<&ElementKey, &ElementData> =
            found.iter().map(|element| (&element.key, &element.data)).collect();
        let mut matched = 0;
        for element in planned {
            match held.get(&element.key) {
                Some(data) => {
                    matched += 1;
                    if **data != element.data {
                        self.push(most, || difference(&set.name, "differs", element_line(set, element)));
                    }
                }
                None => self.push(most, || difference(&set.name, "missing", element_line(set, element))),
            }
        }
        if matched == found.len() {
            return;
        }
        let wanted: HashMap<&ElementKey, ()> = planned.iter().map(|element| (&element.key, ())).collect();
        for element in found.iter().filter(|element| !wanted.contains_key(&element.key)) {
            self.push(most, || difference(&set.name, "unplanned", element_line(set, element)));
        }
    }
}

/// Which endpoint has which slot is the kernel's memory.
fn is_of_slots(set: SetId) -> bool {
    matches!(
        set,
        SetId::AffinitySlots
            | SetId::AffinityPicks
            | SetId::AffinityLocalSlots
            | SetId::AffinityLocalPicks
            | SetId::AffinityEndpoints
    )
}

impl Show for Differences {
    fn human(&self, style: Style) -> String {
        if self.count == 0 {
            return format!(
                "{} ({} elements compared)\n",
                style.paint(Tone::Good, "the kernel holds what is planned"),
                self.compared
            );
        }
        let mut by_place: BTreeMap<(&str, &str), Vec<&Difference>> = BTreeMap::new();
        for difference in &self.differences {
            by_place.entry((&difference.table, &difference.place)).or_default().push(difference);
        }
        let mut text = String::new();
        for ((table, place), differences) in by_place {
            text.push_str(format!("table {table} {place}").trim_end());
            text.push('\n');
            for difference in differences {
                let (sign, tone) = match difference.what {
                    "missing" => ("- ", Tone::Bad),
                    "unplanned" => ("+ ", Tone::Odd),
                    _ => ("~ ", Tone::Bad),
                };
                text.push_str(&format!("  {}\n", style.paint(tone, &format!("{sign}{}", difference.text))));
            }
        }
        let more = self.count - self.differences.len();
        if more > 0 {
            text.push_str(&format!("and {more} more (--all)\n"));
        }
        text + "- is planned and not in the kernel, + is in the kernel and not planned, ~ differs\n"
    }

    fn names(&self) -> Vec<String> {
        self.differences.iter().map(|of| format!("{} {}", of.table, of.place)).collect()
    }
}

/// The kernel's families in the order in which plans come.
pub const FAMILIES: [nft::Family; 2] = nft::Family::ALL;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use localnet_linux::nft::{Family, SetDump, Table, Tuple, Verdict};

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

    #[test]
    fn elements_that_differ_are_named() {
        let planned = plan(&state(), Config::default(), vec![]);
        assert_eq!(planned[0].table, Table::new(Family::V4, "localnet"));
        let mut sets: Vec<SetDump> = planned[0]
            .sets
            .iter()
            .map(|(set, elements)| SetDump {
                name: set.name.clone(),
                set: Some(Arc::clone(set)),
                elements: elements.clone(),
            })
            .collect();
        let with_chains = |sets: Vec<SetDump>| TableDump { chains: vec![], sets, generation: 1 };
        let found = |sets: Vec<SetDump>| {
            let mut differences = Differences::default();
            // The rules need a kernel; here only sets are compared.
            let planned = TableContent { chains: vec![], ..planned[0].clone() };
            differences.compare(&planned, Some(&with_chains(sets)), MOST);
            differences.differences.iter().map(|of| format!("{} {} {}", of.place, of.what, of.text)).collect::<Vec<_>>()
        };
        assert!(found(sets.clone()).is_empty());
        let of = |sets: &mut Vec<SetDump>, name: &str| sets.iter().position(|set| *set.name == *name).unwrap();
        let services = of(&mut sets, "services");
        let kept = sets[services].elements[0].clone();
        sets[services].elements.clear();
        assert_eq!(found(sets.clone()), ["services missing 10.96.0.1 . tcp . 80 comment \"shop/web:80\" : goto lb-1"]);
        sets[services]
            .elements
            .push(Element { data: ElementData::Verdict(Verdict::Goto("lb-2".into())), ..kept.clone() });
        assert_eq!(found(sets.clone()), ["services differs 10.96.0.1 . tcp . 80 comment \"shop/web:80\" : goto lb-1"]);
        sets[services].elements[0] = kept;
        let cluster_ips = of(&mut sets, "cluster-ips");
        sets[cluster_ips].elements.push(Element::new(Tuple::new().address("10.96.0.7".parse().unwrap())));
        assert_eq!(found(sets.clone()), ["cluster-ips unplanned 10.96.0.7"]);
        sets.retain(|set| *set.name != *"hairpin");
        assert_eq!(found(sets).len(), 2);
        let mut none = Differences::default();
        none.compare(&planned[0], None, MOST);
        assert_eq!((none.count, none.differences[0].text.as_str()), (1, "the whole table"));
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let mut differences = Differences::default();
        for number in 0..5 {
            differences.push(3, || Difference {
                table: "t".to_owned(),
                place: "p".to_owned(),
                what: "missing",
                text: number.to_string(),
            });
        }
        assert_eq!((differences.count, differences.differences.len()), (5, 3));
        assert!(differences.human(Style::default()).contains("and 2 more"));
    }
}
