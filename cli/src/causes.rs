//! What is wrong with a port of a Service, from all that is known, the likeliest first. Pure: `why_not` gathers the evidence.
//!
//! Causes are ranked by how near they are to the decision: what the cluster says comes before what the backend has applied,
//! that before what the kernel holds, and that before what others do to packets; a cause that is certain comes before one
//! that is only possible, and the ClusterIP before the other addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use localnet_linux::nft::others::{Fate, Stop};
use localnet_proto::{Family, Scopes, wire::Rule};
use serde::Serialize;

use crate::{
    configuration::Origin,
    explain::{FlowRow, PathRow},
    output::{Show, Style, Tone},
    reasons::{LeftOut, Standing, Status, Why},
};

/// All that is known.
#[derive(Debug, Default)]
pub struct Evidence {
    /// What is asked for: `shop/web:http`.
    pub asked: String,
    /// The Service.
    pub service: String,
    /// Why the brain gave no state.
    pub no_state: Option<String>,
    /// The state has the Service.
    pub is_served: bool,
    /// Ports of the Service, when the one that is asked for is none of them.
    pub other_ports: Option<Vec<String>>,
    /// Services of that name in other namespaces.
    pub namesakes: Vec<String>,
    /// The brain's reasons.
    pub why: Option<Why>,
    /// How far brain and backends are.
    pub status: Option<Status>,
    /// The family that was asked for and that the Service does not have.
    pub lacks_family: Option<Family>,
    /// An address that was asked for and that the Service does not have, and what there is instead.
    pub not_its_address: Option<String>,
    /// The addresses on which the port is reached.
    pub fronts: Vec<Front>,
    /// A NodePort that no address of the node answers.
    pub unanswered_node_port: Option<u16>,
    /// Connection tracking is full.
    pub tracking_is_full: bool,
    /// The configuration that all of this was worked out with.
    pub configuration: Option<Origin>,
    /// Why the kernel was not asked.
    pub kernel_unknown: Option<String>,
}

/// An address on which the port is reached, and what becomes of a packet there.
#[derive(Debug, Default)]
pub struct Front {
    /// The address and port.
    pub to: String,
    /// `ClusterIP`, `external` or `NodePort`.
    pub kind: &'static str,
    /// Its family.
    pub family: Option<Family>,
    /// Name of the port.
    pub port_name: String,
    /// The traffic that the packet is of.
    pub scope: Scopes,
    /// `endpoints`, `reject`, `drop` or `notOurs`.
    pub outcome: &'static str,
    /// The oracle's sentence.
    pub because: String,
    /// Source ranges keep the sender out; when the sender is not known, some senders.
    pub filtered: Option<String>,
    /// The Service that has the address instead.
    pub taken_by: Option<String>,
    /// Steps that the kernel does not hold.
    pub missing: Vec<PathRow>,
    /// Chains of the table that are not as planned.
    pub damaged: Vec<String>,
    /// There is no table at all.
    pub no_table: bool,
    /// Rules of others.
    pub stops: Vec<(String, Stop)>,
    /// Endpoints that no route leads to.
    pub no_routes: Vec<(IpAddr, String)>,
    /// Packets would have to be passed on, and are not.
    pub does_not_forward: bool,
    /// Flows that stick to what serves no more.
    pub stale: Vec<FlowRow>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// A stable word for programs.
    pub id: &'static str,
    /// It is so; otherwise it may be.
    pub certain: bool,
    /// The address on which it shows; none for all of them.
    pub at: Option<String>,
    /// What is wrong.
    pub problem: String,
    /// What can be done.
    pub remedy: String,
}

/// The causes, the likeliest first.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// What was asked.
    pub asked: String,
    /// What is wrong.
    pub causes: Vec<Cause>,
    /// Addresses that were looked at, and what becomes of packets there.
    pub looked_at: Vec<String>,
    /// What could not be looked at, and why.
    pub not_looked_at: Vec<String>,
    /// The configuration that this was worked out with; none if there was no state.
    pub configuration: Option<Origin>,
}

/// Where a cause belongs in the order: not certain, which front, how near to the decision.
type Place = (bool, usize, u32);

