//! Addresses and CIDRs.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use localnet_core::Code;

use super::FieldType;
use crate::{
    address,
    check::Check,
    field::Field,
    kind::Kind,
    model::{DetectLocalMode, Mode, NodePortAddress, NodePortAddresses},
};

/// The node's primary addresses, at most one per family.
impl FieldType for Vec<IpAddr> {
    const KIND: Kind = Kind::List;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let mut ips = Self::new();
        for (position, text) in check.document.texts(field.path).into_iter().enumerate() {
            let path = format!("{}[{position}]", field.path);
            let mut invalid = |why, remedy| check.findings.invalid(&path, format_args!("{text:?}"), why, remedy);
            match address::ip(text) {
                None => invalid(
                    "not a valid textual representation of an IP address",
                    "write it like 10.0.0.1 or 2001:db8::1",
                ),
                Some(ip) if ip.is_unspecified() => {
                    invalid("must not be unspecified", "leave the list empty to use the addresses of the Node");
                }
                Some(ip) if ips.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) => {
                    invalid("must be a single IP or a dual-stack pair of IPs", "name one address of each family");
                }
                Some(ip) => ips.push(ip),
            }
        }
        ips
    }
}

impl FieldType for SocketAddr {
    const KIND: Kind = Kind::IpPort;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        address::socket(check.document.text(field.path)).unwrap_or_else(|bad| {
            let remedy = "write it like 0.0.0.0:10256 or [::]:10256";
            check.invalid(field, format_args!("{:?}", bad.value), bad.why, remedy);
            Self::from(([0, 0, 0, 0], 0))
        })
    }
}

/// In documents, `None` is an empty string.
impl FieldType for Option<SocketAddr> {
    const KIND: Kind = Kind::IpPort;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let is_empty = check.document.text(field.path).is_empty();
        (!is_empty).then(|| SocketAddr::read(check, field))
    }
}

/// `winkernel.sourceVip`. In documents, `None` is an empty string.
impl FieldType for Option<IpAddr> {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let given = check.document.text(field.path);
        let ip = address::ip(given);
        if ip.is_none() && !given.is_empty() {
            let value = format!("{given:?}");
            // kube-proxy parses this value too late to refuse an invalid value, and runs without the value.
            check.invalid_if_used(false, field.path, &value, "must be a valid IP", "write it like 10.0.0.1");
        }
        ip
    }
}

/// Returns the valid CIDRs of a list, and adds a finding for each invalid CIDR.
fn cidrs(check: &mut Check<'_>, field: &Field, used: bool, why: &str, remedy: &str) -> Vec<IpNet> {
    let mut cidrs = Vec::new();
    for (position, text) in check.document.texts(field.path).into_iter().enumerate() {
        match address::cidr(text) {
            Some(cidr) => cidrs.push(cidr),
            None => {
                let path = format!("{}[{position}]", field.path);
                check.invalid_if_used(used, &path, &format!("{text:?}"), why, remedy);
            }
        }
    }
    cidrs
}

/// The remedy for an invalid CIDR.
const WRITE_CIDR: &str = "write it like 10.0.0.0/8 or 2001:db8::/32";

/// Any number of CIDRs.
pub(crate) enum Cidrs {}

impl FieldType<Vec<IpNet>> for Cidrs {
    const KIND: Kind = Kind::List;

    fn read(check: &mut Check<'_>, field: &Field) -> Vec<IpNet> {
        cidrs(check, field, check.is_used(field), "must be a valid CIDR", WRITE_CIDR)
    }
}

/// `detectLocal.clusterCIDRs`: at most one CIDR of each family.
pub(crate) enum ClusterCidrs {}

impl FieldType<Vec<IpNet>> for ClusterCidrs {
    const KIND: Kind = Kind::List;

    fn read(check: &mut Check<'_>, field: &Field) -> Vec<IpNet> {
        let used = check.detect_local_mode() == DetectLocalMode::ClusterCidr;
        let why = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";
        let mut cidrs = cidrs(check, field, used, why, "write CIDRs without spaces around them");
        let given = check.document.texts(field.path);
        let twice = matches!(cidrs.as_slice(), [a, b] if a.addr().is_ipv4() == b.addr().is_ipv4());
        if given.len() > 2 || twice {
            let why = "must be either a single CIDR or a dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48])";
            check.invalid_if_used(used, field.path, &format!("{given:?}"), why, "name one CIDR of each family");
            // Skip all CIDRs: if only some were skipped, the remaining ones could be the wrong ones.
            cidrs.clear();
        }
        cidrs
    }
}

/// As in kube-proxy, the default depends on the configured mode: `primary` if `mode` is explicitly `nftables`, otherwise all
/// addresses. An empty mode counts as iptables even if a backend of another mode runs, so that an address that answered
/// NodePorts with kube-proxy still answers them.
impl FieldType for NodePortAddresses {
    const KIND: Kind = Kind::List;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let given = check.document.texts(field.path);
        if given.is_empty() && check.document.text("mode") == Mode::Nftables.as_str() {
            return Self(vec![NodePortAddress::Primary]);
        }
        let mut items = Vec::new();
        for (position, text) in given.into_iter().enumerate() {
            let path = format!("{}[{position}]", field.path);
            let item = match text {
                "primary" => Some(NodePortAddress::Primary),
                "localhost" => Some(NodePortAddress::Localhost),
                "all" => Some(NodePortAddress::All),
                _ => address::cidr(text).map(NodePortAddress::Cidr),
            };
            match item {
                Some(NodePortAddress::Cidr(_)) => items.extend(item),
                Some(word) if items.contains(&word) => {
                    check.findings.add(Code::ValueInvalid, &path, format!("Duplicate value: {text:?}"), "remove it");
                }
                Some(word) => items.push(word),
                None => {
                    let why = "must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all'";
                    check.findings.invalid(&path, format_args!("{text:?}"), why, WRITE_CIDR);
                }
            }
        }
        Self(items)
    }
}
