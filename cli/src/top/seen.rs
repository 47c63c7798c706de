//! What a node's Services and endpoints get: the rates that a backend has counted, and the flows in connection tracking. Pure.

use std::{collections::BTreeMap, net::SocketAddr};

use localnet_client::{Snapshot, vips::Facts};
use localnet_proto::{Family, Service, ServiceKey};
use serde::Serialize;

use super::{Row, Sample, tally};
use crate::traffic::{Rate, Rates};

/// Where rates come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RatesFrom {
    /// A backend counts traffic (`--traffic`).
    Counted,
    /// Two samples of connection tracking. They miss the flows that ended between the samples.
    Flows,
    /// There are no rates yet.
    #[default]
    Nothing,
}

/// What a Service or an endpoint gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measure {
    /// New connections per second.
    pub connections_per_second: f64,
    /// Bytes per second in both directions; `None` if nobody counts them.
    pub bytes_per_second: Option<f64>,
    /// Packets per second that would have opened a connection, but were refused or dropped; `None` if nobody counts them, and for
    /// endpoints.
    pub refused_per_second: Option<f64>,
    /// The number of flows in connection tracking.
    pub flows: usize,
    /// The number of these flows without an answer.
    pub unanswered: usize,
    /// The number of these flows to endpoints that are no longer eligible.
    pub stale: usize,
    /// The number of these flows to endpoints that get no new connections.
    pub draining: usize,
}

/// What a Service and its endpoints get.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OfService {
    /// The sum over all endpoints.
    #[serde(flatten)]
    pub all: Measure,
    /// The endpoints with traffic, including former ones.
    pub endpoints: BTreeMap<SocketAddr, Measure>,
}

/// What the Services of a node get.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// Where the rates come from.
    pub rates_from: RatesFrom,
    /// Whether the backend has counted a refused packet since it started. Not every backend counts them.
    pub counts_refused: bool,
    /// Why connection tracking was not read.
    pub flows_unknown: Option<String>,
    /// The Services with traffic, by `namespace/name`.
    #[serde(serialize_with = "by_name")]
    pub services: BTreeMap<ServiceKey, OfService>,
}

/// The traffic as the page of `localnet ui` reads it.
#[derive(Debug, Serialize)]
pub struct Traffic<'a> {
    /// The revision of the newest state. If it is another one than before, the page reads the state again.
    pub revision: u64,
    /// The name of the node.
    pub node: &'a str,
    /// Why the state may be old.
    pub problem: Option<String>,
    /// What the Services get.
    #[serde(flatten)]
    pub seen: &'a Seen,
}

fn by_name<S: serde::Serializer>(of: &BTreeMap<ServiceKey, OfService>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(of.iter().map(|(key, of)| (key.to_string(), of)))
}

impl Seen {
    /// Combines a sample of connection tracking, and the previous one, with the rates that a backend has counted. These also
    /// cover flows that have ended, so they replace the rates of the samples.
    pub fn of(
        state: &Snapshot,
        facts: &Facts,
        sample: Result<&Sample, String>,
        before: Option<&Sample>,
        rates: Option<&Rates>,
    ) -> Self {
        let mut seen = Self::default();
        match sample {
            Ok(sample) => {
                let (rows, _) = tally(state, facts, sample, before, |vip, flow, _| {
                    [(vip.service.clone(), None), (vip.service.clone(), Some(flow.endpoint))].into_iter()
                });
                for ((service, endpoint), row) in rows {
                    let of = seen.services.entry(service).or_default();
                    *of.place(endpoint) = Measure::of(&row);
                }
                seen.rates_from = if before.is_some() { RatesFrom::Flows } else { RatesFrom::Nothing };
            }
            Err(why) => seen.flows_unknown = Some(why),
        }
        if let Some(rates) = rates {
            (seen.rates_from, seen.counts_refused) = (RatesFrom::Counted, rates.counts_refused());
            let all = seen.services.values_mut().flat_map(|of| of.endpoints.values_mut().chain([&mut of.all]));
            all.for_each(|measure| measure.set(Rate::default()));
            for service in state.services.values() {
                let Some(rate) = rates.service(&service.key) else { continue };
                let of = seen.services.entry(service.key.clone()).or_default();
                of.all.set(rate);
                of.all.refused_per_second = rates.counts_refused().then_some(rate.refused);
                let known: Vec<SocketAddr> = of.endpoints.keys().copied().collect();
                for endpoint in known.into_iter().chain(sockets(service)) {
                    if let Some(rate) = rates.endpoint_of(&service.key, endpoint) {
                        of.place(Some(endpoint)).set(rate);
                    }
                }
            }
        }
        seen
    }
}

