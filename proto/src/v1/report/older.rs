//! `ReportStatusRequest` ↔ `BackendReport` of `localnetv1`.

use localnet_core::{Code, Diagnostic, Severity, Subject};

use super::{Digests, Known, configuration};
use crate::{
    digest::Digest,
    model::{Revision, ServiceKey},
    report::event_reason,
    v1::{decode, settings, wire},
    wire::{self as older, BackendReport},
};

/// The report with the content of a valid message. Its instance is that of the received revision, or else that of the brain. As in
/// every report of `localnetv1`, an applied revision of another instance is none.
pub(super) fn encode(request: &wire::ReportStatusRequest, known: &Known<'_>) -> BackendReport {
    let read = |of: &Option<wire::Revision>| of.as_ref().and_then(|of| decode::revision(of).ok());
    let received = read(&request.received).unwrap_or(Revision { rev: 0, ..known.newest });
    let families = request.families.iter().map(|family| {
        let applied = read(&family.applied).filter(|applied| applied.instance == received.instance);
        let applied = applied.unwrap_or(Revision { rev: 0, ..received });
        let digests = known.digests_of(applied).zip(family.applied_digest.map(Digest));
        older::FamilyReport {
            // Both packages have the same numbers.
            family: family.family,
            applied_rev: applied.rev,
            applied_digest: digests.map_or(0, |(known, sum)| known.to_items(sum).0),
            error: family.error.clone(),
            ..older::FamilyReport::default()
        }
    });
    let own = request.traffic.as_ref().and_then(|traffic| settings::decode(traffic).ok());
    let settings = own.as_ref().or(known.node.settings.as_deref());
    let skipped = request.skipped.clone().unwrap_or_default();
    BackendReport {
        backend: request.reader_name.clone(),
        instance_id: received.instance,
        rev: received.rev,
        families: families.collect(),
        skipped: skipped.parts.iter().map(skipped_service).collect(),
        skipped_count: skipped.count.try_into().unwrap_or(i32::MAX),
        warnings: request.warnings.iter().map(warning).collect(),
        configuration: settings.and_then(configuration::encode),
        repairs: request.repairs,
        proxy_mode: request.kube_proxy_mode.clone(),
        packets: None,
    }
}

fn skipped_service(part: &wire::SkippedPart) -> older::SkippedService {
    let wire::ServiceKey { namespace, name } = part.service.clone().unwrap_or_default();
    let of = part.diagnostic.clone().unwrap_or_default();
    let skipped = older::SkippedService::from(&diagnostic(&of, Subject::service(&ServiceKey::new(namespace, name))));
    // The code may be one that this version does not know.
    older::SkippedService { code: of.code, ..skipped }
}

fn warning(of: &wire::Diagnostic) -> older::BackendWarning {
    let warning = older::BackendWarning::from(&diagnostic(of, Subject::Program));
    older::BackendWarning { reason: event_reason(&of.code), code: of.code.clone(), ..warning }
}

fn diagnostic(of: &wire::Diagnostic, subject: Subject) -> Diagnostic {
    let severity = if of.severity() == wire::Severity::Warning { Severity::Warning } else { Severity::Error };
    let diagnostic = Diagnostic::new(Code::received(&of.code), subject, &*of.problem);
    diagnostic.field(&*of.field).remedy(&*of.remedy).severity(severity)
}

/// The message with the content of a report.
pub(super) fn decode(report: &BackendReport, known: &Known<'_>) -> wire::ReportStatusRequest {
    let at = |rev| Revision { instance: report.instance_id, rev };
    let revision = |rev| (rev > 0).then(|| at(rev).into());
    let families = report.families.iter().filter(|of| of.family().known().is_some()).map(|of| {
        let digests: Option<(Digests, Digest)> =
            known.digests_of(at(of.applied_rev)).zip(Digest::reported(of.applied_digest));
        wire::FamilyStatus {
            family: of.family,
            applied: revision(of.applied_rev),
            applied_digest: digests.map(|(known, digest)| known.to_records(digest).0),
            error: of.error.clone(),
        }
    });
    // Older backends send only one text.
    let either = |text: &String, older: &String| if text.is_empty() { older.clone() } else { text.clone() };
    let parts = report.skipped.iter().map(|of| wire::SkippedPart {
        service: of.service.clone().map(|key| wire::ServiceKey { namespace: key.namespace, name: key.name }),
        diagnostic: Some(wire::Diagnostic {
            code: of.code.clone(),
            // Both packages have the same numbers.
            severity: of.severity,
            field: of.field.clone(),
            problem: either(&of.problem, &of.reason),
            remedy: of.remedy.clone(),
        }),
    });
    let warnings = report.warnings.iter().map(|of| wire::Diagnostic {
        code: of.code.clone(),
        severity: wire::Severity::Warning.into(),
        field: String::new(),
        problem: either(&of.problem, &of.note),
        remedy: of.remedy.clone(),
    });
    let parts = parts.collect();
    wire::ReportStatusRequest {
        reader_name: report.backend.clone(),
        received: revision(report.rev),
        families: families.collect(),
        skipped: Some(wire::SkippedParts { parts, count: report.skipped_count.try_into().unwrap_or_default() }),
        traffic: report.configuration.as_ref().map(|of| settings::encode(&configuration::decode(of, known.node))),
        warnings: warnings.collect(),
        repairs: report.repairs,
        kube_proxy_mode: report.proxy_mode.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_packages_have_the_same_numbers() {
        for (older, family) in
            [(older::IpFamily::IPv4, wire::IpFamily::Ipv4), (older::IpFamily::IPv6, wire::IpFamily::Ipv6)]
        {
            assert_eq!(i32::from(older), i32::from(family));
        }
        for (older, severity) in [
            (older::Severity::Unknown, wire::Severity::Unspecified),
            (older::Severity::Error, wire::Severity::Error),
            (older::Severity::Warning, wire::Severity::Warning),
        ] {
            assert_eq!(i32::from(older), i32::from(severity));
        }
    }
}
