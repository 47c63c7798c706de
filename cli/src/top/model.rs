//! The content of the live view of `localnet top`: which keys and events lead to which lines. Pure.
//!
//! ```text
//!  brain ─► state ──┐
//!  flows, rates ────┼─► Model ─► draw
//!  keys ────────────┘     └─► Action: quit, or explain a packet
//! ```

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use jiff::Timestamp;
use localnet_client::Snapshot;
use localnet_proto::{Service, ServiceKey};

use super::{
    input::{Action, Destination, Key, Question, Sender, Sort, destinations},
    seen::{Measure, RatesFrom, Seen},
};
use crate::{
    history::{History, service_change},
    watch::differences,
};

/// How many changes are kept.
const MOST_CHANGES: usize = 200;
/// How many rates of a Service are kept, one per second.
const MOST_RATES: usize = 60;
/// How long a change marks its Service, in seconds.
const MARKED: i64 = 10;

/// What the view shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// All Services.
    #[default]
    Services,
    /// The endpoints of the selected Service.
    Endpoints,
    /// The path of a packet to the selected Service.
    Path(Path),
}

/// The path of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The packet.
    pub question: Question,
    /// The answer of `localnet explain`; `None` until it is known.
    pub answer: Option<Result<String, String>>,
    /// The index of the destination among [`destinations`].
    pub destination: usize,
}

/// A change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When the view received it.
    pub time: Timestamp,
    /// What changed.
    pub text: String,
}

/// The content of the view.
#[derive(Debug, Default)]
pub struct Model {
    /// The state.
    pub state: Snapshot,
    /// The traffic.
    pub seen: Seen,
    /// The last changes, the newest first.
    pub changes: VecDeque<Change>,
    /// The text that names, addresses and endpoints of listed Services contain.
    pub filter: String,
    /// Whether keys extend the filter.
    pub is_typing: bool,
    /// The order of the Services.
    pub sort: Sort,
    /// What is shown.
    pub page: Page,
    /// Whether the keys are explained.
    pub has_help: bool,
    /// Why the content may be old.
    pub problem: Option<String>,
    /// The current time.
    pub now: Timestamp,
    /// The first visible line of endpoints or of a path.
    pub scroll: usize,
    selected: Option<ServiceKey>,
    rates: BTreeMap<ServiceKey, VecDeque<f64>>,
    changed: BTreeMap<ServiceKey, Timestamp>,
}

impl Model {
    /// Replaces the state. Unless it is the first, lists what differs.
    pub fn set_state(&mut self, state: Snapshot) {
        let is_first = self.state.revision.rev == 0;
        let before = std::mem::replace(&mut self.state, state);
        if is_first {
            return;
        }
        let found: Vec<ServiceKey> = differences(&before.services, &self.state.services)
            .into_iter()
            .map(|(_, service)| service.key.clone())
            .collect();
        for key in found {
            let [old, new] = [&before, &self.state].map(|state| state.services.get(&key).map(|service| &**service));
            let text = format!("{key}: {}", service_change(old, new));
            self.changed.insert(key, self.now);
            self.changes.push_front(Change { time: self.now, text });
        }
        self.changes.truncate(MOST_CHANGES);
    }

    /// Adds the changes from before the view started.
    pub fn set_history(&mut self, history: &History) {
        for row in history.history.iter().rev() {
            let changed = row.changes.iter().map(|changed| match &changed.service {
                Some(service) => format!("{service}: {}", changed.change),
                None => changed.change.clone(),
            });
            let texts = row.event.clone().into_iter().chain(changed);
            self.changes.extend(texts.map(|text| Change { time: row.time, text }));
        }
        self.changes.truncate(MOST_CHANGES);
    }

    /// Replaces the traffic. Called once per second.
    pub fn set_seen(&mut self, seen: Seen) {
        self.seen = seen;
        // Only Services that had traffic recently have a list.
        for (key, of) in &self.seen.services {
            if of.all.connections_per_second > 0.0 {
                self.rates.entry(key.clone()).or_default();
            }
        }
        for (key, rates) in &mut self.rates {
            let rate = self.seen.services.get(key).map_or(0.0, |of| of.all.connections_per_second);
            rates.push_back(rate);
            if rates.len() > MOST_RATES {
                rates.pop_front();
            }
        }
        self.rates.retain(|_, rates| rates.iter().any(|rate| *rate > 0.0));
    }

    /// Whether rates are known.
    pub fn has_rates(&self) -> bool {
        self.seen.rates_from != RatesFrom::Nothing
    }

    /// The last rates of a Service, oldest first.
    pub fn rates(&self, key: &ServiceKey) -> impl DoubleEndedIterator<Item = f64> {
        self.rates.get(key).into_iter().flatten().copied()
    }

