//! The diagnostics that `explain --why-not` and `doctor` share. Pure.

use localnet_core::{Code, Diagnostic, Severity, Subject};

use crate::{
    origin::Origin,
    status::{Backend, FamilyStatus, Status},
};

/// Returns a diagnostic with the usual remedy of its code.
pub fn usual(code: Code, subject: Subject, problem: impl Into<String>) -> Diagnostic {
    Diagnostic::new(code, subject, problem).remedy(code.remedy())
}

/// Returns the problems that keep the brain from reading changes of the cluster.
pub fn of_source(status: &Status) -> impl Iterator<Item = Diagnostic> {
    status.source_problems.iter().map(|of| usual(Code::SourceFails, Subject::Program, of.line()))
}

/// Returns the problem if no backend has reported.
pub fn no_backend(status: &Status) -> Option<Diagnostic> {
    let problem = "no backend has reported to the brain: nothing programs the node";
    status.backends.is_empty().then(|| usual(Code::BackendMissing, Subject::Program, problem))
}

/// Returns the problem if a backend reports no address family: then nobody knows whether it has applied anything.
pub fn no_family(backend: &Backend) -> Option<Diagnostic> {
    let problem =
        || format!("the backend {} reports no address family, so what it has applied is unknown", backend.name);
    let remedy = "let the backend report its progress in each family; its log tells whether it applies states";
    backend.families.is_empty().then(|| usual(Code::BackendBehind, Subject::Program, problem()).remedy(remedy))
}

/// Returns why a backend has not applied the latest revision in a family, or applied something else than the brain sent.
pub fn of_backend(backend: &Backend, of: &FamilyStatus) -> Option<Diagnostic> {
    let (name, family, latest) = (&backend.name, of.family, of.applied + of.lag);
    if !of.error.is_empty() {
        let problem = format!("the backend {name} cannot apply revision {latest} in {family}: {}", of.error);
        return Some(usual(Code::BackendFails, Subject::Program, problem));
    }
    if of.differs {
        let problem = format!(
            "the backend {name} has applied revision {latest} in {family}, but its state has another digest than the brain's"
        );
        return Some(usual(Code::BackendDiffers, Subject::Program, problem));
    }
    let problem = format!(
        "the backend {name} has applied revision {} of {latest} in {family}; it reported {} s ago",
        of.applied,
        backend.age_millis / 1000
    );
    (of.lag > 0).then(|| usual(Code::BackendBehind, Subject::Program, problem))
}

/// Returns the diagnostic for chains that differ from the plan; `None` if `chains` is empty. If no backend has reported the
/// configuration that the plan depends on, the diagnostic is a warning, because the plan may be wrong.
pub fn rules_differ(chains: &[String], subject: Subject, configuration: Option<&Origin>) -> Option<Diagnostic> {
    let named = match chains {
        [] => return None,
        [chain] => format!("the chain {chain} of table localnet is missing, or its rules differ from the plan"),
        [chain, more @ ..] => {
            let more = more.len();
            format!(
                "the chain {chain} and {more} more of table localnet are missing, or their rules differ from the plan"
            )
        }
    };
    let differ = usual(Code::RulesDiffer, subject, named);
    Some(match is_guessed(configuration) {
        true => differ.severity(Severity::Warning).remedy(Code::ConfigurationUnknown.remedy()),
        false => differ,
    })
}

/// Whether the configuration is only the default. Conclusions from it may be wrong, because no backend has reported its own.
pub fn is_guessed(configuration: Option<&Origin>) -> bool {
    configuration.is_some_and(|origin| origin.source == "defaults")
}
