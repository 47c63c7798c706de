//! Determines from the evidence what is wrong with a port of a Service, the likeliest cause first. Pure: `why_not` gathers the
//! evidence.
//!
//! Causes are ranked by how close they are to the decision: first the cluster, then what the backend has applied, then what the
//! kernel holds, then what other programs do to packets. A certain cause ranks before a possible one, and the ClusterIP before
//! the other addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use localnet_core::Code;
use localnet_linux::nft::foreign::{Fate, Stop};
use localnet_proto::{Family, Scopes, wire::Rule};
use serde::Serialize;

use crate::{
    explain::{FlowRow, PathRow},
    origin::Origin,
    output::Show,
    reasons::{LeftOut, Standing, Status, Why},
    style::{Style, Tone},
};

/// The evidence about a port of a Service.
#[derive(Debug, Default)]
pub struct Evidence {
    /// The port as the user wrote it: `shop/web:http`.
    pub asked: String,
    /// The Service.
    pub service: String,
    /// Why the brain sent no state.
    pub no_state: Option<String>,
    /// Whether the state contains the Service.
    pub is_served: bool,
    /// The ports of the Service, if the requested one is not among them.
    pub other_ports: Option<Vec<String>>,
    /// Services with the same name in other namespaces.
    pub namesakes: Vec<String>,
    /// The brain's reasons about the Service.
    pub why: Option<Why>,
    /// The status of the brain and the backends.
    pub status: Option<Status>,
    /// The requested address family, if the Service has no address of it.
    pub lacks_family: Option<Family>,
    /// The requested address, if it is not the Service's, and the addresses that it has.
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
}

/// An address that clients can connect to, and what happens to a packet there.
#[derive(Debug, Default)]
pub struct Front {
    /// The address and port.
    pub to: String,
    /// The kind of the address: `ClusterIP`, `external` or `NodePort`.
    pub kind: &'static str,
    /// The address family.
    pub family: Option<Family>,
    /// The name of the port.
    pub port_name: String,
    /// The scope of the packet.
    pub scope: Scopes,
    /// The outcome: `endpoints`, `reject`, `drop` or `notOurs`.
    pub outcome: &'static str,
    /// The oracle's explanation of the outcome.
    pub because: String,
    /// The source ranges, if they exclude the sender. If the sender is unknown: if they exclude any sender.
    pub filtered: Option<String>,
    /// The Service that owns the address instead.
    pub taken_by: Option<String>,
    /// The steps of the packet that the kernel does not hold.
    pub missing: Vec<PathRow>,
    /// The chains that differ from the plan.
    pub damaged: Vec<String>,
    /// Whether the kernel has no table of ours.
    pub no_table: bool,
    /// The rules of other programs that stop the packet.
    pub stops: Vec<(String, Stop)>,
    /// Endpoints without a route, each with the error.
    pub no_routes: Vec<(IpAddr, String)>,
    /// Whether the packet has to be forwarded but forwarding is disabled.
    pub does_not_forward: bool,
    /// Flows to endpoints that are no longer eligible.
    pub stale: Vec<FlowRow>,
}

/// A possible explanation of why the port does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cause {
    /// The diagnostic's code.
    pub id: Code,
    /// Whether the cause is certain; otherwise it is only possible.
    pub certain: bool,
    /// The address that shows the cause; `None` if all addresses do.
    pub at: Option<String>,
    /// What is wrong.
    pub problem: String,
    /// How to correct it.
    pub remedy: String,
}

/// The causes, the likeliest first, and what was checked.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The port as the user wrote it.
    pub asked: String,
    /// The causes, the likeliest first.
    pub causes: Vec<Cause>,
    /// The addresses that were checked, and the outcome at each.
    pub looked_at: Vec<String>,
    /// What could not be checked, and why.
    pub not_looked_at: Vec<String>,
    /// The configuration that the answer was computed with; `None` if there was no state.
    pub configuration: Option<Origin>,
}

