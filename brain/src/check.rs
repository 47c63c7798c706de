//! `localnet-brain check`: lists the Services that would behave differently from kube-proxy, and explains why. It reads
//! the cluster once and serves nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, Write as _},
    net::SocketAddr,
    time::Duration,
};

use anyhow::Context as _;
use localnet_config::{Config, Mode};
use localnet_core::{Code, Severity};
use localnet_proto::{Family, Port, Protocol, Service, ServiceKey, Verdict, WhenEmpty};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{args::CheckArguments, configured, metrics::Metrics, run, source};
use localnet_cluster::{self as cluster, Cluster, localize::Localized};

/// Maximum time for the first list of all kinds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A difference from kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The Service. `None` if the difference concerns the whole node.
    pub service: Option<ServiceKey>,
    /// The number of the entry in docs/differences.md, if the difference has one.
    pub entry: Option<u8>,
    /// What differs and why, for people.
    pub text: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.service {
            Some(service) => write!(f, "Service {service}: ")?,
            None => write!(f, "this node: ")?,
        }
        write!(f, "{}", self.text)?;
        self.entry.map_or(Ok(()), |entry| write!(f, " (docs/differences.md, {entry})"))
    }
}

/// The differences from kube-proxy with the same configuration. Pure. `localized` is the whole state. `backend` is the
/// mode of the backend that will replace kube-proxy.
pub fn differences(localized: &Localized, config: &Config, backend: Mode) -> Vec<Difference> {
    let mut found = BTreeSet::new();
    let services: Vec<&Service> = localized.services.iter().filter_map(|(_, service)| service.as_deref()).collect();
    let unserved = unserved(&services);
    for service in &services {
        for endpoint in &service.endpoints {
            for port in &service.ports {
                let Some(number) = endpoint.port(&port.name) else { continue };
                let at = SocketAddr::new(endpoint.address, number);
                if let Some(other) = unserved.get(&(port.protocol, at)).filter(|other| **other != &service.key) {
                    let text = format!(
                        "its endpoint {at} is an external address and port of {other}, which has no eligible endpoint; kube-proxy rejects connections to this endpoint, localnet does not"
                    );
                    found.insert(Difference { service: Some(service.key.clone()), entry: Some(1), text });
                }
            }
        }
        for (entry, text) in of_mode(service, config) {
            found.insert(Difference { service: Some(service.key.clone()), entry: Some(entry), text });
        }
    }
    // Warnings are omitted, because they apply to kube-proxy as well.
    for (service, skipped) in localized.skipped.iter().filter(|(_, skipped)| skipped.severity == Severity::Error) {
        let entry = (skipped.code == Code::AddressTaken).then_some(3);
        let text = format!("skipped: {skipped}");
        found.insert(Difference { service: service.clone(), entry, text });
    }
    found.extend(of_node(&services, config, backend));
    found.into_iter().collect()
}

/// The external addresses and ports that have no eligible endpoint, each with its Service.
fn unserved<'a>(services: &[&'a Service]) -> BTreeMap<(Protocol, SocketAddr), &'a ServiceKey> {
    let all = services.iter().flat_map(|service| unserved_of(service).map(move |at| (at, &service.key)));
    all.collect()
}

/// The external addresses and ports of one Service that have no eligible endpoint.
fn unserved_of(service: &Service) -> impl Iterator<Item = (Protocol, SocketAddr)> {
    service.ports.iter().flat_map(move |port| {
        let addresses = service.external_ips.iter().chain(&service.load_balancer_ips);
        let unserved = addresses.filter(move |ip| !is_served(service, port, Family::of(**ip)));
        unserved.map(move |ip| (port.protocol, SocketAddr::new(*ip, port.port)))
    })
}

/// Whether a port has an eligible endpoint for external traffic in a family.
fn is_served(service: &Service, port: &Port, family: Family) -> bool {
    service.endpoints_of(port, family, |scopes| scopes.external).next().is_some()
}

