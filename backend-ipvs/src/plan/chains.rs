//! The chains and their rules. None of them names a service: services are elements of sets and maps.
//!
//! IPVS takes packets to VIPs in `input` (from others) and `output` (from this node), behind the hooks of these chains, rewrites
//! them and sends them on through `output` and `postrouting`. So whatever is to be decided about a VIP is decided by where the
//! connection was sent to at first, and before IPVS sees it:
//!
//! ```text
//!  from others: firewall ─► nat-prerouting (marks) ─► filter-input ─► IPVS ─► output, nat-postrouting
//!  from here:   firewall ─► filter-output-vips ─► nat-output (marks) ─► IPVS ─► filter-output, nat-postrouting
//!                                     a virtual server is missing: └─► missed, and not this node
//! ```

use localnet_client::vips::{Facts, PodSource};
use localnet_linux::nft::{
    AddressField, Chain, ChainKind, Family, Field, HookPoint, InterfacePattern, Name, Op, Protocol, Rule, Statement,
    Verdict, spread,
};

use super::{
    model_family,
    sets::{ASKED_FOR, SetId, VIP},
};

/// Names of the chains that others jump to.
pub mod names {
    /// What is decided about traffic to VIPs before IPVS sees it.
    pub const SERVICES: &str = "services-entry";
    /// Traffic to VIPs whose external policy is Local.
    pub const EXTERNAL_LOCAL: &str = "external-local";
    /// Asks for masquerading.
    pub const MARK_MASQUERADE: &str = "mark-masquerade";
    /// Masquerades what asked for it, hairpins, and what comes from a VIP.
    pub const MASQUERADING: &str = "masquerading";
    /// Answers "connection refused".
    pub const REJECT_PORT: &str = "reject-port";
    /// Drops what source filters do not allow.
    pub const FIREWALL: &str = "firewall";
    /// Answers for VIPs without endpoints.
    pub const UNSERVED: &str = "unserved";
    /// Refuses what is no VIP of an address that is there for VIPs.
    pub const ACCESS: &str = "access";
    /// Keeps silent about VIPs that IPVS does not know.
    pub const MISSED: &str = "missed";
    /// Answers for what is no VIP but could be one.
    pub const UNALLOCATED: &str = "unallocated";
}

/// Before IPVS, which is at -98 in `output` and at 98 in `input`, and before destination NAT.
const BEFORE_DNAT: i32 = -110;
const DNAT: i32 = -100;
const FILTER: i32 = 0;
const BEHIND_IPVS: i32 = 110;
const SNAT: i32 = 100;

/// The chains that are always there, in the order in which a human reads them.
pub fn fixed(facts: &Facts, family: Family) -> Vec<Chain> {
    let new = || Statement::ConnectionNew;
    let base = |name, kind, point, priority| Chain::base(name, kind, point, priority);
    let filter = |name, point, priority| base(name, ChainKind::Filter, point, priority);
    let nat = |name, point, priority| base(name, ChainKind::Nat, point, priority);
    let jump = |chain| [new(), Statement::jump(chain)];
    vec![
        filter("filter-prerouting", HookPoint::Prerouting, BEFORE_DNAT)
            .comment("source filters")
            .rule(jump(names::FIREWALL)),
        filter("filter-output-vips", HookPoint::Output, BEFORE_DNAT)
            .comment("this node's own traffic, before IPVS")
            .rule(jump(names::FIREWALL)),
        nat("nat-prerouting", HookPoint::Prerouting, DNAT).rule(Statement::jump(names::SERVICES)),
        nat("nat-output", HookPoint::Output, DNAT).rule(Statement::jump(names::SERVICES)),
        nat("nat-postrouting", HookPoint::Postrouting, SNAT).rule(Statement::jump(names::MASQUERADING)),
        filter("filter-input", HookPoint::Input, FILTER)
            .comment("before IPVS")
            .rule(jump(names::UNSERVED))
            .rule(jump(names::ACCESS)),
        filter("filter-input-missed", HookPoint::Input, BEHIND_IPVS)
            .comment("behind IPVS")
            .rule(Statement::jump(names::MISSED)),
        filter("filter-forward", HookPoint::Forward, FILTER).rule(jump(names::UNSERVED)).rule(jump(names::UNALLOCATED)),
        filter("filter-output", HookPoint::Output, BEFORE_IPVS)
            .comment("before IPVS")
            .rule(jump(names::UNSERVED))
            .rule(jump(names::UNALLOCATED)),
        services(facts, family),
        external_local(facts, family),
        Chain::new(names::MARK_MASQUERADE).rule(Statement::MarkOr(facts.masquerade_mark)),
        masquerading(facts),
        firewall(),
        unserved(),
        access(),
        missed(),
        unallocated(facts, family),
        Chain::new(names::REJECT_PORT).rule(Statement::Reject),
    ]
}

/// Behind destination NAT, so that what was translated is known, and before IPVS.
const BEFORE_IPVS: i32 = -99;

fn services(facts: &Facts, family: Family) -> Chain {
    let mut chain = Chain::new(names::SERVICES).comment("before IPVS");
    let to_cluster_ip = || Statement::is_in([Field::DestinationAddress], SetId::ClusterIps.name());
    let mark = || Statement::jump(names::MARK_MASQUERADE);
    if facts.masquerade_all {
        chain = chain.rule([to_cluster_ip(), mark()]);
    } else if let Some(pods) = facts.pods(model_family(family)) {
        chain = chain
            .rule(Rule::new([from_pod(pods, Op::Ne), to_cluster_ip(), mark()]).comment("not from a pod of this node"));
    }
    chain
        .rule([Statement::is_in(VIP, SetId::External.name()), mark()])
        .rule([Statement::is_in(VIP, SetId::ExternalLocal.name()), Statement::goto(names::EXTERNAL_LOCAL)])
}

