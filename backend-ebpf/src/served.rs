//! The command `dump` and the plan of `--dry-run`: the content of the maps as text. Pure.

use std::{fmt::Write as _, net::SocketAddr};

use localnet_client::{
    served::{Entry, Served, To},
    vips,
};
use localnet_core::Protocol;
use localnet_proto::{Affinity, Verdict};

use crate::{
    decide::UDP,
    kernel::Content,
    layout::{DROP, EXTERNAL, EndpointKey, Vip, VipKey},
    plan::socket_addr,
};

impl Content {
    /// The VIPs with their endpoints.
    pub fn served(&self) -> Served {
        let vips = self.vips.iter().filter(|(key, _)| key.protocol != 0);
        let entry = |(key, vip): (&VipKey, &Vip)| {
            let to =
                To::new(self.endpoints_of(vip), if vip.when_empty == DROP { Verdict::Drop } else { Verdict::Reject });
            let affinity = (vip.affinity > 0).then(|| Affinity::from(vip.affinity));
            (vip_key(key), Entry { to: Some(to), outside: None, affinity }.plain())
        };
        Served(vips.map(entry).collect())
    }

    /// The endpoints that a VIP counts, in the order of their indexes.
    fn endpoints_of(&self, vip: &Vip) -> Vec<SocketAddr> {
        let key = |index| EndpointKey { port: vip.port, scope: vip.scope, index };
        (0..vip.endpoints).filter_map(|index| self.endpoints.get(&key(index))).map(socket_addr).collect()
    }

    /// All elements, one line for each. Service ports appear by the first 32 bits of their ID.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (key, vip) in &self.vips {
            let port = format!("{:08x} {}", vip.port[0], scope(vip.scope));
            let verdict = if vip.when_empty == DROP { "drop" } else { "reject" };
            _ = match (key.protocol, vip.endpoints, vip.affinity) {
                (0, ..) => writeln!(text, "vip {} other ports: {verdict}", socket_addr(&key.to).ip()),
                (_, 0, _) => writeln!(text, "vip {}: {verdict}", vip_key(key)),
                (_, count, 0) => writeln!(text, "vip {}: {port}, {count} endpoints", vip_key(key)),
                (_, count, kept) => {
                    writeln!(text, "vip {}: {port}, {count} endpoints, affinity {kept} s", vip_key(key))
                }
            };
        }
        for (key, endpoint) in &self.endpoints {
            let EndpointKey { port, scope: of, index } = key;
            _ = writeln!(text, "endpoint {:08x} {} {index}: {}", port[0], scope(*of), socket_addr(endpoint));
        }
        for key in &self.members {
            _ = writeln!(text, "member {:08x} {}: {}", key.port[0], scope(key.scope), socket_addr(&key.endpoint));
        }
        text
    }
}

fn scope(scope: u32) -> &'static str {
    if scope == EXTERNAL { "external" } else { "internal" }
}

fn vip_key(key: &VipKey) -> vips::VipKey {
    let to = socket_addr(&key.to);
    let protocol = if key.protocol == UDP { Protocol::Udp } else { Protocol::Tcp };
    vips::VipKey { address: to.ip(), protocol, port: to.port() }
}
