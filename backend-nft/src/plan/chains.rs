//! The chains and their rules. No rule names a service, because services are elements of sets and maps.

use localnet_client::vips::{Facts, PodSource};
use localnet_linux::nft::{
    AddressField, Chain, ChainKind, Field, HookPoint, InterfacePattern, Op, Rule, Statement, Verdict, spread,
};
use localnet_proto::Family;

use super::{
    ChainNames,
    affinity::numbering,
    names,
    sets::{Pool, SetId, VIP},
};

/// Source filters need the address that the client connects to, so they run just before destination NAT.
const BEFORE_DNAT: i32 = -110;
const DNAT: i32 = -100;
const FILTER: i32 = 0;
const SNAT: i32 = 100;

/// The chains that always exist, in an order for human readers. `affinity` means that at least one VIP has session
/// affinity.
pub fn fixed(facts: &Facts, family: Family, affinity: bool) -> Vec<Chain> {
    let new = || Statement::ConnectionNew;
    let base = |name, kind, point, priority| Chain::base(name, kind, point, priority);
    let filter =
        |name, point| base(name, ChainKind::Filter, point, FILTER).rule([new(), Statement::jump(names::UNSERVED)]);
    let before =
        |name, point| base(name, ChainKind::Filter, point, BEFORE_DNAT).rule([new(), Statement::jump(names::FIREWALL)]);
    let unallocated = || [new(), Statement::jump(names::UNALLOCATED)];
    let services = || Statement::jump(names::SERVICES);
    vec![
        before("firewall-prerouting", HookPoint::Prerouting).comment("source filters, before translation"),
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
        Chain::new(names::MARK_MASQUERADE).rule(Statement::MarkOr(facts.masquerade_mark)),
        masquerading(facts),
        firewall(),
        unserved(),
        unserved_local(facts, family),
        unallocated_chain(facts, family),
        Chain::new(names::REJECT_PORT).rule(Statement::Reject),
    ]
}

fn services_chain(facts: &Facts, family: Family, affinity: bool) -> Chain {
    let mut chain = Chain::new(names::SERVICES).comment("VIP to endpoint");
    let to_cluster_ip = || Statement::is_in([Field::DestinationAddress], SetId::ClusterIps.name());
    let mark = || Statement::jump(names::MARK_MASQUERADE);
    if facts.masquerade_all {
        chain = chain.rule([to_cluster_ip(), mark()]);
    } else if let Some(pods) = facts.pods(family) {
        chain = chain
            .rule(Rule::new([from_pod(pods, Op::Ne), to_cluster_ip(), mark()]).comment("not from a pod of this node"));
    }
    chain = chain
        .rule([Statement::is_in(VIP, SetId::External.name()), mark()])
        .rule([Statement::is_in(VIP, SetId::ExternalLocal.name()), Statement::jump(names::EXTERNAL_LOCAL)])
        .rule(Statement::vmap(VIP, SetId::Services.name()));
    if affinity { chain.rule(to_affinity(Statement::goto(names::AFFINITY))) } else { chain }
}

fn to_affinity(verdict: Statement) -> Rule {
    Rule::new([numbering(), verdict])
}

/// The chain for external policy Local. It returns for packets that may go to any endpoint. Only one rule of one chain
/// looks up the map `services`, because the kernel validates everything behind a map again for each path that reaches
/// it.
fn external_local(facts: &Facts, family: Family, affinity: bool) -> Chain {
    let chain = Chain::new(names::EXTERNAL_LOCAL).comment("external traffic policy Local");
    let mut chain = own_traffic(chain, facts, family, Statement::goto(names::MARK_MASQUERADE))
        .rule(Statement::vmap(VIP, SetId::LocalServices.name()));
    if affinity {
        chain = chain.rule(to_affinity(Statement::jump(names::AFFINITY_LOCAL)));
    }
    chain.rule(Rule::from(Statement::Verdict(Verdict::Accept)).comment("no local endpoint: not translated"))
}

