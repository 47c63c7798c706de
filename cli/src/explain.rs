//! `localnet explain`: follows one packet, from the brain's decision to the kernel's rules.
//!
//! ```text
//!  state ─► oracle (client::route) ─► outcome ─┬─► reasons: endpoints that are not eligible, and the rule that decides
//!                                              ├─► path: chains, rules, elements ─► kernel: whether it holds them
//!                                              └─► connection tracking: the existing flows
//! ```

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use localnet_client::{
    Snapshot,
    grpc::Brain,
    route::{self, Origin, Outcome, Packet, Target},
    vips::{Exposure, Facts, PodSource, Vip, VipKey},
};
use localnet_core::Diagnostic;
use localnet_linux::{
    conntrack::{Flow, Status as FlowStatus, TcpState},
    routes::Route,
};
use localnet_proto::{Family, Protocol, Scopes, ServiceKey};
use serde::Serialize;

use crate::{
    configuration::Configuration,
    kernel::{self, Held, Kernel},
    origin::Origin as Configured,
    output::Show,
    path::{self, Path, Step},
    question,
    reasons::{Hints, LeftOut, Why},
    style::{Style, Tone},
    table::Table,
};

/// The evidence for an answer: the state, the node's configuration, and the kernel if it can be read.
#[derive(Debug)]
pub struct World {
    /// The state of the node.
    pub state: Snapshot,
    /// The configuration that `facts` come from.
    pub configuration: Configuration,
    /// The values that plans depend on besides Services.
    pub facts: Facts,
    /// The addresses of the node's interfaces; empty if unknown.
    pub local: Vec<IpAddr>,
    /// Whether the state is of this machine. If so, its links may be read, whichever backend runs.
    pub is_here: bool,
    /// The kernel, or why it is not read.
    pub kernel: Result<Kernel, Diagnostic>,
}

/// How many slots of session affinity are read.
const AFFINITY_SLOTS: u32 = 64;
/// How many flows an answer names.
const MOST_FLOWS: usize = 20;

/// The decision of the state about a packet.
#[derive(Debug)]
pub struct Judged<'a> {
    /// The packet.
    pub packet: Packet,
    /// The port that the packet is sent to; `None` if its destination is not ours.
    pub target: Option<Target<'a>>,
    /// The plan of that VIP on this node.
    pub vip: Option<Vip>,
    /// The outcome for the packet.
    pub outcome: Outcome,
}

impl World {
    /// Returns the oracle's decision about a packet. It does not read the kernel.
    pub fn judge(&self, packet: Packet) -> Judged<'_> {
        let rules = question::rules(&self.facts, Family::of(packet.destination));
        let target = route::target(&self.state, &rules, &packet);
        let key = VipKey { address: packet.destination, protocol: packet.protocol, port: packet.port };
        let vip = target.as_ref().and_then(|target| path::vip(target.service, &self.facts, &key));
        Judged { packet, target, vip, outcome: route::route(&self.state, &rules, &packet) }
    }

    /// Builds the packet of a question. If pods are recognized by their interface, it reads the sender's interface from the
    /// kernel.
    pub async fn packet(&self, from: question::From, to: (SocketAddr, Protocol)) -> Packet {
        let by_interface = matches!(
            self.facts.pods(Family::of(to.0.ip())),
            Some(PodSource::Interface(_) | PodSource::InterfacePrefix(_))
        );
        let mut interface = None;
        if let Some(source) = from.address().filter(|_| by_interface && self.is_here) {
            let routes = kernel::routes([source]).await.unwrap_or_default();
            interface = routes.into_iter().find_map(|(_, route)| match route {
                Route::Out { interface, .. } => Some(interface),
                Route::Local | Route::None(_) => None,
            });
        }
        let here = question::Here { local: &self.local, interface: interface.as_deref() };
        question::packet(from, to, &self.state, &self.facts, here)
    }

    /// Whether the address is one of the node's own.
    pub fn has(&self, address: IpAddr) -> bool {
        self.local.contains(&address) || self.state.node.addresses.contains(&address)
    }
}

