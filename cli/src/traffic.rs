//! The rates of the traffic that backends have counted. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
};

use localnet_proto::{
    ServiceKey,
    traffic::{NodeTraffic, PortTraffic, Refusals, TrafficReport, TrafficTotal, Volume},
    wire,
};

use crate::{style::NONE, table::Row};

/// What a Service, a port or an endpoint gets per second, in both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// New connections.
    pub connections: f64,
    /// Bytes.
    pub bytes: f64,
    /// Packets that would have opened a connection, but were refused; only for Services and ports.
    pub refused: f64,
}

impl Rate {
    /// Adds the difference between two totals, `seconds` apart.
    fn add(&mut self, before: Option<&TrafficTotal>, now: Option<&TrafficTotal>, seconds: f64) {
        let number = |total: Option<&TrafficTotal>| {
            let total = total.copied().unwrap_or_default();
            let bytes = |volume: Option<Volume>| volume.unwrap_or_default().bytes;
            [total.connections, bytes(total.original).saturating_add(bytes(total.reply))]
        };
        let ([connections_before, bytes_before], [connections, bytes]) = (number(before), number(now));
        self.connections += connections.saturating_sub(connections_before) as f64 / seconds;
        self.bytes += bytes.saturating_sub(bytes_before) as f64 / seconds;
    }

    fn add_refused(&mut self, before: &[Refusals], now: &[Refusals], seconds: f64) {
        let all = |of: &[Refusals]| of.iter().map(|of| of.packets).sum::<u64>();
        self.refused += all(now).saturating_sub(all(before)) as f64 / seconds;
    }
}

/// The rates between the last two times at which a backend has counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    services: BTreeMap<ServiceKey, Rate>,
    /// By `namespace/name:port`.
    ports: BTreeMap<String, Rate>,
    endpoints: BTreeMap<String, Rate>,
    of_services: BTreeMap<(ServiceKey, String), Rate>,
    counts_refused: bool,
}

impl Rates {
    /// The headings of the columns that [`cells`] fills.
    pub const HEADINGS: [&str; 2] = ["CONNS/S", "BYTES/S"];
    /// The heading of the column with [`Rate::refused`].
    pub const REFUSED: &str = "REFUSED/S";

    /// Computes the rates of the backend that has counted last; `None` if it has counted only once.
    pub fn of(traffic: &NodeTraffic) -> Option<Self> {
        // The brain remembers the counts of a backend that has stopped for some time.
        let newest = traffic.backends.iter().max_by_key(|of| of.last.as_ref().map(|last| last.time_millis))?;
        let (before, now) = newest.previous.as_ref().zip(newest.last.as_ref())?;
        let mut rates = Self::default();
        rates.add(before, now);
        Some(rates)
    }

    fn add(&mut self, before: &TrafficReport, now: &TrafficReport) {
        self.counts_refused = !now.rest_refused.is_empty() || now.ports.iter().any(|port| !port.refused.is_empty());
        let seconds = (now.time_millis.saturating_sub(before.time_millis) as f64 / 1000.0).max(0.001);
        fn name(of: &PortTraffic) -> (Option<&wire::ServiceKey>, &str, i32) {
            (of.service.as_ref(), &of.port, of.protocol)
        }
        let before: HashMap<_, _> = before.ports.iter().map(|of| (name(of), of)).collect();
        for port in &now.ports {
            let before = before.get(&name(port));
            let key = port.service.clone().unwrap_or_default();
            let key = ServiceKey::new(key.namespace, key.name);
            let add = |rate: &mut Rate| {
                rate.add(before.and_then(|of| of.total.as_ref()), port.total.as_ref(), seconds);
                rate.add_refused(before.map_or(&[], |of| &of.refused), &port.refused, seconds);
            };
            add(self.services.entry(key.clone()).or_default());
            add(self.ports.entry(format!("{key}:{}", port.port)).or_default());
            let before: BTreeMap<&str, Option<&TrafficTotal>> =
                before.iter().flat_map(|of| &of.endpoints).map(|of| (&*of.endpoint, of.total.as_ref())).collect();
            for of in &port.endpoints {
                let before = before.get(&*of.endpoint).copied().flatten();
                let add = |rate: &mut Rate| rate.add(before, of.total.as_ref(), seconds);
                add(self.endpoints.entry(of.endpoint.clone()).or_default());
                add(self.of_services.entry((key.clone(), of.endpoint.clone())).or_default());
            }
        }
    }

    /// The rate of a Service; `None` if it had no traffic, or is not counted separately.
    pub fn service(&self, service: &ServiceKey) -> Option<Rate> {
        self.services.get(service).copied()
    }

    /// Whether the backend has counted a refused packet since it started. Not every backend counts them.
    pub fn counts_refused(&self) -> bool {
        self.counts_refused
    }

    /// The rate of a port, `namespace/name:port`.
    pub fn port(&self, port: &str) -> Option<Rate> {
        self.ports.get(port).copied()
    }

