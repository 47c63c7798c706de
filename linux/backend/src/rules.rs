//! The rules that several backends share. No rule mentions a Service, because Services are elements of sets.

use localnet_client::vips::{Facts, PodSource};
use localnet_linux::nft::{
    AddressField, Chain, Field, InterfacePattern, Name, Op, Rule, Statement, Verdict,
    chain_names::{FIREWALL, MARK_MASQUERADE, MASQUERADING, UNSERVED},
    spread,
};
use localnet_proto::Family;

use crate::sets::{Sets, VIP};

/// The priority just before destination NAT, for chains that depend on the address that the client connects to.
pub const BEFORE_DNAT: i32 = -110;
/// The priority of destination NAT: before kube-proxy (−100). If both run on a node, this backend translates the packets to the
/// Services that it has, and kube-proxy the others.
pub const DNAT: i32 = -105;
/// The priority of filters.
pub const FILTER: i32 = 0;
/// The priority of source NAT.
pub const SNAT: i32 = 100;

/// The match for packets that come from a pod (`==`) or do not (`!=`).
pub fn from_pod(pods: &PodSource, op: Op) -> Statement {
    match pods {
        PodSource::Cidr(cidr) => Statement::Address(AddressField::Source, op, *cidr),
        PodSource::Interface(name) => Statement::InputInterface(op, InterfacePattern::Exact(name.clone())),
        PodSource::InterfacePrefix(prefix) => Statement::InputInterface(op, InterfacePattern::Prefix(prefix.clone())),
    }
}

/// The chain that picks a slot, and the endpoint that `map` has for the VIP and this slot.
pub fn picking(name: &Name, map: impl Sets, choice: spread::Choice) -> Chain {
    spread::picking(name.clone(), &VIP, map.name(), choice)
}

/// The match for packets to a ClusterIP.
pub fn to_cluster_ip(cluster_ips: impl Sets) -> Statement {
    Statement::is_in([Field::DestinationAddress], cluster_ips.name())
}

/// Adds the rules that mark packets for masquerading: packets to ClusterIPs, and packets to external VIPs.
pub fn marking<S: Sets>(chain: Chain, facts: &Facts, family: Family, cluster_ips: S, external: S) -> Chain {
    let mark = || Statement::jump(MARK_MASQUERADE);
    let to_cluster_ip = to_cluster_ip(cluster_ips);
    let chain = match facts.pods(family) {
        _ if facts.masquerade_all => chain.rule([to_cluster_ip, mark()]),
        Some(pods) => {
            let rule = Rule::new([from_pod(pods, Op::Ne), to_cluster_ip, mark()]);
            chain.rule(rule.comment("not from a pod of this node"))
        }
        None => chain,
    };
    chain.rule([Statement::is_in(VIP, external.name()), mark()])
}

/// Adds a rule with this statement for packets from pods of this node. Such packets may go to any endpoint.
pub fn for_pods(chain: Chain, facts: &Facts, family: Family, statement: Statement) -> Chain {
    let Some(pods) = facts.pods(family) else { return chain };
    chain.rule(Rule::new([from_pod(pods, Op::Eq), statement]).comment("pods of this node reach any endpoint"))
}

/// The rule with this statement for packets from the node itself.
pub fn for_node(statement: Statement) -> Rule {
    Rule::new([Statement::Local(AddressField::Source, Op::Eq), statement]).comment("and so does the node itself")
}

/// The chain that marks packets for masquerading.
pub fn mark_masquerade(facts: &Facts) -> Chain {
    Chain::new(MARK_MASQUERADE).rule(Statement::MarkOr(facts.masquerade_mark))
}

/// The chain that masquerades, with its rule for marked packets.
pub fn masquerading(facts: &Facts) -> Chain {
    let mark = facts.masquerade_mark;
    let is_marked = [Statement::MarkHas(Op::Eq, mark), Statement::MarkXor(mark), Statement::Masquerade];
    Chain::new(MASQUERADING).rule(is_marked)
}

/// The chain that drops packets whose source is not in the source ranges of their VIP. `vip`: the packet fields that form
/// the key of the VIP. `drop`: the verdict, which drops them directly or in another chain.
pub fn firewall<S: Sets>(vip: [Field; 3], firewalled: S, allowed_sources: S, drop: Verdict) -> Chain {
    let with_source = [vip.as_slice(), &[Field::SourceAddress]].concat();
    Chain::new(FIREWALL).rule([
        Statement::is_in(vip, firewalled.name()),
        Statement::is_not_in(with_source, allowed_sources.name()),
        Statement::Verdict(drop),
    ])
}

/// If NodePorts answer on a loopback address, adds the rule that drops packets from other hosts to loopback addresses. Such
/// NodePorts need `route_localnet`, with which the kernel would accept these packets (CVE-2020-8558). The rule must
/// come before translation, because translated answers to the node's own packets also go to a loopback address.
pub fn guarding_loopback(chain: Chain, facts: &Facts, family: Family) -> Chain {
    let Some(loopback) = facts.loopback(family) else { return chain };
    let from_elsewhere = Statement::InputInterface(Op::Ne, InterfacePattern::Exact("lo".into()));
    let to_loopback = Statement::Address(AddressField::Destination, Op::Eq, loopback);
    let rule = Rule::new([from_elsewhere, to_loopback, Statement::Verdict(Verdict::Drop)]);
    chain.rule(rule.comment("other hosts do not reach loopback addresses"))
}

/// The chain for VIPs without endpoints. An endpoint of another VIP may have the address and port of such a VIP, for
/// instance a host-network pod at a node's address. Packets that were already translated to such an endpoint pass.
pub fn unserved(vip: [Field; 3], no_endpoints: impl Sets, translated_comment: &str) -> Chain {
    Chain::new(UNSERVED).rule(translated(translated_comment)).rule(Statement::vmap(vip, no_endpoints.name()))
}

/// The rule that makes packets return from the chain if they were translated already.
pub fn translated(comment: &str) -> Rule {
    Rule::new([Statement::ConnectionDnat, Statement::Verdict(Verdict::Return)]).comment(comment)
}

/// Adds the rules that drop packets to addresses that the cluster may allocate as ClusterIPs.
pub fn dropping_unallocated(chain: Chain, facts: &Facts, family: Family) -> Chain {
    let cidrs = facts.service_cidrs.iter().filter(|cidr| Family::of(cidr.addr()) == family);
    cidrs.fold(chain, |chain, cidr| {
        let to_cidr = Statement::Address(AddressField::Destination, Op::Eq, cidr.trunc());
        chain.rule(Rule::new([to_cidr, Statement::Verdict(Verdict::Drop)]).comment("unallocated ClusterIPs"))
    })
}
