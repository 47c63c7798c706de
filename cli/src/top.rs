//! `localnet top`: lists the Services, endpoints or clients with the most flows in connection tracking. Counting is pure.
//!
//! If a backend counts traffic, rates are those that it has counted. Otherwise, rates cover the flows that both samples contain, and the
//! flows that are new in the second sample, but not the flows that ended between the samples.

pub mod draw;
pub mod input;
pub mod live;
pub mod model;
pub mod seen;

use std::{collections::BTreeMap, net::SocketAddr, time::Instant};

use clap::ValueEnum;
use localnet_client::Snapshot;
use localnet_client::vips::{Facts, Vip, service};
use localnet_linux::conntrack::{Counters, Flow, Tuple};
use localnet_proto::Protocol;
use serde::Serialize;

use crate::{
    flows::FlowRow,
    origin::Origin,
    output::Show,
    style::{NONE, Style, Tone},
    table::Table,
    traffic::{Rate, Rates, short},
};

/// The object to count flows by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The Service and port
    #[default]
    Service,
    /// The endpoint
    Endpoint,
    /// The client
    Client,
}

/// The flows at a point in time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the flows were read.
    pub at: Instant,
    /// The flows, each with its packets and bytes if the kernel counts them.
    pub flows: Vec<(Flow, Option<Counters>)>,
}

/// The Services, endpoints or clients with the most flows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    /// When the flows were read, in UTC.
    pub time: String,
    /// The rows, the most flows first.
    pub rows: Vec<Row>,
    /// The number of flows to Services.
    pub flows: usize,
    /// The number of other flows.
    pub others: usize,
    /// Whether the kernel counts the packets and bytes of new flows.
    pub counts_bytes: bool,
    /// The configuration, which selects the addresses that answer NodePorts.
    pub configuration: Origin,
}

/// The flows of one Service, endpoint or client.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The port of a Service, the endpoint or the client.
    pub name: String,
    /// The number of flows.
    pub flows: usize,
    /// The number of flows without an answer.
    pub unanswered: usize,
    /// The number of flows to endpoints that are no longer eligible.
    pub stale: usize,
    /// The number of flows to endpoints that get no new connections, because they terminate, are not ready or were removed.
    pub draining: usize,
    /// The bytes in both directions since each flow began; `None` if the kernel does not count them.
    pub bytes: Option<u64>,
    /// New flows per second since the previous sample.
    pub new_per_second: Option<f64>,
    /// Bytes per second since the previous sample.
    pub bytes_per_second: Option<f64>,
    /// Packets per second that would have opened a connection, but were refused; `None` if the backend does not count them.
    pub refused_per_second: Option<f64>,
}

/// The VIPs by protocol, address and port.
type Owners = std::collections::HashMap<(Protocol, SocketAddr), Vip>;

/// The counters of each flow in the previous sample. Protocol, tuple and ID identify a flow.
type Before = std::collections::HashMap<(Protocol, Tuple, u32), Option<Counters>>;

/// Counts the flows of a sample, or only those that drain. Also computes rates if there is a previous sample.
pub fn count(
    state: &Snapshot,
    facts: &Facts,
    sample: &Sample,
    before: Option<&Sample>,
    (by, only_draining): (By, bool),
) -> Top {
    let name = |vip: &Vip, flow: &FlowRow| match by {
        By::Service => vip.comment.to_string(),
        By::Endpoint => flow.endpoint.to_string(),
        By::Client => flow.from.ip().to_string(),
    };
    let (rows, flows) = tally(state, facts, sample, before, |vip, flow, drains| {
        (!only_draining || drains).then(|| name(vip, flow)).into_iter()
    });
    let mut rows: Vec<Row> = rows.into_iter().map(|(name, row)| Row { name, ..row }).collect();
    rows.sort_by(|a, b| b.flows.cmp(&a.flows).then_with(|| a.name.cmp(&b.name)));
    Top {
        time: String::new(),
        rows,
        flows,
        others: sample.flows.len() - flows,
        counts_bytes: true,
        configuration: Origin::default(),
    }
}