/// A virtual server sends all its connections to the same endpoints: those of this node, for traffic from outside. So what comes
/// from this node, which may go to any endpoint, is translated here, and IPVS does not see it.
fn external_local(facts: &Facts, family: Family) -> Chain {
    let mut chain = Chain::new(names::EXTERNAL_LOCAL).comment("external traffic policy Local");
    let any_endpoint = || Statement::vmap(VIP, SetId::Services.name());
    let from_node = || Statement::Local(AddressField::Source, Op::Eq);
    if let Some(pods) = facts.pods(model_family(family)) {
        let rule = Rule::new([from_pod(pods, Op::Eq), any_endpoint()]);
        chain = chain.rule(rule.comment("pods of this node reach any endpoint"));
    }
    chain
        .rule(Rule::new([from_node(), Statement::jump(names::MARK_MASQUERADE)]).comment("and so does the node itself"))
        .rule([from_node(), any_endpoint()])
}

fn masquerading(facts: &Facts) -> Chain {
    let mark = facts.masquerade_mark;
    let hairpin = [Field::SourceAddress, Field::DestinationAddress, Field::Protocol, Field::DestinationPort];
    let from_vip = [
        Statement::is_in([Field::SourceAddress], SetId::Addresses.name()),
        Statement::is_in(ASKED_FOR, SetId::Vips.name()),
        Statement::Masquerade,
    ];
    Chain::new(names::MASQUERADING)
        .rule([Statement::MarkHas(Op::Eq, mark), Statement::MarkXor(mark), Statement::Masquerade])
        .rule([
            Statement::is_in(hairpin, SetId::Hairpin.name()),
            Statement::is_in(ASKED_FOR, SetId::Vips.name()),
            Statement::Masquerade,
        ])
        .rule(Rule::new(from_vip).comment("what this node sends to a VIP comes from its address"))
}

fn firewall() -> Chain {
    let with_source = [ASKED_FOR.as_slice(), &[Field::SourceAddress]].concat();
    Chain::new(names::FIREWALL).rule([
        Statement::is_in(ASKED_FOR, SetId::Firewalled.name()),
        Statement::is_not_in(with_source, SetId::AllowedSources.name()),
        Statement::Verdict(Verdict::Drop),
    ])
}

fn unserved() -> Chain {
    Chain::new(names::UNSERVED).rule(translated()).rule(Statement::vmap(ASKED_FOR, SetId::NoEndpoints.name()))
}

fn translated() -> Rule {
    Rule::new([Statement::ConnectionDnat, Statement::Verdict(Verdict::Return)]).comment("goes to an endpoint")
}

/// The addresses of VIPs are the node's own as long as they are there: what listens on the node is not to be reached by them.
fn access() -> Chain {
    Chain::new(names::ACCESS).comment("the node's own ports are not reached by addresses of VIPs").rule([
        Statement::is_in([Field::DestinationAddress], SetId::Addresses.name()),
        Statement::is_not_in(VIP, SetId::Vips.name()),
        Statement::Reject,
    ])
}

/// IPVS takes what is for a virtual server. What opens a connection to a VIP and gets past it has found none: somebody has deleted it, and
/// it comes back. Who gets no answer asks again; who is refused gives up. Only where nobody else may listen: what IPVS has sent to an
/// endpoint that is the node itself comes by here as well.
fn missed() -> Chain {
    let on_interface = || Statement::is_in([Field::DestinationAddress], SetId::Addresses.name());
    let to_vip = || Statement::is_in(VIP, SetId::Vips.name());
    let drop = || Statement::Verdict(Verdict::Drop);
    Chain::new(names::MISSED)
        .comment("virtual servers that are missing come back")
        .rule([on_interface(), to_vip(), Statement::TcpOpens, drop()])
        .rule([Statement::Protocol(Op::Ne, Protocol::Tcp), on_interface(), to_vip(), drop()])
}

fn unallocated(facts: &Facts, family: Family) -> Chain {
    let own = Rule::new([
        Statement::is_in([Field::DestinationAddress], SetId::Addresses.name()),
        Statement::Verdict(Verdict::Return),
    ]);
    let chain = Chain::new(names::UNALLOCATED).rule(translated()).rule(own);
    let cidrs = facts.service_cidrs.iter().filter(|cidr| Family::of(&cidr.addr()) == family);
    cidrs.fold(chain, |chain, cidr| {
        let to_cidr = Statement::Address(AddressField::Destination, Op::Eq, cidr.trunc());
        chain.rule(Rule::new([to_cidr, Statement::Verdict(Verdict::Drop)]).comment("unallocated ClusterIPs"))
    })
}

/// The match of packets that come from a pod (`==`), or do not (`!=`).
fn from_pod(pods: &PodSource, op: Op) -> Statement {
    match pods {
        PodSource::Cidr(cidr) => Statement::Address(AddressField::Source, op, *cidr),
        PodSource::Interface(name) => Statement::InputInterface(op, InterfacePattern::Exact(name.clone())),
        PodSource::InterfacePrefix(prefix) => Statement::InputInterface(op, InterfacePattern::Prefix(prefix.clone())),
    }
}

/// The name of the chain that picks one of so many slots.
pub fn lb_name(slots: u32) -> Name {
    format!("lb-{slots}").into()
}

/// The chain that picks one of so many slots. Slot 0 is always filled.
pub fn lb(slots: u32) -> Chain {
    spread::picking(lb_name(slots), &VIP, SetId::Endpoints.name(), slots)
}
