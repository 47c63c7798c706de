//! Tests of the checks and of the conversion, in both directions.

use std::sync::Arc;

use tonic::Code;

use super::*;
use crate::{
    model::{LocalPods, TrafficSettings},
    v1::{settings, wire::ErrorReason},
    wire::{self as older, DetectLocal},
};

const NEWEST: Revision = Revision { instance: 0xa1, rev: 9 };
const DIGESTS: Digests = Digests { items: Digest(1000), records: Digest(30) };

fn report() -> wire::ReportStatusRequest {
    wire::ReportStatusRequest { reader_name: "nft-2".to_owned(), ..Default::default() }
}

fn at(rev: u64) -> Option<wire::Revision> {
    Some(Revision { rev, ..NEWEST }.into())
}

fn family(applied: Option<wire::Revision>, digest: Option<u64>) -> wire::FamilyStatus {
    wire::FamilyStatus { family: 1, applied, applied_digest: digest, error: "no".to_owned() }
}

fn problem(code: &str) -> wire::Diagnostic {
    wire::Diagnostic {
        code: code.to_owned(),
        severity: wire::Severity::Warning.into(),
        field: "spec.ports[0]".to_owned(),
        problem: "is odd".to_owned(),
        remedy: "wait".to_owned(),
    }
}

fn part(code: &str) -> wire::SkippedPart {
    let service = wire::ServiceKey { namespace: "shop".to_owned(), name: "web".to_owned() };
    wire::SkippedPart { service: Some(service), diagnostic: Some(problem(code)) }
}

fn skipped(parts: Vec<wire::SkippedPart>, count: u32) -> Option<wire::SkippedParts> {
    Some(wire::SkippedParts { parts, count })
}

/// The report as the brain stores it. The node follows `settings`.
fn older(request: wire::ReportStatusRequest, settings: Option<TrafficSettings>) -> BackendReport {
    let node = Node { settings: settings.map(Arc::new), ..Node::default() };
    let digests = |rev| (rev == 9).then_some(DIGESTS);
    BackendStatus::checked(request, NEWEST).unwrap().to_older(&Known { newest: NEWEST, node: &node, digests: &digests })
}

#[test]
fn a_report_has_the_same_content_in_both_packages() {
    let settings = TrafficSettings { local_pods: LocalPods::Interface("cni0".into()), ..TrafficSettings::default() };
    let settings = TrafficSettings {
        cluster_ip_masquerade: crate::model::ClusterIpMasquerade::All,
        masquerade_mark_bit: Some(3),
        ..settings
    };
    let full = wire::ReportStatusRequest {
        received: at(9),
        families: vec![family(at(9), Some(30)), wire::FamilyStatus { family: 2, ..family(at(8), None) }],
        skipped: skipped(vec![part("kernel-refused"), part("nft-2/full")], 7),
        traffic: Some(settings::encode(&settings)),
        warnings: vec![wire::Diagnostic { field: String::new(), ..problem("ipvs-deprecated") }],
        repairs: 4,
        kube_proxy_mode: "ipvs".to_owned(),
        ..report()
    };
    let stored = older(full.clone(), None);
    assert_eq!((&*stored.backend, stored.instance_id, stored.rev, stored.repairs), ("nft-2", 0xa1, 9, 4));
    let family =
        |at: usize| (stored.families[at].family(), stored.families[at].applied_rev, stored.families[at].applied_digest);
    assert_eq!((family(0), family(1)), ((older::IpFamily::IPv4, 9, 1000), (older::IpFamily::IPv6, 8, 0)));
    let parts: Vec<_> = stored.skipped.iter().map(|part| (&*part.code, &*part.reason, part.severity())).collect();
    let reason = "spec.ports[0]: is odd; wait";
    assert_eq!(parts, ["kernel-refused", "nft-2/full"].map(|code| (code, reason, older::Severity::Warning)));
    assert_eq!(
        (stored.skipped_count, &*stored.warnings[0].reason, &*stored.warnings[0].note),
        (7, "IPVSDeprecation", "is odd; wait")
    );
    assert_eq!(stored.configuration.as_ref().map(|of| of.interface.as_str()), Some("cni0"));
    let known = Known { newest: NEWEST, node: &Node::default(), digests: &|rev| (rev == 9).then_some(DIGESTS) };
    assert_eq!(BackendStatus::message_of(&stored, &known), full);
}

