//! Flows in connection tracking, as answers show them.

use std::net::{IpAddr, SocketAddr};

use localnet_client::route::Packet;
use localnet_linux::conntrack::{Flow, Status, TcpState};
use localnet_proto::{Family, Protocol};
use serde::Serialize;

use crate::kernel;

/// A flow in connection tracking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRow {
    /// The client's address and port.
    pub from: SocketAddr,
    /// The destination of the flow's first packet.
    pub to: SocketAddr,
    /// The endpoint that receives the flow's packets.
    pub endpoint: SocketAddr,
    /// Whether the endpoint has answered.
    pub answered: bool,
    /// Whether the endpoint is no longer eligible. An established TCP connection never counts as stale.
    pub stale: bool,
}

impl FlowRow {
    /// Describes a flow to a destination whose eligible endpoints are `serving`.
    pub fn of(flow: &Flow, serving: &[SocketAddr]) -> Self {
        let answered = flow.status.has(Status::SEEN_REPLY);
        // An established TCP connection lives until one of its ends closes it.
        let may_move = flow.protocol != Protocol::Tcp
            || !answered && flow.tcp_state.is_none_or(|state| state == TcpState::SYN_SENT);
        Self {
            from: flow.original.source,
            to: flow.original.destination,
            endpoint: flow.reply.source,
            answered,
            stale: may_move && !serving.contains(&flow.reply.source),
        }
    }
}

/// Returns the flows to a packet's destination. If `source` is given, returns only the flows from this address.
///
/// # Errors
/// Returns the cause in words if connection tracking cannot be read.
pub fn flows(packet: &Packet, source: Option<IpAddr>, serving: &[SocketAddr]) -> Result<Vec<FlowRow>, String> {
    let protocol = packet.protocol;
    let to = SocketAddr::new(packet.destination, packet.port);
    let wanted = |flow: &Flow| {
        flow.protocol == protocol
            && flow.original.destination == to
            && source.is_none_or(|source| flow.original.source.ip() == source)
    };
    let family = Family::of(packet.destination);
    let flows = kernel::flows(family, wanted).map_err(|error| error.to_string())?;
    let mut flows: Vec<FlowRow> = flows.iter().map(|flow| FlowRow::of(flow, serving)).collect();
    flows.sort_by_key(|flow| !flow.stale);
    Ok(flows)
}