    /// What a Service gets.
    pub fn measure(&self, key: &ServiceKey) -> Measure {
        self.seen.services.get(key).map(|of| of.all).unwrap_or_default()
    }

    /// Whether a Service has changed in the last seconds.
    pub fn is_marked(&self, key: &ServiceKey) -> bool {
        self.changed.get(key).is_some_and(|at| self.now.as_second() - at.as_second() < MARKED)
    }

    /// The listed Services, in their order.
    pub fn services(&self) -> Vec<&Arc<Service>> {
        let mut services: Vec<_> =
            self.state.services.values().filter(|service| contains(service, &self.filter)).collect();
        // The sorts are stable, so that equal Services stay in the order of their names.
        let figure: fn(&Measure) -> f64 = match self.sort {
            Sort::Name => return services,
            Sort::Endpoints => {
                services.sort_by_key(|service| eligible(service));
                return services;
            }
            Sort::Connections => |of| of.connections_per_second,
            Sort::Bytes => |of| of.bytes_per_second.unwrap_or_default(),
            Sort::Flows => |of| of.flows as f64,
            Sort::Unanswered => |of| of.unanswered as f64,
            Sort::Refused => |of| of.refused_per_second.unwrap_or_default(),
        };
        services.sort_by(|a, b| figure(&self.measure(&b.key)).total_cmp(&figure(&self.measure(&a.key))));
        services
    }

    /// The index of the selected Service among the listed ones.
    pub fn selected(&self) -> usize {
        let selected = self.selected.as_ref();
        self.services().iter().position(|service| Some(&service.key) == selected).unwrap_or_default()
    }

    /// The selected Service.
    pub fn service(&self) -> Option<&Arc<Service>> {
        match &self.selected {
            Some(key) => self.state.services.get(key),
            None => self.services().first().copied(),
        }
    }

    /// Stores the answer about a packet, unless another one was asked in the meantime.
    pub fn explained(&mut self, question: Question, answer: Result<String, String>) {
        if let Page::Path(path) = &mut self.page
            && path.question == question
        {
            path.answer = Some(answer);
        }
    }

    /// Reacts to a key.
    pub fn press(&mut self, key: Key) -> Action {
        match key {
            Key::Interrupt => return Action::Quit,
            _ if self.has_help => {
                self.has_help = false;
                return Action::Draw;
            }
            _ if self.is_typing => return self.typed(key),
            Key::Char('q') => return Action::Quit,
            Key::Char('?') => self.has_help = true,
            Key::Char('/') => (self.page, self.is_typing) = (Page::Services, true),
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Enter => return self.enter(),
            Key::Escape | Key::Backspace => self.leave(),
            Key::Right => return self.ask_next(1),
            Key::Left => return self.ask_next(-1),
            Key::Char('f') => return self.ask_from_next(),
            Key::Up | Key::Char('k') => self.shift(-1),
            Key::Down | Key::Char('j') => self.shift(1),
            Key::PageUp => self.shift(-10),
            Key::PageDown => self.shift(10),
            Key::Home | Key::Char('g') => self.shift(isize::MIN),
            Key::End | Key::Char('G') => self.shift(isize::MAX),
            Key::Char(_) => {}
        }
        Action::Draw
    }

