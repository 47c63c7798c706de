//! The text in which a backend describes its state. Pure.
//!
//! ```text
//! rev 7 2
//! node node-a
//! vip default/web cluster 10.96.0.10
//! port default/web http TCP 80 30080
//! endpoint default/web http 10.1.0.1 8080 internal+external+established
//! affinity default/web 10800
//! ```
//! The first line identifies the state (InstanceID and Rev); the others come in any order. The kind of a VIP is `cluster`,
//! `external` or `balancer`. `-` stands for the empty name of a port, and 0 for a port without NodePort. The scopes of an
//! endpoint are `internal`, `external`, `shortcircuit` and `established`, in this order; `-` means none. A backend omits ports
//! of protocols that it does not know, and the endpoints of these ports.

use std::{collections::BTreeSet, fmt::Write as _};

use localnet_proto::{Affinity, Endpoint, Revision, Scopes, Service, Snapshot};

/// The state that a backend holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    /// The revision of the state, from the first line.
    pub revision: Revision,
    /// The other lines.
    pub lines: BTreeSet<String>,
}

impl Dump {
    /// Parses a dump; `None` if its first line contains no revision.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
        let mut first = lines.next()?.split(' ');
        let (Some("rev"), Some(instance), Some(rev), None) = (first.next(), first.next(), first.next(), first.next())
        else {
            return None;
        };
        let revision = Revision { instance: instance.parse().ok()?, rev: rev.parse().ok()? };
        Some(Self { revision, lines: lines.map(str::to_owned).collect() })
    }

    /// The expected dump of a state.
    pub fn of(state: &Snapshot) -> Self {
        let mut lines = BTreeSet::from([format!("node {}", state.node.name)]);
        for service in state.services.values() {
            of_service(service, &mut lines);
        }
        Self { revision: state.revision, lines }
    }

    /// The lines that are missing and the lines that are unexpected; empty if the dumps are equal.
    pub fn differences(&self, expected: &Self) -> String {
        const MOST: usize = 10;
        let lacks = expected.lines.difference(&self.lines).map(|line| format!("\n  missing: {line}"));
        let more = self.lines.difference(&expected.lines).map(|line| format!("\n  unexpected: {line}"));
        let all: Vec<String> = lacks.chain(more).collect();
        let mut text = all.iter().take(MOST).cloned().collect::<String>();
        if all.len() > MOST {
            _ = write!(text, "\n  and {} more", all.len() - MOST);
        }
        text
    }
}

fn of_service(service: &Service, lines: &mut BTreeSet<String>) {
    let key = &service.key;
    let vips = [
        ("cluster", &service.cluster_ips),
        ("external", &service.external_ips),
        ("balancer", &service.load_balancer_ips),
    ];
    for (kind, addresses) in vips {
        lines.extend(addresses.iter().map(|address| format!("vip {key} {kind} {address}")));
    }
    for port in &service.ports {
        let node_port = port.node_port.unwrap_or_default();
        lines.insert(format!("port {key} {} {} {} {node_port}", named(&port.name), port.protocol, port.port));
        let of_port = service.endpoints.iter().filter_map(|endpoint| Some((endpoint, endpoint.port(&port.name)?)));
        lines.extend(of_port.map(|(endpoint, number)| {
            let Endpoint { address, scopes, .. } = endpoint;
            format!("endpoint {key} {} {address} {number} {}", named(&port.name), words(*scopes))
        }));
    }
    if let Some(Affinity { seconds }) = service.client_ip_affinity {
        lines.insert(format!("affinity {key} {seconds}"));
    }
}

fn named(name: &str) -> &str {
    if name.is_empty() { "-" } else { name }
}

fn words(scopes: Scopes) -> String {
    let all = [
        (scopes.internal, "internal"),
        (scopes.external, "external"),
        (scopes.short_circuit, "shortcircuit"),
        (scopes.established, "established"),
    ];
    let words: Vec<_> = all.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
    if words.is_empty() { "-".to_owned() } else { words.join("+") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_parsed() {
        let dump = Dump::parse("rev 7 2\nnode a\n\nvip a/b cluster 10.0.0.1\n").expect("a dump");
        assert_eq!(dump.revision, Revision { instance: 7, rev: 2 });
        assert_eq!(dump.lines, ["node a", "vip a/b cluster 10.0.0.1"].map(str::to_owned).into());
        for odd in ["", "node a", "rev 7", "rev 7 x", "rev 7 2 3", "rev -1 2"] {
            assert_eq!(Dump::parse(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn differences_name_missing_and_unexpected_lines() {
        let dump = |text: &str| Dump::parse(&format!("rev 7 2\n{text}")).expect("a dump");
        assert_eq!(dump("a\nb").differences(&dump("b\na")), "");
        assert_eq!(dump("a\nc").differences(&dump("a\nb")), "\n  missing: b\n  unexpected: c");
        let many: String = (0..20).map(|number| format!("{number}\n")).collect();
        assert!(dump("").differences(&dump(&many)).ends_with("and 10 more"));
    }
}
