//! The chains and their rules. No rule mentions a Service: Services are elements of sets and maps.
//!
//! IPVS handles packets to VIPs in the hooks `input` (from other hosts) and `output` (from this node), after the chains of this
//! module. It rewrites them and sends them on through `output` and `postrouting`. Therefore the chains either handle a packet
//! before IPVS sees it, or match the original destination of its connection:
//!
//! ```text
//!  from other hosts: firewall ─► nat-prerouting (marks) ─► filter-input ─► IPVS ─► output, nat-postrouting
//!  from this node:   firewall ─► filter-output-vips ─► nat-output (marks) ─► IPVS ─► filter-output, nat-postrouting
//!                                                  without a virtual server: └─► missed, instead of the node's own ports
//! ```

use localnet_client::vips::Facts;
use localnet_linux::nft::{AddressField, Chain, ChainKind, Field, HookPoint, Op, Rule, Statement, Verdict};
use localnet_linux_backend::rules::{self, BEFORE_DNAT, DNAT, FILTER, SNAT};
use localnet_proto::{Family, Protocol};

use super::sets::{ASKED_FOR, HAIRPIN, SetId, Sets as _, VIP};

/// The names of the chains that other chains jump to.
pub mod names {
    pub use localnet_linux::nft::chain_names::{
        EXTERNAL_LOCAL, FIREWALL, MARK_MASQUERADE, MASQUERADING, REJECT_PORT, UNALLOCATED, UNSERVED,
    };

    /// Handles packets to VIPs before IPVS: marks them for masquerading, or sends them to [`EXTERNAL_LOCAL`].
    pub const SERVICES: &str = "services-entry";
    /// Rejects packets to the address of a VIP if their protocol and port belong to no VIP.
    pub const ACCESS: &str = "access";
    /// Drops packets to VIPs whose virtual server is missing.
    pub const MISSED: &str = "missed";
}

/// The priority between destination NAT (-100) and IPVS (-98) in `output`, so that rules can match translated connections.
const BEFORE_IPVS: i32 = -99;
/// The priority after IPVS, which has 98 (replies) and 99 (requests) in `input`.
const BEHIND_IPVS: i32 = 110;

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
        rules::mark_masquerade(facts),
        masquerading(facts),
        rules::firewall(ASKED_FOR, SetId::Firewalled, SetId::AllowedSources, Verdict::Drop),
        rules::unserved(ASKED_FOR, SetId::NoEndpoints, TRANSLATED),
        access(),
        missed(),
        unallocated(facts, family),
        Chain::new(names::REJECT_PORT).rule(Statement::Reject),
    ]
}

/// The comment of the rule for packets that were translated already.
const TRANSLATED: &str = "goes to an endpoint";

fn services(facts: &Facts, family: Family) -> Chain {
    let chain = Chain::new(names::SERVICES).comment("before IPVS");
    rules::marking(chain, facts, family, SetId::ClusterIps, SetId::External)
        .rule([Statement::is_in(VIP, SetId::ExternalLocal.name()), Statement::goto(names::EXTERNAL_LOCAL)])
}

/// A virtual server has only one set of endpoints. With external policy Local, this is the set of local endpoints, and the
/// virtual server serves only traffic from outside. This node's own traffic may go to any endpoint, so this chain translates it
/// before IPVS sees it.
fn external_local(facts: &Facts, family: Family) -> Chain {
    let chain = Chain::new(names::EXTERNAL_LOCAL).comment("external traffic policy Local");
    let any_endpoint = || Statement::vmap(VIP, SetId::Services.name());
    let from_node = Statement::Local(AddressField::Source, Op::Eq);
    rules::for_pods(chain, facts, family, any_endpoint())
        .rule(rules::for_node(Statement::jump(names::MARK_MASQUERADE)))
        .rule([from_node, any_endpoint()])
}

fn masquerading(facts: &Facts) -> Chain {
    let asked_for_vip = || Statement::is_in(ASKED_FOR, SetId::Vips.name());
    let from_address = Statement::is_in([Field::SourceAddress], SetId::Addresses.name());
    let from_vip = Rule::new([from_address, asked_for_vip(), Statement::Masquerade]);
    rules::masquerading(facts)
        .rule([Statement::is_in(HAIRPIN, SetId::Hairpin.name()), asked_for_vip(), Statement::Masquerade])
        .rule(from_vip.comment("this node's own packets to a VIP have the VIP as their source"))
}

/// Rejects packets to the address of a VIP if their protocol and port belong to no VIP. The addresses of VIPs are local to the
/// node, so clients could otherwise reach the node's own ports through them.
fn access() -> Chain {
    Chain::new(names::ACCESS).comment("addresses of VIPs must not lead to the node's own ports").rule([
        Statement::is_in([Field::DestinationAddress], SetId::Addresses.name()),
        Statement::is_not_in(VIP, SetId::Vips.name()),
        Statement::Reject,
    ])
}

/// Drops packets to a VIP whose virtual server is missing. IPVS takes packets for its virtual servers. If a packet that opens a
/// connection to a VIP gets past IPVS, another program has deleted the virtual server, and a repair will add it again. Until
/// then, a client without an answer retries, but a rejected client would give up.
///
/// The rules match only addresses of our interface, where no other program may listen. Otherwise they would also drop packets
/// from IPVS to an endpoint on the node itself.
fn missed() -> Chain {
    let on_interface = || Statement::is_in([Field::DestinationAddress], SetId::Addresses.name());
    let to_vip = || Statement::is_in(VIP, SetId::Vips.name());
    let drop = || Statement::Verdict(Verdict::Drop);
    Chain::new(names::MISSED)
        .comment("packets to VIPs whose virtual server is missing")
        .rule([on_interface(), to_vip(), Statement::TcpOpens, drop()])
        .rule([Statement::Protocol(Op::Ne, Protocol::Tcp), on_interface(), to_vip(), drop()])
}

fn unallocated(facts: &Facts, family: Family) -> Chain {
    let own = Rule::new([
        Statement::is_in([Field::DestinationAddress], SetId::Addresses.name()),
        Statement::Verdict(Verdict::Return),
    ]);
    let chain = Chain::new(names::UNALLOCATED).rule(rules::translated(TRANSLATED)).rule(own);
    rules::dropping_unallocated(chain, facts, family)
}