#[test]
fn a_digest_is_right_in_one_package_if_it_is_right_in_the_other() {
    let digest = |applied, sum| {
        let request = wire::ReportStatusRequest { received: at(9), families: vec![family(applied, sum)], ..report() };
        older(request, None).families[0].applied_digest
    };
    assert_eq!(digest(at(9), Some(30)), 1000);
    assert_eq!(digest(at(9), Some(31)), 1001, "it differs");
    assert_eq!(digest(at(9), Some(0)), 970, "0 is a sum like any other");
    assert_eq!(digest(at(9), None), 0, "none is reported");
    assert_eq!(digest(at(8), Some(30)), 0, "the right one is no longer known");
    assert_eq!(DIGESTS.to_records(DIGESTS.to_items(Digest(77))), Digest(77));
}

#[test]
fn revisions_of_another_brain_count_as_none() {
    let other = |rev| Some(Revision { instance: 0xb2, rev }.into());
    let of = |received, applied| {
        let families = vec![family(applied, Some(30))];
        let stored = older(wire::ReportStatusRequest { received, families, ..report() }, None);
        (stored.instance_id, stored.rev, stored.families[0].applied_rev, stored.families[0].applied_digest)
    };
    assert_eq!(of(at(9), other(70)), (0xa1, 9, 0, 0), "the brain was restarted");
    assert_eq!(of(other(71), other(70)), (0xb2, 71, 70, 0), "the backend does not know it yet");
    assert_eq!(of(None, other(70)), (0xa1, 0, 0, 0));
    assert_eq!(of(None, None), (0xa1, 0, 0, 0));
}

#[test]
fn a_backend_follows_the_settings_of_the_node_unless_it_reports_others() {
    let node = TrafficSettings {
        local_pods: LocalPods::Source(Vec::new()),
        cluster_ip_masquerade: crate::model::ClusterIpMasquerade::ExceptLocalPods,
        ..TrafficSettings::default()
    };
    let detect = |stored: BackendReport| stored.configuration.map(|of| of.detect_local());
    assert_eq!(detect(older(report(), Some(node.clone()))), Some(DetectLocal::ClusterCidr));
    assert_eq!(detect(older(report(), None)), None);
    let own = wire::ReportStatusRequest { traffic: Some(settings::encode(&TrafficSettings::default())), ..report() };
    assert_eq!(detect(older(own, Some(node))), Some(DetectLocal::None));
}

#[test]
fn an_unset_field_keeps_its_value() {
    let checked = |request| BackendStatus::checked(request, NEWEST).unwrap();
    let traffic = Some(settings::encode(&TrafficSettings::default()));
    let first = checked(wire::ReportStatusRequest {
        skipped: skipped(vec![part("x")], 1),
        traffic: traffic.clone(),
        ..report()
    });
    assert!(first.is_complete() && !checked(report()).is_complete());
    let second = checked(report()).after(Some(&first));
    assert_eq!((&second.0.skipped, &second.0.traffic), (&first.0.skipped, &traffic));
    let none = checked(wire::ReportStatusRequest { skipped: skipped(Vec::new(), 0), ..report() });
    assert_eq!(none.after(Some(&second)).0.skipped, skipped(Vec::new(), 0));
    assert!(!checked(report()).after(None).is_complete());
}

