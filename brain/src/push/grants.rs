//! The grants: which programs may push Services, and what their Services may contain. Pure.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;
use localnet_cluster::objects::{Parsed, reduce::parsed_cidr};
use localnet_config::GoDuration;
use localnet_core::{
    Code, Diagnostic, Subject,
    yaml::{Tree, diagnose},
};
use serde::Deserialize;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::peer::{Name, Peer};

/// Maximum size of the file, in bytes. A grant has about 300.
pub(super) const LARGEST: usize = 1 << 20;
/// Maximum depth of nesting. A file of grants has 5 levels.
const DEEPEST: usize = 16;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grants {
    /// The grants in the order of the file.
    #[serde(default)]
    pub(super) grants: Vec<Arc<Grant>>,
}

/// What one program may push. What the grant does not list is forbidden.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Grant {
    /// The name of the grant, which also names the source.
    pub(super) name: Label,
    /// The program.
    peer: Owner,
    /// The namespaces of the Services. No other grant has them.
    pub(super) namespaces: Vec<Label>,
    /// The CIDRs of ClusterIPs.
    #[serde(default, rename = "clusterIPs")]
    pub(super) cluster_ips: Cidrs,
    /// The CIDRs of external IPs and load balancer IPs.
    #[serde(default, rename = "externalIPs")]
    pub(super) external_ips: Cidrs,
    /// The NodePorts.
    #[serde(default)]
    pub(super) node_ports: Option<Ports>,
    /// The CIDRs of endpoints.
    #[serde(default)]
    pub(super) endpoints: Cidrs,
    /// Maximum number of Services.
    #[serde(default = "max_services")]
    pub(super) max_services: u32,
    /// Maximum number of endpoints of all Services together. An endpoint counts once for each of its ports.
    #[serde(default = "max_endpoints")]
    pub(super) max_endpoints: u32,
    /// How long the Services stay after the program has disconnected.
    #[serde(default)]
    pub(super) keep: Keep,
}

fn max_services() -> u32 {
    1000
}

fn max_endpoints() -> u32 {
    20_000
}

/// A peer that has a grant.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Owner {
    /// A user, on a unix socket.
    Uid(u32),
    /// A name in the certificate of a client.
    TlsName(Name),
}

/// A name that Kubernetes accepts as a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Label(pub(super) Arc<str>);

impl TryFrom<String> for Label {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if is_label(&text) {
            Ok(Self(text.into()))
        } else {
            Err(format!("{text:?} is not a name; use up to 63 lower case letters, digits and '-'"))
        }
    }
}

/// Whether the text is a label of RFC 1123, as the names of namespaces.
pub(super) fn is_label(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(good) && !text.starts_with('-') && !text.ends_with('-')
}

/// A list of CIDRs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Cidrs(Vec<Cidr>);

impl Cidrs {
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|cidr| cidr.0.contains(&address))
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
struct Cidr(IpNet);

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match parsed_cidr(&text) {
            Parsed::Good(cidr) => Ok(Self(cidr)),
            Parsed::Bad(text) => Err(format!("{text:?} is not a CIDR; write it like 10.97.0.0/24 or 2001:db8::/32")),
        }
    }
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    pub(super) fn contain(self, port: u32) -> bool {
        (u32::from(self.first)..=u32::from(self.last)).contains(&port)
    }
}

impl TryFrom<String> for Ports {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(format!("{text:?} is not a range of ports; write it like \"30500-30509\"")),
        }
    }
}

/// How long the Services of a program stay after it has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Keep {
    For(Duration),
    Forever,
}

impl Default for Keep {
    fn default() -> Self {
        Self::For(Duration::from_secs(300))
    }
}

impl TryFrom<String> for Keep {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "forever" {
            return Ok(Self::Forever);
        }
        let duration = text.parse().ok().and_then(GoDuration::positive);
        duration.map(Self::For).ok_or_else(|| format!("{text:?} is not a duration; write it like 5m, or \"forever\""))
    }
}

