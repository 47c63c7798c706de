//! `localnet get`: lists the contents of the state. Building the rows is pure.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
};

use clap::{Args, ValueEnum};
use localnet_client::Snapshot;
use localnet_proto::{
    Digest, Endpoint, Node, Port, Protocol, Scopes, Service, ServiceKey,
    reasons::{EndpointConditions, Reasons},
};
use serde::Serialize;

use crate::{
    origin::Values,
    output::{Show, yaml_list},
    status::{Backend, Status, Versions},
    style::{NONE, Style, Tone},
    table::{Row, Table},
    traffic::{self, Rates},
};

/// The kind of objects to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The Services of the state
    #[value(alias = "service", alias = "svc")]
    Services,
    /// Their endpoints, one line for each address and port
    #[value(alias = "endpoint", alias = "ep")]
    Endpoints,
    /// The node's name, zone and addresses
    #[value(alias = "nodes")]
    Node,
    /// The revision of the state, and the revisions that the backends have applied
    #[value(alias = "status", alias = "backends")]
    Revision,
    /// The whole state; save it with `-o yaml` and read it with --state
    State,
}

/// Selects the Services to list.
#[derive(Args, Clone, Debug, Default)]
pub struct Filter {
    /// Only these Services: NAME or NAMESPACE/NAME
    pub names: Vec<String>,
    /// Only Services of this namespace
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Services of all namespaces, which is the default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
}

impl Filter {
    /// Whether a Service is listed.
    pub fn admits(&self, key: &ServiceKey) -> bool {
        let in_namespace = self.namespace.as_ref().is_none_or(|namespace| **namespace == *key.namespace);
        in_namespace && (self.names.is_empty() || self.names.iter().any(|name| is_named(key, name)))
    }

    /// Returns the names that match no Service of the state.
    pub fn missing(&self, state: &Snapshot) -> Vec<String> {
        let has = |name: &String| state.services.keys().any(|key| self.admits(key) && is_named(key, name));
        self.names.iter().filter(|name| !has(name)).cloned().collect()
    }

    /// Returns the listed Services of a state.
    pub fn services<'a>(&self, state: &'a Snapshot) -> impl Iterator<Item = &'a Service> {
        state.services.values().map(|service| &**service).filter(|service| self.admits(&service.key))
    }
}

fn is_named(key: &ServiceKey, name: &str) -> bool {
    match name.split_once('/') {
        Some((namespace, name)) => *key.namespace == *namespace && *key.name == *name,
        None => *key.name == *name,
    }
}

/// A list of Services.
#[derive(Debug, Serialize)]
pub struct Services<'a> {
    /// The Services, as in the state.
    pub services: Vec<&'a Service>,
    /// The rates of the counted traffic, for wide tables.
    #[serde(skip)]
    pub rates: Option<Rates>,
}

/// A port, as tables print it.
struct PortText<'a>(&'a Port);

impl fmt::Display for PortText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Port { port, node_port, protocol, .. } = self.0;
        match node_port {
            Some(number) => write!(f, "{port}:{number}/{protocol}"),
            None => write!(f, "{port}/{protocol}"),
        }
    }
}

/// The headings of the table of Services.
pub const SERVICE_HEADINGS: [&str; 7] =
    ["NAMESPACE", "NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORTS", "ENDPOINTS"];

/// Adds the cells of a Service to a table row.
pub fn service_row(row: &mut Row<'_>, service: &Service) {
    let all = service.endpoints.len();
    let serve = service.endpoints.iter().filter(|endpoint| endpoint.scopes.is_eligible()).count();
    row.cell(&*service.key.namespace).cell(&*service.key.name).cell(&*service.kind);
    row.list(&service.cluster_ips).list(service.external_ips.iter().chain(&service.load_balancer_ips));
    row.list(service.ports.iter().map(PortText));
    match serve == all {
        true => row.toned(serve, (serve == 0).then_some(Tone::Bad)),
        false => row.toned(format_args!("{serve}/{all}"), (serve == 0).then_some(Tone::Bad)),
    };
}