impl Judged<'_> {
    /// Returns the steps of the packet through the rules of the nft backend.
    pub fn steps(&self, world: &World) -> Vec<Step> {
        let family = Family::of(self.packet.destination);
        let path = Path::new(&world.facts, family, path::has_affinity(&world.state, &world.facts, family));
        let at_node = world.has(self.packet.destination);
        match (&self.target, &self.vip) {
            (Some(target), Some(vip)) => path.to_vip(&self.packet, target, vip, &self.outcome, at_node),
            _ => path.to_none(&self.packet, &self.outcome, at_node),
        }
    }

    /// Returns the scope of the packet.
    pub fn scope(&self) -> fn(&Scopes) -> bool {
        match (&self.target, &self.vip) {
            (Some(target), _) if target.internal => |scopes| scopes.internal,
            (_, Some(vip)) if vip.exposure == Exposure::ExternalLocal && self.packet.origin != Origin::Outside => {
                |scopes| scopes.short_circuit
            }
            _ => |scopes| scopes.external,
        }
    }

    /// Whether the source ranges of the destination exclude the source.
    pub fn is_filtered(&self) -> bool {
        self.target.as_ref().is_some_and(|target| !route::admitted(target.service, &self.packet))
    }

    /// The Service that the packet is sent to, if any.
    pub fn service(&self) -> Option<&ServiceKey> {
        self.target.as_ref().map(|target| &target.service.key)
    }
}

/// The outcome for a packet, and the reasons.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Its source address; empty if unknown.
    pub from: String,
    /// Where it comes from, from the node's point of view: `pod`, `node` or `outside`.
    pub origin: &'static str,
    /// Its destination.
    pub to: String,
    /// Its protocol.
    pub protocol: &'static str,
    /// The Service that it is sent to.
    pub service: Option<String>,
    /// The port of the Service.
    pub port: Option<String>,
    /// The kind of the destination: `ClusterIP`, `external`, `NodePort`, or `none`.
    pub destination: &'static str,
    /// The outcome: `endpoints`, `reject`, `drop` or `notOurs`.
    pub outcome: &'static str,
    /// Why, in one sentence.
    pub why: String,
    /// The endpoints that may receive it.
    pub endpoints: BTreeSet<SocketAddr>,
    /// Whether the node's address replaces its source address.
    pub masquerade: bool,
    /// The endpoints for which the source is replaced in any case, because the endpoint is the sender itself.
    pub hairpin: BTreeSet<SocketAddr>,
    /// How long the sender keeps its endpoint, in seconds.
    pub affinity_seconds: Option<u32>,
    /// Endpoints of the port that are not eligible for this traffic, and the rules that decide.
    pub ineligible: Vec<LeftOut>,
    /// How many endpoints of the Service are not eligible for some traffic.
    pub ineligible_count: usize,
    /// How topology hints narrow the endpoints.
    pub hints: Vec<Hints>,
    /// Why the brain's reasons are unknown.
    pub reasons_unknown: Option<String>,
    /// The steps of the packet through the kernel's rules.
    pub path: Vec<PathRow>,
    /// Why the kernel was not read.
    pub kernel_unknown: Option<String>,
    /// Existing flows to the same destination, and from the same source if it is known.
    pub flows: Vec<FlowRow>,
    /// How many such flows exist.
    pub flows_count: usize,
    /// Why the flows are unknown.
    pub flows_unknown: Option<String>,
    /// The configuration that the answer was computed with; `None` for one of many packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<Configured>,
}

/// One step of a packet through the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PathRow {
    /// The chain, set or map.
    pub place: String,
    /// The rule or element as nft prints it.
    pub text: String,
    /// The kernel's handle of the rule.
    pub handle: Option<u64>,
    /// Whether the kernel holds it: `yes`, `no`, `other` or `unknown`.
    pub held: &'static str,
    /// What the kernel holds in its place.
    pub found: Option<String>,
}

/// A flow in connection tracking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRow {
    /// The client's address and port.
    pub from: SocketAddr,
    /// The destination of its first packet.
    pub to: SocketAddr,
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Whether the endpoint has answered.
    pub answered: bool,
    /// Whether its endpoint is no longer eligible and the flow may stay there.
    pub stale: bool,
}

impl FlowRow {
    /// Describes a flow to a destination whose eligible endpoints are `serving`.
    pub fn of(flow: &Flow, serving: &[SocketAddr]) -> Self {
        let answered = flow.status.has(FlowStatus::SEEN_REPLY);
        // An established TCP connection lives until one of its ends closes it.
        let may_move = flow.protocol != localnet_proto::Protocol::Tcp
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

/// The name of an outcome, as in `Explanation::outcome`.
pub fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Endpoints { .. } => "endpoints",
        Outcome::Reject => "reject",
        Outcome::Drop => "drop",
        Outcome::NotOurs => "notOurs",
    }
}

/// The name of an origin, as in `Explanation::origin`.
pub fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Pod => "pod",
        Origin::Node => "node",
        Origin::Outside => "outside",
    }
}

