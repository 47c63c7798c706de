//! `localnet history`: what changed, why, and when the kernel had it. Pure.
//!
//! The brain records only differences, so everything here walks from the newest state back to earlier ones.

use std::collections::BTreeMap;

use jiff::Timestamp;
use localnet_client::Snapshot;
use localnet_proto::{
    Digest, Service, ServiceKey, difference,
    history::{
        BackendProgress, Broken, Change, ChangedObject, EndpointDrain, Entry, Past, Step, entry::Event, state_after,
    },
    node_difference,
};
use serde::{Serialize, Serializer};

use crate::{
    moment::{precise, time_of},
    output::Show,
    style::{NONE, Style, Tone},
    table::Table,
};

/// The maximum number of changed Services that a row lists. Tables list fewer objects than JSON.
const MOST_CHANGES: usize = 100;
const MOST_OBJECTS: usize = 3;

/// The rows of the history.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct History {
    /// The rows, oldest first.
    pub history: Vec<Row>,
}

/// An event in the history.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// When the brain received the first object of a change; for other events, when the event happened.
    #[serde(serialize_with = "text")]
    pub time: Timestamp,
    /// The revision after a change; `None` for other events.
    pub revision: Option<u64>,
    /// The digest of that revision's state.
    pub digest: Option<String>,
    /// What changed.
    pub changes: Vec<Changed>,
    /// The objects that caused the change.
    pub objects: Vec<String>,
    /// When each backend had applied the change.
    pub applied: Vec<Applied>,
    /// What happened, if the event is no change of the state.
    pub event: Option<String>,
}

/// The change of one part of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// The Service; `None` for the node, or if the content of the change is not recorded.
    pub service: Option<ServiceKey>,
    /// What changed, in words.
    pub change: String,
}

/// When a backend had applied a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The backend's name.
    pub backend: String,
    /// The time from the first object of the change until the backend reported the change as applied in all families, in
    /// milliseconds; `None` if it has not reported that.
    pub millis: Option<u64>,
}

fn text<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&precise(*time))
}

/// Selects the rows to print.
#[derive(Debug, Default)]
pub struct Selection {
    /// Only events after this time.
    pub since: Option<Timestamp>,
    /// Only events about this Service.
    pub service: Option<ServiceKey>,
}

impl Selection {
    fn admits(&self, key: &ServiceKey) -> bool {
        self.service.as_ref().is_none_or(|service| service == key)
    }
}