    fn typed(&mut self, key: Key) -> Action {
        match key {
            Key::Char(letter) => self.filter.push(letter),
            Key::Backspace => _ = self.filter.pop(),
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.filter.clear();
                self.is_typing = false;
            }
            _ => return Action::Draw,
        }
        // The selected Service may no longer be listed.
        self.select(self.selected());
        Action::Draw
    }

    fn select(&mut self, index: usize) {
        self.selected = self.services().get(index).map(|service| service.key.clone());
    }

    fn shift(&mut self, by: isize) {
        match self.page {
            Page::Services => {
                let last = self.services().len().saturating_sub(1);
                self.select(self.selected().saturating_add_signed(by).min(last));
            }
            Page::Endpoints | Page::Path(_) => self.scroll = self.scroll.saturating_add_signed(by).min(self.lines()),
        }
    }

    /// The greatest useful [`Self::scroll`].
    fn lines(&self) -> usize {
        let lines = match &self.page {
            Page::Services => 0,
            Page::Endpoints => self.service().map_or(0, |service| {
                let known = self.seen.services.get(&service.key).map_or(0, |of| of.endpoints.len());
                known + service.endpoints.iter().map(|endpoint| endpoint.ports.len()).sum::<usize>()
            }),
            Page::Path(path) => match &path.answer {
                Some(Ok(text) | Err(text)) => text.lines().count(),
                None => 0,
            },
        };
        lines.saturating_sub(1)
    }

    fn enter(&mut self) -> Action {
        match self.page {
            Page::Services => {
                // From here on, the page follows this Service, even if the order changes.
                self.select(self.selected());
                if self.selected.is_some() {
                    (self.page, self.scroll) = (Page::Endpoints, 0);
                }
                Action::Draw
            }
            Page::Endpoints => self.ask(0, None),
            Page::Path(_) => Action::Draw,
        }
    }

    fn leave(&mut self) {
        self.scroll = 0;
        self.page = match self.page {
            Page::Services => {
                self.filter.clear();
                Page::Services
            }
            Page::Endpoints => Page::Services,
            Page::Path(_) => Page::Endpoints,
        };
    }

    fn ask(&mut self, index: usize, from: Option<Sender>) -> Action {
        let all = self.service().map(|service| destinations(&self.state, service)).unwrap_or_default();
        let Some(Destination { kind, to, protocol }) = all.get(index).copied() else { return Action::Draw };
        let usual = if kind == "ClusterIP" { Sender::Pod } else { Sender::Outside };
        let question = Question { from: from.unwrap_or(usual), to, protocol };
        (self.page, self.scroll) = (Page::Path(Path { question, answer: None, destination: index }), 0);
        Action::Explain(question)
    }

    fn ask_next(&mut self, by: isize) -> Action {
        let Page::Path(path) = &self.page else { return Action::Draw };
        let count = self.service().map_or(0, |service| destinations(&self.state, service).len());
        self.ask(path.destination.saturating_add_signed(by).min(count.saturating_sub(1)), None)
    }

    fn ask_from_next(&mut self) -> Action {
        let Page::Path(path) = &self.page else { return Action::Draw };
        let (index, from) = (path.destination, path.question.from.next());
        self.ask(index, Some(from))
    }
}

/// The number of a Service's endpoints that get new connections.
pub fn eligible(service: &Service) -> usize {
    service.endpoints.iter().filter(|endpoint| endpoint.scopes.is_eligible()).count()
}

fn contains(service: &Service, text: &str) -> bool {
    if text.is_empty() || service.key.to_string().contains(text) {
        return true;
    }
    let addresses = service.cluster_ips.iter().chain(&service.external_ips).chain(&service.load_balancer_ips);
    let mut addresses = addresses.chain(service.endpoints.iter().map(|endpoint| &endpoint.address));
    addresses.any(|address| address.to_string().contains(text))
}

#[cfg(test)]
pub(crate) mod tests {
    use localnet_proto::{Protocol, Revision};

    use super::{super::seen::OfService, *};

    pub(crate) const STATE: &str = "node: {name: node-a, addresses: [192.168.0.2]}
services:
- {service: shop/api, type: ClusterIP, clusterIPs: [10.96.0.2], ports: [{name: grpc, protocol: TCP, port: 9090}]}
- {service: shop/web, type: NodePort, clusterIPs: [10.96.0.1], ports: [{name: http, protocol: TCP, port: 80, nodePort: 30080}],
   endpoints: [{address: 10.0.0.1, ports: [{name: http, port: 8080}], local: true, scopes: {internal: true, external: true}, weight: 3},
               {address: 10.0.0.2, ports: [{name: http, port: 8080}], scopes: {internal: true, external: true}}]}
";

    pub(crate) fn state(rev: u64, text: &str) -> Snapshot {
        Snapshot { revision: Revision { instance: 1, rev }, ..crate::source::read(text).unwrap() }
    }

    pub(crate) fn seen(one: f64, other: f64) -> Seen {
        let measure = |rate: f64| Measure {
            connections_per_second: rate,
            bytes_per_second: Some(rate * 1000.0),
            flows: 4,
            ..Measure::default()
        };
        let at = |text: &str| text.parse().unwrap();
        let endpoints = [(at("10.0.0.1:8080"), measure(one)), (at("10.0.0.2:8080"), measure(other))];
        let web = OfService { all: measure(one + other), endpoints: endpoints.into() };
        let services = [(ServiceKey::new("shop", "web"), web)].into();
        Seen { rates_from: RatesFrom::Counted, services, ..Seen::default() }
    }

    pub(crate) fn model() -> Model {
        let mut model = Model { now: "2026-11-27T12:00:00Z".parse().unwrap(), ..Model::default() };
        model.set_state(state(1, STATE));
        model.set_seen(seen(30.0, 10.0));
        model
    }

    fn names(model: &Model) -> Vec<String> {
        model.services().iter().map(|service| service.key.name.to_string()).collect()
    }

    fn press(model: &mut Model, keys: &str) -> Action {
        let mut last = Action::Draw;
        for letter in keys.chars() {
            last = model.press(match letter {
                '\n' => Key::Enter,
                '<' => Key::Escape,
                letter => Key::Char(letter),
            });
        }
        last
    }