/// The differences for one Service that the configured mode of kube-proxy causes. Each has the number of its entry in
/// docs/differences.md, and a text.
fn of_mode(service: &Service, config: &Config) -> Vec<(u8, String)> {
    let mut found = Vec::new();
    match config.mode {
        Mode::Iptables => {
            for (_, at) in unserved_of(service) {
                let text = format!(
                    "{at} has no eligible endpoint: localnet also rejects traffic from the node itself; kube-proxy in mode iptables lets that traffic leave the node"
                );
                found.push((8, text));
            }
            for port in &service.ports {
                let Some(number) = port.node_port else { continue };
                let unserved = service.cluster_ips.iter().any(|ip| !is_served(service, port, Family::of(*ip)));
                if unserved && !config.node_port_addresses.0.is_empty() {
                    let text = format!(
                        "its NodePort {number} has no eligible endpoint: localnet rejects it on the addresses of nodePortAddresses; kube-proxy in mode iptables rejects it on all addresses of the node"
                    );
                    found.push((9, text));
                }
            }
            for filter in &service.source_filters {
                let mut families = filter.targets.iter().map(|target| Family::of(*target));
                if let Some(both) = filter.targets.iter().find(|target| service.external_ips.contains(target)) {
                    let text = format!(
                        "{both} is in externalIPs and in status.loadBalancer.ingress: localnet accepts only sources in loadBalancerSourceRanges; kube-proxy in mode iptables accepts every source"
                    );
                    found.push((12, text));
                }
                if families
                    .next()
                    .is_some_and(|family| service.ports.iter().any(|port| !is_served(service, port, family)))
                {
                    found.push((
                        10,
                        "a port has no eligible endpoint: localnet rejects only clients inside loadBalancerSourceRanges; kube-proxy in mode iptables rejects every client".to_owned(),
                    ));
                }
            }
        }
        Mode::Ipvs => {
            if service.external_traffic_to_local {
                found.push((
                    11,
                    "externalTrafficPolicy is Local: this node and its pods reach all endpoints through the Service's external addresses; with kube-proxy in mode ipvs, they reach only endpoints on the node".to_owned(),
                ));
            }
            found.extend(dropped_by_policy(service).map(|text| (16, text)));
        }
        Mode::Nftables | Mode::Kernelspace => {}
    }
    found
}

/// What differs from kube-proxy's mode ipvs for each policy `Local` that makes this node drop packets, because only other nodes have
/// endpoints.
fn dropped_by_policy(service: &Service) -> impl Iterator<Item = String> {
    let drops = |verdict: fn(WhenEmpty) -> Verdict| {
        let mut verdicts = service.ports.iter().flat_map(|port| [port.when_empty_v4, port.when_empty_v6]);
        verdicts.any(|when_empty| verdict(when_empty) == Verdict::Drop)
    };
    let internal = service.internal_traffic_to_local && drops(|verdicts| verdicts.internal);
    let external = service.external_traffic_to_local && drops(|verdicts| verdicts.external);
    let policies = [
        (internal, "internalTrafficPolicy", "to the ClusterIP", "or rejects them"),
        (external, "externalTrafficPolicy", "from outside", "and their senders get no answer"),
    ];
    policies.into_iter().filter(|(drops, ..)| *drops).map(|(_, policy, packets, theirs)| {
        format!(
            "{policy} is Local, and a port has no eligible endpoint on this node: localnet drops packets {packets}; kube-proxy in mode ipvs sends them to endpoints on other nodes, {theirs}"
        )
    })
}

/// The differences that concern the whole node.
fn of_node(services: &[&Service], config: &Config, backend: Mode) -> Vec<Difference> {
    let node_ports =
        services.iter().filter(|service| service.ports.iter().any(|port| port.node_port.is_some())).count();
    if node_ports == 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    if config.node_port_addresses.0.is_empty() {
        let text = format!(
            "the NodePorts of {node_ports} Services answer on link-local addresses only if nodePortAddresses contains these addresses"
        );
        found.push(Difference { service: None, entry: Some(5), text });
    }
    if config.node_ports_on_localhost(config.mode) && !config.node_ports_on_localhost(backend) {
        let text = format!(
            "the NodePorts of {node_ports} Services no longer answer on 127.0.0.1; only backends of the modes iptables and nftables answer there, each with its own setting"
        );
        found.push(Difference { service: None, entry: Some(13), text });
    }
    found
}

/// The mode of the backend that will replace kube-proxy: the mode in the arguments, or else the mode that `localnet-node`
/// would choose.
fn replacing_mode(arguments: &CheckArguments, config: &Config) -> Mode {
    arguments.backend.unwrap_or(if config.explicit.mode { config.mode } else { Mode::Nftables })
}