impl Show for Services<'_> {
    fn human(&self, style: Style) -> String {
        let more: &[&str] = if style.wide { &["POLICY", "AFFINITY", "PORT-NAMES"] } else { &[] };
        let rates = self.rates.as_ref().filter(|_| style.wide);
        let headings = SERVICE_HEADINGS.into_iter().chain(more.iter().copied());
        let of_rates = rates.iter().flat_map(|_| Rates::HEADINGS.into_iter().chain([Rates::REFUSED]));
        let mut table = Table::new(headings.chain(of_rates));
        for service in &self.services {
            table.add(|row| {
                service_row(row, service);
                if style.wide {
                    more_of_service(row, service);
                }
                if let Some(rates) = rates {
                    let rate = rates.service(&service.key);
                    traffic::cells(row, rate);
                    traffic::refused_cell(row, rate);
                }
            });
        }
        table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        self.services.iter().map(|service| service.key.to_string()).collect()
    }

    fn yaml(&self, out: &mut impl io::Write) -> anyhow::Result<()> {
        yaml_list(&Services { services: Vec::new(), rates: None }, &self.services, out)
    }
}

/// Adds the columns that only wide tables have.
fn more_of_service(row: &mut Row<'_>, service: &Service) {
    let policy = match (service.internal_traffic_to_local, service.external_traffic_to_local) {
        (false, false) => NONE,
        (true, false) => "InternalLocal",
        (false, true) => "ExternalLocal",
        (true, true) => "InternalLocal,ExternalLocal",
    };
    row.cell(policy);
    row.list(service.client_ip_affinity);
    row.list(service.ports.iter().map(|port| &*port.name).filter(|name| !name.is_empty()));
}

/// A list of endpoints.
#[derive(Debug, Serialize)]
pub struct Endpoints<'a> {
    /// One row per address and port.
    pub endpoints: Vec<EndpointRow<'a>>,
    /// The rates of the counted traffic, for wide tables.
    #[serde(skip)]
    pub rates: Option<Rates>,
}

/// An endpoint of a port.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointRow<'a> {
    service: &'a ServiceKey,
    port_name: &'a str,
    protocol: Protocol,
    address: IpAddr,
    port: u16,
    local: bool,
    scopes: Scopes,
    /// The share of new connections relative to other endpoints; 0 if the endpoint gets none.
    weight: u32,
    /// The endpoint's conditions in words; `None` if the brain was not queried.
    state: Option<&'static str>,
}

impl<'a> Endpoints<'a> {
    /// Lists the endpoints of some Services in the state. `reasons` adds the conditions of these endpoints, and the endpoints
    /// that the state does not contain.
    pub fn of(services: impl Iterator<Item = &'a Service>, reasons: &'a BTreeMap<ServiceKey, Reasons>) -> Self {
        let mut endpoints = Vec::new();
        for service in services {
            let why = reasons.get(&service.key);
            let conditions: BTreeMap<&str, &'static str> =
                why.iter().flat_map(|why| &why.unready).map(|of| (of.address.as_str(), words(of))).collect();
            let state = |address: &str| why.map(|_| conditions.get(address).copied().unwrap_or("Ready"));
            let row = |port_name: &'a str, address, port, local, (scopes, weight), state| {
                let of = service.ports.iter().find(|of| *of.name == *port_name);
                let protocol = of.map_or(Protocol::Tcp, |of| of.protocol);
                EndpointRow { service: &service.key, port_name, protocol, address, port, local, scopes, weight, state }
            };
            let first = endpoints.len();
            for endpoint in &service.endpoints {
                let Endpoint { address, local, scopes, weight, .. } = *endpoint;
                let weight = if scopes.is_eligible() { weight.map_or(1, NonZeroU32::get) } else { 0 };
                let state = why.and_then(|_| state(&address.to_string()));
                endpoints.extend(
                    endpoint
                        .ports
                        .iter()
                        .map(|port| row(&port.name, address, port.port, local, (scopes, weight), state)),
                );
            }
            for of in why.iter().flat_map(|why| &why.ineligible).filter(|of| of.number > 0) {
                let Ok(address) = of.address.parse() else { continue };
                // The row exists already if the endpoint is eligible for other traffic, or if several rules exclude the endpoint.
                let is_same = |row: &EndpointRow<'_>| {
                    (row.address, row.port, row.port_name) == (address, of.number, &*of.port_name)
                };
                if !endpoints[first..].iter().any(is_same) {
                    endpoints.push(row(
                        &of.port_name,
                        address,
                        of.number,
                        of.local,
                        (Scopes::default(), 0),
                        state(&of.address),
                    ));
                }
            }
        }
        Self { endpoints, rates: None }
    }
}