/// Returns the answer that follows from the state alone, without the kernel and the brain's reasons.
pub fn from_state(world: &World, judged: &Judged<'_>) -> Explanation {
    let packet = &judged.packet;
    let mut explanation = Explanation {
        from: if packet.source.is_unspecified() { String::new() } else { packet.source.to_string() },
        origin: origin_name(packet.origin),
        to: SocketAddr::new(packet.destination, packet.port).to_string(),
        protocol: packet.protocol.as_str(),
        service: judged.service().map(ToString::to_string),
        port: judged.target.as_ref().map(|target| port_name(target)),
        destination: match (&judged.target, &judged.vip) {
            (Some(target), _) if target.internal => "ClusterIP",
            (_, Some(vip)) if vip.by_node_port => "NodePort",
            (Some(_), _) => "external",
            (None, _) => "none",
        },
        outcome: outcome_name(&judged.outcome),
        why: why(world, judged),
        ..Explanation::default()
    };
    if let Outcome::Endpoints { choices, masquerade, hairpin, affinity } = &judged.outcome {
        explanation.endpoints.clone_from(choices);
        explanation.hairpin.clone_from(hairpin);
        (explanation.masquerade, explanation.affinity_seconds) = (*masquerade, *affinity);
    }
    explanation
}

fn port_name(target: &Target<'_>) -> String {
    if target.port.name.is_empty() { target.port.port.to_string() } else { target.port.name.to_string() }
}

fn why(world: &World, judged: &Judged<'_>) -> String {
    let to = judged.packet.destination;
    let Some(target) = &judged.target else {
        return match judged.outcome {
            Outcome::Reject => format!("{to} is a ClusterIP, and its Service has no such port"),
            Outcome::Drop => format!("{to} is in the range of ClusterIPs, but no Service has it"),
            _ if world.has(to) => format!("{to} is an address of the node, but no NodePort answers there on this port"),
            _ => format!("no Service of this node has {to} with this port"),
        };
    };
    let key = &target.service.key;
    let policy = if target.internal { "internalTrafficPolicy" } else { "externalTrafficPolicy" };
    let local = if target.internal {
        target.service.internal_traffic_to_local
    } else {
        target.service.external_traffic_to_local
    };
    match &judged.outcome {
        Outcome::Endpoints { masquerade: true, .. } if !target.internal => {
            format!("an address of Service {key} for external traffic, which is masqueraded")
        }
        Outcome::Endpoints { masquerade: true, .. } => {
            format!("a ClusterIP of Service {key}; the sender is not a pod of this node, so its address is masqueraded")
        }
        Outcome::Endpoints { .. } => format!("an address of Service {key}; the source address is kept"),
        Outcome::Drop if judged.is_filtered() => {
            format!("spec.loadBalancerSourceRanges of Service {key} does not admit {}", judged.packet.source)
        }
        Outcome::Drop if local => {
            format!("{policy} of Service {key} is Local, and no endpoint on this node is eligible")
        }
        Outcome::Drop => format!("Service {key} has endpoints, but none is eligible for this traffic on this node"),
        Outcome::Reject => format!("no endpoint of Service {key} is eligible for this port"),
        Outcome::NotOurs => String::new(),
    }
}

/// Returns the complete answer about a packet.
pub async fn explain(world: &mut World, brain: Option<&Brain>, packet: Packet, has_source: bool) -> Explanation {
    let judged = world.judge(packet);
    let mut explanation = from_state(world, &judged);
    explanation.configuration = Some(world.configuration.origin.clone());
    if !has_source {
        explanation.from = String::new();
    }
    let (steps, scope) = (judged.steps(world), judged.scope());
    let family = Family::of(packet.destination);
    let key = judged.target.as_ref().map(|target| (target.service.key.clone(), target.port.name.clone()));
    let serving = judged.vip.as_ref().map(|vip| vip.serving.clone()).unwrap_or_default();
    let has_affinity = judged.vip.as_ref().is_some_and(|vip| vip.affinity.is_some());
    drop(judged);
    if let Some((key, port)) = &key {
        match reasons(brain, key).await {
            Ok(why) => {
                explanation.ineligible_count = why.left_out_count;
                let of_port = |of: &LeftOut| *of.port_name == **port && of.is_of(family) && scope(&of.from);
                explanation.ineligible = why.left_out.into_iter().filter(of_port).collect();
                let of_port = |of: &Hints| *of.port_name == **port && of.family == family;
                explanation.hints = why.hints.into_iter().filter(of_port).collect();
            }
            Err(unknown) => explanation.reasons_unknown = Some(unknown),
        }
    }
    (explanation.path, explanation.kernel_unknown) = in_kernel(world, family, &steps);
    if has_affinity && let Ok(kernel) = &mut world.kernel {
        let key = VipKey { address: packet.destination, protocol: packet.protocol, port: packet.port };
        explanation.path.extend(affinity_rows(kernel, family, &key));
    }
    if world.kernel.is_ok() {
        let source = has_source.then_some(packet.source);
        match flows(&packet, source, &serving) {
            Ok(flows) => {
                explanation.flows_count = flows.len();
                explanation.flows = flows.into_iter().take(MOST_FLOWS).collect();
            }
            Err(unknown) => explanation.flows_unknown = Some(unknown),
        }
    }
    explanation
}

