//! Metrics of the traffic that backends have counted. A backend bounds the number of ports that have series of their own.

use std::collections::BTreeMap;

use localnet_proto::{
    traffic::{Drains, PortTraffic, RefusalReason, Refusals, TrafficTotal},
    wire::{Protocol, ServiceKey},
};

use super::page::Page;
use crate::reports::Received;

/// Adds the metrics of the traffic of Services.
pub(super) fn add(page: &mut Page, reports: &BTreeMap<String, Received>) {
    for (backend, received) in reports {
        let Some(traffic) = received.traffic().and_then(|traffic| traffic.last.as_ref()) else { continue };
        let backend = ("backend", backend.as_str());
        for PortTraffic { service, port, protocol, total, refused, drains, .. } in &traffic.ports {
            let ServiceKey { namespace, name } = service.clone().unwrap_or_default();
            let protocol = Protocol::try_from(*protocol).map_or("", |protocol| protocol.as_str_name());
            let of_port: [(&str, &str); 5] =
                [backend, ("namespace", &namespace), ("service", &name), ("port", port), ("protocol", protocol)];
            of_total(page, &of_port, total.as_ref());
            of_refused(page, &of_port, refused);
            of_drains(page, &of_port, drains.as_ref());
        }
        // An empty label is the same as no label, so no Service can have these labels.
        let of_rest = [backend, ("namespace", ""), ("service", ""), ("port", ""), ("protocol", "")];
        of_total(page, &of_rest, traffic.rest.as_ref());
        of_refused(page, &of_rest, &traffic.rest_refused);
        of_drains(page, &of_rest, traffic.rest_drains.as_ref());
        let help = "Connections whose ends the kernel could not report to the backend, so that some of their traffic is \
                    not counted.";
        page.counter("localnet_traffic_lost_connections_total", help, &[backend], traffic.lost as f64);
    }
}

fn of_total(page: &mut Page, labels: &[(&str, &str)], total: Option<&TrafficTotal>) {
    let total = total.copied().unwrap_or_default();
    let help = "Connections through the Service port. The series with an empty `service` is for all ports that have no \
                series of their own.";
    page.counter("localnet_service_connections_total", help, labels, total.connections as f64);
    for (direction, volume) in [("original", total.original), ("reply", total.reply)] {
        let volume = volume.unwrap_or_default();
        let labels = [labels, &[("direction", direction)]].concat();
        let help = "Packets of these connections, by direction: `original` is from clients, `reply` is to clients.";
        page.counter("localnet_service_packets_total", help, &labels, volume.packets as f64);
        let help = "Bytes of these packets, IP headers included.";
        page.counter("localnet_service_bytes_total", help, &labels, volume.bytes as f64);
    }
}

/// A port that has no draining connections and had none before has no series.
fn of_drains(page: &mut Page, labels: &[(&str, &str)], drains: Option<&Drains>) {
    let Some(Drains { open, closed }) = drains else { return };
    let help = "Open connections through the Service port whose endpoint gets no new ones, because it terminates, is not \
                ready or was removed. Of TCP, only established connections count.";
    page.gauge("localnet_service_draining_connections", help, labels, *open as f64);
    let help = "Established TCP connections whose endpoint gets no new ones, and whose entry in connection tracking was deleted, by \
                the backend (annotation `localnet.dev/close-connections-after`) or by another program.";
    page.counter("localnet_service_closed_connections_total", help, labels, *closed as f64);
}

fn of_refused(page: &mut Page, labels: &[(&str, &str)], refused: &[Refusals]) {
    for of in refused {
        let reason = match of.reason() {
            RefusalReason::UnknownRefusal => "",
            RefusalReason::NoEndpoints => "no_endpoints",
            RefusalReason::NoLocalEndpoint => "no_local_endpoint",
            RefusalReason::SourceRanges => "source_ranges",
        };
        let labels = [labels, &[("reason", reason)]].concat();
        let help = "Packets that would have opened a connection through the Service port, but were rejected \
                    (`no_endpoints`) or dropped (`no_local_endpoint`: a traffic policy allows only endpoints of this node; \
                    `source_ranges`: they do not contain the client).";
        page.counter("localnet_service_refused_packets_total", help, &labels, of.packets as f64);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use localnet_proto::{
        traffic::{TrafficReport, Volume},
        wire::BackendReport,
    };

    use super::*;
    use crate::{exposition::text, feed::Feed, reports::Reports};

    fn total(connections: u64) -> Option<TrafficTotal> {
        let volume = |packets, bytes| Some(Volume { packets, bytes });
        Some(TrafficTotal { connections, original: volume(5, 300), reply: volume(4, 4_000) })
    }

    /// A report about one port, and about all other ports together.
    pub(in crate::exposition) fn report() -> TrafficReport {
        let service = Some(ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() });
        let protocol = Protocol::Tcp.into();
        let refusals = |reason: RefusalReason, packets| vec![Refusals { reason: reason.into(), packets }];
        let refused = refusals(RefusalReason::SourceRanges, 8);
        let (port, endpoints, drains) = ("http".to_owned(), Vec::new(), Some(Drains { open: 11, closed: 12 }));
        let port = PortTraffic { service, port, protocol, total: total(2), endpoints, refused, drains };
        let (ports, rest) = (vec![port], total(7));
        let rest_refused = refusals(RefusalReason::NoEndpoints, 9);
        TrafficReport {
            backend: "nft".to_owned(),
            time_millis: 1,
            ports,
            rest,
            lost: 3,
            rest_refused,
            rest_drains: None,
        }
    }

    #[tokio::test]
    async fn ports_have_series_of_their_own_and_all_others_share_one() {
        let (feed, reports) = (Feed::new(7), Reports::default());
        reports.record(BackendReport { backend: "nft".to_owned(), ..BackendReport::default() }).unwrap();
        let text = || {
            let text = text(feed.metrics(), &feed.state(), &reports.all());
            let is_traffic = |line: &&str| {
                ["service_", "traffic_"]
                    .iter()
                    .any(|of| line.strip_prefix("localnet_").is_some_and(|rest| rest.starts_with(of)))
            };
            text.lines().filter(is_traffic).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(text(), [""; 0], "nothing is counted");
        reports.record_traffic(report());
        let of_port = "namespace=\"shop\",service=\"web\",port=\"http\",protocol=\"TCP\"";
        let expected = [
            format!("localnet_service_bytes_total{{backend=\"nft\",{of_port},direction=\"original\"}} 300"),
            format!("localnet_service_bytes_total{{backend=\"nft\",{of_port},direction=\"reply\"}} 4000"),
            format!("localnet_service_connections_total{{backend=\"nft\",{of_port}}} 2"),
            format!("localnet_service_packets_total{{backend=\"nft\",{of_port},direction=\"original\"}} 5"),
            format!("localnet_service_packets_total{{backend=\"nft\",{of_port},direction=\"reply\"}} 4"),
            format!("localnet_service_draining_connections{{backend=\"nft\",{of_port}}} 11"),
            format!("localnet_service_closed_connections_total{{backend=\"nft\",{of_port}}} 12"),
            format!("localnet_service_refused_packets_total{{backend=\"nft\",{of_port},reason=\"source_ranges\"}} 8"),
            "localnet_traffic_lost_connections_total{backend=\"nft\"} 3".to_owned(),
        ];
        let text = text();
        for line in &expected {
            assert!(text.contains(line), "{line} is not in {text:#?}");
        }
        assert_eq!(text.len(), expected.len() + 6, "the other ports share one series of each metric: {text:#?}");
    }
}