/// Returns the history that leads to a state. Entries after the state are omitted.
pub fn rows(state: Snapshot, entries: &[Entry], selection: &Selection) -> History {
    let mut instance = Some(state.revision.instance);
    // The newest revision of the running brain; `None` for the brains before it.
    let mut newest = Some(state.revision.rev);
    // `None` if the content of the earlier changes of this brain cannot be computed.
    let mut past = Some(Past::from(state));
    let mut progress = Progress::default();
    let mut history = Vec::new();
    for (index, entry) in entries.iter().enumerate().rev() {
        let time = time_of(entry);
        if selection.since.is_some_and(|since| time < since) {
            break;
        }
        let mut row = Row { time, ..Row::default() };
        match &entry.event {
            Some(Event::Change(change)) if newest.is_some_and(|newest| change.rev > newest) => continue,
            Some(Event::Change(change)) => {
                let mut steps = past.as_mut().map(|past| past.back(change));
                if let Some(Err(Broken::Misfit(_))) = steps {
                    past = state_after(&entries[..=index]);
                    steps = past.as_mut().map(|past| past.back(change));
                }
                let steps = steps.and_then(Result::ok);
                row.revision = Some(change.rev);
                row.digest = Some(Digest(change.digest).to_string());
                row.changes = changes(change, steps, selection);
                row.objects = change.objects.iter().map(object).collect();
                if change.more_objects > 0 {
                    row.objects.push(format!("{} more objects", change.more_objects));
                }
                row.applied = progress.applied(change.rev, time);
                if row.changes.is_empty() {
                    continue;
                }
            }
            Some(Event::Progress(of)) => {
                if Some(of.instance_id) == instance {
                    progress.add(of, time);
                }
                match of.families.iter().find(|family| !family.error.is_empty()) {
                    Some(failed) if selection.service.is_none() => {
                        row.event =
                            Some(format!("the backend {} cannot apply the state: {}", of.backend, failed.error));
                    }
                    _ => continue,
                }
            }
            Some(Event::Problem(problem)) => {
                let of = &problem.of;
                if selection.service.as_ref().is_some_and(|service| *of != format!("Service {service}")) {
                    continue;
                }
                let field = if problem.field.is_empty() { String::new() } else { format!("{}: ", problem.field) };
                row.event = Some(match problem.problem.as_str() {
                    "" => format!("{of}: the problem is over"),
                    text => format!("{of}: {field}{text} ({})", problem.code),
                });
            }
            Some(Event::Drain(of)) => {
                let key = of.service.clone().unwrap_or_default();
                if !selection.admits(&ServiceKey::new(key.namespace, key.name)) {
                    continue;
                }
                row.event = Some(drain(of));
            }
            Some(Event::Start(start)) => {
                row.event = Some(format!("localnet-brain {} started", start.version));
                // The entries before this one belong to another brain.
                let before = entries[..index].iter().rev().find_map(|entry| match &entry.event {
                    Some(Event::Start(start)) => Some(start.instance_id),
                    _ => None,
                });
                (instance, newest, progress) = (before, None, Progress::default());
                past = past.or_else(|| state_after(&entries[..index]));
            }
            Some(Event::State(_)) | None => continue,
        }
        history.push(row);
    }
    history.reverse();
    History { history }
}

fn changes(change: &Change, steps: Option<Vec<Step>>, selection: &Selection) -> Vec<Changed> {
    let Some(steps) = steps else {
        let change = if change.rev == 1 { "first complete state" } else { "unknown" };
        return vec![Changed { service: None, change: change.to_owned() }];
    };
    let all: Vec<Changed> = steps.iter().filter_map(|step| changed(step, selection)).collect();
    let more = all.len().saturating_sub(MOST_CHANGES);
    let more = (more > 0).then(|| Changed { service: None, change: format!("{more} more Services") });
    all.into_iter().take(MOST_CHANGES).chain(more).collect()
}

fn changed(step: &Step, selection: &Selection) -> Option<Changed> {
    let (key, change) = match step {
        Step::Node(_) if selection.service.is_some() => return None,
        Step::Node(pair) => (None, format!("Node: {}", node_difference(&pair.0, &pair.1))),
        Step::Service(key, ..) if !selection.admits(key) => return None,
        Step::Service(key, before, after) => (Some(key.clone()), service_change(before.as_deref(), after.as_deref())),
    };
    Some(Changed { service: key, change })
}

/// Describes the difference between two versions of a Service.
pub fn service_change(before: Option<&Service>, after: Option<&Service>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => difference(before, after),
        (None, Some(after)) => format!("added (endpoints: {})", after.endpoints.len()),
        (_, None) => "removed".to_owned(),
    }
}

/// Describes the beginning or the end of a drain.
fn drain(EndpointDrain { service, port, endpoint, open, closed, .. }: &EndpointDrain) -> String {
    let service = service.clone().unwrap_or_default();
    let of = format!("{}/{}:{port}: {endpoint}", service.namespace, service.name);
    let connections = |count: u64| if count == 1 { "1 connection".to_owned() } else { format!("{count} connections") };
    match (open, closed) {
        (0, 0) => format!("{of} has drained"),
        (0, closed) => format!("{of} has drained; {} closed", connections(*closed)),
        (open, _) => format!("{of} drains; {} open", connections(*open)),
    }
}

fn object(ChangedObject { kind, namespace, name, resource_version, deleted }: &ChangedObject) -> String {
    let slash = if namespace.is_empty() { "" } else { "/" };
    let version = match (deleted, resource_version) {
        (true, _) => " (deleted)".to_owned(),
        (false, 0) => String::new(),
        (false, version) => format!(" ({version})"),
    };
    format!("{kind} {namespace}{slash}{name}{version}")
}

