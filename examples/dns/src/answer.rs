//! Questions and answers, as in version 1.1.0 of the Kubernetes DNS specification. Where the specification is silent, the answers are those
//! of CoreDNS with `pods insecure`. `docs/dns.md` lists the differences.

use std::{collections::BTreeSet, net::IpAddr};

use hickory_server::proto::{
    op::ResponseCode,
    rr::{
        Name, RData, Record, RecordType,
        rdata::{CNAME, PTR, SOA, SRV, TXT},
    },
};

use crate::names::{Names, Port, Service};

/// The version of the specification, which the name `dns-version` has as text.
const VERSION: &str = "1.1.0";
const VERSION_TTL: u32 = 28_800;
/// Seconds for which clients may keep an answer, also one without records.
const TTL: u32 = 5;
/// At most this many ExternalName Services may refer to one another.
const LONGEST_CHAIN: usize = 10;

/// An answer. `soa` is set if there are no `answers`.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) code: ResponseCode,
    pub(crate) answers: Vec<Record>,
    pub(crate) soa: Option<Record>,
    pub(crate) additionals: Vec<Record>,
}

/// What a name stands for.
enum Found {
    /// Addresses, each with the name of its SRV records and a port.
    Addresses(Vec<(Name, IpAddr, Option<u16>)>),
    /// The name that it is an alias of.
    Alias(Name),
    /// Names, for an address.
    Pointers(Vec<Name>),
    Version,
    /// The name exists, without records of its own.
    Nothing,
}

/// Answers a question. `None` if neither the domain of the cluster nor a domain of addresses contains the name.
pub(crate) fn answer(names: &Names, domain: &Name, question: &Name, kind: RecordType) -> Option<Answer> {
    let reverse = ["in-addr.arpa.", "ip6.arpa."].into_iter().filter_map(|zone| Name::from_ascii(zone).ok());
    let zone = reverse.chain([domain.clone()]).find(|zone| zone.zone_of(question))?;
    if matches!(kind, RecordType::AXFR | RecordType::IXFR) {
        return Some(Answer { code: ResponseCode::Refused, ..Answer::default() });
    }
    let soa = soa(&zone, names.serial);
    if kind == RecordType::SOA && *question == zone {
        return Some(Answer { answers: soa.into_iter().collect(), ..Answer::default() });
    }
    let found =
        if zone == *domain { look_up(names, domain, question) } else { look_up_address(names, domain, question) };
    // For SOA questions, CoreDNS does not check whether the name exists.
    let found = found.or_else(|| (kind == RecordType::SOA).then_some(Found::Nothing));
    let Some(found) = found else {
        return Some(Answer { code: ResponseCode::NXDomain, soa, ..Answer::default() });
    };
    let (answers, additionals) = match (&found, kind) {
        (Found::Addresses(all), RecordType::SRV) => services(question, all),
        (Found::Pointers(all), RecordType::PTR) => {
            (all.iter().map(|name| record(question, RData::PTR(PTR(name.clone())))).collect(), Vec::new())
        }
        (Found::Version, RecordType::TXT) => {
            let text = RData::TXT(TXT::new(vec![VERSION.to_owned()]));
            (vec![Record::from_rdata(question.clone(), VERSION_TTL, text)], Vec::new())
        }
        (Found::Alias(target), RecordType::CNAME) => {
            (vec![record(question, RData::CNAME(CNAME(target.clone())))], Vec::new())
        }
        (_, RecordType::A | RecordType::AAAA) => {
            (addresses(names, domain, question, kind, &mut Vec::new()), Vec::new())
        }
        _ => (Vec::new(), Vec::new()),
    };
    let soa = soa.filter(|_| answers.is_empty());
    Some(Answer { answers, additionals, soa, ..Answer::default() })
}

/// The records of type A or AAAA of a name, and those of the names that it is an alias of. `before` are the aliases that lead to the name.
fn addresses(names: &Names, domain: &Name, question: &Name, kind: RecordType, before: &mut Vec<Name>) -> Vec<Record> {
    match look_up(names, domain, question) {
        Some(Found::Addresses(all)) => {
            let all: BTreeSet<IpAddr> = all.iter().map(|(_, address, _)| *address).collect();
            all.into_iter()
                .filter(|of| of.is_ipv4() == (kind == RecordType::A))
                .map(|of| record(question, of.into()))
                .collect()
        }
        Some(Found::Alias(target)) => {
            // An alias of itself, or of a name below it, leads nowhere.
            if question.zone_of(&target) || before.contains(&target) || before.len() > LONGEST_CHAIN {
                return Vec::new();
            }
            let alias = record(question, RData::CNAME(CNAME(target.clone())));
            if !domain.zone_of(&target) {
                // A resolver asks the servers of the other domain.
                return vec![alias];
            }
            before.push(target.clone());
            let mut further = addresses(names, domain, &target, kind, before);
            if !further.is_empty() {
                further.insert(0, alias);
            }
            further
        }
        _ => Vec::new(),
    }
}

/// The SRV records, and the addresses of their targets.
fn services(question: &Name, all: &[(Name, IpAddr, Option<u16>)]) -> (Vec<Record>, Vec<Record>) {
    let weight = u16::try_from(100 / all.len().max(1)).unwrap_or(1).max(1);
    let with_port = || all.iter().filter_map(|(target, address, port)| Some((target, *address, (*port)?)));
    let targets: BTreeSet<_> = with_port().map(|(target, _, port)| (target, port)).collect();
    let glue: BTreeSet<_> = with_port().map(|(target, address, _)| (target, address)).collect();
    let services = targets
        .into_iter()
        .map(|(target, port)| record(question, RData::SRV(SRV::new(0, weight, port, target.clone()))));
    (services.collect(), glue.into_iter().map(|(target, address)| record(target, address.into())).collect())
}

