//! `localnet diff`: compares the plan of the nft backend with the live state of the kernel. It changes nothing.

mod held;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    panic::resume_unwind,
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use localnet_client::{Snapshot, vips::Config};
use localnet_linux::nft::{self, Element, ElementKey, TableContent, element_line, rule_line};
use localnet_nft::{
    plan::sets::SetId,
    whole::{self, ElementSink},
};
use serde::Serialize;

pub use self::held::Reading;
use self::held::{Held, HeldTable};
use crate::{
    kernel,
    origin::Origin,
    output::Show,
    style::{Style, Tone},
};

/// The differences between plan and kernel, in nft's words.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Differences {
    /// One entry per differing object, up to the limit.
    pub differences: Vec<Difference>,
    /// The total number of differences.
    pub count: usize,
    /// The number of compared elements.
    pub compared: usize,
    /// The configuration that the plan was computed with.
    pub configuration: Origin,
}

/// An object that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// The table, such as `ip localnet`.
    pub table: String,
    /// The chain, set or map.
    pub place: String,
    /// The kind of difference: `missing` from the kernel, `unplanned` in it, or `differs`.
    pub what: &'static str,
    /// The rule or element; empty if the whole chain, set or map differs.
    pub text: String,
    /// For `differs`: what the kernel holds in its place, if known.
    pub live: Option<String>,
}

/// How many differences are listed without `--all`.
pub const MOST: usize = 200;

/// A change of the plan to an element of a set.
#[derive(Debug)]
enum PlanChange {
    Set(Element),
    Removed(ElementKey),
}

/// How many planned elements are sent at a time.
const AT_A_TIME: usize = 4096;

type Part = Vec<(nft::Family, SetId, PlanChange)>;

/// Sends the planned elements to the comparing thread.
struct ElementSender {
    part: Part,
    to: Sender<Part>,
}

impl ElementSender {
    fn push(&mut self, family: nft::Family, set: SetId, change: PlanChange) {
        self.part.push((family, set, change));
        if self.part.len() == AT_A_TIME {
            self.send();
        }
    }

    fn send(&mut self) {
        let part = std::mem::replace(&mut self.part, Vec::with_capacity(AT_A_TIME));
        // If the kernel could not be read, there is no receiver.
        _ = self.to.send(part);
    }
}

impl ElementSink for ElementSender {
    fn set(&mut self, family: nft::Family, set: SetId, element: Element) {
        self.push(family, set, PlanChange::Set(element));
    }

    fn remove(&mut self, family: nft::Family, set: SetId, key: &ElementKey) {
        self.push(family, set, PlanChange::Removed(key.clone()));
    }
}

/// The data of a comparison. Freeing it takes as long as much of the comparison, so a program that exits keeps it.
#[derive(Debug)]
pub struct Rest {
    held: Held,
    _whole: whole::Whole,
    _changes: Vec<Part>,
}

impl Rest {
    /// The ruleset's generation before the kernel was read. If it is still the same, nothing has changed since.
    pub fn generation(&self) -> u32 {
        self.held.generation
    }
}

/// How often a state is planned again because the slots of session affinity changed while the kernel was read.
const ATTEMPTS: usize = 10;

/// Plans both tables for a state and compares them with what the kernel holds. Elements are compared while the next ones are
/// planned. At most `most` differences are listed.
///
/// # Errors
/// Returns an error if the kernel cannot be read.
pub fn differences(
    state: &Snapshot,
    config: &Config,
    local: &[IpAddr],
    mut reading: Reading,
    most: usize,
) -> Result<(Differences, Rest), nft::Error> {
    for _ in 0..ATTEMPTS {
        let found = compare_once(state, config, local, reading, most)?;
        if found.1.held.is_current {
            return Ok(found);
        }
        reading = Reading::start();
    }
    Err(nft::Error::Changing)
}