/// Counts the flows to Services by the keys that `keys` returns for a flow, its VIP, and whether it drains. Also returns the
/// number of all flows to Services. The rows have no names.
fn tally<K: Ord, I: Iterator<Item = K>>(
    state: &Snapshot,
    facts: &Facts,
    sample: &Sample,
    before: Option<&Sample>,
    keys: impl Fn(&Vip, &FlowRow, bool) -> I,
) -> (BTreeMap<K, Row>, usize) {
    let wanted: std::collections::HashSet<SocketAddr> =
        sample.flows.iter().map(|(flow, _)| flow.original.destination).collect();
    let owners = owners(state, facts, |to| wanted.contains(to));
    let previous: Option<(f64, Before)> = before.map(|before| {
        let flows = before.flows.iter().map(|(flow, counters)| ((flow.protocol, flow.original, flow.id), *counters));
        (sample.at.duration_since(before.at).as_secs_f64().max(0.001), flows.collect())
    });
    let mut rows: BTreeMap<K, Row> = BTreeMap::new();
    let mut counted = 0;
    for (flow, counters) in &sample.flows {
        let Some(vip) = owners.get(&(flow.protocol, flow.original.destination)) else { continue };
        counted += 1;
        let flow_row = FlowRow::of(flow, &vip.serving);
        let drains = ![&vip.endpoints, &vip.local_endpoints].iter().any(|of| of.contains(&flow_row.endpoint));
        for key in keys(vip, &flow_row, drains) {
            let row = rows.entry(key).or_default();
            row.flows += 1;
            row.unanswered += usize::from(!flow_row.answered);
            row.stale += usize::from(flow_row.stale);
            row.draining += usize::from(drains);
            if let Some(counters) = counters {
                row.bytes = Some(row.bytes.unwrap_or_default().saturating_add(counters.bytes()));
            }
            let Some((seconds, previous)) = &previous else { continue };
            let former = previous.get(&(flow.protocol, flow.original, flow.id));
            let new = if former.is_none() { 1.0 } else { 0.0 };
            row.new_per_second = Some(row.new_per_second.unwrap_or_default() + new / seconds);
            if let Some(counters) = counters {
                let former = former.copied().flatten().unwrap_or_default();
                let more = counters.bytes().saturating_sub(former.bytes()) as f64;
                row.bytes_per_second = Some(row.bytes_per_second.unwrap_or_default() + more / seconds);
            }
        }
    }
    (rows, counted)
}

impl Top {
    /// Sets the rates that backends have counted. They also cover flows that have ended.
    pub fn set_rates(&mut self, rates: &Rates, by: By) {
        if by == By::Service {
            // A port that refuses all connections has no flows.
            for (name, _) in rates.all_ports().filter(|(_, rate)| rate.refused > 0.0) {
                if !self.rows.iter().any(|row| row.name == name) {
                    self.rows.push(Row { name: name.to_owned(), ..Row::default() });
                }
            }
        }
        for row in &mut self.rows {
            let rate = match by {
                By::Service => rates.port(&row.name),
                By::Endpoint => rates.endpoint(&row.name),
                By::Client => return,
            };
            if let Some(Rate { connections, bytes, refused }) = rate {
                (row.new_per_second, row.bytes_per_second) = (Some(connections), Some(bytes));
                row.refused_per_second = (by == By::Service).then_some(refused);
            }
        }
    }
}

/// Returns the number of flows to Services, and those whose endpoint is not eligible.
pub fn stale(state: &Snapshot, facts: &Facts, flows: &[Flow]) -> (usize, Vec<FlowRow>) {
    let wanted: std::collections::HashSet<SocketAddr> = flows.iter().map(|flow| flow.original.destination).collect();
    let owners = owners(state, facts, |to| wanted.contains(to));
    let serving = |flow: &Flow| owners.get(&(flow.protocol, flow.original.destination)).map(|vip| &vip.serving);
    let rows: Vec<_> = flows.iter().filter_map(|flow| Some(FlowRow::of(flow, serving(flow)?))).collect();
    (rows.len(), rows.into_iter().filter(|row| row.stale).collect())
}

/// Returns the owners of the VIPs that flows use. Plans only the Services of these VIPs.
fn owners(state: &Snapshot, facts: &Facts, wanted: impl Fn(&SocketAddr) -> bool) -> Owners {
    let mut owners = Owners::new();
    for service in state.services.values() {
        let addresses = service.cluster_ips.iter().chain(&service.external_ips).chain(&service.load_balancer_ips);
        let mut own = addresses.flat_map(|ip| service.ports.iter().map(|port| SocketAddr::new(*ip, port.port)));
        let numbers = service.ports.iter().filter_map(|port| port.node_port);
        let mut on_node =
            numbers.flat_map(|number| facts.node_port_addresses.iter().map(move |ip| SocketAddr::new(*ip, number)));
        if !own.any(|to| wanted(&to)) && !on_node.any(|to| wanted(&to)) {
            continue;
        }
        for (key, vip) in service::plan(service, facts).vips {
            owners.entry((key.protocol, key.socket())).or_insert(vip);
        }
    }
    owners
}

