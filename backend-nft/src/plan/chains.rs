//! The chains and their rules. No rule mentions a Service, because Services are elements of sets and maps.

use localnet_client::vips::Facts;
use localnet_linux::{
    nft::{Chain, ChainKind, Field, HookPoint, Rule, Statement, Verdict},
    traffic::Reason,
};
use localnet_linux_backend::rules::{self, BEFORE_DNAT, DNAT, FILTER, SNAT};
use localnet_proto::Family;

use super::{
    ChainNames, Choice,
    affinity::numbering,
    names,
    sets::{HAIRPIN, Pool, SetId, Sets as _, VIP, refused_name},
};

/// The chains that always exist, in an order for human readers. `affinity` means that at least one VIP has session
/// affinity. `counts`: whether refused packets are counted.
pub fn fixed(facts: &Facts, family: Family, affinity: bool, counts: bool) -> Vec<Chain> {
    let new = || Statement::ConnectionNew;
    let base = |name, kind, point, priority| Chain::base(name, kind, point, priority);
    let filter =
        |name, point| base(name, ChainKind::Filter, point, FILTER).rule([new(), Statement::jump(names::UNSERVED)]);
    let before =
        |name, point| base(name, ChainKind::Filter, point, BEFORE_DNAT).rule([new(), Statement::jump(names::FIREWALL)]);
    let unallocated = || [new(), Statement::jump(names::UNALLOCATED)];
    let services = || Statement::jump(names::SERVICES);
    let drop_source = if counts { Verdict::Goto(names::DROP_SOURCE.into()) } else { Verdict::Drop };
    let mut chains = vec![
        rules::guarding_loopback(before("firewall-prerouting", HookPoint::Prerouting), facts, family)
            .comment("source filters, before translation"),
        before("firewall-output", HookPoint::Output).comment("source filters, before translation"),
        base("nat-prerouting", ChainKind::Nat, HookPoint::Prerouting, DNAT).rule(services()),
        base("nat-output", ChainKind::Nat, HookPoint::Output, DNAT).rule(services()),
        base("nat-postrouting", ChainKind::Nat, HookPoint::Postrouting, SNAT)
            .rule(Statement::jump(names::MASQUERADING)),
        filter("filter-input", HookPoint::Input),
        filter("filter-forward", HookPoint::Forward).rule(unallocated()),
        filter("filter-output", HookPoint::Output).rule(unallocated()),
        services_chain(facts, family, affinity),
        external_local(facts, family, affinity),
        rules::mark_masquerade(facts),
        masquerading(facts),
        rules::firewall(VIP, SetId::Firewalled, SetId::AllowedSources, drop_source),
        rules::unserved(VIP, SetId::NoEndpoints, TRANSLATED),
        unserved_local(facts, family, counts),
        unallocated_chain(facts, family),
        counted(Chain::new(names::REJECT_PORT), Reason::NoEndpoints, counts).rule(Statement::Reject),
    ];
    if counts {
        for (name, reason) in [(names::DROP_PORT, Reason::NoLocalEndpoint), (names::DROP_SOURCE, Reason::SourceRanges)]
        {
            chains.push(counted(Chain::new(name), reason, true).rule(Statement::Verdict(Verdict::Drop)));
        }
    }
    chains
}

/// Adds the rule that counts the packets which the next rule refuses. It is a rule of its own, because a rule ends at a set that is
/// full.
fn counted(chain: Chain, reason: Reason, counts: bool) -> Chain {
    if counts { chain.rule(Statement::Count(VIP.into(), refused_name(reason))) } else { chain }
}

fn services_chain(facts: &Facts, family: Family, affinity: bool) -> Chain {
    let chain = Chain::new(names::SERVICES).comment("VIP to endpoint");
    let chain = rules::marking(chain, facts, family, SetId::ClusterIps, SetId::External)
        .rule([Statement::is_in(VIP, SetId::ExternalLocal.name()), Statement::jump(names::EXTERNAL_LOCAL)])
        .rule(choosing(Pool::Cluster));
    if affinity { chain.rule(to_affinity(Statement::goto(names::AFFINITY))) } else { chain }
}

