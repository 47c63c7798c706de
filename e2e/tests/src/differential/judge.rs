//! Compares the observed outcomes with those of the oracle. Pure.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use localnet_client::route::Outcome;
use localnet_lab::{Topology, probe};

use super::{
    ask::{Asked, Seen},
    question::Sender,
};

/// The contradiction, if there is one.
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
            let lasted = seen.span.map_or(0.0, |span| span.ended.duration_since(span.began).as_secs_f64());
            let stays = affinity.is_some_and(|of| lasted < f64::from(of.seconds) * 0.8);
            if stays && by.len() > 1 {
                return Some("the client does not stay with one endpoint".to_owned());
            }
            let missed = choices.difference(&by).next().filter(|_| asked.cover && affinity.is_none())?;
            Some(format!("{missed} is never chosen"))
        }
    }
}

fn source_is_right(asked: &Asked, topology: &Topology, by: SocketAddr, seen: IpAddr) -> bool {
    let Outcome::Endpoints { masquerade, hairpin, .. } = &asked.expected else { return true };
    // A packet that arrives and stays on the node does not pass the hook that masquerades.
    let leaves = asked.question.sender == Sender::Node || !topology.node_has(by.ip());
    if leaves && (*masquerade || hairpin.contains(&by)) {
        topology.node_has(seen)
    } else {
        seen == asked.question.source()
    }
}

#[test]
fn what_the_oracle_does_not_say_is_wrong() {
    use super::{pools, question::Question};
    let endpoint = |text: &str| text.parse::<SocketAddr>().unwrap();
    let (one, two, host) = (endpoint("10.180.0.1:80"), endpoint("10.180.0.2:80"), endpoint("192.168.0.2:80"));
    let (client, node): (IpAddr, IpAddr) = ("203.0.113.2".parse().unwrap(), "10.180.0.254".parse().unwrap());
    let to = endpoint("198.51.100.1:80");
    let asked = |expected, cover| {
        let about = String::new();
        let question = Question { sender: Sender::Client, protocol: localnet_lab::Protocol::Tcp, to, about };
        Asked { question, expected, cover }
    };
    let goes = |masquerade, affinity| {
        let choices = BTreeSet::from([one, two, host]);
        asked(Outcome::Endpoints { choices, masquerade, hairpin: BTreeSet::new(), affinity }, true)
    };
    let seen = |answers: &[(SocketAddr, IpAddr)], others: &[probe::Outcome]| Seen {
        answers: answers.iter().map(|answer| (*answer, 1)).collect(),
        others: others.iter().copied().collect(),
        connections: 1,
        ..Seen::default()
    };
    let all = |source| seen(&[(one, source), (two, source), (host, client)], &[]);
    for (asked, seen, right) in [
        (goes(false, None), all(client), true),
        (goes(true, None), all(node), true),
        (goes(false, None), all(node), false),
        (goes(true, None), all(client), false),
        (goes(false, None), seen(&[(one, client)], &[]), false),
        (goes(false, Some(9.into())), seen(&[(one, client)], &[]), true),
        (goes(false, Some(9.into())), seen(&[(one, client), (two, client)], &[]), false),
        (goes(false, None), seen(&[(to, client)], &[]), false),
        (goes(false, None), seen(&[(one, client)], &[probe::Outcome::Dropped]), false),
        (asked(Outcome::NotOurs, false), seen(&[(to, client)], &[]), true),
        (asked(Outcome::NotOurs, false), seen(&[(to, node)], &[]), false),
        (asked(Outcome::NotOurs, false), seen(&[(one, client)], &[]), false),
        (asked(Outcome::Reject, false), seen(&[], &[probe::Outcome::Rejected]), true),
        (asked(Outcome::Reject, false), seen(&[], &[probe::Outcome::Dropped]), false),
        (asked(Outcome::Drop, false), seen(&[], &[probe::Outcome::Dropped]), true),
        (asked(Outcome::Drop, false), seen(&[], &[probe::Outcome::Rejected]), false),
        (asked(Outcome::Drop, false), seen(&[(to, client)], &[]), false),
    ] {
        let wrong = judge(&asked, &seen, &pools::topology());
        assert_eq!(wrong.is_none(), right, "{:?}: {seen}: {wrong:?}", asked.expected);
    }
}