/// Returns the brain's reasons about a Service.
///
/// # Errors
/// Returns the cause in words if there is no brain or it does not answer.
pub async fn reasons(brain: Option<&Brain>, key: &ServiceKey) -> Result<Why, String> {
    let Some(brain) = brain else { return Err("a saved state has no reasons; query a brain with --api".to_owned()) };
    brain.why(key).await.map(Why::from).map_err(|error| error.to_string())
}

/// Returns the steps with what the kernel holds of each, and why the kernel is unknown if it could not be read.
pub fn in_kernel(world: &mut World, family: Family, steps: &[Step]) -> (Vec<PathRow>, Option<String>) {
    let row = |step: &Step, held: Option<Held>| {
        let (held, handle, found) = match held {
            None => ("unknown", None, None),
            Some(Held::Yes(handle)) => ("yes", handle, None),
            Some(Held::No) => ("no", None, None),
            Some(Held::Other(found)) => ("other", None, Some(found)),
        };
        PathRow { place: step.place.clone(), text: step.text.clone(), handle, held, found }
    };
    let kernel = match &mut world.kernel {
        Ok(kernel) => kernel,
        Err(unknown) => return (steps.iter().map(|step| row(step, None)).collect(), Some(unknown.to_string())),
    };
    let mut unknown = None;
    let mut rows = Vec::new();
    for step in steps {
        let held = kernel.holds(family, step).map_err(|error| unknown = Some(error.to_string())).ok();
        rows.push(row(step, held));
    }
    (rows, unknown)
}

/// Returns the affinity slots of a VIP as the kernel holds them. A plan cannot predict which endpoint has which slot.
fn affinity_rows(kernel: &mut Kernel, family: Family, key: &VipKey) -> Vec<PathRow> {
    let keys = (0..AFFINITY_SLOTS).map(|slot| path::affinity_key(key, slot));
    let found = kernel.affinity(family, keys).unwrap_or_default();
    let row = |endpoint: String| PathRow {
        place: "affinity-endpoints".to_owned(),
        text: endpoint,
        handle: None,
        held: "yes",
        found: None,
    };
    found.into_iter().map(row).collect()
}

/// Returns the flows to a packet's destination.
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

impl Explanation {
    /// Whether the packet reaches an endpoint, according to the state and the kernel.
    pub fn arrives(&self) -> bool {
        self.outcome == "endpoints" && self.path.iter().all(|row| !matches!(row.held, "no" | "other"))
    }

    fn head(&self, style: Style) -> String {
        let tone = if self.outcome == "endpoints" { Tone::Good } else { Tone::Bad };
        let verdict = match self.outcome {
            "endpoints" => {
                let endpoints: Vec<String> = self.endpoints.iter().map(ToString::to_string).collect();
                let shown = endpoints.iter().take(8).cloned().collect::<Vec<_>>().join(" ");
                let more = endpoints.len().saturating_sub(8);
                if more > 0 { format!("{shown} and {more} more") } else { shown }
            }
            "reject" => "rejected: connection refused".to_owned(),
            "drop" => "dropped: no answer".to_owned(),
            _ => "no Service: the packet goes to its original destination".to_owned(),
        };
        let from =
            if self.from.is_empty() { self.origin.to_owned() } else { format!("{} ({})", self.from, self.origin) };
        let mut text = format!("{from} -> {}/{}\n", self.to, self.protocol.to_lowercase());
        let mut facts = Table::of_prose();
        if let (Some(service), Some(port)) = (&self.service, &self.port) {
            facts.row(["service".to_owned(), format!("{service}, port {port} ({})", self.destination)]);
        }
        facts.toned([("verdict".to_owned(), None), (verdict, Some(tone))]);
        facts.row(["because", &self.why]);
        if self.outcome == "endpoints" {
            let source = match (self.masquerade, self.hairpin.is_empty()) {
                (true, _) => "replaced by the node's address".to_owned(),
                (false, true) => "kept".to_owned(),
                (false, false) => "kept, but replaced if the endpoint is the sender itself".to_owned(),
            };
            facts.row(["source", &source]);
        }
        if let Some(seconds) = self.affinity_seconds {
            facts.row(["affinity".to_owned(), format!("the sender keeps its endpoint for {seconds} s")]);
        }
        text.push_str(&facts.text(style, 2));
        text
    }