/// The field at fault.
fn refused(request: wire::ReportStatusRequest) -> Option<String> {
    let status = BackendStatus::checked(request, NEWEST).err()?;
    assert_eq!(status.code(), Code::InvalidArgument);
    let info = ErrorInfo::of(&status).expect("each error has a reason");
    let field = info.metadata["field"].clone();
    assert_eq!(status.message(), format!("{field} {}", info.metadata["problem"]));
    Some(field)
}

#[test]
fn invalid_reports_are_refused_with_the_field() {
    let long = |length| "x".repeat(length);
    let named = |name: &str| wire::ReportStatusRequest { reader_name: name.to_owned(), ..report() };
    let revision = |instance: &str, number| wire::Revision { instance: instance.to_owned(), number };
    let received =
        |instance: &str, number| wire::ReportStatusRequest { received: Some(revision(instance, number)), ..report() };
    let families =
        |families: &[wire::FamilyStatus]| wire::ReportStatusRequest { families: families.to_vec(), ..report() };
    let of = |family| wire::FamilyStatus { family, ..Default::default() };
    let parts =
        |parts: Vec<wire::SkippedPart>, count| wire::ReportStatusRequest { skipped: skipped(parts, count), ..report() };
    let key = |namespace: &str, name: &str| {
        let service = Some(wire::ServiceKey { namespace: namespace.to_owned(), name: name.to_owned() });
        parts(vec![wire::SkippedPart { service, ..part("x") }], 1)
    };
    let warnings = |warnings: Vec<wire::Diagnostic>| wire::ReportStatusRequest { warnings, ..report() };
    let mode = |mode: &str| wire::ReportStatusRequest { kube_proxy_mode: mode.to_owned(), ..report() };
    let bit = wire::TrafficSettings { masquerade_mark_bit: Some(32), ..Default::default() };
    let code = |code: &str| warnings(vec![problem(code)]);
    let with = |of: wire::Diagnostic| warnings(vec![of]);
    let valid = [
        named(&"a".repeat(63)),
        received("00000000000000b2", (1 << 53) - 1),
        families(&[of(1), of(2)]),
        families(&[wire::FamilyStatus { error: long(1024), ..of(1) }]),
        parts(vec![part("x"); 256], 256),
        key(&long(253), &long(253)),
        warnings(vec![problem("x"); 64]),
        with(wire::Diagnostic { field: long(256), problem: long(1024), remedy: long(1024), ..problem("x") }),
        code(&format!("proxy/{}", long(121))),
        mode("kernelspace"),
    ];
    for request in valid {
        assert_eq!(refused(request), None);
    }
    let settings = |addresses: Vec<String>, cidrs: Vec<String>, interface: &str| {
        let node_ports = Some(wire::NodePortAddresses { addresses, ..Default::default() });
        let local_pods = Some(wire::LocalPods { cidrs, interface: interface.to_owned(), ..Default::default() });
        let traffic = Some(wire::TrafficSettings { node_ports, local_pods, ..Default::default() });
        wire::ReportStatusRequest { traffic, ..report() }
    };
    let invalid = [
        (named(""), "reader_name"),
        (named("Nft"), "reader_name"),
        (named(&"a".repeat(64)), "reader_name"),
        (received("b2", 1), "received"),
        (received("00000000000000B2", 1), "received"),
        (received("00000000000000b2", 1 << 53), "received"),
        (families(&[of(0)]), "families[0].family"),
        (families(&[of(3)]), "families[0].family"),
        (families(&[of(1), of(1)]), "families[1].family"),
        (families(&[wire::FamilyStatus { applied: Some(revision("", 1)), ..of(1) }]), "families[0].applied"),
        (families(&[wire::FamilyStatus { error: long(1025), ..of(1) }]), "families[0].error"),
        (parts(vec![part("x"); 257], 257), "skipped.parts"),
        (parts(vec![part("x"); 2], 1), "skipped.count"),
        (parts(vec![wire::SkippedPart { service: None, ..part("x") }], 1), "skipped.parts[0].service"),
        (key("", "web"), "skipped.parts[0].service"),
        (key("shop", "\x1b[2J"), "skipped.parts[0].service"),
        (key("shop", &long(254)), "skipped.parts[0].service"),
        (parts(vec![wire::SkippedPart { diagnostic: None, ..part("x") }], 1), "skipped.parts[0].diagnostic"),
        (parts(vec![part("x"), part("X")], 2), "skipped.parts[1].diagnostic.code"),
        (wire::ReportStatusRequest { traffic: Some(bit), ..report() }, "traffic"),
        (settings(vec![long(65)], Vec::new(), ""), "traffic.node_ports.addresses[0]"),
        (settings(Vec::new(), vec!["10.0.0.0/8".to_owned(); 513], ""), "traffic.local_pods.cidrs"),
        (settings(Vec::new(), Vec::new(), &long(16)), "traffic.local_pods.interface"),
        (settings(Vec::new(), Vec::new(), "cni\n"), "traffic.local_pods.interface"),
        (warnings(vec![problem("x"); 65]), "warnings"),
        (code(""), "warnings[0].code"),
        (code("a/b/c"), "warnings[0].code"),
        (code("/b"), "warnings[0].code"),
        (code("--"), "warnings[0].code"),
        (code(&long(128)), "warnings[0].code"),
        (with(wire::Diagnostic { problem: String::new(), ..problem("x") }), "warnings[0].problem"),
        (with(wire::Diagnostic { field: long(257), ..problem("x") }), "warnings[0].field"),
        (with(wire::Diagnostic { problem: long(1025), ..problem("x") }), "warnings[0].problem"),
        (with(wire::Diagnostic { remedy: long(1025), ..problem("x") }), "warnings[0].remedy"),
        (mode("userspace"), "kube_proxy_mode"),
    ];
    for (request, field) in invalid {
        assert_eq!(refused(request.clone()).as_deref(), Some(field), "{request:?}");
    }
}

