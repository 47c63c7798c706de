//! Reads ipsets, as `ipset save` prints them. Pure.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use localnet_proto::Protocol;

use super::verdict::Passing;

/// The sets by name.
pub type Sets = BTreeMap<String, Arc<Set>>;

/// A set of one of the types that kube-proxy uses.
#[derive(Debug)]
pub struct Set {
    kind: Kind,
    /// The last addresses or prefixes of the elements with a key. Empty if the type has no second address.
    elements: BTreeMap<Key, Vec<IpNet>>,
}

/// What the elements consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Address,
    AddressPort,
    /// The last part is an address or a prefix.
    AddressPortNet,
    Port,
}

/// Address, protocol and port, as far as the type has them.
type Key = (Option<IpAddr>, Option<Protocol>, u16);

/// Reads the output of `ipset save`. Sets of other types and elements that cannot be read are left out.
pub fn parse(text: &str) -> Sets {
    let mut sets: BTreeMap<String, Set> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(verb), Some(name), Some(word)) = (words.next(), words.next(), words.next()) else { continue };
        match verb {
            "create" => {
                if let Some(kind) = kind(word) {
                    sets.insert(name.to_owned(), Set { kind, elements: BTreeMap::new() });
                }
            }
            "add" => {
                if let Some(set) = sets.get_mut(name)
                    && let Some((key, net)) = element(word)
                {
                    set.elements.entry(key).or_default().extend(net);
                }
            }
            _ => {}
        }
    }
    sets.into_iter().map(|(name, set)| (name, Arc::new(set))).collect()
}

fn kind(word: &str) -> Option<Kind> {
    match word {
        "hash:ip" => Some(Kind::Address),
        "hash:ip,port" => Some(Kind::AddressPort),
        "hash:ip,port,ip" | "hash:ip,port,net" => Some(Kind::AddressPortNet),
        "bitmap:port" => Some(Kind::Port),
        _ => None,
    }
}

/// Reads `30080`, `10.96.0.1`, `10.96.0.1,tcp:80` or `10.96.0.1,tcp:80,203.0.113.0/24`.
fn element(word: &str) -> Option<(Key, Option<IpNet>)> {
    if let Ok(port) = word.parse() {
        return Some(((None, None, port), None));
    }
    let mut parts = word.split(',');
    let address = parts.next()?.parse().ok()?;
    let Some((name, port)) = parts.next().and_then(|part| part.split_once(':')) else {
        return Some(((Some(address), None, 0), None));
    };
    let key = (Some(address), Some(protocol(name)?), port.parse().ok()?);
    match parts.next() {
        Some(last) => Some((key, Some(net(last)?))),
        None => Some((key, None)),
    }
}

/// Reads a protocol's name, or its number, which the tools print if the file /etc/protocols is missing.
pub fn protocol(word: &str) -> Option<Protocol> {
    let by_number = || word.parse().ok().and_then(Protocol::from_number);
    Protocol::ALL.into_iter().find(|of| of.as_str().eq_ignore_ascii_case(word)).or_else(by_number)
}

/// Reads a prefix, or an address.
pub fn net(word: &str) -> Option<IpNet> {
    word.parse().ok().or_else(|| word.parse::<IpAddr>().ok().map(IpNet::from))
}

impl Set {
    /// Whether the set contains the packet. `sources` states for each part of the elements whether it is compared with the packet's
    /// source address. Otherwise, and for ports, it is compared with the destination.
    pub fn contains(&self, sources: &[bool], passing: &Passing<'_>) -> bool {
        let address = |part: usize| match sources.get(part) {
            Some(true) => passing.packet.source,
            _ => passing.to.ip(),
        };
        let (protocol, port) = (Some(passing.packet.protocol), passing.to.port());
        let key = match self.kind {
            Kind::Address => (Some(address(0)), None, 0),
            Kind::AddressPort | Kind::AddressPortNet => (Some(address(0)), protocol, port),
            Kind::Port => (None, None, port),
        };
        let fits =
            |nets: &Vec<IpNet>| self.kind != Kind::AddressPortNet || nets.iter().any(|net| net.contains(&address(2)));
        self.elements.get(&key).is_some_and(fits)
    }
}

#[cfg(test)]
mod tests {
    use localnet_client::route::{Origin, Packet};

    use super::*;

    #[test]
    fn packets_are_in_the_sets_that_contain_them() {
        use Protocol::{Sctp, Tcp, Udp};
        let sets = parse(
            "create IPS hash:ip family inet6 hashsize 1024 maxelem 65536 bucketsize 12 initval 0x195a883f
create VIPS hash:ip,port family inet6 hashsize 1024 maxelem 65536
create RANGES hash:ip,port,net family inet6 hashsize 1024 maxelem 65536
create PORTS bitmap:port range 0-65535
create MACS hash:mac hashsize 1024
add IPS fd00::1
add VIPS fd00::1,sctp:80
add VIPS fd00::2,17:53
add VIPS fd00::3,tcp:x
add RANGES fd00::1,tcp:80,2001:db8::/64
add RANGES fd00::1,tcp:80,2001:db8:1::1
add PORTS 80
add MACS 01:02:03:04:05:06
",
        );
        assert_eq!(sets.keys().collect::<Vec<_>>(), ["IPS", "PORTS", "RANGES", "VIPS"]);
        for (from, to, protocol, sources, expected) in [
            ("2001:db8::9", "[fd00::1]:80", Tcp, vec![false, false, true], vec!["IPS", "PORTS", "RANGES"]),
            ("2001:db8:1::1", "[fd00::1]:80", Tcp, vec![false, false, true], vec!["IPS", "PORTS", "RANGES"]),
            ("2001:db8:1::2", "[fd00::1]:80", Tcp, vec![false, false, true], vec!["IPS", "PORTS"]),
            ("2001:db8:1::2", "[fd00::1]:80", Sctp, vec![false, false], vec!["IPS", "PORTS", "VIPS"]),
            ("2001:db8:1::2", "[fd00::2]:53", Udp, vec![false, false], vec!["VIPS"]),
            ("fd00::2", "[fd00::9]:53", Udp, vec![true, false], vec!["VIPS"]),
        ] {
            let (source, to): (IpAddr, std::net::SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let packet = Packet { source, destination: to.ip(), protocol, port: to.port(), origin: Origin::Outside };
            let passing = Passing::new(&packet, &[]);
            let of: Vec<&String> =
                sets.iter().filter(|(_, set)| set.contains(&sources, &passing)).map(|(name, _)| name).collect();
            assert_eq!(of, expected, "{from} {to} {protocol}");
        }
    }
}
