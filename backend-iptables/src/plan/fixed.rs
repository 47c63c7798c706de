//! The rules that do not depend on Services: shared chains, the jumps to our chains, and the tails of dispatch chains.

use localnet_client::vips::Facts;
use localnet_proto::Family;

use super::{ChainId, Dispatch, Table, names, rule::Rule};

/// A rule in one of the kernel's own chains that jumps to a chain of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The table of the rule.
    pub table: Table,
    /// The chain of the rule, such as `FORWARD`.
    pub from: &'static str,
    /// The text of the rule, without its leading `-A CHAIN`.
    pub rule: String,
}

/// The chains whose rules depend only on the configuration. `drop_invalid`: whether packets that connection tracking calls
/// invalid are dropped instead of forwarded. `counts`: whether rules count packets.
pub fn chains(facts: &Facts, drop_invalid: bool, counts: bool) -> [(ChainId, Vec<String>); 3] {
    let mark = format!("{:#x}", facts.masquerade_mark);
    let marked = |not: &str| format!("mark {not}--mark {mark}/{mark}");
    // An invalid packet is not translated. If it is an endpoint's answer, it would reach the client from an address that
    // the client does not know, and the client would reset the connection.
    let invalid = Rule::new().matches("conntrack --ctstate INVALID");
    let invalid = if counts { invalid.count(names::INVALID_DROPPED) } else { invalid };
    let invalid = drop_invalid.then(|| invalid.jump("DROP"));
    let forwarding = [
        Rule::new().comment("kubernetes forwarding rules").matches(&marked("")).jump("ACCEPT"),
        Rule::new()
            .comment("kubernetes forwarding conntrack rule")
            .matches("conntrack --ctstate RELATED,ESTABLISHED")
            .jump("ACCEPT"),
    ];
    [
        (
            ChainId::new(Table::Nat, names::POSTROUTING),
            vec![
                Rule::new().matches(&marked("! ")).jump("RETURN"),
                // The mark is cleared, so that a packet that comes back to the node is not masqueraded again.
                Rule::new().jump(&format!("MARK --set-xmark {mark}/0x0")),
                Rule::new().comment("kubernetes service traffic requiring SNAT").jump("MASQUERADE --random-fully"),
            ],
        ),
        (
            ChainId::new(Table::Nat, names::MARK_MASQ),
            vec![Rule::new().jump(&format!("MARK --set-xmark {mark}/{mark}"))],
        ),
        (ChainId::new(Table::Filter, names::FORWARD), invalid.into_iter().chain(forwarding).collect()),
    ]
}

/// The rules at the end of a dispatch chain. `outside`: whether there are ClusterIPs outside of the node's service CIDRs.
pub fn tail(chain: Dispatch, facts: &Facts, family: Family, outside: bool) -> Vec<String> {
    match chain {
        Dispatch::SERVICES => {
            let addresses = facts.node_port_addresses.iter().filter(|address| Family::of(**address) == family);
            let comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
            addresses.map(|address| Rule::new().to_address(*address).comment(comment).jump(names::NODE_PORTS)).collect()
        }
        // With `route_localnet`, packets from other hosts reach loopback addresses. kube-proxy and the kubelet drop them in
        // KUBE-FIREWALL.
        Dispatch::HEALTH_CHECKS => facts
            .loopback(family)
            .map(|loopback| {
                Rule::new()
                    .not_from(loopback)
                    .to(loopback)
                    .comment("block incoming localnet connections")
                    .matches("conntrack ! --ctstate RELATED,ESTABLISHED,DNAT")
                    .jump("DROP")
            })
            .into_iter()
            .collect(),
        Dispatch::UNSERVED => {
            let cidrs: Vec<_> = facts.service_cidrs.iter().filter(|cidr| Family::of(cidr.addr()) == family).collect();
            // Packets that the node sends do not pass INPUT or FORWARD, so this chain, too, jumps to the chain of external
            // addresses. The jump comes first, because the rules below end the chain for every address in a service CIDR,
            // and an external address may be one of them.
            let mut rules = vec![
                Rule::new()
                    .comment("kubernetes externally-visible service portals")
                    .untranslated()
                    .jump(names::EXTERNAL_SERVICES),
            ];
            let to_cluster_ips =
                |rule: Rule| rule.comment("unused ports of cluster IPs").untranslated().jump(names::CLUSTER_IPS);
            if outside || cidrs.is_empty() {
                rules.push(to_cluster_ips(Rule::new()));
            } else {
                rules.extend(cidrs.iter().map(|cidr| to_cluster_ips(Rule::new().to(**cidr))));
            }
            let unallocated = |cidr: &&ipnet::IpNet| {
                Rule::new().to(**cidr).comment("unallocated cluster IPs").untranslated().jump("DROP")
            };
            rules.extend(cidrs.iter().map(unallocated));
            rules
        }
        _ => Vec::new(),
    }
}

/// The jumps from the kernel's own chains to ours, within one chain from top to bottom. In table filter, source ranges are
/// checked first, because the rules below may accept the packet.
pub fn jumps() -> Vec<Jump> {
    let jump = |table, from, new: bool, comment: &str, to: &str| {
        let rule = if new { Rule::new().new_connection() } else { Rule::new() };
        Jump { table, from, rule: rule.comment(comment).jump(to) }
    };
    let filter = |from, new, comment, to| jump(Table::Filter, from, new, comment, to);
    let nat = |from, comment, to| jump(Table::Nat, from, false, comment, to);
    const FIREWALL: &str = "kubernetes load balancer firewall";
    const PORTALS: &str = "kubernetes service portals";
    const EXTERNAL: &str = "kubernetes externally-visible service portals";
    vec![
        filter("INPUT", true, FIREWALL, names::PROXY_FIREWALL),
        filter("INPUT", false, "kubernetes health check service ports", names::NODE_PORTS),
        filter("INPUT", true, EXTERNAL, names::EXTERNAL_SERVICES),
        filter("FORWARD", true, FIREWALL, names::PROXY_FIREWALL),
        filter("FORWARD", false, "kubernetes forwarding rules", names::FORWARD),
        filter("FORWARD", true, PORTALS, names::SERVICES),
        filter("FORWARD", true, EXTERNAL, names::EXTERNAL_SERVICES),
        filter("OUTPUT", true, FIREWALL, names::PROXY_FIREWALL),
        filter("OUTPUT", true, PORTALS, names::SERVICES),
        nat("PREROUTING", PORTALS, names::SERVICES),
        nat("OUTPUT", PORTALS, names::SERVICES),
        nat("POSTROUTING", "kubernetes postrouting rules", names::POSTROUTING),
    ]
}

/// The kernel's own chains that contain jumps to ours.
pub fn entries() -> Vec<(Table, &'static str)> {
    let mut entries: Vec<_> = jumps().iter().map(|jump| (jump.table, jump.from)).collect();
    entries.dedup();
    entries
}