    /// The ports, `namespace/name:port`, each with its rate.
    pub fn all_ports(&self) -> impl Iterator<Item = (&str, Rate)> {
        self.ports.iter().map(|(port, rate)| (port.as_str(), *rate))
    }

    /// The rate of an endpoint, for all Services together.
    pub fn endpoint(&self, endpoint: &str) -> Option<Rate> {
        self.endpoints.get(endpoint).copied()
    }

    /// The rate of an endpoint of a Service.
    pub fn endpoint_of(&self, service: &ServiceKey, endpoint: SocketAddr) -> Option<Rate> {
        self.of_services.get(&(service.clone(), endpoint.to_string())).copied()
    }
}

/// Adds the cells of a rate to a table row.
pub fn cells(row: &mut Row<'_>, rate: Option<Rate>) {
    match rate {
        Some(Rate { connections, bytes, .. }) => row.cell(format_args!("{connections:.1}")).cell(short(bytes)),
        None => row.cell(NONE).cell(NONE),
    };
}

/// Adds the cell with the rate of refused packets to a table row.
pub fn refused_cell(row: &mut Row<'_>, rate: Option<Rate>) {
    match rate {
        Some(Rate { refused, .. }) => row.cell(format_args!("{refused:.1}")),
        None => row.cell(NONE),
    };
}

/// Formats a number of bytes with a unit and at most three digits: 1.2K is about 1,200.
pub fn short(number: f64) -> String {
    let mut number = number;
    for unit in ["", "K", "M", "G", "T"] {
        if number < 999.5 {
            let places = if unit.is_empty() || number >= 99.95 { 0 } else { 1 };
            return format!("{number:.places$}{unit}");
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

#[cfg(test)]
pub(crate) mod tests {
    use localnet_proto::traffic::{BackendTraffic, EndpointTraffic};

    use super::*;

    fn report(time_millis: u64, connections: u64, bytes: u64) -> TrafficReport {
        let half = |bytes| Some(Volume { packets: 1, bytes });
        let total = Some(TrafficTotal { connections, original: half(bytes / 4), reply: half(bytes - bytes / 4) });
        let endpoints = vec![EndpointTraffic { endpoint: "10.0.0.1:8080".to_owned(), total, drains: None }];
        let port = |port: &str| PortTraffic {
            service: Some(wire::ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() }),
            port: port.to_owned(),
            protocol: 1,
            total,
            endpoints: endpoints.clone(),
            refused: vec![Refusals { reason: 1, packets: connections / 2 }],
            drains: None,
        };
        TrafficReport { time_millis, ports: vec![port("http"), port("admin")], ..TrafficReport::default() }
    }

    /// Two ports of `shop/web`, which each get 2 connections and 4,000 bytes per second at 10.0.0.1:8080, and refuse 1 packet per
    /// second.
    pub(crate) fn rates() -> Rates {
        let (before, now) = (Some(report(1_000, 10, 1_000)), Some(report(3_000, 14, 9_000)));
        Rates::of(&NodeTraffic { backends: vec![BackendTraffic { last: now, previous: before }] }).unwrap()
    }

    #[test]
    fn rates_are_differences_per_second() {
        let once = BackendTraffic { last: Some(report(1_000, 10, 1_000)), previous: None };
        assert_eq!(Rates::of(&NodeTraffic { backends: vec![once] }), None);
        let rates = rates();
        let (one, both) = (
            Rate { connections: 2.0, bytes: 4_000.0, refused: 1.0 },
            Rate { connections: 4.0, bytes: 8_000.0, refused: 2.0 },
        );
        let web = ServiceKey::new("shop", "web");
        assert_eq!((rates.port("shop/web:http"), rates.service(&web)), (Some(one), Some(both)));
        let both = Rate { refused: 0.0, ..both };
        assert_eq!(rates.endpoint_of(&web, "10.0.0.1:8080".parse().unwrap()), Some(both));
        assert_eq!((rates.endpoint("10.0.0.1:8080"), rates.endpoint("10.0.0.2:8080")), (Some(both), None));
        assert_eq!(rates.service(&ServiceKey::new("shop", "api")), None);
    }

    #[test]
    fn a_backend_that_has_counted_no_refused_packet_may_not_count_them() {
        let refuses = |rest: bool| {
            let report = |connections| {
                let mut report = report(1_000 * connections, connections, 1_000);
                report.ports.iter_mut().for_each(|port| port.refused.clear());
                report.rest_refused = rest.then_some(Refusals { reason: 1, packets: 1 }).into_iter().collect();
                Some(report)
            };
            let traffic = NodeTraffic { backends: vec![BackendTraffic { last: report(2), previous: report(1) }] };
            Rates::of(&traffic).unwrap().counts_refused()
        };
        assert!(rates().counts_refused());
        assert_eq!([refuses(false), refuses(true)], [false, true]);
    }

    #[test]
    fn numbers_are_short() {
        for (number, expected) in
            [(0.0, "0"), (999.0, "999"), (999.6, "1.0K"), (1234.0, "1.2K"), (123_456.0, "123K"), (5.0e9, "5.0G")]
        {
            assert_eq!(short(number), expected);
        }
    }
}
