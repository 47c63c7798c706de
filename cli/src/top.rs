//! `localnet top`: which Services and endpoints have the most flows, from connection tracking. The sums are pure.

use std::{collections::BTreeMap, net::SocketAddr};

use clap::ValueEnum;
use localnet_client::Snapshot;
use localnet_client::vips::{Facts, service};
use localnet_linux::{conntrack::Flow, nft::Protocol};
use localnet_nft::plan::protocol_of;
use serde::Serialize;

use crate::{
    configuration::Origin,
    explain::FlowRow,
    output::{Show, Style, Table, Tone},
};

/// What flows are counted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// The Service and port
    #[default]
    Service,
    /// The endpoint
    Endpoint,
    /// Who sends
    Client,
}

/// Who has the most flows.
#[derive(Debug, Serialize)]
pub struct Top {
    /// The busiest first.
    pub rows: Vec<Row>,
    /// Flows to Services, in all.
    pub flows: usize,
    /// Flows that have nothing to do with Services.
    pub others: usize,
    /// The configuration that says which addresses answer NodePorts.
    pub configuration: Origin,
}

/// The flows of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The Service's port, the endpoint, or the client.
    pub name: String,
    /// All flows.
    pub flows: usize,
    /// Those that nothing has answered.
    pub unanswered: usize,
    /// Those that stick to what serves no more.
    pub stale: usize,
}

/// Whose a VIP is, and who may answer there.
type Owners = std::collections::HashMap<(Protocol, SocketAddr), (String, std::sync::Arc<[SocketAddr]>)>;

/// Counts flows.
pub fn count(state: &Snapshot, facts: &Facts, flows: &[Flow], by: By, most: usize) -> Top {
    let wanted: std::collections::HashSet<SocketAddr> = flows.iter().map(|flow| flow.original.destination).collect();
    let owners = owners(state, facts, |to| wanted.contains(to));
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let mut counted = 0;
    for flow in flows {
        let Some((service, serving)) = owners.get(&(flow.protocol, flow.original.destination)) else { continue };
        counted += 1;
        let told = FlowRow::of(flow, serving);
        let name = match by {
            By::Service => service.clone(),
            By::Endpoint => told.endpoint.to_string(),
            By::Client => told.from.ip().to_string(),
        };
        let row = rows.entry(name.clone()).or_insert_with(|| Row { name, ..Row::default() });
        row.flows += 1;
        row.unanswered += usize::from(!told.answered);
        row.stale += usize::from(told.stale);
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    rows.sort_by(|a, b| b.flows.cmp(&a.flows).then_with(|| a.name.cmp(&b.name)));
    rows.truncate(most);
    Top { rows, flows: counted, others: flows.len() - counted, configuration: Origin::default() }
}

/// Only the VIPs that flows go to are planned out.
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
            owners.entry((protocol_of(key.protocol), key.socket())).or_insert((vip.comment.to_string(), vip.serving));
        }
    }
    owners
}

impl Show for Top {
    fn human(&self, style: Style) -> String {
        let mut table = Table::new(["NAME", "FLOWS", "UNANSWERED", "STALE"]);
        for row in &self.rows {
            let tone = |count: usize, tone| (count > 0).then_some(tone);
            table.toned([
                (row.name.clone(), None),
                (row.flows.to_string(), None),
                (row.unanswered.to_string(), tone(row.unanswered, Tone::Odd)),
                (row.stale.to_string(), tone(row.stale, Tone::Bad)),
            ]);
        }
        table.text(style, 0)
            + &format!("{} flows to Services, {} others\n{}", self.flows, self.others, self.configuration.line())
    }

    fn names(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use localnet_client::vips::Config;
    use localnet_linux::conntrack::{Status, Tuple, Zone};

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
    fn flows_are_counted_by_whom_they_concern() {
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
        let top = |by| {
            let top = count(&state, &facts, &flows, by, 10);
            assert_eq!((top.flows, top.others), (3, 1));
            top.rows
                .iter()
                .map(|row| format!("{} {} {} {}", row.name, row.flows, row.unanswered, row.stale))
                .collect::<Vec<_>>()
        };
        assert_eq!(top(By::Service), ["dns/dns:dns 3 1 1"]);
        assert_eq!(top(By::Endpoint), ["10.0.0.1:53 2 0 0", "10.0.0.9:53 1 1 1"]);
        assert_eq!(top(By::Client), ["10.0.0.8 2 1 1", "10.0.0.7 1 0 0"]);
        assert_eq!(count(&state, &facts, &flows, By::Client, 1).rows.len(), 1);
    }
}
