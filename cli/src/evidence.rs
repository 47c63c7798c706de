//! Evidence of why a Service's port does not answer. `why_not` gathers it, `causes` judges it.

use std::net::{IpAddr, SocketAddr};

use localnet_core::{Diagnostic, Severity};
use localnet_linux::nft::foreign::Stop;
use localnet_proto::{Family, Scopes, ServiceKey, reasons::Reasons};

use crate::{explain::PathRow, flows::FlowRow, origin::Origin, status::Status};

/// The evidence about a port of a Service.
#[derive(Debug, Default)]
pub struct Evidence {
    /// The Service that the user asks about.
    pub service: ServiceKey,
    /// The port, by name or number as the user wrote it.
    pub port: String,
    /// Why the brain sent no state.
    pub no_state: Option<String>,
    /// Whether the state contains the Service.
    pub is_served: bool,
    /// The ports of the Service, if the requested one is not among them.
    pub other_ports: Option<String>,
    /// Services with the same name in other namespaces.
    pub namesakes: Vec<String>,
    /// The brain's reasons about the Service.
    pub why: Option<Reasons>,
    /// The status of the brain and the backends.
    pub status: Option<Status>,
    /// The requested address family, if the Service has no address of this family.
    pub lacks_family: Option<Family>,
    /// If the requested address is not an address of the Service: a sentence with the requested address and the Service's
    /// addresses.
    pub not_its_address: Option<String>,
    /// The addresses that clients can connect to.
    pub fronts: Vec<Front>,
    /// A NodePort that no address of the node answers.
    pub unanswered_node_port: Option<u16>,
    /// Whether connection tracking is full.
    pub tracking_is_full: bool,
    /// The configuration that the evidence was computed with.
    pub configuration: Option<Origin>,
    /// Why the kernel was not read.
    pub kernel_unknown: Option<String>,
    /// Whether the rules of other programs were not evaluated, although the kernel was read.
    pub foreign_unread: bool,
}

/// An address that clients can connect to, and what happens to a packet there.
#[derive(Debug)]
pub struct Front {
    /// The address and port.
    pub to: SocketAddr,
    /// The kind of the address: `ClusterIP`, `external` or `NodePort`.
    pub kind: &'static str,
    /// The name of the Service's port; may be empty.
    pub port_name: String,
    /// The scope of the packet.
    pub scope: Scopes,
    /// The outcome: `endpoints`, `reject`, `drop` or `notOurs`.
    pub outcome: &'static str,
    /// The reason for the outcome, in one sentence.
    pub because: String,
    /// The source ranges, if they exclude the sender, or if the sender is unknown.
    pub filtered: Option<String>,
    /// The other Service that owns the address.
    pub taken_by: Option<String>,
    /// What was found on the node, if the packet is sent to endpoints.
    pub node: OnNode,
}

/// What stops packets on the node, although the state sends these packets to endpoints.
#[derive(Debug, Default)]
pub struct OnNode {
    /// The packet's steps whose chain, rule or element is missing from the kernel.
    pub missing: Vec<PathRow>,
    /// The chains that differ from the plan.
    pub damaged: Vec<String>,
    /// Whether the kernel has no table of ours.
    pub no_table: bool,
    /// The rules of other programs that stop the packet, each with the destination of the packet at that rule: `to IP:PORT`.
    pub stops: Vec<(String, Stop)>,
    /// Endpoints without a route, each with the error.
    pub no_routes: Vec<(IpAddr, String)>,
    /// Whether the packet has to be forwarded but forwarding is disabled.
    pub does_not_forward: bool,
    /// Flows to endpoints that are no longer eligible.
    pub stale: Vec<FlowRow>,
}

impl Evidence {
    /// The brain's diagnostics about the parts of the Service that the brain skips.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.why.iter().flat_map(|why| &why.findings).filter(|of| of.severity == Severity::Error)
    }
}

impl Front {
    /// The address family.
    pub fn family(&self) -> Family {
        Family::of(self.to.ip())
    }
}