    fn reasons(&self, style: Style) -> String {
        let mut text = String::new();
        for hints in self.hints.iter().filter(|_| self.outcome == "endpoints" || !self.ineligible.is_empty()) {
            let line = match hints.nearness {
                "everywhere" if hints.not_same_zone == "no endpoint has a hint" => continue,
                "everywhere" => format!("topology hints are ignored: {}", hints.not_same_zone),
                "sameNode" => "topology hints apply: only endpoints for this node are eligible".to_owned(),
                _ => "topology hints apply: only endpoints for this zone are eligible".to_owned(),
            };
            // Writing to a string cannot fail.
            _ = writeln!(text, "  {line}");
        }
        if !self.ineligible.is_empty() {
            text.push_str("not eligible\n");
            let mut table = Table::bare();
            for of in &self.ineligible {
                let at = if of.number == 0 { of.address.clone() } else { format!("{}:{}", of.address, of.number) };
                let mut cells = vec![(at, None), (of.rule.clone(), Some(Tone::Odd)), (of.problem.clone(), None)];
                if style.wide {
                    cells.push((format!("{} {}", of.slice, of.field), Some(Tone::Dim)));
                }
                table.toned(cells);
            }
            text.push_str(&table.text(style, 2));
        }
        if let Some(unknown) = &self.reasons_unknown {
            _ = writeln!(text, "not eligible: unknown: {unknown}");
        }
        text
    }

    fn in_kernel(&self, style: Style) -> String {
        let mut text = String::new();
        if !self.path.is_empty() {
            text.push_str("kernel\n");
            let mut table = Table::bare();
            for row in &self.path {
                let (word, tone) = match row.held {
                    "yes" => ("held", Tone::Good),
                    "no" => ("MISSING", Tone::Bad),
                    "other" => ("DIFFERS", Tone::Bad),
                    _ => ("?", Tone::Dim),
                };
                let handle = row.handle.map(|handle| format!("#{handle}")).unwrap_or_default();
                let found = row.found.as_ref().map(|found| format!("  (found: {found})")).unwrap_or_default();
                table.toned([
                    (word.to_owned(), Some(tone)),
                    (row.place.clone(), None),
                    (handle, Some(Tone::Dim)),
                    (format!("{}{found}", row.text), None),
                ]);
            }
            text.push_str(&table.text(style, 2));
        }
        if let Some(unknown) = &self.kernel_unknown {
            _ = writeln!(text, "kernel: not read: {unknown}");
        }
        if !self.flows.is_empty() {
            _ = writeln!(text, "flows ({} in all)", self.flows_count);
            let mut table = Table::bare();
            for flow in &self.flows {
                let state = if flow.answered { "answered" } else { "unanswered" };
                let stale = if flow.stale { "STALE: the endpoint is no longer eligible" } else { "" };
                table.toned([
                    (flow.from.to_string(), None),
                    (format!("at {}", flow.endpoint), None),
                    (state.to_owned(), None),
                    (stale.to_owned(), Some(Tone::Bad)),
                ]);
            }
            text.push_str(&table.text(style, 2));
        } else if let Some(unknown) = &self.flows_unknown {
            _ = writeln!(text, "flows: unknown: {unknown}");
        }
        text
    }
}

impl Show for Explanation {
    fn human(&self, style: Style) -> String {
        let configuration = self.configuration.as_ref().map(Configured::line);
        self.head(style) + &self.reasons(style) + &self.in_kernel(style) + &configuration.unwrap_or_default()
    }

    fn names(&self) -> Vec<String> {
        self.endpoints.iter().map(ToString::to_string).collect()
    }
}

/// The outcomes for many packets, computed from the state alone.
#[derive(Debug, Serialize)]
pub struct Many(pub Vec<Explanation>);

impl Show for Many {
    fn human(&self, style: Style) -> String {
        let mut table = Table::new(["FROM", "TO", "PROTOCOL", "SERVICE", "OUTCOME", "ENDPOINTS"]);
        for one in &self.0 {
            let endpoints: Vec<String> = one.endpoints.iter().map(ToString::to_string).collect();
            let from = if one.from.is_empty() { one.origin } else { &one.from };
            let service = one.service.as_deref().unwrap_or("-");
            table.row([from, &one.to, one.protocol, service, one.outcome, &endpoints.join(",")]);
        }
        table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|one| one.outcome.to_owned()).collect()
    }
}