/// Returns the conditions that are true, by their Kubernetes names.
fn words(of: &EndpointConditions) -> &'static str {
    match (of.ready, of.serving, of.terminating) {
        (true, _, false) => "Ready",
        (true, _, true) => "Ready,Terminating",
        (false, true, false) => "NotReady,Serving",
        (false, true, true) => "Serving,Terminating",
        (false, false, true) => "Terminating",
        (false, false, false) => "NotReady",
    }
}

impl EndpointRow<'_> {
    fn at(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    fn fill(&self, row: &mut Row<'_>, wide: bool) {
        let Scopes { internal, external, short_circuit, established } = self.scopes;
        let scopes = [(internal, "internal"), (external, "external"), (short_circuit, "shortCircuit")];
        let serves = scopes.iter().filter(|(on, _)| *on).map(|(_, name)| *name);
        let tone = (!self.scopes.is_eligible()).then_some(Tone::Odd);
        let yes = |on| if on { "yes" } else { "no" };
        row.cell(&*self.service.namespace).cell(&*self.service.name).cell(self.at()).cell(self.protocol);
        let (state, ready) = (self.state.unwrap_or(NONE), matches!(self.state, None | Some("Ready")));
        row.cell(yes(self.local)).toned(state, (!ready).then_some(Tone::Odd)).toned_list(serves, tone);
        if wide {
            let name = Some(self.port_name).filter(|name| !name.is_empty());
            row.list(name).cell(yes(established)).cell(self.weight);
        }
    }
}

impl Show for Endpoints<'_> {
    fn human(&self, style: Style) -> String {
        let more: &[&str] = if style.wide { &["PORT-NAME", "ESTABLISHED", "WEIGHT"] } else { &[] };
        let headings = ["NAMESPACE", "SERVICE", "ENDPOINT", "PROTOCOL", "LOCAL", "STATE", "SERVES"];
        let rates = self.rates.as_ref().filter(|_| style.wide);
        let headings = headings.into_iter().chain(more.iter().copied());
        let mut table = Table::new(headings.chain(rates.iter().flat_map(|_| Rates::HEADINGS)));
        for endpoint in &self.endpoints {
            table.add(|row| {
                endpoint.fill(row, style.wide);
                if let Some(rates) = rates {
                    traffic::cells(row, rates.endpoint_of(endpoint.service, endpoint.at()));
                }
            });
        }
        table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        self.endpoints.iter().map(|row| row.at().to_string()).collect()
    }

    fn yaml(&self, out: &mut impl io::Write) -> anyhow::Result<()> {
        yaml_list(&Endpoints { endpoints: Vec::new(), rates: None }, &self.endpoints, out)
    }
}

/// The facts about the node.
#[derive(Debug, Serialize)]
pub struct NodeFacts<'a>(pub &'a Node);

impl Show for NodeFacts<'_> {
    fn human(&self, style: Style) -> String {
        let Node { name, addresses, zone, pod_cidrs, service_cidrs, settings: _ } = self.0;
        let mut table = Table::new(["NAME", "ZONE", "ADDRESSES", "POD-CIDRS", "SERVICE-CIDRS"]);
        let zone = if zone.is_empty() { NONE } else { zone };
        table.add(|row| _ = row.cell(name).cell(zone).list(addresses).list(pod_cidrs).list(service_cidrs));
        table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        vec![self.0.name.clone()]
    }
}