struct Ranking {
    found: Vec<(Place, Cause)>,
}

impl Ranking {
    fn add(&mut self, front: usize, layer: u32, cause: Cause) {
        self.found.push(((!cause.certain, front, layer), cause));
    }

    fn finish(mut self) -> Vec<Cause> {
        self.found.sort_by_key(|(place, _)| *place);
        let mut causes: Vec<Cause> = Vec::new();
        for (_, cause) in self.found {
            // The same at another address is the same.
            if !causes.iter().any(|known| known.id == cause.id && known.problem == cause.problem) {
                causes.push(cause);
            }
        }
        causes
    }
}

fn cause(id: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Cause {
    Cause { id, certain: true, at: None, problem: problem.into(), remedy: remedy.into() }
}

/// What is wrong, the likeliest first.
pub fn rank(evidence: &Evidence) -> Vec<Cause> {
    let mut ranking = Ranking { found: Vec::new() };
    if let Some(no_state) = &evidence.no_state {
        let remedy = "start localnet-brain, or say where it serves with --api; the kernel stays as it was meanwhile";
        ranking.add(0, 1, cause("brain-unreachable", format!("the brain gives no state: {no_state}"), remedy));
    }
    of_source(evidence, &mut ranking);
    of_service(evidence, &mut ranking);
    for (number, front) in evidence.fronts.iter().enumerate() {
        match front.outcome {
            "endpoints" => of_node(evidence, number, front, &mut ranking),
            _ => ranking.add(number, 20, Cause { at: Some(front.to.clone()), ..of_outcome(evidence, front) }),
        }
    }
    of_routes(evidence, &mut ranking);
    let after = evidence.fronts.len();
    for finding in evidence.why.iter().flat_map(|why| &why.findings).filter(|_| evidence.is_served) {
        let problem = format!("{} {}: {}", finding.object, finding.field, finding.problem);
        let id = if finding.problem.contains("belongs to Service") { "address-taken" } else { "left-out" };
        let certain = finding.left_out;
        ranking.add(after, 30, Cause { certain, ..cause(id, problem, finding.remedy.clone()) });
    }
    ranking.finish()
}

/// The state is old: it comes first if there is none or if it is what sends packets nowhere, and after what is wrong with the node.
fn of_source(evidence: &Evidence, ranking: &mut Ranking) {
    let (after, is_served) = (evidence.fronts.len(), evidence.is_served);
    let arrives = is_served && after > 0 && evidence.fronts.iter().all(|front| front.outcome == "endpoints");
    let (front, layer) = if arrives { (after, 29) } else { (0, 0) };
    for trouble in evidence.status.iter().flat_map(|status| &status.troubles) {
        let problem = format!("the brain does not know what is new: {}", trouble.line());
        let remedy = "what it says; the state stays as it was meanwhile, whatever the cluster says now";
        ranking.add(front, layer, cause("source-fails", problem, remedy));
    }
}

/// What is wrong before any packet is looked at.
fn of_service(evidence: &Evidence, ranking: &mut Ranking) {
    let service = &evidence.service;
    if let Some(not_its) = &evidence.not_its_address {
        ranking.add(
            0,
            16,
            cause("not-its-address", not_its.clone(), "ask for one of the addresses that the Service has"),
        );
    }
    if let Some(family) = evidence.lacks_family {
        let problem = format!("Service {service} has no {family} ClusterIP, so it does not exist in {family}");
        let remedy = "add the family to spec.ipFamilies, with spec.ipFamilyPolicy PreferDualStack";
        ranking.add(0, 15, cause("family-missing", problem, remedy));
    }
    if let Some(ports) = &evidence.other_ports {
        ranking.add(0, 14, port_missing(evidence, ports));
    }
    if evidence.is_served || evidence.no_state.is_some() {
        return;
    }
    let standing = evidence.why.as_ref().map(|why| why.standing);
    let found = match standing {
        None | Some(Standing::Absent) => {
            let mut problem = format!("the cluster has no Service {service}");
            if !evidence.namesakes.is_empty() {
                _ = write!(problem, "; there is {}", evidence.namesakes.join(", "));
            }
            cause("service-absent", problem, "check name and namespace: kubectl get services -A")
        }
        Some(Standing::Headless) => cause(
            "service-headless",
            format!("Service {service} is headless (clusterIP: None): no proxy serves it, clients ask its endpoints"),
            "look at DNS and the pods themselves, or give the Service a ClusterIP",
        ),
        Some(Standing::ExternalName) => cause(
            "service-external-name",
            format!("Service {service} is of type ExternalName: a DNS name, which no proxy serves"),
            "look at DNS: the name must resolve to something that answers",
        ),
        Some(Standing::WithoutClusterIp) => cause(
            "service-without-address",
            format!("Service {service} has no ClusterIP"),
            "an API server gives it one; a file must name it: spec.clusterIP",
        ),
        Some(Standing::OfAnotherProxy) => cause(
            "service-of-another-proxy",
            format!(
                "the label service.kubernetes.io/service-proxy-name of Service {service} gives it to another proxy"
            ),
            "remove the label, or look at the proxy that it names",
        ),
        Some(Standing::Unusable | Standing::Served | Standing::Unknown) => {
            let findings = evidence.why.iter().flat_map(|why| &why.findings).filter(|finding| finding.left_out);
            let finding = findings.clone().find(|finding| finding.problem.contains("belongs to Service"));
            let (id, finding) = match finding {
                Some(finding) => ("address-taken", Some(finding)),
                None => ("service-unusable", findings.clone().next()),
            };
            let said = finding.map(|of| format!(": {} {}: {}", of.object, of.field, of.problem)).unwrap_or_default();
            let remedy = finding.map_or_else(|| "give it ports".to_owned(), |of| of.remedy.clone());
            cause(id, format!("nothing of Service {service} can be served{said}"), remedy)
        }
    };
    ranking.add(0, 10, found);
}

fn port_missing(evidence: &Evidence, ports: &[String]) -> Cause {
    let service = &evidence.service;
    let mut findings = evidence.why.iter().flat_map(|why| &why.findings);
    let left_out = findings.find(|finding| finding.left_out && finding.field.starts_with("spec.ports["));
    match left_out {
        Some(finding) => {
            let problem = format!("a port of Service {service} was left out: {}: {}", finding.field, finding.problem);
            cause("port-left-out", problem, finding.remedy.clone())
        }
        None => cause(
            "port-absent",
            format!(
                "Service {service} has no port {}; it has {}",
                evidence.asked.rsplit(':').next().unwrap_or_default(),
                ports.join(", ")
            ),
            "ask for one of these; targetPort and nodePort are other numbers than port",
        ),
    }
}

/// Why the state itself sends the packet to no endpoint.
fn of_outcome(evidence: &Evidence, front: &Front) -> Cause {
    if let Some(other) = &front.taken_by {
        let problem = format!("{} belongs to Service {other}, which is older or sorts first", front.to);
        return cause("address-taken", problem, "give one of the two another address or port");
    }
    if let Some(filtered) = &front.filtered {
        let remedy = "add the sender to spec.loadBalancerSourceRanges";
        return cause("source-ranges", filtered.clone(), remedy);
    }
    let service = &evidence.service;
    let Some(why) = &evidence.why else {
        let remedy = "ask a brain for its reasons: localnet explain with --api";
        return cause("no-endpoint-serves", front.because.clone(), remedy);
    };
    if why.endpoints == 0 {
        let problem = match why.slices {
            // The brain does not read these.
            0 => format!(
                "Service {service} has no EndpointSlice, or none but with the label service.kubernetes.io/headless"
            ),
            _ => format!("the EndpointSlices of Service {service} are empty"),
        };
        return cause(
            "no-endpoints",
            problem,
            "spec.selector must match pods that run: kubectl get pods -l …, kubectl get endpointslices",
        );
    }
    let concerns = |of: &&LeftOut| {
        let from = of.from.internal && front.scope.internal
            || of.from.external && front.scope.external
            || of.from.short_circuit && front.scope.short_circuit;
        from && of.port_name == front.port_name && front.family.is_none_or(|family| of.is_of(family))
    };
    let left_out: Vec<&LeftOut> = why.left_out.iter().filter(concerns).collect();
    if left_out.is_empty() {
        let problem = format!("{}; its {} endpoints are of another family", front.because, why.endpoints);
        let family = why.left_out.iter().find(|of| of.kind == Rule::Family && of.port_name == front.port_name);
        let remedy = family.map_or("the pods must have addresses of that family", |of| of.remedy.as_str());
        return cause(rule_id(Rule::Family), problem, remedy);
    }
    // A policy keeps traffic from endpoints that could serve: nothing else is wrong with them.
    let policy = left_out.iter().find(|of| matches!(of.kind, Rule::InternalLocal | Rule::ExternalLocal));
    let most = || {
        let count = |of: &&&LeftOut| left_out.iter().filter(|other| other.kind == of.kind).count();
        // Of rules that are as frequent, the first.
        left_out.iter().rev().max_by_key(count)
    };
    let Some(of) = policy.or_else(most) else {
        return cause("no-endpoint-serves", front.because.clone(), "kubectl get endpointslices");
    };
    let same = left_out.iter().filter(|other| other.kind == of.kind).count();
    let problem = format!(
        "{same} of {} endpoints: {} ({} {})",
        left_out.len(),
        of.problem,
        if of.field.starts_with("spec.") { "Service" } else { of.slice.as_str() },
        of.field
    );
    cause(rule_id(of.kind), problem, of.remedy.clone())
}

fn rule_id(rule: Rule) -> &'static str {
    match rule {
        Rule::NotReady | Rule::NotServing | Rule::Terminating => "endpoints-not-ready",
        Rule::OtherNode | Rule::OtherZone => "hints",
        Rule::InternalLocal => "internal-policy-local",
        Rule::ExternalLocal => "external-policy-local",
        Rule::Family => "endpoints-of-other-family",
        Rule::PortName => "port-name-mismatch",
        Rule::PortProtocol => "port-protocol-mismatch",
        Rule::PortNumber => "port-number-missing",
        Rule::AddressType => "endpoints-without-address",
        Rule::Address | Rule::Reserved => "endpoint-address-refused",
        Rule::Duplicate => "endpoint-duplicated",
        Rule::HeadlessSlice => "slice-of-headless-service",
        Rule::Unknown => "no-endpoint-serves",
    }
}

