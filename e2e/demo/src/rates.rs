//! The rates of the Services and their endpoints, as the backend counts them.

use std::collections::{BTreeMap, HashMap};

use localnet_proto::{
    ServiceKey,
    traffic::{NodeTraffic, TrafficReport},
};

/// New connections per second of a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    /// The sum over all endpoints.
    pub(crate) all: f64,
    /// Those of each endpoint.
    pub(crate) endpoints: BTreeMap<String, f64>,
}

/// The rates of all Services with traffic.
pub(crate) type Rates = BTreeMap<ServiceKey, Rate>;

/// Computes the rates between the last two times at which the backend has counted; `None` if it has counted only once.
pub(crate) fn rates(traffic: &NodeTraffic) -> Option<Rates> {
    let newest = traffic.backends.first()?;
    let (before, now) = newest.previous.as_ref().zip(newest.last.as_ref())?;
    let seconds = (now.time_millis.saturating_sub(before.time_millis) as f64 / 1000.0).max(0.001);
    let old: HashMap<_, _> = counts(before).collect();
    let mut rates = Rates::new();
    for (name, count) in counts(now) {
        let more = count.saturating_sub(old.get(&name).copied().unwrap_or_default()) as f64 / seconds;
        let (service, _, _, endpoint) = name;
        let rate = rates.entry(service).or_default();
        match endpoint {
            Some(endpoint) => *rate.endpoints.entry(endpoint.to_owned()).or_default() += more,
            None => rate.all += more,
        }
    }
    Some(rates)
}

/// The Service, port, protocol and endpoint (`None`: all) of a number of connections.
type Name<'a> = (ServiceKey, &'a str, i32, Option<&'a str>);

fn counts(report: &TrafficReport) -> impl Iterator<Item = (Name<'_>, u64)> {
    report.ports.iter().flat_map(|port| {
        let service = port.service.clone().unwrap_or_default();
        let service = ServiceKey::new(service.namespace, service.name);
        let number = |total: Option<localnet_proto::traffic::TrafficTotal>| total.unwrap_or_default().connections;
        let all = ((service.clone(), &*port.port, port.protocol, None), number(port.total));
        let each = port
            .endpoints
            .iter()
            .map(move |of| ((service.clone(), &*port.port, port.protocol, Some(&*of.endpoint)), number(of.total)));
        [all].into_iter().chain(each)
    })
}

#[cfg(test)]
mod tests {
    use localnet_proto::{
        traffic::{BackendTraffic, EndpointTraffic, PortTraffic, TrafficTotal},
        wire,
    };

    use super::*;

    fn report(time_millis: u64, connections: u64) -> TrafficReport {
        let total = Some(TrafficTotal { connections, ..TrafficTotal::default() });
        let port = |port: &str| PortTraffic {
            service: Some(wire::ServiceKey { namespace: "default".to_owned(), name: "web".to_owned() }),
            port: port.to_owned(),
            total,
            endpoints: vec![EndpointTraffic {
                endpoint: "10.180.0.1:8080".to_owned(),
                total,
                ..EndpointTraffic::default()
            }],
            ..PortTraffic::default()
        };
        TrafficReport { time_millis, ports: vec![port("http"), port("admin")], ..TrafficReport::default() }
    }

    #[test]
    fn rates_are_sums_over_the_ports_of_a_service() {
        let backend = |previous| BackendTraffic { last: Some(report(7_000, 30)), previous };
        assert_eq!(rates(&NodeTraffic { backends: vec![backend(None)] }), None);
        let rates = rates(&NodeTraffic { backends: vec![backend(Some(report(2_000, 10)))] }).unwrap();
        let rate = &rates[&ServiceKey::new("default", "web")];
        assert_eq!((rate.all, rate.endpoints["10.180.0.1:8080"]), (8.0, 8.0));
    }
}