impl Show for Top {
    fn human(&self, style: Style) -> String {
        let has_rates = self.rows.iter().any(|row| row.new_per_second.is_some());
        let has_bytes = self.rows.iter().any(|row| row.bytes.is_some());
        let has_draining = self.rows.iter().any(|row| row.draining > 0);
        let has_refused = self.rows.iter().any(|row| row.refused_per_second.is_some_and(|refused| refused > 0.0));
        let mut headings = vec!["NAME", "FLOWS", "UNANSWERED", "STALE"];
        headings.extend(has_draining.then_some("DRAINING"));
        headings.extend(has_rates.then_some("NEW/S"));
        headings.extend(has_bytes.then_some("BYTES"));
        headings.extend((has_rates && has_bytes).then_some("BYTES/S"));
        headings.extend(has_refused.then_some(Rates::REFUSED));
        let mut table = Table::new(headings);
        for row in &self.rows {
            let tone = |count: usize, tone| (count > 0).then_some(tone);
            let number = |number: Option<f64>| number.map_or_else(|| NONE.to_owned(), short);
            table.add(|to| {
                to.cell(&row.name).cell(row.flows);
                to.toned(row.unanswered, tone(row.unanswered, Tone::Odd)).toned(row.stale, tone(row.stale, Tone::Bad));
                if has_draining {
                    to.cell(row.draining);
                }
                let rate = has_rates.then(|| format!("{:.1}", row.new_per_second.unwrap_or_default()));
                let bytes = has_bytes.then(|| number(row.bytes.map(|bytes| bytes as f64)));
                let bytes_rate = (has_rates && has_bytes).then(|| number(row.bytes_per_second));
                let refused = row.refused_per_second.map_or_else(|| NONE.to_owned(), |refused| format!("{refused:.1}"));
                let refused = has_refused.then_some(refused);
                [rate, bytes, bytes_rate, refused].into_iter().flatten().for_each(|text| _ = to.cell(text));
            });
        }
        let mut text = table.text(style, 0) + &format!("{} flows to Services, {} others\n", self.flows, self.others);
        if !self.counts_bytes {
            text.push_str(
                "bytes are unknown: run sysctl -w net.netfilter.nf_conntrack_acct=1 to count the bytes of new flows\n",
            );
        }
        text + &self.configuration.line()
    }