impl OfService {
    fn place(&mut self, endpoint: Option<SocketAddr>) -> &mut Measure {
        match endpoint {
            Some(endpoint) => self.endpoints.entry(endpoint).or_default(),
            None => &mut self.all,
        }
    }
}

impl Measure {
    fn of(row: &Row) -> Self {
        Self {
            connections_per_second: row.new_per_second.unwrap_or_default(),
            bytes_per_second: row.bytes_per_second,
            refused_per_second: None,
            flows: row.flows,
            unanswered: row.unanswered,
            stale: row.stale,
            draining: row.draining,
        }
    }

    fn set(&mut self, rate: Rate) {
        (self.connections_per_second, self.bytes_per_second) = (rate.connections, Some(rate.bytes));
    }
}

/// The addresses and ports of a Service's endpoints.
fn sockets(service: &Service) -> impl Iterator<Item = SocketAddr> {
    let of = |endpoint: &'_ localnet_proto::Endpoint| {
        let address = endpoint.address;
        endpoint.ports.iter().map(move |port| SocketAddr::new(address, port.port)).collect::<Vec<_>>()
    };
    service.endpoints.iter().flat_map(of)
}

/// An endpoint of a Service, with the share of connections that it should get, and the share that it gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The address and port.
    pub endpoint: SocketAddr,
    /// The name of the Service's port; `None` if the endpoint no longer belongs to the Service.
    pub port: Option<String>,
    /// The weight; 0 if the endpoint gets no new connections.
    pub weight: u32,
    /// The share that the weights promise, among the endpoints of the same port and family.
    pub expected: f64,
    /// The measured share of new connections, or of flows if there are no rates; `None` without traffic.
    pub measured: Option<f64>,
    /// What the endpoint gets.
    pub measure: Measure,
    /// The kinds of traffic that the endpoint is eligible for.
    pub serves: String,
    /// Whether the endpoint is on this node.
    pub local: bool,
}