/// Endpoints that no route leads to: one cause for each reason, whichever addresses of the Service and however many endpoints show it.
fn of_routes(evidence: &Evidence, ranking: &mut Ranking) {
    let mut by_reason: BTreeMap<&str, (usize, BTreeSet<IpAddr>)> = BTreeMap::new();
    for (number, front) in evidence.fronts.iter().enumerate().filter(|(_, front)| front.outcome == "endpoints") {
        for (address, why) in &front.no_routes {
            by_reason.entry(why).or_insert_with(|| (number, BTreeSet::new())).1.insert(*address);
        }
    }
    for (why, (number, addresses)) in by_reason {
        let named: Vec<String> = addresses.iter().take(MOST_NAMED).map(ToString::to_string).collect();
        let more = addresses.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let plural = if addresses.len() == 1 { "" } else { "s" };
        let problem = format!("there is no route to the endpoint{plural} {}{more}: {why}", named.join(", "));
        let remedy = "look at the CNI plugin: ip route get, and whether the pod's node is reachable";
        let at = Some(evidence.fronts[number].to.clone());
        ranking.add(number, 53, Cause { at, ..cause("no-route", problem, remedy) });
    }
}

/// So many endpoints of one cause are named.
const MOST_NAMED: usize = 3;

/// The state is right: what of the node is not.
fn of_node(evidence: &Evidence, number: usize, front: &Front, ranking: &mut Ranking) {
    let at = |cause: Cause| Cause { at: Some(front.to.clone()), ..cause };
    let mut add = |layer, cause: Cause| ranking.add(number, layer, at(cause));
    // The chains depend on a configuration that nobody reports.
    let guessed = is_guessed(evidence.configuration.as_ref());
    let in_doubt = |row: &PathRow| guessed && front.damaged.contains(&row.place);
    let lacks =
        front.no_table || !front.damaged.is_empty() && !guessed || front.missing.iter().any(|row| !in_doubt(row));
    // What the kernel holds proves more than what was reported.
    let certain = lacks || evidence.kernel_unknown.is_some();
    if let Some(cause) = of_backend(evidence, front.family) {
        add(40, Cause { certain, ..cause });
    }
    if front.no_table {
        let problem = "the kernel has no table localnet: it was deleted or flushed, or never written";
        add(
            41,
            cause(
                "table-missing",
                problem,
                "is a backend running? It repairs this within a second; who flushed it is in its log",
            ),
        );
    } else {
        if let Some(chain) = front.damaged.first() {
            let more = front.damaged.len() - 1;
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let problem =
                format!("the chain {chain}{more} of table localnet is missing, or its rules are others than planned");
            let remedy = differs_remedy(evidence.configuration.as_ref());
            add(42, Cause { certain: !guessed, ..cause("rules-differ", problem, remedy) });
        }
        if let Some(row) = front.missing.iter().find(|row| row.handle.is_none() && !front.damaged.contains(&row.place))
        {
            let found = row.found.as_ref().map(|found| format!("; it has {found} instead")).unwrap_or_default();
            let problem = format!("the kernel lacks {} {}{found}", row.place, row.text);
            let id = if row.found.is_some() { "elements-differ" } else { "elements-missing" };
            add(43, cause(id, problem, "start the backend: it repairs this within a second; localnet diff shows all"));
        }
    }
    if evidence.tracking_is_full {
        let problem = "connection tracking is full: new connections are dropped";
        add(
            50,
            cause(
                "tracking-full",
                problem,
                "raise net.netfilter.nf_conntrack_max: localnet-nft init, conntrack.maxPerCore",
            ),
        );
    }
    for (whither, stop) in &front.stops {
        add(51, of_others(whither, stop));
    }
    if front.does_not_forward {
        let problem = "the kernel does not pass packets on between interfaces";
        add(52, cause("forwarding-off", problem, "set net.ipv4.ip_forward and net.ipv6.conf.all.forwarding to 1"));
    }
    if let Some(flow) = front.stale.first() {
        let problem = format!(
            "{} flow(s) stick to what serves no more, such as {} at {}",
            front.stale.len(),
            flow.from,
            flow.endpoint
        );
        add(
            54,
            cause(
                "stale-flow",
                problem,
                "the backend ends these after each change; by hand: conntrack -D --orig-src …",
            ),
        );
    }
    if let Some(filtered) = &front.filtered {
        let remedy = "say who sends with --from; its address must be in spec.loadBalancerSourceRanges";
        add(60, Cause { certain: false, ..cause("source-ranges", filtered.clone(), remedy) });
    }
}

