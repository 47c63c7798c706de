//! Tables of other programs on the node: a CNI plugin's masquerade table and a firewall.
//!
//! The `nftables` crate builds them and `nft` loads them, as such programs do. A test installs them, runs a backend, and checks
//! that they did not change: same text, same handles. No rule counts packets, so traffic changes nothing. No rule affects the
//! flows of a Case, except that packets of pods to external addresses leave with the node's address.

use std::process::Command;

use anyhow::{Context, bail};
use nftables::batch::Batch;
use nftables::expr::{CT, Expression, NamedExpression, Payload, PayloadField, Prefix};
use nftables::schema::{Chain, NfListObject, Rule, Set, SetType, SetTypeValue, Table};
use nftables::stmt::{Match, Operator, Statement};
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook};

use crate::namespace::Namespace;

const CNI: &str = "cni-masquerade";
const FIREWALL: &str = "firewall";

/// Foreign tables in a namespace, with their listing after the installation.
#[derive(Debug)]
pub struct ForeignTables {
    listing: String,
}

impl ForeignTables {
    /// Loads the tables `ip cni-masquerade`, `ip6 cni-masquerade` and `inet firewall`.
    ///
    /// # Errors
    /// Returns an error if `nft` is missing or refuses the tables.
    pub fn install(namespace: &Namespace) -> anyhow::Result<Self> {
        let mut batch = Batch::new();
        cni(&mut batch, NfFamily::IP, "ip", ("10.180.0.0", 24), ("10.180.0.0", 16));
        cni(&mut batch, NfFamily::IP6, "ip6", ("fd00:10:180::", 64), ("fd00:10:180::", 48));
        firewall(&mut batch);
        let ruleset = batch.to_nftables();
        namespace
            .run(|| Ok(nftables::helper::apply_ruleset(&ruleset)?))
            .context("loading foreign tables (is nft installed?)")?;
        Ok(Self { listing: listing(namespace)? })
    }

    /// Checks that the tables are exactly as installed.
    ///
    /// # Errors
    /// Returns an error if the tables have changed. The error shows both listings.
    pub fn check_unchanged(&self, namespace: &Namespace) -> anyhow::Result<()> {
        let now = listing(namespace)?;
        if now != self.listing {
            bail!("foreign tables were changed; installed:\n{}\nnow:\n{now}", self.listing);
        }
        Ok(())
    }
}

/// The foreign tables with all handles.
fn listing(namespace: &Namespace) -> anyhow::Result<String> {
    let mut text = String::new();
    for (family, table) in [("ip", CNI), ("ip6", CNI), ("inet", FIREWALL)] {
        text += &namespace.output(Command::new("nft").args(["-a", "list", "table", family, table]))?;
    }
    Ok(text)
}

/// Masquerades packets that leave the cluster from this node's pods.
fn cni(
    batch: &mut Batch<'_>,
    family: NfFamily,
    header: &'static str,
    pods: (&'static str, u32),
    cluster: (&'static str, u32),
) {
    batch.add(NfListObject::Table(Table { family, name: CNI.into(), handle: None }));
    batch.add(NfListObject::Chain(Chain {
        family,
        table: CNI.into(),
        name: "postrouting".into(),
        _type: Some(NfChainType::NAT),
        hook: Some(NfHook::Postrouting),
        prio: Some(100),
        policy: Some(NfChainPolicy::Accept),
        ..Chain::default()
    }));
    batch.add(NfListObject::Rule(Rule {
        family,
        table: CNI.into(),
        chain: "postrouting".into(),
        expr: vec![
            is(Operator::EQ, field(header, "saddr"), prefix(pods)),
            is(Operator::NEQ, field(header, "daddr"), prefix(cluster)),
            Statement::Masquerade(None),
        ]
        .into(),
        comment: Some("pods to external addresses".into()),
        ..Rule::default()
    }));
}

/// Accepts replies, drops packets of a set of blocked clients, and drops telnet.
fn firewall(batch: &mut Batch<'_>) {
    let family = NfFamily::INet;
    batch.add(NfListObject::Table(Table { family, name: FIREWALL.into(), handle: None }));
    batch.add(NfListObject::Set(Box::new(Set {
        family,
        table: FIREWALL.into(),
        name: "blocked".into(),
        set_type: SetTypeValue::Single(SetType::Ipv4Addr),
        elem: Some(vec![Expression::String("198.51.100.1".into())].into()),
        ..Set::default()
    })));
    for (name, hook) in [("input", NfHook::Input), ("forward", NfHook::Forward)] {
        batch.add(NfListObject::Chain(Chain {
            family,
            table: FIREWALL.into(),
            name: name.into(),
            _type: Some(NfChainType::Filter),
            hook: Some(hook),
            prio: Some(0),
            policy: Some(NfChainPolicy::Accept),
            ..Chain::default()
        }));
        let state = Expression::Named(NamedExpression::CT(CT { key: "state".into(), family: None, dir: None }));
        let known =
            Expression::List(vec![Expression::String("established".into()), Expression::String("related".into())]);
        let blocked = Expression::String("@blocked".into());
        for expr in [
            vec![is(Operator::IN, state, known), Statement::Accept(None)],
            vec![is(Operator::EQ, field("ip", "saddr"), blocked), Statement::Drop(None)],
            vec![is(Operator::EQ, field("tcp", "dport"), Expression::Number(23)), Statement::Drop(None)],
        ] {
            batch.add(NfListObject::Rule(Rule {
                family,
                table: FIREWALL.into(),
                chain: name.into(),
                expr: expr.into(),
                ..Rule::default()
            }));
        }
    }
}

fn is<'a>(op: Operator, left: Expression<'a>, right: Expression<'a>) -> Statement<'a> {
    Statement::Match(Match { left, right, op })
}

fn field<'a>(protocol: &'a str, field: &'a str) -> Expression<'a> {
    let field = PayloadField { protocol: protocol.into(), field: field.into() };
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(field)))
}

fn prefix<'a>((address, len): (&'a str, u32)) -> Expression<'a> {
    let addr = Box::new(Expression::String(address.into()));
    Expression::Named(NamedExpression::Prefix(Prefix { addr, len }))
}