/// The position of a cause in the order: whether it is uncertain, the index of the address, the distance from the decision.
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
            // The same cause at another address is listed once.
            if !causes.iter().any(|other| other.id == cause.id && other.problem == cause.problem) {
                causes.push(cause);
            }
        }
        causes
    }
}

fn cause(id: Code, problem: impl Into<String>, remedy: impl Into<String>) -> Cause {
    Cause { id, certain: true, at: None, problem: problem.into(), remedy: remedy.into() }
}

/// Returns the causes, the likeliest first.
pub fn rank(evidence: &Evidence) -> Vec<Cause> {
    let mut ranking = Ranking { found: Vec::new() };
    if let Some(no_state) = &evidence.no_state {
        let remedy = "start localnet-brain, or give its address with --api; the kernel stays unchanged until then";
        ranking.add(0, 1, cause(Code::BrainUnreachable, format!("the brain sends no state: {no_state}"), remedy));
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
        let id = if finding.is(Code::AddressTaken) { Code::AddressTaken } else { Code::LeftOut };
        let certain = finding.left_out;
        ranking.add(after, 30, Cause { certain, ..cause(id, problem, finding.remedy.clone()) });
    }
    ranking.finish()
}

/// Adds the causes of an outdated state. They rank first if the state is missing or sends packets nowhere, otherwise after the
/// causes on the node.
fn of_source(evidence: &Evidence, ranking: &mut Ranking) {
    let (after, is_served) = (evidence.fronts.len(), evidence.is_served);
    let arrives = is_served && after > 0 && evidence.fronts.iter().all(|front| front.outcome == "endpoints");
    let (front, layer) = if arrives { (after, 29) } else { (0, 0) };
    for trouble in evidence.status.iter().flat_map(|status| &status.troubles) {
        let problem = format!("the brain cannot see changes of the cluster: {}", trouble.line());
        let remedy =
            "correct what the message names; the state stays unchanged until then, whatever changes in the cluster";
        ranking.add(front, layer, cause(Code::SourceFails, problem, remedy));
    }
}

/// Adds the causes that need no packet.
fn of_service(evidence: &Evidence, ranking: &mut Ranking) {
    let service = &evidence.service;
    if let Some(not_its) = &evidence.not_its_address {
        ranking.add(0, 16, cause(Code::NotItsAddress, not_its.clone(), "use one of the addresses of the Service"));
    }
    if let Some(family) = evidence.lacks_family {
        let problem = format!("Service {service} has no {family} ClusterIP, so it does not exist in {family}");
        let remedy = "add the family to spec.ipFamilies, with spec.ipFamilyPolicy PreferDualStack";
        ranking.add(0, 15, cause(Code::FamilyMissing, problem, remedy));
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
                _ = write!(problem, "; did you mean {}", evidence.namesakes.join(", "));
            }
            cause(Code::ServiceAbsent, problem, "check name and namespace: kubectl get services -A")
        }
        Some(Standing::Headless) => cause(
            Code::ServiceHeadless,
            format!(
                "Service {service} is headless (clusterIP: None): no proxy handles it, clients connect to its endpoints"
            ),
            "check DNS and the pods, or give the Service a ClusterIP",
        ),
        Some(Standing::ExternalName) => cause(
            Code::ServiceExternalName,
            format!("Service {service} is of type ExternalName: a DNS name, which no proxy handles"),
            "check DNS: the name must resolve to an address that answers",
        ),
        Some(Standing::WithoutClusterIp) => cause(
            Code::ServiceWithoutAddress,
            format!("Service {service} has no ClusterIP"),
            "an API server assigns one; in a file, set spec.clusterIP",
        ),
        Some(Standing::OfAnotherProxy) => cause(
            Code::ServiceOfAnotherProxy,
            format!("the label service.kubernetes.io/service-proxy-name assigns Service {service} to another proxy"),
            "remove the label, or check the proxy that it names",
        ),
        Some(Standing::Unusable | Standing::Served | Standing::Unknown) => {
            let findings = evidence.why.iter().flat_map(|why| &why.findings).filter(|finding| finding.left_out);
            let finding = findings.clone().find(|finding| finding.is(Code::AddressTaken));
            let (id, finding) = match finding {
                Some(finding) => (Code::AddressTaken, Some(finding)),
                None => (Code::ServiceUnusable, findings.clone().next()),
            };
            let reason = finding.map(|of| format!(": {} {}: {}", of.object, of.field, of.problem)).unwrap_or_default();
            let remedy = finding.map_or_else(|| "add ports to the Service".to_owned(), |of| of.remedy.clone());
            cause(id, format!("every port of Service {service} is skipped{reason}"), remedy)
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
            let problem = format!("a port of Service {service} is skipped: {}: {}", finding.field, finding.problem);
            cause(Code::PortLeftOut, problem, finding.remedy.clone())
        }
        None => cause(
            Code::PortAbsent,
            format!(
                "Service {service} has no port {}; it has {}",
                evidence.asked.rsplit(':').next().unwrap_or_default(),
                ports.join(", ")
            ),
            "use one of these; port is neither targetPort nor nodePort",
        ),
    }
}