/// What can be done where the kernel holds other rules than planned.
pub fn differs_remedy(configuration: Option<&Origin>) -> &'static str {
    match is_guessed(configuration) {
        true => {
            "give this command the backend's configuration (--config or --cluster-cidr): no backend reports it; localnet diff shows all"
        }
        false => "start the backend: it repairs this within a second; localnet diff shows all",
    }
}

/// Nobody has said how the backend is configured: what follows from it may be wrong.
pub fn is_guessed(configuration: Option<&Origin>) -> bool {
    configuration.is_some_and(|origin| origin.source == "defaults")
}

fn of_backend(evidence: &Evidence, family: Option<Family>) -> Option<Cause> {
    let status = evidence.status.as_ref()?;
    let Some(backend) = status.newest() else {
        let remedy = "start localnet-nft, or another backend; one of KPNG's never reports";
        return Some(cause(
            "backend-missing",
            "no backend has reported to the brain: nothing programs the node",
            remedy,
        ));
    };
    let name = &backend.name;
    if let Some((_, reason)) = backend.skipped.iter().find(|(service, _)| *service == evidence.service) {
        let problem = format!("the backend {name} leaves out of this Service: {reason}");
        return Some(cause("backend-skips", problem, "change the Service as the reason says"));
    }
    let of = backend.family(family?)?;
    if !of.error.is_empty() {
        let problem = format!("the backend {name} cannot apply revision {}: {}", status.revision, of.error);
        return Some(cause("backend-fails", problem, "what the error says; it is tried again by itself"));
    }
    if of.behind > 0 {
        let problem = format!(
            "the backend {name} has applied revision {} of {}; it reported {} s ago",
            of.applied,
            status.revision,
            backend.age_millis / 1000
        );
        return Some(cause("backend-behind", problem, "is it running, and does it reach the brain? Its log says"));
    }
    None
}