impl Grants {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns the first problem.
    pub(super) fn parse(text: &str) -> Result<Self, Diagnostic> {
        if text.len() > LARGEST {
            let unsuitable = Diagnostic::new(Code::FileUnsuitable, Subject::text(0), "is larger than 1 MiB");
            return Err(unsuitable.remedy("check that it is a file of grants"));
        }
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_depth: DEEPEST,
                flow_nesting_limit: 2 * DEEPEST,
                max_nodes: 100_000,
            },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
            duplicate_keys: DuplicateKeyPolicy::Error,
            with_snippet: false,
        };
        let tree: Tree =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| diagnose(&error, DEEPEST))?;
        let at = |field: &str, code, problem: &str| {
            let (problem, remedy) = problem.split_once("; ").unwrap_or((problem, "correct the field"));
            Diagnostic::new(code, tree.place_of(field), problem).field(field).remedy(remedy)
        };
        let grants: Self = serde_path_to_error::deserialize(tree.value()).map_err(|error| {
            let (field, problem) = (error.path().to_string(), error.inner().to_string());
            let code = match &problem {
                problem if problem.starts_with("unknown field") => Code::FieldUnknown,
                problem if problem.starts_with("missing field") => Code::FieldMissing,
                problem if problem.starts_with("invalid type") => Code::FieldMistyped,
                _ => Code::ValueInvalid,
            };
            at(if field == "." { "grants" } else { &field }, code, &problem)
        })?;
        grants.check().map_err(|(field, problem)| at(&field, Code::ValueInvalid, &problem))?;
        Ok(grants)
    }

    /// Checks that no two grants have the same name, peer or namespace. A namespace of two grants would let one program shadow
    /// the Services of another.
    fn check(&self) -> Result<(), (String, String)> {
        let mut namespaces = HashMap::new();
        for (position, grant) in self.grants.iter().enumerate() {
            for other in &self.grants[..position] {
                if other.name == grant.name {
                    let problem =
                        format!("{:?} is the name of an earlier grant; give each grant its own", grant.name.0);
                    return Err((format!("grants[{position}].name"), problem));
                }
                if other.peer == grant.peer {
                    let problem =
                        format!("is also the peer of the grant {:?}; a peer can have one grant", other.name.0);
                    return Err((format!("grants[{position}].peer"), problem));
                }
            }
            for (number, namespace) in grant.namespaces.iter().enumerate() {
                if let Some(other) = namespaces.insert(namespace, &grant.name)
                    && *other != grant.name
                {
                    let problem = format!(
                        "{:?} is also a namespace of the grant {:?}; a namespace can belong to one grant",
                        namespace.0, other.0
                    );
                    return Err((format!("grants[{position}].namespaces[{number}]"), problem));
                }
            }
        }
        Ok(())
    }
}

impl Grant {
    /// Whether the peer has this grant.
    pub(super) fn is_of(&self, peer: &Peer) -> bool {
        match &self.peer {
            Owner::Uid(uid) => *peer == Peer::User(*uid),
            Owner::TlsName(name) => peer.is(name),
        }
    }