/// Adds the rules for senders that external policy Local does not concern. `of_node` is for packets from the node itself.
fn own_traffic(mut chain: Chain, facts: &Facts, family: Family, of_node: Statement) -> Chain {
    if let Some(pods) = facts.pods(family) {
        let rule = Rule::new([from_pod(pods, Op::Eq), Statement::Verdict(Verdict::Return)]);
        chain = chain.rule(rule.comment("pods of this node reach any endpoint"));
    }
    let from_node = Statement::Local(AddressField::Source, Op::Eq);
    chain.rule(Rule::new([from_node, of_node]).comment("and so does the node itself"))
}

fn masquerading(facts: &Facts) -> Chain {
    let mark = facts.masquerade_mark;
    let hairpin = [Field::SourceAddress, Field::DestinationAddress, Field::Protocol, Field::DestinationPort];
    Chain::new(names::MASQUERADING)
        .rule([Statement::MarkHas(Op::Eq, mark), Statement::MarkXor(mark), Statement::Masquerade])
        .rule([Statement::ConnectionDnat, Statement::is_in(hairpin, SetId::Hairpin.name()), Statement::Masquerade])
}

fn firewall() -> Chain {
    let with_source = [VIP.as_slice(), &[Field::SourceAddress]].concat();
    Chain::new(names::FIREWALL).rule([
        Statement::is_in(VIP, SetId::Firewalled.name()),
        Statement::is_not_in(with_source, SetId::AllowedSources.name()),
        Statement::Verdict(Verdict::Drop),
    ])
}

/// The chain for VIPs without endpoints. An endpoint may have the address and port of such a VIP, for instance a pod of
/// the host network behind a node's address. Packets that another VIP already translated to it pass.
fn unserved() -> Chain {
    Chain::new(names::UNSERVED).rule(translated()).rule(Statement::vmap(VIP, SetId::NoEndpoints.name()))
}

/// The chain for VIPs whose only endpoints are on other nodes, under external policy Local. The kernel does not call a
/// connection translated if its endpoint has the VIP's own address and port, such as a pod of the host network behind its
/// node's address. So this chain goes by the sender: pods of this node and the node itself always have an endpoint.
fn unserved_local(facts: &Facts, family: Family) -> Chain {
    let chain = Chain::new(names::UNSERVED_LOCAL).comment("external traffic policy Local without a local endpoint");
    own_traffic(chain, facts, family, Statement::Verdict(Verdict::Return)).rule(Statement::Verdict(Verdict::Drop))
}

fn translated() -> Rule {
    Rule::new([Statement::ConnectionDnat, Statement::Verdict(Verdict::Return)]).comment("connected to another VIP")
}

/// The chain for unused addresses of Services. As in [`unserved`], translated packets pass, even if the endpoint's
/// address is a ClusterIP or inside a ServiceCIDR.
fn unallocated_chain(facts: &Facts, family: Family) -> Chain {
    let unused_port =
        Rule::new([Statement::is_in([Field::DestinationAddress], SetId::ClusterIps.name()), Statement::Reject]);
    let chain =
        Chain::new(names::UNALLOCATED).rule(translated()).rule(unused_port.comment("unused ports of ClusterIPs"));
    let cidrs = facts.service_cidrs.iter().filter(|cidr| Family::of(cidr.addr()) == family);
    cidrs.fold(chain, |chain, cidr| {
        let to_cidr = Statement::Address(AddressField::Destination, Op::Eq, cidr.trunc());
        chain.rule(Rule::new([to_cidr, Statement::Verdict(Verdict::Drop)]).comment("unallocated ClusterIPs"))
    })
}

/// The match for packets that come from a pod (`==`) or do not (`!=`).
fn from_pod(pods: &PodSource, op: Op) -> Statement {
    match pods {
        PodSource::Cidr(cidr) => Statement::Address(AddressField::Source, op, *cidr),
        PodSource::Interface(name) => Statement::InputInterface(op, InterfacePattern::Exact(name.clone())),
        PodSource::InterfacePrefix(prefix) => Statement::InputInterface(op, InterfacePattern::Prefix(prefix.clone())),
    }
}

/// The chain that picks one of `slots` slots. Slot 0 always has an endpoint.
pub fn lb(names: &ChainNames, pool: Pool, slots: u32) -> Chain {
    spread::picking(names.chain(pool, slots).clone(), &VIP, pool.endpoints().name(), slots)
}