/// The reports of each backend and family, latest first: the applied revision and the time.
#[derive(Debug, Default)]
struct Progress(BTreeMap<String, Families>);

type Families = BTreeMap<i32, Vec<(u64, Timestamp)>>;

impl Progress {
    fn add(&mut self, progress: &BackendProgress, time: Timestamp) {
        let families = self.0.entry(progress.backend.clone()).or_default();
        for family in &progress.families {
            families.entry(family.family).or_default().push((family.applied_rev, time));
        }
    }

    /// When each backend had applied a revision. All known reports are later than the revision.
    fn applied(&self, rev: u64, since: Timestamp) -> Vec<Applied> {
        let of = |(backend, families): (&String, &Families)| {
            let first = families.values().map(|reports| reports.iter().rev().find(|(applied, _)| *applied >= rev));
            let last = first.map(|first| first.map(|(_, time)| *time)).reduce(|one, other| Some(one?.max(other?)));
            let millis = last.flatten().map(|time| time.as_millisecond().abs_diff(since.as_millisecond()));
            Applied { backend: backend.clone(), millis }
        };
        self.0.iter().map(of).collect()
    }
}

/// The differences between two states.
#[derive(Debug, Serialize)]
pub struct Differences {
    /// The older revision.
    pub from: u64,
    /// The newer revision.
    pub to: u64,
    /// What differs.
    pub changes: Vec<Changed>,
}

impl Differences {
    /// Compares two states.
    pub fn between(before: &Snapshot, after: &Snapshot) -> Self {
        let node = (before.node != after.node).then(|| Changed {
            service: None,
            change: format!("Node: {}", node_difference(&before.node, &after.node)),
        });
        let services = crate::watch::differences(&before.services, &after.services).into_iter().map(|(_, service)| {
            let of = |state: &Snapshot| state.services.get(&service.key).cloned();
            let change = service_change(of(before).as_deref(), of(after).as_deref());
            Changed { service: Some(service.key.clone()), change }
        });
        let mut changes: Vec<Changed> = node.into_iter().chain(services).collect();
        changes.sort_by(|one, other| one.service.cmp(&other.service));
        Self { from: before.revision.rev, to: after.revision.rev, changes }
    }
}

fn named(changed: &Changed) -> String {
    match &changed.service {
        Some(service) => format!("{service}: {}", changed.change),
        None => changed.change.clone(),
    }
}

impl Show for Differences {
    fn human(&self, style: Style) -> String {
        if self.changes.is_empty() {
            return format!("revisions {} and {} have the same content\n", self.from, self.to);
        }
        let mut table = Table::new(["SERVICE", "CHANGE"]);
        for Changed { service, change } in &self.changes {
            let service = service.as_ref().map_or_else(|| NONE.to_owned(), ToString::to_string);
            table.row([&service, change]);
        }
        table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        self.changes.iter().filter_map(|changed| Some(changed.service.as_ref()?.to_string())).collect()
    }
}

impl Show for History {
    fn human(&self, style: Style) -> String {
        let mut table = Table::new(["TIME", "REVISION", "APPLIED", "OBJECTS", "CHANGE"]);
        for row in &self.history {
            let time = precise(row.time);
            if let Some(event) = &row.event {
                table.add(|cells| _ = cells.cell(&time).cell(NONE).cell(NONE).cell(NONE).toned(event, Some(Tone::Odd)));
            }
            let revision = row.revision.unwrap_or_default();
            let applied: Vec<String> = row.applied.iter().map(Applied::in_words).collect();
            let most = if style.wide { usize::MAX } else { MOST_OBJECTS };
            let mut objects: Vec<String> = row.objects.iter().take(most).cloned().collect();
            if row.objects.len() > most {
                objects.push(format!("{} more", row.objects.len() - most));
            }
            let late = row.applied.iter().any(|applied| applied.millis.is_none());
            for changed in &row.changes {
                table.add(|cells| {
                    let tone = late.then_some(Tone::Bad);
                    cells.cell(&time).cell(revision).toned_list(&applied, tone).list(&objects).cell(named(changed));
                });
            }
        }
        table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        self.history.iter().filter_map(|row| Some(row.revision?.to_string())).collect()
    }
}