fn of_others(whither: &str, stop: &Stop) -> Cause {
    let what = match stop.fate {
        Fate::Dropped => "drops",
        Fate::Rejected => "rejects",
    };
    let handle = stop.handle.map_or_else(|| "its policy".to_owned(), |handle| format!("rule # handle {handle}"));
    let comment = stop.comment.as_ref().map(|comment| format!(", {comment:?}")).unwrap_or_default();
    let may = if stop.certain { "" } else { "may be what " };
    let problem = format!(
        "{may}{what} packets {whither}: table {} {} chain {}, {handle}{comment}",
        stop.family, stop.table, stop.chain
    );
    let remedy = format!("look at it: nft -a list chain {} {} {}", stop.family, stop.table, stop.chain);
    Cause { certain: stop.certain, ..cause("foreign-rule", format!("a rule of another's {problem}"), remedy) }
}

impl Answer {
    /// From what is known.
    pub fn of(evidence: &Evidence) -> Self {
        let looked_at = |front: &Front| format!("{} {}: {}", front.kind, front.to, front.outcome);
        let unanswered = evidence.unanswered_node_port.map(|number| {
            format!("NodePort {number}: it is answered at no address of this node, by the Node's addresses and nodePortAddresses")
        });
        let kernel = evidence.kernel_unknown.iter().map(|why| format!("the kernel: {why}"));
        Self {
            asked: evidence.asked.clone(),
            causes: rank(evidence),
            looked_at: evidence.fronts.iter().map(looked_at).collect(),
            not_looked_at: unanswered.into_iter().chain(kernel).collect(),
            configuration: evidence.configuration.clone(),
        }
    }
}