impl Show for Status {
    fn human(&self, style: Style) -> String {
        let mut table = Table::new(["NAME", "REVISION", "DIGEST", "LAG", "STATE"]);
        let brain = format!("brain {}", self.version);
        let hex = |digest: Option<Digest>| digest.map_or_else(|| NONE.to_owned(), |digest| digest.to_string());
        let services = format!("{} Services", self.services);
        table.row([brain, self.revision.to_string(), hex(self.digest), NONE.to_owned(), services]);
        for backend in &self.backends {
            if backend.families.is_empty() {
                let state = "reports no address family".to_owned();
                table.add(|row| {
                    row.cell(&backend.name).cell(NONE).cell(NONE).cell(NONE).toned(state, Some(Tone::Bad));
                });
            }
            for family in &backend.families {
                let (state, tone) = match (family.error.as_str(), family.lag) {
                    ("", 0) if family.differs => ("applied another state".to_owned(), Some(Tone::Bad)),
                    ("", 0) => ("applied".to_owned(), Some(Tone::Good)),
                    ("", _) => (format!("last reported {} s ago", backend.age_millis / 1000), Some(Tone::Odd)),
                    (error, _) => (error.to_owned(), Some(Tone::Bad)),
                };
                let name = format!("{} {}", backend.name, family.family);
                table.add(|row| {
                    row.cell(name).cell(family.applied).cell(hex(family.digest)).cell(family.lag).toned(state, tone);
                });
            }
        }
        let mut text = table.text(style, 0);
        let mut add = |line: String| text.extend([line.as_str(), "\n"]);
        self.source_problems.iter().for_each(|problem| add(problem.line()));
        for Backend { name, configuration, .. } in &self.backends {
            match configuration {
                Some(Ok(effective)) => add(format!("{name} is configured with {}", Values::of(&effective.config))),
                Some(Err(error)) => add(format!("{name} reports an unreadable configuration: {error}")),
                None => {}
            }
        }
        for Backend { name, skipped, warnings, .. } in self.backends.iter().filter(|_| style.wide) {
            skipped.iter().for_each(|skipped| add(format!("{name} skips a part of {skipped}")));
            warnings.iter().for_each(|warning| add(format!("{name} warns: {warning}")));
        }
        text
    }

    fn names(&self) -> Vec<String> {
        vec![format!("{}:{}", self.instance, self.revision)]
    }
}

impl Show for Versions {
    fn human(&self, _: Style) -> String {
        let brain = self.brain.iter().map(|version| format!("localnet-brain {version}\n"));
        format!("localnet {}\n", self.localnet) + &brain.collect::<String>()
    }

    fn names(&self) -> Vec<String> {
        vec![self.localnet.to_owned()]
    }
}

/// The whole state.
impl Show for Snapshot {
    /// Returns YAML, which is meant to be saved and read again with `--state`.
    fn human(&self, _: Style) -> String {
        let mut text = Vec::new();
        match self.yaml(&mut text) {
            Ok(()) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("{error}\n"),
        }
    }

    fn names(&self) -> Vec<String> {
        self.services.keys().map(ToString::to_string).collect()
    }

    fn yaml(&self, out: &mut impl io::Write) -> anyhow::Result<()> {
        let services: Vec<&Service> = self.services.values().map(|service| &**service).collect();
        yaml_list(&Snapshot { node: self.node.clone(), ..Snapshot::default() }, &services, out)
    }
}

#[cfg(test)]
mod tests {
    use localnet_proto::wire;

    use super::*;
    use crate::output::{Format, render};