#[test]
fn the_largest_valid_report_fits_into_the_limit() {
    let text = |length| "x".repeat(length);
    let diagnostic =
        wire::Diagnostic { code: text(127), field: text(256), problem: text(1024), remedy: text(1024), severity: 1 };
    let service = Some(wire::ServiceKey { namespace: text(253), name: text(253) });
    let part = wire::SkippedPart { service, diagnostic: Some(diagnostic.clone()) };
    let cidrs = vec!["2001:db8:1234:1234:1234:1234:1234:0/112".to_owned(); 512];
    let traffic = wire::TrafficSettings {
        node_ports: Some(wire::NodePortAddresses { interface_cidrs: cidrs.clone(), ..Default::default() }),
        local_pods: Some(wire::LocalPods { cidrs, ..Default::default() }),
        ..Default::default()
    };
    let largest = wire::ReportStatusRequest {
        skipped: skipped(vec![part; 256], u32::MAX),
        traffic: Some(traffic),
        warnings: vec![diagnostic; 64],
        ..report()
    };
    assert_eq!(refused(largest.clone()), None);
    // The rest is for the settings.
    assert!(prost::Message::encoded_len(&largest) < LARGEST - (64 << 10));
}

#[test]
fn revisions_that_do_not_exist_are_refused() {
    let applied = wire::ReportStatusRequest { received: at(9), families: vec![family(at(10), None)], ..report() };
    let received = wire::ReportStatusRequest { received: at(10), ..report() };
    for request in [applied, received] {
        let status = BackendStatus::checked(request, NEWEST).unwrap_err();
        let info = ErrorInfo::new(ErrorReason::RevisionUnknown);
        let info = info.with("revision", "00000000000000a1:10").with("newest", "00000000000000a1:9");
        assert_eq!((status.code(), ErrorInfo::of(&status)), (Code::OutOfRange, Some(info)));
    }
    // Another brain may have had more revisions.
    let other = Some(Revision { instance: 0xb2, rev: 10 }.into());
    assert!(BackendStatus::checked(wire::ReportStatusRequest { received: other, ..report() }, NEWEST).is_ok());
}
