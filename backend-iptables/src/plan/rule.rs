//! One rule, written exactly as `iptables-save` prints it. Desired and live rules are compared as text.

use std::net::IpAddr;

use ipnet::IpNet;
use localnet_client::vips::{PodSource, VipKey};
use localnet_proto::{Family, Protocol};

/// A rule under construction. Call the methods in the order in which `iptables-save` prints: addresses, interface, protocol,
/// matches, target.
#[derive(Clone, Debug, Default)]
pub struct Rule(String);

impl Rule {
    /// A rule that matches every packet and does nothing.
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

    /// Matches packets from these addresses.
    pub fn from(self, network: IpNet) -> Self {
        self.word(&format!("-s {}", network.trunc()))
    }

    /// Matches packets from all other addresses.
    pub fn not_from(self, network: IpNet) -> Self {
        self.word(&format!("! -s {}", network.trunc()))
    }

    /// Matches packets to these addresses.
    pub fn to(self, network: IpNet) -> Self {
        self.word(&format!("-d {}", network.trunc()))
    }

    /// Matches packets to this address.
    pub fn to_address(self, address: IpAddr) -> Self {
        self.to(address.into())
    }

    /// Matches packets from a pod of this node.
    pub fn from_pod(self, pods: &PodSource) -> Self {
        self.pod("", pods)
    }

    /// Matches packets to this address that do not come from a pod of this node. `iptables-save` prints the source before the
    /// destination, and the interface after it.
    pub fn to_address_not_from_pod(self, address: IpAddr, pods: &PodSource) -> Self {
        match pods {
            PodSource::Cidr(_) => self.pod("! ", pods).to_address(address),
            PodSource::Interface(_) | PodSource::InterfacePrefix(_) => self.to_address(address).pod("! ", pods),
        }
    }

    fn pod(self, not: &str, pods: &PodSource) -> Self {
        match pods {
            PodSource::Cidr(cidr) => self.word(&format!("{not}-s {cidr}")),
            PodSource::Interface(name) => self.word(&format!("{not}-i {name}")),
            PodSource::InterfacePrefix(prefix) => self.word(&format!("{not}-i {prefix}+")),
        }
    }

    /// Matches packets of this protocol. To match the port as well, call [`Self::port`].
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.word(&format!("-p {}", protocol.as_lowercase()))
    }

    /// Adds a comment for people. Text from outside has to pass through [`comment_text`] first.
    pub fn comment(self, text: &str) -> Self {
        self.word(&format!("-m comment --comment \"{text}\""))
    }

    /// Matches packets to this port.
    pub fn port(self, protocol: Protocol, port: u16) -> Self {
        self.word(&format!("-m {} --dport {port}", protocol.as_lowercase()))
    }

    /// Matches packets to a VIP, with a comment.
    pub fn to_vip(self, key: &VipKey, comment: &str) -> Self {
        self.to_address(key.address).at_port(key, comment)
    }

    /// As [`Self::to_vip`], but matches no packets from a pod of this node.
    pub fn to_vip_not_from_pod(self, key: &VipKey, pods: &PodSource, comment: &str) -> Self {
        self.to_address_not_from_pod(key.address, pods).at_port(key, comment)
    }

    fn at_port(self, key: &VipKey, comment: &str) -> Self {
        self.protocol(key.protocol).comment(comment).port(key.protocol, key.port)
    }

    /// Adds any other match.
    pub fn matches(self, text: &str) -> Self {
        self.word("-m").word(text)
    }

    /// Counts packets that match so far.
    pub fn count(self, counter: &str) -> Self {
        self.matches(&format!("nfacct --nfacct-name {counter}"))
    }

    /// Matches packets from an address of this node.
    pub fn from_node(self) -> Self {
        self.matches("addrtype --src-type LOCAL")
    }

    /// Matches packets from an address that is not this node's.
    pub fn not_from_node(self) -> Self {
        self.matches("addrtype ! --src-type LOCAL")
    }

    /// Matches packets of connections that were not translated.
    pub fn untranslated(self) -> Self {
        self.matches("conntrack ! --ctstate DNAT")
    }

    /// Matches packets of new connections.
    pub fn new_connection(self) -> Self {
        self.matches("conntrack --ctstate NEW")
    }

    /// Ends the rule with a jump to that chain or target.
    pub fn jump(self, target: &str) -> String {
        self.word(&format!("-j {target}")).0
    }

    /// Ends the rule with a rejection, which the client sees as "connection refused".
    pub fn reject(self, family: Family) -> String {
        self.jump(match family {
            Family::V4 => "REJECT --reject-with icmp-port-unreachable",
            Family::V6 => "REJECT --reject-with icmp6-port-unreachable",
        })
    }

    /// Ends the rule without a target.
    pub fn nothing(self) -> String {
        self.0
    }
}

/// The probability `part`/`of` as `iptables-save` prints it. xt_statistic stores a multiple of 2⁻³¹, printed with eleven decimals.
pub fn probability(part: u64, of: u64) -> String {
    const PARTS: f64 = 2_147_483_648.0;
    let float = |number: u64| u32::try_from(number).map_or(f64::from(u32::MAX), f64::from);
    format!("{:.11}", (float(part) / float(of) * PARTS).round() / PARTS)
}

/// A name made fit for a comment: printable, free of characters that `iptables-save` escapes, and at most 195 characters long.
pub fn comment_text(name: &str) -> String {
    let printable = |c: char| if c.is_ascii_graphic() && !"\"\\'".contains(c) { c } else { '?' };
    name.chars().map(printable).take(MAX_NAME).collect()
}

/// The longest name in a comment, in characters. A comment has at most 255, and our longest text around a name has 60.
const MAX_NAME: usize = 195;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_as_saved() {
        for (part, of, expected) in [
            (1, 2, "0.50000000000"),
            (1, 3, "0.33333333349"),
            (1, 7, "0.14285714272"),
            (1, 1, "1.00000000000"),
            (5, 15, "0.33333333349"),
            (3, 4, "0.75000000000"),
        ] {
            assert_eq!(probability(part, of), expected);
        }
    }

    #[test]
    fn comments_need_no_escapes() {
        assert_eq!(comment_text("ns/it's \"x\"\n"), "ns/it?s??x??");
        assert_eq!(comment_text(&"n".repeat(300)).len(), 195);
    }
}
