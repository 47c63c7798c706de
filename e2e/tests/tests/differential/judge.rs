//! Whether what was seen is what the oracle says. Pure.

use std::{collections::BTreeSet, net::SocketAddr};

use localnet_client::route::Outcome;
use localnet_lab::{Topology, probe};

use crate::{
    ask::{Asked, Seen},
    question::Sender,
};

/// What is wrong with it, if anything.
pub(crate) fn judge(asked: &Asked, seen: &Seen, topology: &Topology) -> Option<String> {
    let only = |outcome| seen.answers.is_empty() && seen.others == BTreeSet::from([outcome]);
    match &asked.expected {
        Outcome::Reject => (!only(probe::Outcome::Rejected)).then(|| "not rejected".to_owned()),
        Outcome::Drop => (!only(probe::Outcome::Dropped)).then(|| "not dropped".to_owned()),
        Outcome::NotOurs => {
            let untouched = (asked.question.to, asked.question.source());
            let is_untouched = seen.others.is_empty() && seen.answers.keys().eq([&untouched]);
            (!is_untouched).then(|| "not left alone".to_owned())
        }
        Outcome::Endpoints { choices, affinity, .. } => {
            if let Some(other) = seen.others.first() {
                return Some(format!("{other} instead of an endpoint"));
            }
            let by: BTreeSet<SocketAddr> = seen.answers.keys().map(|(by, _)| *by).collect();
            if let Some(wrong) = by.difference(choices).next() {
                return Some(format!("{wrong} is none of the endpoints"));
            }
            if let Some(wrong) =
                seen.answers.keys().find(|(by, source)| !source_is_right(asked, topology, *by, *source))
            {
                return Some(format!("{} saw the source {}", wrong.0, wrong.1));
            }
            if affinity.is_some() && by.len() > 1 {
                return Some("the client does not stay with one endpoint".to_owned());
            }
            let missed = choices.difference(&by).next().filter(|_| asked.cover && affinity.is_none())?;
            Some(format!("{missed} is never chosen"))
        }
    }
}

fn source_is_right(asked: &Asked, topology: &Topology, by: SocketAddr, seen: std::net::IpAddr) -> bool {
    let Outcome::Endpoints { masquerade, hairpin, .. } = &asked.expected else { return true };
    // What comes in and stays on the node never passes the hook that masquerades.
    let leaves = asked.question.sender == Sender::Node || !topology.node_has(by.ip());
    if leaves && (*masquerade || hairpin.contains(&by)) {
        topology.node_has(seen)
    } else {
        seen == asked.question.source()
    }
}