/// Returns why the state itself sends the packet to no endpoint.
fn of_outcome(evidence: &Evidence, front: &Front) -> Cause {
    if let Some(other) = &front.taken_by {
        let problem = format!("{} belongs to Service {other}, which is older or sorts first", front.to);
        return cause(Code::AddressTaken, problem, "change the address or port of one of the two");
    }
    if let Some(filtered) = &front.filtered {
        let remedy = "add the sender to spec.loadBalancerSourceRanges";
        return cause(Code::SourceRanges, filtered.clone(), remedy);
    }
    let service = &evidence.service;
    let Some(why) = &evidence.why else {
        let remedy = "query a brain for its reasons: localnet explain with --api";
        return cause(Code::NoEndpointServes, front.because.clone(), remedy);
    };
    if why.endpoints == 0 {
        let problem = match why.slices {
            // The brain does not read headless EndpointSlices.
            0 => format!("Service {service} has no EndpointSlice without the label service.kubernetes.io/headless"),
            _ => format!("the EndpointSlices of Service {service} are empty"),
        };
        return cause(
            Code::NoEndpoints,
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
    // A policy excludes endpoints that are otherwise eligible, so it is the cause.
    let policy = left_out.iter().find(|of| matches!(of.kind, Rule::InternalLocal | Rule::ExternalLocal));
    let most = || {
        let count = |of: &&&LeftOut| left_out.iter().filter(|other| other.kind == of.kind).count();
        // Of equally frequent rules, take the first.
        left_out.iter().rev().max_by_key(count)
    };
    let Some(of) = policy.or_else(most) else {
        return cause(Code::NoEndpointServes, front.because.clone(), "kubectl get endpointslices");
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

fn rule_id(rule: Rule) -> Code {
    match rule {
        Rule::NotReady | Rule::NotServing | Rule::Terminating => Code::EndpointsNotReady,
        Rule::OtherNode | Rule::OtherZone => Code::Hints,
        Rule::InternalLocal => Code::InternalPolicyLocal,
        Rule::ExternalLocal => Code::ExternalPolicyLocal,
        Rule::Family => Code::EndpointsOfOtherFamily,
        Rule::PortName => Code::PortNameMismatch,
        Rule::PortProtocol => Code::PortProtocolMismatch,
        Rule::PortNumber => Code::PortNumberMissing,
        Rule::AddressType => Code::EndpointsWithoutAddress,
        Rule::Address | Rule::Reserved => Code::EndpointAddressRefused,
        Rule::Duplicate => Code::EndpointDuplicated,
        Rule::HeadlessSlice => Code::SliceOfHeadlessService,
        Rule::Unknown => Code::NoEndpointServes,
    }
}

/// Adds one cause for each reason why endpoints have no route, however many addresses and endpoints show it.
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
        let remedy = "check the CNI plugin with ip route get, and check that the pod's node is reachable";
        let at = Some(evidence.fronts[number].to.clone());
        ranking.add(number, 53, Cause { at, ..cause(Code::NoRoute, problem, remedy) });
    }
}

/// How many endpoints a cause names.
const MOST_NAMED: usize = 3;

/// Adds the causes on the node, for an address where the state itself is correct.
fn of_node(evidence: &Evidence, number: usize, front: &Front, ranking: &mut Ranking) {
    let at = |cause: Cause| Cause { at: Some(front.to.clone()), ..cause };
    let mut add = |layer, cause: Cause| ranking.add(number, layer, at(cause));
    // The chains depend on a configuration that no backend reports.
    let guessed = is_guessed(evidence.configuration.as_ref());
    let in_doubt = |row: &PathRow| guessed && front.damaged.contains(&row.place);
    let lacks =
        front.no_table || !front.damaged.is_empty() && !guessed || front.missing.iter().any(|row| !in_doubt(row));
    // What the kernel holds is stronger evidence than a report.
    let certain = lacks || evidence.kernel_unknown.is_some();
    if let Some(cause) = of_backend(evidence, front.family) {
        add(40, Cause { certain, ..cause });
    }
    if front.no_table {
        let problem = "the kernel has no table localnet: it was deleted, or never created";
        add(
            41,
            cause(
                Code::TableMissing,
                problem,
                "start the backend: it repairs this within a second; its log names the program that deleted the table",
            ),
        );
    } else {
        if let Some(chain) = front.damaged.first() {
            let more = front.damaged.len() - 1;
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let problem =
                format!("the chain {chain}{more} of table localnet is missing, or its rules differ from the plan");
            let remedy = differs_remedy(evidence.configuration.as_ref());
            add(42, Cause { certain: !guessed, ..cause(Code::RulesDiffer, problem, remedy) });
        }
        if let Some(row) = front.missing.iter().find(|row| row.handle.is_none() && !front.damaged.contains(&row.place))
        {
            let found = row.found.as_ref().map(|found| format!("; it has {found} instead")).unwrap_or_default();
            let problem = format!("the kernel lacks {} {}{found}", row.place, row.text);
            let id = if row.found.is_some() { Code::ElementsDiffer } else { Code::ElementsMissing };
            add(
                43,
                cause(
                    id,
                    problem,
                    "start the backend: it repairs this within a second; localnet diff lists all differences",
                ),
            );
        }
    }
    if evidence.tracking_is_full {
        let problem = "connection tracking is full: new connections are dropped";
        add(
            50,
            cause(
                Code::TrackingFull,
                problem,
                "raise net.netfilter.nf_conntrack_max: localnet-nft init, conntrack.maxPerCore",
            ),
        );
    }
    for (whither, stop) in &front.stops {
        add(51, of_others(whither, stop));
    }
    if front.does_not_forward {
        let problem = "the kernel does not forward packets between interfaces";
        add(52, cause(Code::ForwardingOff, problem, "set net.ipv4.ip_forward and net.ipv6.conf.all.forwarding to 1"));
    }
    if let Some(flow) = front.stale.first() {
        let problem = format!(
            "{} stale flow(s) go to endpoints that are no longer eligible, such as {} at {}",
            front.stale.len(),
            flow.from,
            flow.endpoint
        );
        add(
            54,
            cause(
                Code::StaleFlow,
                problem,
                "the backend deletes these after each change; to delete one yourself, run conntrack -D --orig-src …",
            ),
        );
    }
    if let Some(filtered) = &front.filtered {
        let remedy = "name the sender with --from; its address must be in spec.loadBalancerSourceRanges";
        add(60, Cause { certain: false, ..cause(Code::SourceRanges, filtered.clone(), remedy) });
    }
}

/// Returns the remedy for rules that differ from the plan.
pub fn differs_remedy(configuration: Option<&Origin>) -> &'static str {
    match is_guessed(configuration) {
        true => {
            "no backend reports its configuration: pass it with --config or --cluster-cidr; localnet diff lists all differences"
        }
        false => "start the backend: it repairs this within a second; localnet diff lists all differences",
    }
}

/// Whether no backend has reported its configuration, so that conclusions from it may be wrong.
pub fn is_guessed(configuration: Option<&Origin>) -> bool {
    configuration.is_some_and(|origin| origin.source == "defaults")
}

fn of_backend(evidence: &Evidence, family: Option<Family>) -> Option<Cause> {
    let status = evidence.status.as_ref()?;
    let Some(backend) = status.newest() else {
        let remedy = "start localnet-nft or another backend; backends of KPNG never report";
        return Some(cause(
            Code::BackendMissing,
            "no backend has reported to the brain: nothing programs the node",
            remedy,
        ));
    };
    let name = &backend.name;
    if let Some((_, reason)) = backend.skipped.iter().find(|(service, _)| *service == evidence.service) {
        let problem = format!("the backend {name} skips a part of this Service: {reason}");
        return Some(cause(Code::BackendSkips, problem, "change the Service as the reason suggests"));
    }
    let of = backend.family(family?)?;
    if !of.error.is_empty() {
        let problem = format!("the backend {name} cannot apply revision {}: {}", status.revision, of.error);
        return Some(cause(
            Code::BackendFails,
            problem,
            "correct what the error names; the backend retries with backoff",
        ));
    }
    if of.behind > 0 {
        let problem = format!(
            "the backend {name} has applied revision {} of {}; it reported {} s ago",
            of.applied,
            status.revision,
            backend.age_millis / 1000
        );
        return Some(cause(
            Code::BackendBehind,
            problem,
            "check that it runs and reaches the brain; its log has the error",
        ));
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
    let remedy = format!("check the chain: nft -a list chain {} {} {}", stop.family, stop.table, stop.chain);
    Cause { certain: stop.certain, ..cause(Code::ForeignRule, format!("a rule of another program {problem}"), remedy) }
}

impl Answer {
    /// Builds the answer from the evidence.
    pub fn of(evidence: &Evidence) -> Self {
        let looked_at = |front: &Front| format!("{} {}: {}", front.kind, front.to, front.outcome);
        let unanswered = evidence.unanswered_node_port.map(|number| {
            format!("NodePort {number}: no address of this node answers it, according to the Node's addresses and nodePortAddresses")
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
            // Writing to a string cannot fail.
            _ = writeln!(text, "{number}. {}{may}{at}", style.paint(tone, cause.id.as_str()));
            _ = writeln!(text, "   {}", cause.problem);
            _ = writeln!(text, "   {} {}", style.paint(Tone::Dim, "remedy:"), cause.remedy);
        }
        if self.causes.is_empty() {
            _ = writeln!(text, "{}", style.paint(Tone::Good, "no problem found on this node"));
            _ = writeln!(
                text,
                "   what remains to check: the endpoints, network policies beyond this node, the way back"
            );
        }
        for looked_at in self.looked_at.iter().filter(|_| style.wide || self.causes.is_empty()) {
            _ = writeln!(text, "   checked {looked_at}");
        }
        for not in &self.not_looked_at {
            _ = writeln!(text, "   not checked {not}");
        }
        text.extend(self.configuration.iter().map(Origin::line));
        text
    }

    fn names(&self) -> Vec<String> {
        self.causes.iter().map(|cause| cause.id.to_string()).collect()
    }
}

/// Returns the scope of a packet as a set with one element.
pub fn scope_of(is: fn(&Scopes) -> bool) -> Scopes {
    let one = |scopes: Scopes| is(&scopes);
    Scopes {
        internal: one(Scopes { internal: true, ..Scopes::default() }),
        external: one(Scopes { external: true, ..Scopes::default() }),
        short_circuit: one(Scopes { short_circuit: true, ..Scopes::default() }),
        established: false,
    }
}

/// Formats an address and port for messages: `10.0.0.1:80`.
pub fn shown(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

#[cfg(test)]
mod tests;