/// What a name in the domain of the cluster stands for. `None` if the name does not exist.
fn look_up(names: &Names, domain: &Name, name: &Name) -> Option<Found> {
    let depth = name.iter().count() - domain.iter().count();
    let labels: Vec<String> =
        name.iter().take(depth).map(|label| String::from_utf8_lossy(label).to_ascii_lowercase()).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let plain = |label: &str| label.strip_prefix('_').unwrap_or(label).to_owned();
    match labels[..] {
        [] | ["svc" | "pod"] | ["ns", "dns"] => Some(Found::Nothing),
        ["dns-version"] => Some(Found::Version),
        [namespace, "svc"] => names.has_namespace(namespace).then_some(Found::Nothing),
        [service, namespace, "svc"] => found(names, domain, (namespace, service), None, ("", "")),
        [endpoint, service, namespace, "svc"] => found(names, domain, (namespace, service), Some(endpoint), ("", "")),
        [port, protocol, service, namespace, "svc"] => {
            found(names, domain, (namespace, service), None, (&plain(port), &plain(protocol)))
        }
        // The view contains no namespaces, so each namespace has names of Pods.
        [_, "pod"] => Some(Found::Nothing),
        // CoreDNS ignores one or two labels before the name of a Pod.
        [address, namespace, "pod"] | [_, address, namespace, "pod"] | [_, _, address, namespace, "pod"] => {
            pod(domain, namespace, address)
        }
        _ => None,
    }
}

/// What the name of a Service, of one of its endpoints or of its ports stands for. An empty port name or protocol matches all ports.
fn found(
    names: &Names,
    domain: &Name,
    (namespace, name): (&str, &str),
    endpoint: Option<&str>,
    port: (&str, &str),
) -> Option<Found> {
    let service = names.service(namespace, name)?;
    let own = name_of(domain, &[name, namespace, "svc"])?;
    if !service.external_name.is_empty() {
        return alias(service).filter(|_| endpoint.is_none() && port == ("", ""));
    }
    let matches = |of: &&Port| {
        let same = |wanted: &str, is: &str| wanted.is_empty() || wanted.eq_ignore_ascii_case(is);
        same(port.0, &of.name) && same(port.1, of.protocol)
    };
    let mut all = Vec::new();
    if service.is_headless() || endpoint.is_some() {
        for of in
            service.endpoints.iter().filter(|of| endpoint.is_none_or(|label| of.label.eq_ignore_ascii_case(label)))
        {
            let Some(target) = name_of(&own, &[&of.label]) else { continue };
            all.extend(of.ports.iter().filter(matches).map(|port| (target.clone(), of.address, port.number)));
        }
    } else {
        for port in service.ports.iter().filter(matches) {
            all.extend(service.cluster_ips.iter().map(|address| (own.clone(), *address, port.number)));
        }
    }
    (!all.is_empty()).then_some(Found::Addresses(all))
}

/// What the name of a Pod stands for: the address that its label consists of, with hyphens instead of dots or colons. No one checks that a
/// Pod has this address.
fn pod(domain: &Name, namespace: &str, label: &str) -> Option<Found> {
    let is_ipv4 = label.matches('-').count() == 3 && !label.contains("--");
    let address: IpAddr = label.replace('-', if is_ipv4 { "." } else { ":" }).parse().ok()?;
    let target = name_of(domain, &[label, namespace, "pod"])?;
    // CoreDNS also answers questions for SRV records, with this port.
    Some(Found::Addresses(vec![(target, address.to_canonical(), Some(0))]))
}

/// `None` if the name is an address, which is no name.
fn alias(service: &Service) -> Option<Found> {
    let name = &service.external_name;
    let mut target = Name::from_ascii(name).ok().filter(|_| name.parse::<IpAddr>().is_err())?;
    target.set_fqdn(true);
    Some(Found::Alias(target))
}

/// The names for an address: that of the Service with this ClusterIP, or those of all endpoints with this address.
fn look_up_address(names: &Names, domain: &Name, name: &Name) -> Option<Found> {
    if name.iter().count() == 2 {
        return Some(Found::Nothing);
    }
    let network = name.parse_arpa_name().ok().filter(|network| network.prefix_len() == network.max_prefix_len())?;
    let address = network.addr();
    let mut all = BTreeSet::new();
    for ((namespace, service), of) in names.at(address) {
        if of.cluster_ips.contains(&address) {
            return Some(Found::Pointers(vec![name_of(domain, &[service, namespace, "svc"])?]));
        }
        let labels = of.endpoints.iter().filter(|of| of.address == address).map(|of| of.label.as_str());
        all.extend(labels.filter_map(|label| name_of(domain, &[label, service, namespace, "svc"])));
    }
    (!all.is_empty()).then(|| Found::Pointers(all.into_iter().collect()))
}

fn soa(zone: &Name, serial: u32) -> Option<Record> {
    let (primary, mailbox) = (name_of(zone, &["ns", "dns"])?, name_of(zone, &["hostmaster"])?);
    Some(record(zone, RData::SOA(SOA::new(primary, mailbox, serial, 7200, 1800, 86_400, TTL))))
}

/// The labels before `domain`. `None` if they form no name, for example because it is too long.
fn name_of(domain: &Name, labels: &[&str]) -> Option<Name> {
    Name::from_labels(labels.iter().map(|label| label.as_bytes())).ok()?.append_domain(domain).ok()
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL, data)
}