    fn names(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use localnet_client::vips::Config;
    use std::time::Duration;

    use localnet_linux::conntrack::{Status, Volume, Zone};

    use super::*;

    fn flow(from: &str, to: &str, endpoint: &str, answered: bool) -> Flow {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        Flow {
            protocol: Protocol::Udp,
            original: Tuple { source: at(from), destination: at(to) },
            reply: Tuple { source: at(endpoint), destination: at(from) },
            status: if answered { Status::SEEN_REPLY } else { Status(0) },
            tcp_state: None,
            zone: Zone::Both(0),
            id: 1,
        }
    }

    #[test]
    fn flows_are_counted_by_service_endpoint_or_client() {
        let state = crate::source::read(
            "node: {name: n, addresses: [192.168.0.2]}
services:
- {service: dns/dns, type: NodePort, clusterIPs: [10.96.0.10], ports: [{name: dns, protocol: UDP, port: 53, nodePort: 30053}],
   endpoints: [{address: 10.0.0.1, ports: [{name: dns, port: 53}], scopes: {internal: true, external: true, established: true}}]}
",
        )
        .unwrap();
        let facts = Facts::new(&Config::default(), &state.node, &[]);
        let flows = [
            flow("10.0.0.8:1", "10.96.0.10:53", "10.0.0.1:53", true),
            flow("10.0.0.8:2", "10.96.0.10:53", "10.0.0.9:53", false),
            flow("10.0.0.7:1", "192.168.0.2:30053", "10.0.0.1:53", true),
            flow("10.0.0.7:1", "8.8.8.8:53", "8.8.8.8:53", true),
        ];
        let at = Instant::now();
        let sample = Sample { at, flows: flows.iter().map(|flow| (*flow, None)).collect() };
        let top = |by| {
            let top = count(&state, &facts, &sample, None, (by, false));
            assert_eq!((top.flows, top.others), (3, 1));
            top.rows
                .iter()
                .map(|row| format!("{} {} {} {}", row.name, row.flows, row.unanswered, row.stale))
                .collect::<Vec<_>>()
        };
        assert_eq!(top(By::Service), ["dns/dns:dns 3 1 1"]);
        assert_eq!(top(By::Endpoint), ["10.0.0.1:53 2 0 0", "10.0.0.9:53 1 1 1"]);
        assert_eq!(top(By::Client), ["10.0.0.8 2 1 1", "10.0.0.7 1 0 0"]);
        let (count_of_flows, stale) = stale(&state, &facts, &flows);
        assert_eq!(count_of_flows, 3);
        assert_eq!(stale.iter().map(|row| row.endpoint.to_string()).collect::<Vec<_>>(), ["10.0.0.9:53"]);
        let draining = count(&state, &facts, &sample, None, (By::Endpoint, true));
        assert_eq!(draining.rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["10.0.0.9:53"]);
        assert_eq!((draining.rows[0].draining, draining.flows), (1, 3));
        let row = &count(&state, &facts, &sample, None, (By::Service, false)).rows[0];
        assert_eq!((row.bytes, row.new_per_second, row.bytes_per_second), (None, None, None));

        // Two seconds later, two of the three flows have continued and one is new.
        let counted = |bytes| Some(Counters { original: Volume { packets: 1, bytes }, ..Counters::default() });
        let before = Sample { at, flows: vec![(flows[0], counted(1000)), (flows[2], counted(500))] };
        let now = [(flows[0], counted(5000)), (flows[1], counted(60)), (flows[2], counted(500))];
        let now = Sample { at: at + Duration::from_secs(2), flows: now.into() };
        let top = count(&state, &facts, &now, Some(&before), (By::Service, false));
        let row = &top.rows[0];
        assert_eq!((row.bytes, row.new_per_second, row.bytes_per_second), (Some(5560), Some(0.5), Some(2030.0)));
        let text = top.human(Style::default());
        assert!(text.starts_with("NAME         FLOWS  UNANSWERED  STALE  DRAINING  NEW/S  BYTES  BYTES/S\n"), "{text}");
        assert!(text.contains("dns/dns:dns  3      1           1      1         0.5    5.6K   2.0K\n"), "{text}");
        let uncounted = Top { counts_bytes: false, ..count(&state, &facts, &sample, None, (By::Service, false)) };
        assert!(uncounted.human(Style::default()).contains("nf_conntrack_acct=1"));
    }

    #[test]
    fn counted_rates_replace_those_of_the_samples() {
        let rates = crate::traffic::tests::rates();
        let row = |name: &str| Row { name: name.to_owned(), new_per_second: Some(9.0), ..Row::default() };
        let top = |by, name| {
            let mut top = Top {
                time: String::new(),
                rows: vec![row(name)],
                flows: 0,
                others: 0,
                counts_bytes: true,
                configuration: Origin::default(),
            };
            top.set_rates(&rates, by);
            (top.rows[0].new_per_second, top.rows[0].bytes_per_second)
        };
        assert_eq!(top(By::Service, "shop/web:http"), (Some(2.0), Some(4_000.0)));
        assert_eq!(top(By::Endpoint, "10.0.0.1:8080"), (Some(4.0), Some(8_000.0)));
        assert_eq!(top(By::Service, "shop/other:http"), (Some(9.0), None));
        assert_eq!(top(By::Client, "10.0.0.1"), (Some(9.0), None));

        let top = |by| {
            let mut top = Top {
                time: String::new(),
                rows: vec![row("shop/web:http")],
                flows: 0,
                others: 0,
                counts_bytes: true,
                configuration: Origin::default(),
            };
            top.set_rates(&rates, by);
            top
        };
        let refusing: Vec<_> =
            top(By::Service).rows.iter().map(|row| (row.name.clone(), row.refused_per_second)).collect();
        assert_eq!(refusing, [("shop/web:http".to_owned(), Some(1.0)), ("shop/web:admin".to_owned(), Some(1.0))]);
        let text = top(By::Service).human(Style::default());
        assert!(text.starts_with("NAME            FLOWS  UNANSWERED  STALE  NEW/S  REFUSED/S\n"), "{text}");
        assert!(!top(By::Client).human(Style::default()).contains(Rates::REFUSED));
    }
}