/// Returns the endpoints of a Service in the order of the state, and former ones with traffic at the end.
pub fn shares(service: &Service, of: Option<&OfService>, has_rates: bool) -> Vec<Share> {
    let measure = |endpoint| of.and_then(|of| of.endpoints.get(&endpoint)).copied().unwrap_or_default();
    let mut all = Vec::new();
    for endpoint in &service.endpoints {
        let scopes = endpoint.scopes;
        let kinds = [(scopes.internal, "internal"), (scopes.external, "external"), (scopes.established, "established")];
        let serves: Vec<&str> = kinds.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        for port in &endpoint.ports {
            let at = SocketAddr::new(endpoint.address, port.port);
            all.push(Share {
                endpoint: at,
                port: Some(port.name.to_string()),
                weight: if scopes.is_eligible() { endpoint.weight.map_or(1, std::num::NonZeroU32::get) } else { 0 },
                expected: 0.0,
                measured: None,
                measure: measure(at),
                serves: serves.join(","),
                local: endpoint.local,
            });
        }
    }
    let known: std::collections::BTreeSet<SocketAddr> = all.iter().map(|share| share.endpoint).collect();
    for (endpoint, measure) in of.iter().flat_map(|of| &of.endpoints).filter(|(at, _)| !known.contains(at)) {
        all.push(Share {
            endpoint: *endpoint,
            port: None,
            weight: 0,
            expected: 0.0,
            measured: None,
            measure: *measure,
            serves: "removed".to_owned(),
            local: false,
        });
    }
    let group = |share: &Share| (share.port.clone(), Family::of(share.endpoint.ip()));
    let amount = |share: &Share| match has_rates {
        true => share.measure.connections_per_second,
        false => share.measure.flows as f64,
    };
    let mut sums: BTreeMap<_, (f64, f64)> = BTreeMap::new();
    for share in &all {
        let sum = sums.entry(group(share)).or_default();
        *sum = (sum.0 + f64::from(share.weight), sum.1 + amount(share));
    }
    for share in &mut all {
        let (weights, amounts) = sums.get(&group(share)).copied().unwrap_or_default();
        share.expected = if weights > 0.0 { f64::from(share.weight) / weights } else { 0.0 };
        share.measured = (amounts > 0.0).then(|| amount(share) / amounts);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = "node: {name: n}
services:
- {service: shop/web, type: ClusterIP, clusterIPs: [10.96.0.1], ports: [{name: http, protocol: TCP, port: 80}],
   endpoints: [{address: 10.0.0.1, ports: [{name: http, port: 8080}], scopes: {internal: true}, weight: 3},
               {address: 10.0.0.2, ports: [{name: http, port: 8080}], scopes: {internal: true}},
               {address: 10.0.0.3, ports: [{name: http, port: 8080}], scopes: {established: true}}]}
";

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn shares_follow_weights_and_traffic() {
        let state = crate::source::read(STATE).unwrap();
        let service = state.services.values().next().unwrap();
        let measure = |rate| Measure { connections_per_second: rate, ..Measure::default() };
        let endpoints = [("10.0.0.1:8080", 6.0), ("10.0.0.2:8080", 4.0), ("10.0.0.9:8080", 0.0)];
        let endpoints = endpoints.map(|(endpoint, rate)| (at(endpoint), measure(rate)));
        let of = OfService { all: measure(10.0), endpoints: endpoints.into() };
        let line = |share: &Share| {
            let measured = share.measured.map(|share| (share * 100.0).round());
            (share.endpoint.to_string(), share.weight, (share.expected * 100.0).round(), measured, share.serves.clone())
        };
        let lines: Vec<_> = shares(service, Some(&of), true).iter().map(line).collect();
        let is = |at: &str, weight, expected, measured, serves: &str| {
            (at.to_owned(), weight, expected, measured, serves.to_owned())
        };
        assert_eq!(
            lines,
            [
                is("10.0.0.1:8080", 3, 75.0, Some(60.0), "internal"),
                is("10.0.0.2:8080", 1, 25.0, Some(40.0), "internal"),
                is("10.0.0.3:8080", 0, 0.0, Some(0.0), "established"),
                is("10.0.0.9:8080", 0, 0.0, None, "removed"),
            ]
        );
        assert!(shares(service, None, true).iter().all(|share| share.measured.is_none()));
    }

    #[test]
    fn counted_rates_replace_those_of_flows() {
        let state = crate::source::read(STATE).unwrap();
        let facts = Facts::new(&localnet_client::vips::Config::default(), &state.node, &[]);
        let rates = crate::traffic::tests::rates();
        let seen = Seen::of(&state, &facts, Err("no kernel".to_owned()), None, Some(&rates));
        let web = &seen.services[&ServiceKey::new("shop", "web")];
        assert_eq!((web.all.connections_per_second, web.all.bytes_per_second), (4.0, Some(8_000.0)));
        assert_eq!((seen.counts_refused, web.all.refused_per_second), (true, Some(2.0)));
        let endpoint = web.endpoints[&at("10.0.0.1:8080")];
        assert_eq!((endpoint.connections_per_second, endpoint.refused_per_second), (4.0, None));
        assert_eq!((seen.rates_from, seen.flows_unknown.as_deref()), (RatesFrom::Counted, Some("no kernel")));
        let json = serde_json::to_value(&seen).unwrap();
        assert_eq!(json["services"]["shop/web"]["endpoints"]["10.0.0.1:8080"]["bytesPerSecond"], 8_000.0);
        assert_eq!(json["services"]["shop/web"]["connectionsPerSecond"], 4.0);
    }
}