impl Show for Answer {
    fn human(&self, style: Style) -> String {
        let mut text = String::new();
        for (number, cause) in (1..).zip(&self.causes) {
            let tone = if cause.certain { Tone::Bad } else { Tone::Odd };
            let may = if cause.certain { "" } else { " (possible)" };
            let at = cause.at.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
            // Writing to a string does not fail.
            _ = writeln!(text, "{number}. {}{may}{at}", style.paint(tone, cause.id));
            _ = writeln!(text, "   {}", cause.problem);
            _ = writeln!(text, "   {} {}", style.paint(Tone::Dim, "remedy:"), cause.remedy);
        }
        if self.causes.is_empty() {
            _ = writeln!(text, "{}", style.paint(Tone::Good, "nothing is wrong with it here"));
            _ = writeln!(
                text,
                "   what is left: the endpoints themselves, network policies beyond this node, the way back"
            );
        }
        for looked_at in self.looked_at.iter().filter(|_| style.wide || self.causes.is_empty()) {
            _ = writeln!(text, "   looked at {looked_at}");
        }
        for not in &self.not_looked_at {
            _ = writeln!(text, "   not looked at {not}");
        }
        text.extend(self.configuration.iter().map(Origin::line));
        text
    }

    fn names(&self) -> Vec<String> {
        self.causes.iter().map(|cause| cause.id.to_owned()).collect()
    }
}

/// The one scope that a packet is of.
pub fn scope_of(is: fn(&Scopes) -> bool) -> Scopes {
    let one = |scopes: Scopes| is(&scopes);
    Scopes {
        internal: one(Scopes { internal: true, ..Scopes::default() }),
        external: one(Scopes { external: true, ..Scopes::default() }),
        short_circuit: one(Scopes { short_circuit: true, ..Scopes::default() }),
        established: false,
    }
}

/// `10.0.0.1:80` for messages.
pub fn shown(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

#[cfg(test)]
mod tests;