    const STATE: &str = "
node: {name: node-a, addresses: [192.168.0.2], zone: z, podCIDRs: [10.0.0.0/24], serviceCIDRs: [10.96.0.0/12]}
services:
- service: dns/dns
  type: ClusterIP
  clusterIPs: [10.96.0.10]
  ports: [{name: dns, protocol: UDP, port: 53}]
- service: shop/web
  type: NodePort
  clusterIPs: [10.96.0.1, 'fd00::1']
  externalIPs: [192.0.2.1]
  externalTrafficToLocal: true
  clientIpAffinity: 60
  ports: [{protocol: TCP, port: 80, nodePort: 30080}]
  endpoints:
  - {address: 10.0.0.1, ports: [{port: 8080}], local: true, scopes: {internal: true, established: true}}
  - {address: 10.0.1.1, ports: [{port: 8080}], scopes: {established: true}}
";

    fn state() -> Snapshot {
        crate::source::read(STATE).unwrap()
    }

    #[track_caller]
    fn check(answer: &impl Show, format: Format, expected: &str) {
        assert_eq!(render(answer, format), expected);
    }

    /// Several threads write a long list.
    #[test]
    fn long_lists_are_written_in_order() {
        let mut state = state();
        let template = state.services[&ServiceKey::new("shop", "web")].clone();
        for number in 0..1_000 {
            let key = ServiceKey::new("shop", format!("web-{number}"));
            state.services.insert(key.clone(), Service { key, ..Service::clone(&template) }.into());
        }
        let (filter, nothing) = (Filter::default(), BTreeMap::new());
        let services = Services { services: filter.services(&state).collect(), rates: None };
        let endpoints = Endpoints::of(filter.services(&state), &nothing);
        check(&services, Format::Yaml, &serde_saphyr::to_string(&services).unwrap());
        check(&endpoints, Format::Yaml, &serde_saphyr::to_string(&endpoints).unwrap());
        check(&state, Format::Yaml, &serde_saphyr::to_string(&state).unwrap());
    }

    #[test]
    fn services_are_listed_in_every_format() {
        let (state, filter) = (state(), Filter::default());
        let services = Services { services: filter.services(&state).collect(), rates: None };
        check(
            &services,
            Format::Table,
            "NAMESPACE  NAME  TYPE       CLUSTER-IP         EXTERNAL-IP  PORTS         ENDPOINTS\n\
             dns        dns   ClusterIP  10.96.0.10         -            53/UDP        0\n\
             shop       web   NodePort   10.96.0.1,fd00::1  192.0.2.1    80:30080/TCP  1/2\n",
        );
        let wide = render(&services, Format::Wide);
        let expected = "shop       web   NodePort   10.96.0.1,fd00::1  192.0.2.1    80:30080/TCP  1/2        ExternalLocal  60s       -";
        assert_eq!(wide.lines().nth(2), Some(expected));
        check(&services, Format::Name, "dns/dns\nshop/web\n");
        let json: serde_json::Value = serde_json::from_str(&render(&services, Format::Json)).unwrap();
        assert_eq!(json["services"][1]["service"], "shop/web");
        assert_eq!(json["services"][1]["endpoints"][0]["scopes"]["internal"], true);
        assert!(render(&services, Format::Yaml).starts_with("services:\n"));
    }

    #[test]
    fn wide_tables_show_the_rates_that_a_backend_has_counted() {
        let (state, filter, nothing) = (state(), Filter::default(), BTreeMap::new());
        let services = || filter.services(&state);
        let rates = || Some(crate::traffic::tests::rates());
        let services = render(&Services { services: services().collect(), rates: rates() }, Format::Wide)
            + &render(&Endpoints { rates: rates(), ..Endpoints::of(services(), &nothing) }, Format::Wide);
        let lasts = ["CONNS/S BYTES/S REFUSED/S", "- - -", "4.0 8.0K 2.0", "CONNS/S BYTES/S", "4.0 8.0K", "- -"];
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(services.lines().count(), lasts.len());
        for (line, last) in services.lines().zip(lasts) {
            assert!(words(line).ends_with(last), "{last} in {services}");
        }
    }