/// Reads the cluster once and prints the differences. Returns whether there are any.
///
/// # Errors
/// Returns an error if the configuration or the source cannot be used, or if the cluster cannot be listed within two minutes.
pub async fn run(arguments: &CheckArguments, config: &Config) -> anyhow::Result<bool> {
    let sources = arguments.source.sources(config, arguments.kube_proxy.to_do()?.master)?;
    let options = cluster::Options { sources: source::names(&sources), ..arguments.source.cluster(config)? };
    let (sender, mut events) = mpsc::channel(64);
    let (stop, mut work) = (CancellationToken::new(), JoinSet::new());
    let _stop = stop.clone().drop_guard();
    let _events = run::watch(&sources, &options, (sender, &Metrics::default()), &stop, &mut work).await?;
    let mut cluster = Cluster::new(options);
    cluster.set_node_ips(configured::node_ips(config));
    let localized = async {
        loop {
            let batch = tokio::select! {
                Some(batch) = events.recv() => batch,
                error = run::failed(&mut work) => return Err(error),
            };
            batch.events.into_iter().for_each(|event| cluster.handle_from(batch.source, event));
            if let Some(localized) = cluster.localize() {
                return anyhow::Ok(localized);
            }
        }
    };
    let read = timeout(PATIENCE, localized).await;
    let localized =
        read.context("the cluster was not read in time; check that the API server runs and grants access").flatten()?;
    let found = differences(&localized, config, replacing_mode(arguments, config));
    let served = localized.services.iter().filter(|(_, service)| service.is_some()).count();
    let mut lines: String = found.iter().map(|difference| format!("{difference}\n")).collect();
    lines.push_str(&match found.len() {
        0 => format!("{served} Services, all behave as with kube-proxy\n"),
        1 => format!("{served} Services; 1 difference\n"),
        count => format!("{served} Services; {count} differences\n"),
    });
    io::stdout().write_all(lines.as_bytes()).context("failed to write to standard output")?;
    Ok(!found.is_empty())
}

#[cfg(test)]
mod tests {
    use localnet_config::{NodePortAddress, NodePortAddresses};
    use std::{net::IpAddr, sync::Arc};

    use localnet_config::{KubeProxyFlags, Platform, Reader};
    use localnet_core::{Diagnostic, Subject};
    use localnet_proto::{Endpoint, EndpointPort, Scopes, SourceFilter};

    use super::*;

    fn port(node_port: Option<u16>) -> Port {
        Port { name: "http".into(), port: 80, node_port, ..Port::default() }
    }

    fn service(name: &str, change: impl FnOnce(&mut Service)) -> (ServiceKey, Option<Arc<Service>>) {
        let key = ServiceKey::new("shop", name);
        let mut service = Service::new(key.clone(), vec!["172.30.0.1".parse().unwrap()]);
        service.ports = vec![port(None)];
        change(&mut service);
        (key, Some(Arc::new(service)))
    }

    fn config_in(mode: Mode) -> Config {
        KubeProxyFlags::default().read(Reader { platform: Platform::Linux, empty_mode: mode }, None).unwrap().config
    }