impl Applied {
    fn in_words(&self) -> String {
        match self.millis {
            Some(millis) => format!("{} {millis} ms", self.backend),
            None => format!("{} not yet", self.backend),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use localnet_proto::{
        Endpoint, EndpointPort, Revision, Scopes, encode,
        history::{FullState, Patch, Problem, Start, hunks, records},
        wire::{self, FamilyReport},
    };

    use super::*;
    use crate::{
        moment::{Moment, state_at},
        output::{Format, render},
    };

    /// 2026-11-26T03:00:00Z
    const START: u64 = 1_795_662_000_000;

    fn state(rev: u64, services: &[(&str, &[u8])]) -> Snapshot {
        let scopes = Scopes { internal: true, ..Scopes::default() };
        let endpoint = |host: &u8| Endpoint {
            address: [10, 0, 0, *host].into(),
            ports: vec![EndpointPort { name: "http".into(), port: 8080 }],
            local: false,
            hostname: None,
            scopes,
            weight: None,
        };
        let services = services.iter().map(|(name, hosts)| {
            let key = ServiceKey::new("shop", *name);
            let service = Service::new(key.clone(), vec![[10, 96, 0, 1].into()]);
            (key, Arc::new(Service { endpoints: hosts.iter().map(endpoint).collect(), ..service }))
        });
        Snapshot { revision: Revision { instance: 7, rev }, services: services.collect(), ..Snapshot::default() }
    }

    fn change(before: &Snapshot, after: &Snapshot) -> Event {
        let content = |state: &Snapshot, key: &ServiceKey| {
            state.services.get(key).map(|service| records(&encode::service_bytes(service))).unwrap_or_default()
        };
        let differing = crate::watch::differences(&before.services, &after.services);
        let patches = differing.iter().map(|(_, service)| Patch {
            namespace: service.key.namespace.to_string(),
            name: service.key.name.to_string(),
            hunks: hunks(&content(before, &service.key), &content(after, &service.key)),
        });
        Event::Change(Change {
            rev: after.revision.rev,
            digest: Digest::of(after).0,
            objects: vec![ChangedObject {
                kind: "EndpointSlice".to_owned(),
                namespace: "shop".to_owned(),
                name: "web-1".to_owned(),
                resource_version: 500 + after.revision.rev,
                deleted: false,
            }],
            patches: patches.collect(),
            whole: before.revision.rev == 0,
            ..Change::default()
        })
    }

    fn drain_of(open: u64, closed: u64) -> Event {
        let service = Some(wire::ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() });
        let (port, endpoint) = ("http".to_owned(), "10.0.0.1:8080".to_owned());
        Event::Drain(EndpointDrain { service, port, protocol: 1, endpoint, open, closed })
    }

    fn applied(rev: u64, families: &[i32], error: &str) -> Event {
        let family = |family: &i32| FamilyReport {
            family: *family,
            applied_rev: rev,
            error: error.to_owned(),
            ..FamilyReport::default()
        };
        Event::Progress(BackendProgress {
            backend: "nft".to_owned(),
            instance_id: 7,
            families: families.iter().map(family).collect(),
        })
    }

    /// Four revisions, and what happened between them.
    fn recorded() -> (Vec<Snapshot>, Vec<Entry>) {
        let states = vec![
            state(0, &[]),
            state(1, &[("web", &[1])]),
            state(2, &[("web", &[1, 2])]),
            state(3, &[("api", &[9]), ("web", &[1, 2])]),
            state(4, &[("api", &[9]), ("web", &[2])]),
        ];
        let problem = |text: &str| Problem {
            of: "Service shop/web".to_owned(),
            field: "spec.type".to_owned(),
            code: "value-invalid".to_owned(),
            problem: text.to_owned(),
        };
        let events = vec![
            (0, change(&states[0], &states[1])),
            (20, applied(1, &[1, 2], "")),
            (1_000, change(&states[1], &states[2])),
            (1_001, Event::Problem(problem("is odd"))),
            (1_500, drain_of(2, 0)),
            (1_600, drain_of(0, 1)),
            (2_000, change(&states[2], &states[3])),
            (2_004, applied(3, &[1], "")),
            (2_009, applied(3, &[1, 2], "")),
            (3_000, change(&states[3], &states[4])),
            (3_001, applied(3, &[1, 2], "no memory")),
        ];
        let entry = |(millis, event)| Entry { time_millis: START + millis, event: Some(event) };
        (states, events.into_iter().map(entry).collect())
    }

    #[test]
    fn rows_show_what_changed_why_and_when_the_kernel_had_it() {
        let (states, entries) = recorded();
        let all = rows(states[4].clone(), &entries, &Selection::default());
        let expected = "\
TIME                      REVISION  APPLIED      OBJECTS                         CHANGE
2026-11-26T03:00:00.000Z  1         nft 20 ms    EndpointSlice shop/web-1 (501)  first complete state
2026-11-26T03:00:01.000Z  2         nft 1009 ms  EndpointSlice shop/web-1 (502)  shop/web: endpoints added: 10.0.0.2
2026-11-26T03:00:01.001Z  -         -            -                               Service shop/web: spec.type: is odd (value-invalid)
2026-11-26T03:00:01.500Z  -         -            -                               shop/web:http: 10.0.0.1:8080 drains; 2 connections open
2026-11-26T03:00:01.600Z  -         -            -                               shop/web:http: 10.0.0.1:8080 has drained; 1 connection closed
2026-11-26T03:00:02.000Z  3         nft 9 ms     EndpointSlice shop/web-1 (503)  shop/api: added (endpoints: 1)
2026-11-26T03:00:03.000Z  4         nft not yet  EndpointSlice shop/web-1 (504)  shop/web: endpoints removed: 10.0.0.1
2026-11-26T03:00:03.001Z  -         -            -                               the backend nft cannot apply the state: no memory
";
        assert_eq!(render(&all, Format::Table), expected);
        let selection = Selection { service: Some(ServiceKey::new("shop", "api")), ..Selection::default() };
        assert_eq!(render(&rows(states[4].clone(), &entries, &selection), Format::Name), "1\n3\n");
        let since = Timestamp::from_millisecond(START.cast_signed() + 2_000).unwrap();
        let selection = Selection { since: Some(since), ..Selection::default() };
        assert_eq!(render(&rows(states[4].clone(), &entries, &selection), Format::Name), "3\n4\n");
        // The brain recorded revision 4 after the command had read revision 3.
        assert_eq!(render(&rows(states[3].clone(), &entries, &Selection::default()), Format::Name), "1\n2\n3\n");
    }

    #[test]
    fn earlier_states_are_found_by_revision_and_by_time() {
        let (states, entries) = recorded();
        let at = |moment| state_at(states[4].clone(), &entries, moment);
        let time = |millis: i64| Moment::Time(Timestamp::from_millisecond(START.cast_signed() + millis).unwrap());
        for (moment, rev) in [
            (Moment::Revision(1), 1),
            (Moment::Revision(3), 3),
            (Moment::Revision(4), 4),
            (time(0), 1),
            (time(1_999), 2),
            (time(9_000), 4),
        ] {
            assert_eq!(at(moment).unwrap(), states[rev], "{moment:?}");
        }
        for (moment, problem) in [
            (Moment::Revision(5), "there is no revision 5; the newest one is 4"),
            (Moment::Revision(0), "there is no revision 0; the newest one is 4"),
            (time(-1), "the history begins later, at 2026-11-26T03:00:00.000Z"),
        ] {
            let error = at(moment).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.code()), (problem, 4));
        }
        let error = state_at(states[4].clone(), &entries[4..], Moment::Revision(1)).unwrap_err();
        assert_eq!(error.to_string(), "the history begins at revision 2, after revision 1");
        let error = state_at(states[2].clone(), &entries[6..8], Moment::Revision(1)).unwrap_err();
        assert!(error.to_string().contains("revision 1"), "{error}");
    }

    fn full_state(state: &Snapshot) -> Event {
        Event::State(FullState { items: encode::state_items(state), ..FullState::default() })
    }

    /// Regression: the content of changes before a restart of the brain, or before a change that is too large to be recorded, was
    /// unknown.
    #[test]
    fn states_of_earlier_brains_are_found() {
        let (old, mut entries) = recorded();
        let start = |instance_id| Event::Start(Start { instance_id, version: "0.1.0".to_owned() });
        let add = |entries: &mut Vec<Entry>, events: Vec<Event>| {
            for event in events {
                let time_millis = START + 10_000 + 1_000 * entries.len() as u64;
                entries.push(Entry { time_millis, event: Some(event) });
            }
        };
        entries.insert(1, Entry { time_millis: START, event: Some(full_state(&old[1])) });
        entries.insert(0, Entry { time_millis: START, event: Some(start(7)) });
        let new = |rev: u64, hosts| {
            let mut state = state(rev, &[("web", hosts)]);
            state.revision.instance = 8;
            state
        };
        let (one, two, three) = (new(1, &[5]), new(2, &[6]), new(3, &[7]));
        let Event::Change(large) = change(&two, &three) else { panic!("no change") };
        let large = Event::Change(Change { whole: true, patches: Vec::new(), ..large });
        let more = vec![
            start(8),
            change(&state(0, &[]), &one),
            full_state(&one),
            change(&one, &two),
            large,
            full_state(&three),
        ];
        add(&mut entries, more);
        let named = |history: &History| -> Vec<(Option<u64>, String)> {
            let rows = history.history.iter().filter(|row| row.event.is_none());
            rows.map(|row| (row.revision, row.changes[0].change.clone())).collect()
        };
        let all = rows(three.clone(), &entries, &Selection::default());
        let expected = [
            (1, "first complete state"),
            (2, "endpoints added: 10.0.0.2"),
            (3, "added (endpoints: 1)"),
            (4, "endpoints removed: 10.0.0.1"),
            (1, "first complete state"),
            (2, "endpoints added: 10.0.0.6; endpoints removed: 10.0.0.5"),
            (3, "unknown"),
        ];
        assert_eq!(named(&all), expected.map(|(rev, change)| (Some(rev), change.to_owned())));
        let applied = |row: &Row| row.applied.first().and_then(|applied| applied.millis);
        assert_eq!(all.history.iter().map(applied).take(3).collect::<Vec<_>>(), [None, Some(20), Some(1009)]);
        let at = |moment| state_at(three.clone(), &entries, moment).map(|state| state.services);
        let time = |millis: i64| Moment::Time(Timestamp::from_millisecond(START.cast_signed() + millis).unwrap());
        for (moment, expected) in [
            (time(0), &old[1]),
            (time(2_000), &old[3]),
            (time(9_000), &old[4]),
            (Moment::Revision(4), &old[4]),
            (Moment::Revision(1), &one),
            (Moment::Revision(2), &two),
            (Moment::Revision(3), &three),
        ] {
            assert_eq!(at(moment).unwrap(), expected.services, "{moment:?}");
        }
    }

    #[test]
    fn two_states_are_compared() {
        let (states, _) = recorded();
        let differences = Differences::between(&states[1], &states[4]);
        let expected = "\
SERVICE   CHANGE
shop/api  added (endpoints: 1)
shop/web  endpoints added: 10.0.0.2; endpoints removed: 10.0.0.1
";
        assert_eq!(render(&differences, Format::Table), expected);
        let same = Differences::between(&states[2], &Snapshot { revision: states[4].revision, ..states[2].clone() });
        assert_eq!(render(&same, Format::Table), "revisions 2 and 4 have the same content\n");
    }
}