    /// The name of the source.
    pub(super) fn source(&self) -> Arc<str> {
        format!("push:{}", self.name.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = "
grants:
- name: mesh
  peer: {uid: 978}
  namespaces: [mesh, mesh-2]
  clusterIPs: [10.97.0.0/24, 'fd00::/112']
  externalIPs: [203.0.113.0/28]
  nodePorts: 30500-30509
  endpoints: [10.0.0.0/8]
  maxServices: 5
  maxEndpoints: 9
  keep: 90s
- name: vms
  peer: {tlsName: 'spiffe://cluster.local/ns/vms/*'}
  namespaces: [vms]
  nodePorts: '30600'
  keep: forever
";

    #[test]
    fn grants_are_parsed() {
        let Grants { grants } = Grants::parse(FULL).unwrap();
        let [mesh, vms] = &grants[..] else { panic!("{grants:?}") };
        assert_eq!((&*mesh.source(), mesh.keep), ("push:mesh", Keep::For(Duration::from_secs(90))));
        assert_eq!((mesh.max_services, mesh.max_endpoints), (5, 9));
        assert_eq!((vms.max_services, vms.max_endpoints, vms.keep), (1000, 20_000, Keep::Forever));
        assert_eq!(vms.node_ports, Some(Ports { first: 30600, last: 30600 }));
        let contains = |cidrs: &Cidrs, ip: &str| cidrs.contain(ip.parse().unwrap());
        assert!(contains(&mesh.cluster_ips, "10.97.0.255") && contains(&mesh.cluster_ips, "fd00::1"));
        assert!(!contains(&mesh.cluster_ips, "10.97.1.0") && !contains(&vms.cluster_ips, "10.97.0.1"));
        let ports = mesh.node_ports.unwrap();
        assert_eq!(
            [30499, 30500, 30509, 30510, u32::MAX].map(|port| ports.contain(port)),
            [false, true, true, false, false]
        );
        assert_eq!(Grants::parse("grants: []").unwrap(), Grants::default());
        assert_eq!(Grants::parse("{}").unwrap(), Grants::default());
    }

    #[test]
    fn a_grant_belongs_to_its_peer_only() {
        let Grants { grants } = Grants::parse(FULL).unwrap();
        let uris = |uris: &[&str]| Peer::Certificate {
            dns: vec!["978".to_owned()],
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
        };
        let ours = "spiffe://cluster.local/ns/vms/sa/a";
        let rows = [
            (Peer::User(978), [true, false]),
            (Peer::User(0), [false, false]),
            (Peer::Anonymous, [false, false]),
            (uris(&[ours]), [false, true]),
            (uris(&[ours, "spiffe://other/"]), [false, false]),
            (uris(&["spiffe://cluster.local/ns/other"]), [false, false]),
        ];
        for (peer, expected) in rows {
            assert_eq!([0, 1].map(|grant: usize| grants[grant].is_of(&peer)), expected, "{peer}");
        }
    }

    #[test]
    fn a_bad_grant_is_refused_with_line_field_and_remedy() {
        let with = |from: &str, to: &str| {
            assert!(FULL.contains(from), "{from}");
            FULL.replacen(from, to, 1)
        };
        let rows = [
            (with("name: mesh", "name: Mesh"), "line 3: grants[0].name: \"Mesh\" is not a name; use up to 63"),
            (
                with("name: vms", "name: mesh"),
                "line 13: grants[1].name: \"mesh\" is the name of an earlier grant; give",
            ),
            (with("{uid: 978}", "{uid: -1}"), "line 4: grants[0].peer.uid: invalid value"),
            (with("{uid: 978}", "{user: 978}"), "line 4: grants[0].peer: unknown variant"),
            (with("{uid: 978}", "{uid: 978, tlsName: a}"), "line 4: grants[0].peer: "),
            (with("  peer: {uid: 978}\n", ""), "line 3: grants[0]: missing field `peer`; "),
            (with("'spiffe://cluster.local/ns/vms/*'", "'*'"), "line 14: grants[1].peer.tlsName: expected a DNS name"),
            (
                with("[vms]", "[vms, mesh]"),
                "line 15: grants[1].namespaces[1]: \"mesh\" is also a namespace of the grant \"mesh\"; a",
            ),
            (with("[vms]", "['*']"), "line 15: grants[1].namespaces[0]: \"*\" is not a name; use"),
            (with("10.97.0.0/24", "10.97.0.0"), "line 6: grants[0].clusterIPs[0]: \"10.97.0.0\" is not a CIDR; write"),
            (
                with("30500-30509", "30509-30500"),
                "line 8: grants[0].nodePorts: \"30509-30500\" is not a range of ports; write",
            ),
            (with("30500-30509", "0-30500"), "line 8: grants[0].nodePorts: "),
            (with("keep: 90s", "keep: -90s"), "line 12: grants[0].keep: \"-90s\" is not a duration; write it like 5m"),
            (with("maxServices: 5", "maxServices: many"), "line 10: grants[0].maxServices: invalid type"),
            (
                with("maxServices: 5", "maxservices: 5"),
                "line 10: grants[0].maxservices: unknown field `maxservices`, expected",
            ),
            (
                with("keep: 90s", "keep: 90s\n  keep: 80s"),
                "line 13: the field \"keep\" is set twice; remove one of the two",
            ),
            ("grants: {}".to_owned(), "line 1: grants: invalid type: map"),
            ("- a".to_owned(), "line 1: [0]: invalid type: string"),
            (String::new(), "line "),
            ("grants: [".to_owned(), "line 1: "),
            ("a: ".to_owned() + &"[".repeat(20) + &"]".repeat(20), "line 1: is nested too deeply"),
            (" ".repeat(LARGEST + 1), "is larger than 1 MiB; check"),
        ];
        for (text, expected) in rows {
            let problem = Grants::parse(&text).unwrap_err().to_string();
            assert!(problem.starts_with(expected), "{expected}\n{problem}");
        }
    }

    #[test]
    fn fuzz_grants() {
        localnet_fuzz::target("push-grants", &[FULL.as_bytes()], |bytes| {
            let text = String::from_utf8_lossy(bytes);
            match Grants::parse(&text) {
                Ok(_) => "valid".to_owned(),
                Err(problem) => problem.to_string(),
            }
        });
    }
}
