//! The differences between the example and CoreDNS, with the numbers of `docs/dns.md`. Each is recognized exactly: another difference has
//! no number.

use std::collections::BTreeSet;

use hickory_server::proto::{op::ResponseCode, rr::RecordType};
use localnet_e2e::dns::{Client, Reply};

use crate::cluster::{EMPTY_NAMESPACE, MISSING_NAMESPACE, PORTLESS, REPEATED, WITH_SLICES};

/// The number of a difference. `None` if the answers differ in another way.
pub(crate) fn number(
    name: &str,
    kind: RecordType,
    ours: &Reply,
    theirs: &Reply,
    coredns: &mut Client,
) -> anyhow::Result<Option<u8>> {
    let empty = |reply: &Reply| reply.answers.is_empty() && reply.additionals.is_empty();
    let both_empty = empty(ours) && empty(theirs) && ours.authorities == theirs.authorities;
    // 1: the name exists, with records of another type or as the parent of other names.
    if both_empty && (ours.code, theirs.code) == (ResponseCode::NoError, ResponseCode::NXDomain) {
        for other in [RecordType::A, RecordType::PTR, RecordType::TXT] {
            if other != kind && coredns.ask(name, other)?.code == ResponseCode::NoError {
                return Ok(Some(1));
            }
        }
    }
    // 2: the namespace exists, but has no Services.
    let of_empty = name.eq_ignore_ascii_case(&format!("{EMPTY_NAMESPACE}.svc.cluster.local."));
    if of_empty && both_empty && (ours.code, theirs.code) == (ResponseCode::NXDomain, ResponseCode::NoError) {
        return Ok(Some(2));
    }
    // 3: the namespace of a Pod does not exist. Our answer is that for a namespace that exists.
    let missing = format!("{MISSING_NAMESPACE}.pod.cluster.local.");
    if theirs.code == ResponseCode::NXDomain && name.ends_with(&missing) {
        let exists = |text: &str| text.replace(&missing, &format!("{EMPTY_NAMESPACE}.pod.cluster.local."));
        let all = |records: &BTreeSet<String>| records.iter().map(|record| exists(record)).collect();
        let ours = Reply { answers: all(&ours.answers), additionals: all(&ours.additionals), ..ours.clone() };
        let theirs = coredns.ask(&exists(name), kind)?;
        let is_known = ours == theirs || number(&exists(name), kind, &ours, &theirs, coredns)?.is_some();
        return Ok(is_known.then_some(3));
    }
    // 4: an endpoint that is in several slices counts once for the weights.
    let unweighted = |reply: &Reply| {
        let unweighted = reply.answers.iter().map(|record| {
            let words = record.split(' ').enumerate().filter(|(position, _)| *position != 4);
            words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
        });
        Reply { answers: unweighted.collect(), ..reply.clone() }
    };
    let same_but_weights = kind == RecordType::SRV && unweighted(ours) == unweighted(theirs);
    let is_of = |service: &str| name.to_ascii_lowercase().split('.').any(|label| label == service);
    if same_but_weights && REPEATED.into_iter().any(is_of) {
        return Ok(Some(4));
    }
    // 5: the address belongs to a slice of an ExternalName Service.
    let only_theirs = (ours.code, theirs.code) == (ResponseCode::NXDomain, ResponseCode::NoError);
    if only_theirs && name.to_ascii_lowercase().ends_with(".arpa.") {
        let pointers = coredns.ask(name, RecordType::PTR)?.answers;
        if !pointers.is_empty() && pointers.iter().all(|pointer| pointer.contains(&format!(".{WITH_SLICES}."))) {
            return Ok(Some(5));
        }
    }
    // 6: a port without a number matches its empty name.
    let of_unnamed = is_of(PORTLESS) && name.starts_with("_.");
    if of_unnamed && (same_but_weights || kind == RecordType::A && ours.answers.is_subset(&theirs.answers)) {
        return Ok(Some(6));
    }
    Ok(None)
}