/// The rule that leads to the choice of a slot. It keeps the number of slots in the packet's priority
/// (docs/decisions/0028). A map from each VIP to its chain would take one lookup, but the kernel would validate all of its elements
/// whenever one of them changes.
fn choosing(pool: Pool) -> Rule {
    let slots = Statement::PriorityMap(VIP.into(), pool.services().name().into());
    Rule::new([slots, Statement::vmap([Field::Priority], pool.sizes().name())])
}

fn to_affinity(verdict: Statement) -> Rule {
    Rule::new([numbering(), verdict])
}

/// The chain for external policy Local. Packets that may go to any endpoint return to the chain `services`.
fn external_local(facts: &Facts, family: Family, affinity: bool) -> Chain {
    let chain = Chain::new(names::EXTERNAL_LOCAL).comment("external traffic policy Local");
    let mut chain =
        own_traffic(chain, facts, family, Statement::goto(names::MARK_MASQUERADE)).rule(choosing(Pool::Local));
    if affinity {
        chain = chain.rule(to_affinity(Statement::jump(names::AFFINITY_LOCAL)));
    }
    chain.rule(Rule::from(Statement::Verdict(Verdict::Accept)).comment("no local endpoint: not translated"))
}

/// Adds the rules for senders to which external policy Local does not apply. `of_node` is the statement for packets from the node
/// itself.
fn own_traffic(chain: Chain, facts: &Facts, family: Family, of_node: Statement) -> Chain {
    rules::for_pods(chain, facts, family, Statement::Verdict(Verdict::Return)).rule(rules::for_node(of_node))
}

fn masquerading(facts: &Facts) -> Chain {
    let is_hairpin = Statement::is_in(HAIRPIN, SetId::Hairpin.name());
    rules::masquerading(facts).rule([Statement::ConnectionDnat, is_hairpin, Statement::Masquerade])
}

/// The chain for VIPs whose only endpoints are on other nodes, under external policy Local. The kernel does not treat a
/// connection as translated if the endpoint has the VIP's own address and port, for example if the VIP is a node's address and
/// the endpoint is a host-network pod of that node. So this chain checks who sent the packet, not whether it was translated:
/// packets from pods of this node and from the node itself pass, because the policy does not apply to them.
fn unserved_local(facts: &Facts, family: Family, counts: bool) -> Chain {
    let chain = Chain::new(names::UNSERVED_LOCAL).comment("external traffic policy Local without a local endpoint");
    let chain = own_traffic(chain, facts, family, Statement::Verdict(Verdict::Return));
    counted(chain, Reason::NoLocalEndpoint, counts).rule(Statement::Verdict(Verdict::Drop))
}

/// The chain that picks a slot, and clears the packet's priority, which has led to it.
pub fn lb(names: &ChainNames, pool: Pool, choice: Choice) -> Chain {
    let mut chain = rules::picking(&names.chain(pool, choice), pool.endpoints(), choice);
    chain.rules.insert(0, Statement::PriorityNone.into());
    chain
}

/// The comment of the rule for packets that were translated already.
const TRANSLATED: &str = "connected to another VIP";

/// The chain for unused addresses of Services. As in [`rules::unserved`], translated packets pass, even if the endpoint's
/// address is a ClusterIP or inside a ServiceCIDR.
fn unallocated_chain(facts: &Facts, family: Family) -> Chain {
    let unused_port = Rule::new([rules::to_cluster_ip(SetId::ClusterIps), Statement::Reject]);
    let chain = Chain::new(names::UNALLOCATED)
        .rule(rules::translated(TRANSLATED))
        .rule(unused_port.comment("unused ports of ClusterIPs"));
    rules::dropping_unallocated(chain, facts, family)
}