fn compare_once(
    state: &Snapshot,
    config: &Config,
    local: &[IpAddr],
    reading: Reading,
    most: usize,
) -> Result<(Differences, Rest), nft::Error> {
    let history = reading.history();
    let (to, parts) = mpsc::channel::<Part>();
    let compare = move |parts: Receiver<Part>| -> Result<_, nft::Error> {
        let mut held = reading.finish()?;
        let mut changes = Vec::new();
        for part in parts {
            for (family, set, change) in &part {
                if let Some(set) = held.set(*family, *set) {
                    set.compare(change);
                }
            }
            changes.push(part);
        }
        Ok((held, changes))
    };
    let (whole, compared) = thread::scope(|scope| {
        let comparing = scope.spawn(move || compare(parts));
        let mut sender = ElementSender { part: Vec::with_capacity(AT_A_TIME), to };
        // The backend itself reports what it does not program.
        let whole = whole::deliver(state, config.clone(), local.to_vec(), &history, &mut sender);
        sender.send();
        drop(sender);
        (whole, comparing.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let (held, changes) = compared?;
    let sets = || held.tables.iter().flatten().flat_map(|table| &table.sets);
    let mut differences = Differences { compared: sets().map(|set| set.compared).sum(), ..Differences::default() };
    for planned in &whole.tables {
        let family = planned.table.family;
        let found = &held.tables[family as usize];
        // A host without IPv6 has no table for it.
        if found.is_some() || kernel::forwards(family).is_some() {
            differences.compare(planned, found.as_ref(), most);
        }
    }
    Ok((differences, Rest { held, _whole: whole, _changes: changes }))
}

impl Differences {
    fn push(&mut self, most: usize, difference: impl FnOnce() -> Difference) {
        self.count += 1;
        if self.differences.len() < most {
            self.differences.push(difference());
        }
    }

    /// Compares a planned table with the one in the kernel.
    fn compare(&mut self, planned: &TableContent, found: Option<&HeldTable>, most: usize) {
        let family = planned.table.family;
        let table = format!("{} {}", family.as_str(), planned.table.name);
        let difference = |place: &str, what, text: String| Difference {
            table: table.clone(),
            place: place.to_owned(),
            what,
            text,
            live: None,
        };
        let Some(found) = found else {
            self.push(most, || difference("", "missing", "the whole table".to_owned()));
            return;
        };
        for (set, _) in &planned.sets {
            let Some(held) = found.sets.iter().find(|held| held.name == set.name) else {
                self.push(most, || difference(&set.name, "missing", "the whole set".to_owned()));
                continue;
            };
            for (what, element) in held.off.values() {
                let live = held.elements.get(&element.key).map(|(data, _, comment)| {
                    let (key, data, comment) = (element.key.clone(), data.clone(), comment.clone());
                    element_line(set, &Element { key, data, comment })
                });
                self.push(most, || Difference { live, ..difference(&set.name, what, element_line(set, element)) });
            }
            if held.planned < held.elements.len() {
                let unplanned = held.elements.iter().filter(|(_, (_, planned, _))| !planned);
                let mut unplanned: Vec<_> = unplanned.map(|(key, (data, _, comment))| (key, data, comment)).collect();
                unplanned.sort_unstable();
                for (key, data, comment) in unplanned {
                    let element = || Element { key: key.clone(), data: data.clone(), comment: comment.clone() };
                    self.push(most, || difference(&set.name, "unplanned", element_line(set, &element())));
                }
            }
        }
        let is_planned = |name: &str| planned.sets.iter().any(|(set, _)| *set.name == *name);
        for held in found.sets.iter().filter(|held| !is_planned(&held.name)) {
            self.push(most, || difference(&held.name, "unplanned", "the whole set".to_owned()));
        }
        for chain in &planned.chains {
            let Some(dump) = found.chains.iter().find(|found| found.name == chain.name) else {
                self.push(most, || difference(&chain.name, "missing", "the whole chain".to_owned()));
                continue;
            };
            if dump.is(family, chain) {
                continue;
            }
            let mut found_rule = false;
            for rule in chain.rules.iter().filter(|rule| !dump.rules.iter().any(|found| found.is(family, rule))) {
                found_rule = true;
                self.push(most, || difference(&chain.name, "missing", rule_line(rule, family)));
            }
            for rule in dump.rules.iter().filter(|found| !chain.rules.iter().any(|rule| found.is(family, rule))) {
                found_rule = true;
                let comment = rule.comment.as_ref().map(|comment| format!(" {comment:?}")).unwrap_or_default();
                self.push(most, || {
                    difference(&chain.name, "unplanned", format!("rule # handle {}{comment}", rule.handle))
                });
            }
            if !found_rule {
                self.push(most, || difference(&chain.name, "differs", "order of rules, or declaration".to_owned()));
            }
        }
        let is_planned = |name: &str| planned.chains.iter().any(|chain| *chain.name == *name);
        for dump in found.chains.iter().filter(|dump| !is_planned(&dump.name)) {
            self.push(most, || difference(&dump.name, "unplanned", "the whole chain".to_owned()));
        }
    }
}

impl Show for Differences {
    fn human(&self, style: Style) -> String {
        if self.count == 0 {
            return format!(
                "{} ({} elements compared)\n{}",
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
            text.push_str(format!("table {table} {place}").trim_end());
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

/// The kernel's families in the order in which plans list them.
pub const FAMILIES: [nft::Family; 2] = nft::Family::ALL;

#[cfg(test)]
mod tests {
    use localnet_client::Changes;
    use localnet_linux::nft::{ElementData, Family, SetDump, TableDump, Tuple, Verdict};
    use localnet_nft::{desired::Desired, portions::Limits};

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

    /// Returns the differences in the sets. Comparing the rules needs a kernel.
    fn found(state: &Snapshot, dump: &TableDump) -> Vec<String> {
        let reading = Reading::of(1, [Some(dump.clone()), None]);
        let (differences, _) = differences(state, &Config::default(), &[], reading, MOST).unwrap();
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
        assert_eq!(found(&dump), ["services missing 10.96.0.1 . tcp . 80 comment \"shop/web:80\" : goto lb-1"]);
        dump.sets[services]
            .elements
            .push(Element { data: ElementData::Verdict(Verdict::Goto("lb-2".into())), ..kept.clone() });
        assert_eq!(found(&dump), ["services differs 10.96.0.1 . tcp . 80 comment \"shop/web:80\" : goto lb-1"]);
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
        let none = Reading::of(1, [None, None]);
        let (none, _) = differences(&state, &Config::default(), &[], none, MOST).unwrap();
        assert_eq!(none.differences[0].text.as_str(), "the whole table");
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
            for family in Family::ALL {
                desired.tables()[family as usize].changes(Limits { entered: usize::MAX, filled: usize::MAX });
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

    /// If a Service loses a VIP to another one, the VIP is compared with the plan of its new owner.
    #[test]
    fn an_element_that_is_added_and_removed_again_is_no_difference() {
        let element = planned().sets.iter().find(|set| *set.name == *"services").unwrap().elements[0].clone();
        let other = PlanChange::Set(Element { data: ElementData::Verdict(Verdict::Drop), ..element.clone() });
        let absent = Element::new(Tuple::new().port(1));
        let (gone, absent_gone) = (PlanChange::Removed(element.key.clone()), PlanChange::Removed(absent.key.clone()));
        let (element, absent) = (PlanChange::Set(element), PlanChange::Set(absent));
        let compared = |changes: &[&PlanChange]| {
            let mut held = Reading::of(1, [Some(planned()), None]).finish().unwrap();
            let set = held.set(Family::V4, SetId::Services).unwrap();
            changes.iter().for_each(|change| set.compare(change));
            (set.off.len(), set.compared, set.planned)
        };
        assert_eq!(compared(&[&other, &absent]), (2, 2, 1));
        assert_eq!(compared(&[&other, &absent, &gone, &absent_gone]), (0, 0, 0));
        assert_eq!(compared(&[&other, &gone, &element, &element]), (0, 1, 1));
        assert_eq!(compared(&[&other, &element]), (0, 1, 1));
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
        let mut differences = Differences::default();
        for number in 0..5 {
            differences.push(3, || Difference {
                table: "t".to_owned(),
                place: "p".to_owned(),
                what: "missing",
                text: number.to_string(),
                live: None,
            });
        }
        assert_eq!((differences.count, differences.differences.len()), (5, 3));
        assert!(differences.human(Style::default()).contains("and 2 more"));
    }
}
