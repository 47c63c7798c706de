//! One rule, written exactly as `iptables-save` prints it: what is found is compared with what is wanted as text.

use std::net::IpAddr;

use ipnet::IpNet;
use localnet_client::vips::{PodSource, VipKey};
use localnet_proto::{Family, Protocol};

use super::names::protocol_name;

/// A rule that is being written. Call in the order in which `iptables-save` prints: addresses, interface, protocol,
/// matches, target.
#[derive(Clone, Debug, Default)]
pub struct Rule(String);

impl Rule {
    /// Matches everything, does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    fn word(mut self, text: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        self.0.push_str(text);
        self
    }

    /// From these addresses.
    pub fn from(self, network: IpNet) -> Self {
        self.word(&format!("-s {}", network.trunc()))
    }

    /// From elsewhere than these addresses.
    pub fn not_from(self, network: IpNet) -> Self {
        self.word(&format!("! -s {}", network.trunc()))
    }

    /// To these addresses.
    pub fn to(self, network: IpNet) -> Self {
        self.word(&format!("-d {}", network.trunc()))
    }

    /// To this address.
    pub fn to_address(self, address: IpAddr) -> Self {
        self.to(address.into())
    }

    /// From a pod of this node.
    pub fn from_pod(self, pods: &PodSource) -> Self {
        self.pod("", pods)
    }

    /// From elsewhere than a pod of this node.
    pub fn not_from_pod(self, pods: &PodSource) -> Self {
        self.pod("! ", pods)
    }

    fn pod(self, not: &str, pods: &PodSource) -> Self {
        match pods {
            PodSource::Cidr(cidr) => self.word(&format!("{not}-s {cidr}")),
            PodSource::Interface(name) => self.word(&format!("{not}-i {name}")),
            PodSource::InterfacePrefix(prefix) => self.word(&format!("{not}-i {prefix}+")),
        }
    }

    /// Of this protocol; its port is matched later.
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.word(&format!("-p {}", protocol_name(protocol)))
    }

    /// With a comment for people: [`comment_text`] makes it safe.
    pub fn comment(self, text: &str) -> Self {
        self.word(&format!("-m comment --comment \"{text}\""))
    }

    /// To this port.
    pub fn port(self, protocol: Protocol, port: u16) -> Self {
        self.word(&format!("-m {} --dport {port}", protocol_name(protocol)))
    }

    /// To a VIP, with a comment.
    pub fn to_vip(self, key: &VipKey, comment: &str) -> Self {
        self.to_address(key.address).protocol(key.protocol).comment(comment).port(key.protocol, key.port)
    }

    /// Any other match.
    pub fn matches(self, text: &str) -> Self {
        self.word("-m").word(text)
    }

    /// From an address of this node.
    pub fn from_node(self) -> Self {
        self.matches("addrtype --src-type LOCAL")
    }

    /// Of a connection that was not translated.
    pub fn untranslated(self) -> Self {
        self.matches("conntrack ! --ctstate DNAT")
    }

    /// Of a connection that is in its beginning.
    pub fn new_connection(self) -> Self {
        self.matches("conntrack --ctstate NEW")
    }

    /// Goes on in that chain, or with that target.
    pub fn jump(self, target: &str) -> String {
        self.word(&format!("-j {target}")).0
    }

    /// Answers "connection refused".
    pub fn reject(self, family: Family) -> String {
        self.jump(match family {
            Family::V4 => "REJECT --reject-with icmp-port-unreachable",
            Family::V6 => "REJECT --reject-with icmp6-port-unreachable",
        })
    }

    /// Has no target.
    pub fn nothing(self) -> String {
        self.0
    }
}

/// `iptables-save` prints what xt_statistic keeps: 2³¹ parts, eleven digits.
pub fn probability(of: usize) -> String {
    const PARTS: f64 = 2_147_483_648.0;
    let one = 1.0 / u32::try_from(of).map_or(f64::from(u32::MAX), f64::from);
    format!("{:.11}", (one * PARTS).round() / PARTS)
}

/// Printable, without what `iptables-save` escapes, and short enough to leave room for words around it.
pub fn comment_text(name: &str) -> String {
    let printable = |c: char| if c.is_ascii_graphic() && !"\"\\'".contains(c) { c } else { '?' };
    name.chars().map(printable).take(MAX_NAME).collect()
}

/// A comment has 255 characters at most; the longest words around a name have 60.
const MAX_NAME: usize = 195;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_as_saved() {
        for (of, expected) in [(2, "0.50000000000"), (3, "0.33333333349"), (7, "0.14285714272"), (1, "1.00000000000")] {
            assert_eq!(probability(of), expected);
        }
    }

    #[test]
    fn comments_need_no_escapes() {
        assert_eq!(comment_text("ns/it's \"x\"\n"), "ns/it?s??x??");
        assert_eq!(comment_text(&"n".repeat(300)).len(), 195);
    }
}
