//! The diagnostics in a backend's report: what it skips, and its warnings.

use localnet_core::Diagnostic;

use crate::wire;

impl From<&Diagnostic> for wire::SkippedService {
    fn from(of: &Diagnostic) -> Self {
        Self {
            service: of.subject.service_key().as_ref().map(Into::into),
            reason: of.reason().to_string(),
            code: of.code.to_string(),
            severity: wire::Severity::from(of.severity).into(),
            field: of.field.clone(),
            problem: of.problem.clone(),
            remedy: of.remedy.clone(),
        }
    }
}

impl From<&Diagnostic> for wire::BackendWarning {
    fn from(of: &Diagnostic) -> Self {
        Self {
            reason: event_reason(of.code.as_str()),
            note: of.to_string(),
            code: of.code.to_string(),
            problem: of.problem.clone(),
            remedy: of.remedy.clone(),
        }
    }
}

/// The reason of the Event about a diagnostic with this code. If kube-proxy posts the same Event, it is kube-proxy's reason;
/// otherwise it is the code in CamelCase.
pub(crate) fn event_reason(code: &str) -> String {
    match code {
        "ipvs-deprecated" => "IPVSDeprecation".to_owned(),
        "pod-cidrs-missing" => "NoPodCIDRs".to_owned(),
        other => {
            let capitalized = |word: &str| {
                word.chars()
                    .take(1)
                    .map(|first| first.to_ascii_uppercase())
                    .chain(word.chars().skip(1))
                    .collect::<String>()
            };
            other.split(['-', '/']).map(capitalized).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use localnet_core::Code;

    use super::*;

    #[test]
    fn an_event_has_the_reason_of_kube_proxy_or_the_code() {
        for (code, reason) in [
            (Code::IpvsDeprecated.as_str(), "IPVSDeprecation"),
            (Code::PodCidrsMissing.as_str(), "NoPodCIDRs"),
            (Code::KernelLacks.as_str(), "KernelLacks"),
            ("proxy/out-of-ports", "ProxyOutOfPorts"),
            ("--", ""),
        ] {
            assert_eq!(event_reason(code), reason);
        }
    }
}