    #[test]
    fn services_are_sorted_and_filtered() {
        let mut model = model();
        assert_eq!(names(&model), ["web", "api"]);
        press(&mut model, "ssssss");
        assert_eq!((model.sort, names(&model)), (Sort::Name, vec!["api".to_owned(), "web".to_owned()]));
        press(&mut model, "/10.0.0.2\n");
        assert_eq!((names(&model), model.is_typing), (vec!["web".to_owned()], false));
        assert_eq!(model.service().unwrap().key.to_string(), "shop/web");
        press(&mut model, "<");
        assert_eq!(names(&model).len(), 2);
        press(&mut model, "/q");
        assert_eq!((model.filter.as_str(), names(&model).len()), ("q", 0), "q is text here");
        press(&mut model, "<ssssss");
        assert_eq!((model.sort, names(&model)), (Sort::Endpoints, vec!["api".to_owned(), "web".to_owned()]));
    }

    #[test]
    fn the_service_that_refuses_most_packets_comes_first_on_request() {
        let mut model = model();
        let mut seen = seen(30.0, 10.0);
        let refused = Measure { refused_per_second: Some(2.0), ..Measure::default() };
        let api = OfService { all: refused, ..OfService::default() };
        seen.services.insert(ServiceKey::new("shop", "api"), api);
        model.set_seen(seen);
        assert_eq!(names(&model), ["web", "api"]);
        press(&mut model, "ssss");
        assert_eq!((model.sort, names(&model)), (Sort::Refused, vec!["api".to_owned(), "web".to_owned()]));
    }

    #[test]
    fn the_selection_follows_its_service() {
        let mut model = model();
        model.press(Key::Down);
        assert_eq!((model.selected(), model.service().unwrap().key.to_string()), (1, "shop/api".to_owned()));
        press(&mut model, "ssssss");
        assert_eq!((model.selected(), model.service().unwrap().key.to_string()), (0, "shop/api".to_owned()));
        model.press(Key::End);
        assert_eq!(model.selected(), 1);
        model.press(Key::PageUp);
        assert_eq!(model.selected(), 0);
    }

    #[test]
    fn changes_are_listed_and_mark_their_service() {
        let mut model = model();
        let key = ServiceKey::new("shop", "web");
        model.set_state(state(2, &STATE.replace("weight: 3", "weight: 9")));
        assert_eq!(model.changes.len(), 1);
        assert_eq!(model.changes[0].text, "shop/web: weights: 10.0.0.1 3 -> 9");
        assert!(model.is_marked(&key) && !model.is_marked(&ServiceKey::new("shop", "api")));
        model.now = "2026-11-27T12:00:10Z".parse().unwrap();
        assert!(!model.is_marked(&key));
    }

    #[test]
    fn enter_leads_to_endpoints_and_then_to_the_path() {
        let mut model = model();
        press(&mut model, "\n");
        assert_eq!(model.page, Page::Endpoints);
        let to = |to: &str, from| {
            let (to, protocol) = (to.parse().unwrap(), Protocol::Tcp);
            Action::Explain(Question { from, to, protocol })
        };
        assert_eq!(press(&mut model, "\n"), to("10.96.0.1:80", Sender::Pod));
        assert_eq!(model.press(Key::Right), to("192.168.0.2:30080", Sender::Outside));
        assert_eq!(model.press(Key::Right), to("192.168.0.2:30080", Sender::Outside), "the last destination stays");
        assert_eq!(press(&mut model, "f"), to("192.168.0.2:30080", Sender::Pod));
        let Page::Path(path) = &model.page else { panic!("{:?}", model.page) };
        let (asked, other) = (path.question, Question { from: Sender::Node, ..path.question });
        model.explained(other, Ok("late".to_owned()));
        model.explained(asked, Ok("verdict\n".to_owned()));
        assert!(matches!(&model.page, Page::Path(Path { answer: Some(Ok(text)), .. }) if text == "verdict\n"));
        press(&mut model, "<<");
        assert_eq!(model.page, Page::Services);
        assert_eq!(press(&mut model, "q"), Action::Quit);
    }

    #[test]
    fn rates_are_kept_for_a_minute() {
        let (mut model, web) = (model(), ServiceKey::new("shop", "web"));
        model.set_seen(seen(3.0, 2.0));
        assert_eq!(model.rates(&web).collect::<Vec<_>>(), [40.0, 5.0]);
        for _ in 0..MOST_RATES - 1 {
            model.set_seen(Seen::default());
        }
        assert_eq!(model.rates(&web).count(), MOST_RATES);
        model.set_seen(Seen::default());
        assert_eq!(model.rates(&web).count(), 0, "a Service without traffic needs no memory");
    }
}