    #[test]
    fn endpoints_are_listed() {
        let state = state();
        let unknown = BTreeMap::new();
        let endpoints = Endpoints::of(Filter::default().services(&state), &unknown);
        check(
            &endpoints,
            Format::Table,
            "NAMESPACE  SERVICE  ENDPOINT       PROTOCOL  LOCAL  STATE  SERVES\n\
             shop       web      10.0.0.1:8080  TCP       yes    -      internal\n\
             shop       web      10.0.1.1:8080  TCP       no     -      -\n",
        );
        check(&endpoints, Format::Name, "10.0.0.1:8080\n10.0.1.1:8080\n");
        let wide = endpoints.human(Style { wide: true, ..Style::default() });
        let weights: Vec<&str> = wide.lines().filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(weights, ["WEIGHT", "1", "0"], "{wide}");
        let json: serde_json::Value = serde_json::from_str(&render(&endpoints, Format::Json)).unwrap();
        let fields: Vec<&String> = json["endpoints"][0].as_object().unwrap().keys().collect();
        assert_eq!(
            fields,
            ["address", "local", "port", "portName", "protocol", "scopes", "service", "state", "weight"]
        );
    }

    /// As in `kubectl get endpointslices`, the list includes endpoints that are not ready.
    #[test]
    fn endpoints_that_are_not_ready_are_listed_with_their_conditions() {
        let state = state();
        let conditions = |address: &str, serving, terminating| wire::EndpointConditions {
            address: address.to_owned(),
            ready: false,
            serving,
            terminating,
        };
        let ineligible = |address: &str| wire::IneligibleEndpoint {
            address: address.to_owned(),
            number: 8080,
            local: true,
            ..wire::IneligibleEndpoint::default()
        };
        let why = wire::ServiceReasons {
            unready: vec![conditions("10.0.1.1", true, true), conditions("10.0.0.7", false, false)],
            ineligible: vec![ineligible("10.0.0.7"), ineligible("10.0.0.7"), ineligible("10.0.1.1")],
            ..wire::ServiceReasons::default()
        };
        let reasons = BTreeMap::from([(ServiceKey::new("shop", "web"), Reasons::from(why))]);
        let endpoints = Endpoints::of(Filter::default().services(&state), &reasons);
        check(
            &endpoints,
            Format::Table,
            "NAMESPACE  SERVICE  ENDPOINT       PROTOCOL  LOCAL  STATE                SERVES\n\
             shop       web      10.0.0.1:8080  TCP       yes    Ready                internal\n\
             shop       web      10.0.1.1:8080  TCP       no     Serving,Terminating  -\n\
             shop       web      10.0.0.7:8080  TCP       yes    NotReady             -\n",
        );
    }

    #[test]
    fn the_node_and_the_whole_state_are_printed() {
        let state = state();
        check(
            &NodeFacts(&state.node),
            Format::Table,
            "NAME    ZONE  ADDRESSES    POD-CIDRS    SERVICE-CIDRS\n\
             node-a  z     192.168.0.2  10.0.0.0/24  10.96.0.0/12\n",
        );
        for format in [Format::Table, Format::Yaml, Format::Json] {
            assert_eq!(crate::source::read(&render(&state, format)).unwrap(), state);
        }
    }

    #[test]
    fn names_and_namespaces_choose() {
        let state = state();
        let filter = |namespace: Option<&str>, names: &[&str]| Filter {
            namespace: namespace.map(str::to_owned),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Filter::default()
        };
        let listed =
            |filter: &Filter| filter.services(&state).map(|service| service.key.to_string()).collect::<Vec<_>>();
        assert_eq!(listed(&filter(Some("shop"), &[])), ["shop/web"]);
        assert_eq!(listed(&filter(None, &["dns", "shop/web"])), ["dns/dns", "shop/web"]);
        assert!(listed(&filter(Some("dns"), &["shop/web"])).is_empty());
        assert_eq!(filter(None, &["dns", "dns/other", "x"]).missing(&state), ["dns/other", "x"]);
        assert!(filter(None, &["dns"]).missing(&state).is_empty());
    }
}