    #[track_caller]
    fn check(services: Vec<(ServiceKey, Option<Arc<Service>>)>, mode: Mode, expected: &[(Option<&str>, Option<u8>)]) {
        let localized = Localized { services, ..Localized::default() };
        let found = differences(&localized, &config_in(mode), mode);
        let found: Vec<_> =
            found.iter().map(|found| (found.service.as_ref().map(|key| key.name.as_ref()), found.entry)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn ordinary_services_have_no_differences() {
        check(vec![service("web", |_| {})], Mode::Nftables, &[]);
        check(vec![service("web", |web| web.client_ip_affinity = Some(60.into()))], Mode::Nftables, &[]);
        let at_many_addresses = service("sticky", |web| {
            web.client_ip_affinity = Some(60.into());
            web.external_ips = vec!["192.168.0.2".parse().unwrap()];
        });
        check(vec![at_many_addresses], Mode::Nftables, &[]);
    }

    #[test]
    fn differences_are_found() {
        let external = |web: &mut Service| web.external_ips = vec!["192.168.0.2".parse().unwrap()];
        let host = service("host", |web| {
            web.endpoints = vec![Endpoint {
                address: "192.168.0.2".parse().unwrap(),
                ports: vec![EndpointPort { name: "http".into(), port: 80 }],
                local: true,
                hostname: None,
                scopes: Scopes { internal: true, external: true, ..Scopes::default() },
                weight: None,
            }];
        });
        check(vec![host, service("nobody", external)], Mode::Nftables, &[(Some("host"), Some(1))]);
        let node_port = service("web", |web| web.ports = vec![port(Some(30_080))]);
        check(vec![node_port.clone()], Mode::Iptables, &[(None, Some(5))]);
        check(vec![service("nobody", external)], Mode::Nftables, &[]);
        check(vec![service("nobody", external)], Mode::Iptables, &[(Some("nobody"), Some(8))]);
        let guarded = service("guarded", |web| {
            let vip: IpAddr = "203.0.113.80".parse().unwrap();
            web.load_balancer_ips = vec![vip];
            web.source_filters =
                vec![SourceFilter { targets: vec![vip], source_ranges: vec!["198.51.100.0/24".parse().unwrap()] }];
        });
        let of_both = [(Some("guarded"), Some(8)), (Some("guarded"), Some(10))];
        check(vec![guarded.clone()], Mode::Iptables, &of_both);
        check(vec![guarded.clone()], Mode::Nftables, &[]);
        let (key, guarded) = guarded.clone();
        let both = guarded.map(|service| {
            let endpoint = Endpoint {
                address: "10.0.0.2".parse().unwrap(),
                ports: vec![EndpointPort { name: "http".into(), port: 80 }],
                local: true,
                hostname: None,
                scopes: Scopes { internal: true, external: true, ..Scopes::default() },
                weight: None,
            };
            let external_ips = service.load_balancer_ips.clone();
            Arc::new(Service { external_ips, endpoints: vec![endpoint], ..(*service).clone() })
        });
        check(vec![(key.clone(), both.clone())], Mode::Iptables, &[(Some("guarded"), Some(12))]);
        check(vec![(key, both)], Mode::Nftables, &[]);
        let local = service("local", |web| web.external_traffic_to_local = true);
        check(vec![local.clone()], Mode::Ipvs, &[(Some("local"), Some(11))]);
        check(vec![local], Mode::Nftables, &[]);
        let dropped = |internal, external| {
            service("elsewhere", |web| {
                web.internal_traffic_to_local = internal == Verdict::Drop;
                web.external_traffic_to_local = external == Verdict::Drop;
                web.ports[0].when_empty_v4 = WhenEmpty { internal, external };
            })
        };
        let [of_11, of_16] = [11, 16].map(|entry| (Some("elsewhere"), Some(entry)));
        check(vec![dropped(Verdict::Drop, Verdict::Reject)], Mode::Ipvs, &[of_16]);
        check(vec![dropped(Verdict::Reject, Verdict::Drop)], Mode::Ipvs, &[of_11, of_16]);
        check(vec![dropped(Verdict::Drop, Verdict::Drop)], Mode::Ipvs, &[of_11, of_16, of_16]);
        check(vec![dropped(Verdict::Drop, Verdict::Drop)], Mode::Nftables, &[]);
        let mut restricted = config_in(Mode::Iptables);
        restricted.node_port_addresses = NodePortAddresses(vec![NodePortAddress::Primary]);
        let localized = Localized { services: vec![node_port.clone()], ..Localized::default() };
        let found = differences(&localized, &restricted, Mode::Iptables);
        assert_eq!(found.iter().map(|found| found.entry).collect::<Vec<_>>(), [Some(9)], "{found:?}");
        check(vec![node_port], Mode::Nftables, &[(None, Some(5))]);
    }

    /// The check depends on the code of a diagnostic, not on its text.
    #[test]
    fn a_shared_address_is_a_difference() {
        for (code, entry) in [(Code::AddressTaken, Some(3)), (Code::PortInvalid, None)] {
            let key = ServiceKey::new("shop", "web");
            let skipped = Diagnostic::new(code, Subject::service(&key), "any text");
            let localized = Localized { skipped: vec![(Some(key), skipped)], ..Localized::default() };
            let found = differences(&localized, &config_in(Mode::Nftables), Mode::Nftables);
            assert_eq!(found.iter().map(|found| found.entry).collect::<Vec<_>>(), [entry], "{found:?}");
        }
    }

    /// By default, kube-proxy's iptables mode answers NodePorts on 127.0.0.1.
    #[test]
    fn node_ports_on_localhost_are_lost_with_other_backends() {
        let localized = Localized {
            services: vec![service("web", |web| web.ports = vec![port(Some(30_080))])],
            ..Localized::default()
        };
        let entries = |config: &Config, backend| {
            differences(&localized, config, backend).iter().map(|found| found.entry).collect::<Vec<_>>()
        };
        let mut config = config_in(Mode::Iptables);
        config.iptables.localhost_node_ports = true;
        assert_eq!(entries(&config, Mode::Nftables), [Some(5), Some(13)]);
        assert_eq!(entries(&config, Mode::Iptables), [Some(5)]);
        config.node_port_addresses = NodePortAddresses(vec![NodePortAddress::Localhost]);
        assert!(entries(&config, Mode::Nftables).contains(&Some(13)));
        assert!(!entries(&config, Mode::Iptables).contains(&Some(13)));
        config.node_port_addresses = NodePortAddresses(vec![NodePortAddress::Primary]);
        assert!(!entries(&config, Mode::Nftables).contains(&Some(13)));
    }
}
