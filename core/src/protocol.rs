//! [`Protocol`]: the transport protocols that Services have.

use serde::{Deserialize, Serialize};

crate::names! {
    /// A transport protocol. The names and the default, TCP, are the same as in Kubernetes.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "UPPERCASE")]
    Protocol {
        /// TCP.
        #[default]
        #[serde(alias = "tcp")]
        Tcp = "TCP",
        /// UDP.
        #[serde(alias = "udp")]
        Udp = "UDP",
        /// SCTP.
        #[serde(alias = "sctp")]
        Sctp = "SCTP",
    }
}

impl Protocol {
    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this number in the IP header.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    /// The name as nft, iptables and conntrack write it.
    pub fn as_lowercase(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}
