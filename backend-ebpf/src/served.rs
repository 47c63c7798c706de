//! The command `dump`, and the lines of `--dry-run` and `localnet diff`: the content of the maps as text. Pure.

use std::net::SocketAddr;

use localnet_client::{
    served::{Entry, Served, To},
    vips,
};
use localnet_core::Protocol;
use localnet_proto::{Affinity, Verdict};

use crate::{
    decide::UDP,
    kernel::Content,
    layout::{DROP, EXTERNAL, EndpointKey, Endpoints, GROUP, MemberKey, Vip, VipKey},
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
    pub(crate) fn endpoints_of(&self, vip: &Vip) -> Vec<SocketAddr> {
        let key = |group| EndpointKey { port: vip.port, scope: vip.scope, group };
        let groups = (0..vip.endpoints.div_ceil(GROUP as u32)).filter_map(|group| self.endpoints.get(&key(group)));
        groups.flatten().take(vip.endpoints as usize).filter(|endpoint| endpoint.port != 0).map(socket_addr).collect()
    }

    /// All elements, one line for each.
    pub fn text(&self) -> String {
        self.lines().iter().flat_map(|(_, lines)| lines).map(|line| format!("{line}\n")).collect()
    }

    /// The name of each map, and a line for each element in the order of the keys, or for each endpoint. Service ports appear by the first 32 bits of
    /// their ID.
    pub fn lines(&self) -> [(&'static str, Vec<String>); 3] {
        let vip = |(key, vip): (&VipKey, &Vip)| {
            let port = format!("{:08x} {}", vip.port[0], scope(vip.scope));
            let verdict = if vip.when_empty == DROP { "drop" } else { "reject" };
            match (key.protocol, vip.endpoints, vip.affinity) {
                (0, ..) => format!("vip {} other ports: {verdict}", socket_addr(&key.to).ip()),
                (_, 0, _) => format!("vip {}: {verdict}", vip_key(key)),
                (_, count, 0) => format!("vip {}: {port}, {count} endpoints", vip_key(key)),
                (_, count, kept) => format!("vip {}: {port}, {count} endpoints, affinity {kept} s", vip_key(key)),
            }
        };
        let endpoints = |(EndpointKey { port, scope: of, group }, endpoints): (&EndpointKey, &Endpoints)| {
            let at = (GROUP as u32 * group..).zip(*endpoints).filter(|(_, endpoint)| endpoint.port != 0);
            let text = |index, endpoint| {
                format!("endpoint {:08x} {} {index}: {}", port[0], scope(*of), socket_addr(&endpoint))
            };
            at.map(|(index, endpoint)| text(index, endpoint)).collect::<Vec<_>>()
        };
        let member = |MemberKey { port, scope: of, endpoint }: &MemberKey| {
            format!("member {:08x} {}: {}", port[0], scope(*of), socket_addr(endpoint))
        };
        [
            ("vips", self.vips.iter().map(vip).collect()),
            ("endpoints", self.endpoints.iter().flat_map(endpoints).collect()),
            ("members", self.members.iter().map(member).collect()),
        ]
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
