//! The chains and their rules. No rule names a Service: Services are elements of sets and maps.
//!
//! IPVS takes packets to VIPs in the hooks `input` (from other hosts) and `output` (from this node), after the chains of this
//! module. It rewrites them and sends them on through `output` and `postrouting`. So every decision about a VIP is made before
//! IPVS sees the packet, or uses the original destination of the connection:
//!
//! ```text
//!  from other hosts: firewall ─► nat-prerouting (marks) ─► filter-input ─► IPVS ─► output, nat-postrouting
//!  from this node:   firewall ─► filter-output-vips ─► nat-output (marks) ─► IPVS ─► filter-output, nat-postrouting
//!                                                  without a virtual server: └─► missed, instead of the node's own ports
//! ```

use localnet_client::vips::{Facts, PodSource};
use localnet_linux::nft::{
    AddressField, Chain, ChainKind, Field, HookPoint, InterfacePattern, Name, Op, Rule, Statement, Verdict, spread,
};
use localnet_proto::{Family, Protocol};

use super::sets::{ASKED_FOR, SetId, VIP};

/// The names of the chains that other chains jump to.
pub mod names {
    pub use localnet_linux::nft::chain_names::{
        EXTERNAL_LOCAL, FIREWALL, MARK_MASQUERADE, MASQUERADING, REJECT_PORT, UNALLOCATED, UNSERVED,
    };

    /// Decides about traffic to VIPs before IPVS sees it.
    pub const SERVICES: &str = "services-entry";
    /// Rejects packets to an address of VIPs that match no VIP.
    pub const ACCESS: &str = "access";
    /// Drops packets to VIPs whose virtual server is missing.
    pub const MISSED: &str = "missed";
}

/// Before destination NAT, and before IPVS, which has priority -98 in `output` and 98 in `input`.
const BEFORE_DNAT: i32 = -110;
const DNAT: i32 = -100;
const FILTER: i32 = 0;
const BEHIND_IPVS: i32 = 110;
const SNAT: i32 = 100;

/// The chains that always exist, in an order that is easy to read.
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

/// Before IPVS, but after destination NAT, so that translated connections can be matched.
const BEFORE_IPVS: i32 = -99;

fn services(facts: &Facts, family: Family) -> Chain {
    let mut chain = Chain::new(names::SERVICES).comment("before IPVS");
    let to_cluster_ip = || Statement::is_in([Field::DestinationAddress], SetId::ClusterIps.name());
    let mark = || Statement::jump(names::MARK_MASQUERADE);
    if facts.masquerade_all {
        chain = chain.rule([to_cluster_ip(), mark()]);
    } else if let Some(pods) = facts.pods(family) {
        chain = chain
            .rule(Rule::new([from_pod(pods, Op::Ne), to_cluster_ip(), mark()]).comment("not from a pod of this node"));
    }
    chain
        .rule([Statement::is_in(VIP, SetId::External.name()), mark()])
        .rule([Statement::is_in(VIP, SetId::ExternalLocal.name()), Statement::goto(names::EXTERNAL_LOCAL)])
}

/// A virtual server sends all its connections to the same endpoints. For traffic from outside, these are the local ones. This
/// node's own traffic may go to any endpoint, so it is translated here, before IPVS sees it.
fn external_local(facts: &Facts, family: Family) -> Chain {
    let mut chain = Chain::new(names::EXTERNAL_LOCAL).comment("external traffic policy Local");
    let any_endpoint = || Statement::vmap(VIP, SetId::Services.name());
    let from_node = || Statement::Local(AddressField::Source, Op::Eq);
    if let Some(pods) = facts.pods(family) {
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

/// The addresses of VIPs are local addresses of the node. This chain keeps clients from reaching the node's own ports through
/// them.
fn access() -> Chain {
    Chain::new(names::ACCESS).comment("the node's own ports are not reached by addresses of VIPs").rule([
        Statement::is_in([Field::DestinationAddress], SetId::Addresses.name()),
        Statement::is_not_in(VIP, SetId::Vips.name()),
        Statement::Reject,
    ])
}

/// IPVS takes packets for its virtual servers. A packet that opens a connection to a VIP and gets past IPVS found no virtual
/// server: another program deleted it, and a repair will add it again. A client without an answer retries, but a rejected client
/// gives up. The rules match only addresses of our interface, where no other program may listen, because packets from IPVS to an
/// endpoint on the node itself pass this chain, too.
fn missed() -> Chain {
    let on_interface = || Statement::is_in([Field::DestinationAddress], SetId::Addresses.name());
    let to_vip = || Statement::is_in(VIP, SetId::Vips.name());
    let drop = || Statement::Verdict(Verdict::Drop);
    Chain::new(names::MISSED)
        .comment("traffic to missing virtual servers returns")
        .rule([on_interface(), to_vip(), Statement::TcpOpens, drop()])
        .rule([Statement::Protocol(Op::Ne, Protocol::Tcp), on_interface(), to_vip(), drop()])
}

fn unallocated(facts: &Facts, family: Family) -> Chain {
    let own = Rule::new([
        Statement::is_in([Field::DestinationAddress], SetId::Addresses.name()),
        Statement::Verdict(Verdict::Return),
    ]);
    let chain = Chain::new(names::UNALLOCATED).rule(translated()).rule(own);
    let cidrs = facts.service_cidrs.iter().filter(|cidr| Family::of(cidr.addr()) == family);
    cidrs.fold(chain, |chain, cidr| {
        let to_cidr = Statement::Address(AddressField::Destination, Op::Eq, cidr.trunc());
        chain.rule(Rule::new([to_cidr, Statement::Verdict(Verdict::Drop)]).comment("unallocated ClusterIPs"))
    })
}

/// Matches packets from a pod (`==`), or packets that are not from a pod (`!=`).
fn from_pod(pods: &PodSource, op: Op) -> Statement {
    match pods {
        PodSource::Cidr(cidr) => Statement::Address(AddressField::Source, op, *cidr),
        PodSource::Interface(name) => Statement::InputInterface(op, InterfacePattern::Exact(name.clone())),
        PodSource::InterfacePrefix(prefix) => Statement::InputInterface(op, InterfacePattern::Prefix(prefix.clone())),
    }
}

/// The name of the chain that picks one of `slots` slots.
pub fn lb_name(slots: u32) -> Name {
    format!("lb-{slots}").into()
}

/// The chain that picks one of `slots` slots. Slot 0 is always filled.
pub fn lb(slots: u32) -> Chain {
    spread::picking(lb_name(slots), &VIP, SetId::Endpoints.name(), slots)
}
