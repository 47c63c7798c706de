//! The status of the brain and its backends as plain values that can be printed. Pure.

use std::{collections::BTreeMap, net::IpAddr};

use localnet_client::{
    Mode,
    vips::{Effective, Unreadable},
};
use localnet_core::{Code, Diagnostic, Severity, Subject};
use localnet_proto::{Digest, Family, Revision, ServiceKey, wire};
use serde::{Serialize, Serializer};

use crate::origin::Values;

/// The revisions that the brain and the backends have reached, and the problems that they report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The brain's instance ID.
    pub instance: u64,
    /// The sequence number of the brain's latest revision; 0 if it has no state.
    pub revision: u64,
    /// The digest of that revision's state; `None` if the brain reports none.
    #[serde(serialize_with = "digest")]
    pub digest: Option<Digest>,
    /// The number of Services in the state.
    pub services: usize,
    /// The brain's version.
    pub version: String,
    /// The backends that have sent reports.
    pub backends: Vec<Backend>,
    /// The problems that keep the brain from reading changes.
    pub source_problems: Vec<SourceProblem>,
    /// Whether no reader waits for the brain's next state.
    pub unread: bool,
}

/// A problem that keeps the brain from reading changes. The state is as old as the problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceProblem {
    /// The diagnostic's code.
    pub code: Code,
    /// The files or resources that cannot be read. Resources have the names that kubectl uses.
    pub of: Vec<String>,
    /// The cause and the remedy.
    pub problem: String,
    /// How long the problem has lasted, in milliseconds.
    pub age_millis: u64,
}

/// The last report of a backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Backend {
    /// The backend's name.
    pub name: String,
    /// The mode of kube-proxy that the backend corresponds to, if it reports one.
    #[serde(skip)]
    pub mode: Option<Mode>,
    /// The report's age in milliseconds.
    pub age_millis: u64,
    /// The revision that each family has reached.
    pub families: Vec<FamilyStatus>,
    /// The parts of Services that the backend skips.
    pub skipped: Vec<Diagnostic>,
    /// The number of skipped Services; `skipped` may list fewer.
    pub skipped_count: usize,
    /// The warnings of the backend.
    pub warnings: Vec<Diagnostic>,
    /// The reported configuration, or why it cannot be read; `None` if the report contains no configuration.
    #[serde(serialize_with = "values")]
    pub configuration: Option<Result<Effective, Unreadable>>,
}

/// Serializes a digest as text, because JSON readers may round such large numbers.
fn digest<S: Serializer>(of: &Option<Digest>, serializer: S) -> Result<S::Ok, S::Error> {
    of.map(|digest| digest.to_string()).serialize(serializer)
}

/// Serializes a reported configuration: its values, or why it cannot be read.
fn values<S: Serializer>(of: &Option<Result<Effective, Unreadable>>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Fields {
        #[serde(flatten)]
        values: Values,
        node_port_addresses: Vec<IpAddr>,
    }
    match of {
        None => serializer.serialize_none(),
        Some(Ok(Effective { config, node_port_addresses })) => {
            let node_port_addresses = node_port_addresses.clone();
            Fields { values: Values::of(config), node_port_addresses }.serialize(serializer)
        }
        Some(Err(unreadable)) => BTreeMap::from([("error", unreadable.to_string())]).serialize(serializer),
    }
}

/// The revision that a backend has reached in one family.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyStatus {
    /// The address family.
    pub family: Family,
    /// The revision that the kernel holds; 0 if the kernel holds no revision of this brain.
    pub applied: u64,
    /// The digest of the state that the backend applied; `None` if it reports none.
    #[serde(serialize_with = "digest")]
    pub digest: Option<Digest>,
    /// Whether that state has the latest revision, but another digest than the brain's state.
    pub differs: bool,
    /// The number of revisions that are not applied yet.
    pub lag: u64,
    /// Why the latest revision could not be applied; empty if it was applied.
    pub error: String,
}

/// The versions of the programs.
#[derive(Debug, Serialize)]
pub struct Versions {
    /// The version of this command.
    pub localnet: &'static str,
    /// The brain's version, if it answered.
    pub brain: Option<String>,
}

/// The name of the ebpf backend in its reports.
const EBPF: &str = "ebpf";

impl Status {
    /// Whether each backend has applied the latest revision in each family, with the content that the brain sent, and the brain can
    /// read changes.
    pub fn is_well(&self) -> bool {
        let is_well = |family: &FamilyStatus| family.lag == 0 && !family.differs && family.error.is_empty();
        let all = self.backends.iter().all(|of| !of.families.is_empty() && of.families.iter().all(is_well));
        all && !self.backends.is_empty() && self.source_problems.is_empty() && !self.unread
    }

    /// The backend with the latest report. It programs the node. Another backend may run beside the ebpf backend; that one translates
    /// packets.
    pub fn newest(&self) -> Option<&Backend> {
        let of_packets =
            self.backends.iter().filter(|backend| backend.name != EBPF).min_by_key(|backend| backend.age_millis);
        of_packets.or(self.backends.first())
    }

    /// Whether the ebpf backend runs, so that connections of this node's processes need no translation of packets.
    pub fn has_ebpf(&self) -> bool {
        self.backends.iter().any(|backend| backend.name == EBPF)
    }
}

fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}

fn skipped(of: wire::SkippedService) -> Diagnostic {
    let key = of.service.unwrap_or_default();
    let subject = Subject::service(&ServiceKey::new(key.namespace, key.name));
    // An older backend sends only the reason.
    let problem = if of.problem.is_empty() { of.reason } else { of.problem };
    Diagnostic::new(Code::received(&of.code), subject, problem).field(of.field).remedy(of.remedy)
}

fn warning(of: wire::BackendWarning) -> Diagnostic {
    let problem = if of.problem.is_empty() { of.note } else { of.problem };
    let warning = Diagnostic::new(Code::received(&of.code), Subject::Program, problem).remedy(of.remedy);
    warning.severity(Severity::Warning)
}

impl From<wire::BrainStatus> for Status {
    fn from(status: wire::BrainStatus) -> Self {
        let state = status.state.unwrap_or_default();
        let at = Revision { instance: state.instance_id, rev: state.rev };
        let digest = Digest::reported(status.digest);
        let backends = status
            .backends
            .into_iter()
            .filter_map(|received| Some(backend(received.report?, received.age_millis, (at, digest))));
        Self {
            instance: at.instance,
            revision: at.rev,
            digest,
            services: count(status.services),
            backends: backends.collect(),
            version: status.version,
            source_problems: source_problems(status.source_problems),
            unread: status.unread,
        }
    }
}

/// Merges problems that have the same cause. For example, all watches fail if the API server is unavailable.
fn source_problems(all: Vec<wire::SourceProblem>) -> Vec<SourceProblem> {
    let mut problems: Vec<SourceProblem> = Vec::new();
    for wire::SourceProblem { of, problem, age_millis, code } in all {
        match problems.iter_mut().find(|known| known.problem == problem) {
            Some(known) => {
                known.of.push(of);
                known.age_millis = known.age_millis.max(age_millis);
            }
            None => problems.push(SourceProblem { code: Code::received(&code), of: vec![of], problem, age_millis }),
        }
    }
    problems
}

impl SourceProblem {
    /// Returns one line with the resources, the duration and the cause.
    pub fn line(&self) -> String {
        format!(
            "the brain has been unable to read {} for {} s: {}",
            self.of.join(", "),
            self.age_millis / 1000,
            self.problem
        )
    }
}

fn backend(report: wire::BackendReport, age_millis: u64, (at, digest): (Revision, Option<Digest>)) -> Backend {
    let of_this_brain = report.instance_id == at.instance;
    let families = report.families.iter().filter_map(|family| {
        let applied = if of_this_brain { family.applied_rev } else { 0 };
        let own = Digest::reported(family.applied_digest);
        let lag = at.rev.saturating_sub(applied);
        Some(FamilyStatus {
            family: family.family().known()?,
            applied,
            digest: own,
            differs: lag == 0 && own.zip(digest).is_some_and(|(own, digest)| own != digest),
            lag,
            error: family.error.clone(),
        })
    });
    let families = families.collect();
    Backend {
        configuration: report.configuration.as_ref().map(Effective::try_from),
        mode: Mode::named(&report.proxy_mode),
        name: report.backend,
        age_millis,
        families,
        skipped: report.skipped.into_iter().map(skipped).collect(),
        skipped_count: count(report.skipped_count),
        warnings: report.warnings.into_iter().map(warning).collect(),
    }
}

impl Backend {
    /// Whether the tables of localnet-nft contain what the backend programs. With `--nft`, the ebpf backend programs them, too.
    pub fn has_nft_tables(&self) -> bool {
        self.name == "nft" || self.name == EBPF && self.mode == Some(Mode::Nftables)
    }

    /// The status of one family, if the backend reports it.
    pub fn family(&self, family: Family) -> Option<&FamilyStatus> {
        self.families.iter().find(|of| of.family == family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{output::Show as _, style::Style};

    #[test]
    fn a_revision_of_another_brain_instance_does_not_count_as_applied() {
        let report = |instance_id, applied_rev, applied_digest| wire::BackendReport {
            backend: "nft".to_owned(),
            instance_id,
            families: vec![wire::FamilyReport {
                family: wire::IpFamily::IPv4.into(),
                applied_rev,
                applied_digest,
                ..wire::FamilyReport::default()
            }],
            ..wire::BackendReport::default()
        };
        let at = Revision { instance: 7, rev: 9 };
        let of = |instance, applied, digest| {
            let backend = backend(report(instance, applied, digest), 0, (at, Some(Digest(5))));
            let family = backend.family(Family::V4).unwrap();
            (family.applied, family.lag, family.differs)
        };
        assert_eq!((of(7, 9, 5), of(7, 4, 6), of(8, 9, 6)), ((9, 0, false), (4, 5, false), (0, 9, false)));
        assert_eq!((of(7, 9, 6), of(7, 9, 0)), ((9, 0, true), (9, 0, false)), "0 stands for no digest");
    }

    /// Regression: such a backend was not listed, and the exit code was 0.
    #[test]
    fn a_backend_that_reports_no_family_is_listed_and_is_not_well() {
        let family =
            FamilyStatus { family: Family::V4, applied: 9, digest: None, differs: false, lag: 0, error: String::new() };
        let of = |families| Backend { name: "own".to_owned(), families, ..Backend::default() };
        let status = |backends| Status { revision: 9, backends, ..Status::default() };
        assert!(status(vec![of(vec![family.clone()])]).is_well());
        let unknown = status(vec![of(vec![family]), of(Vec::new())]);
        assert!(!unknown.is_well());
        let text = unknown.human(Style::default());
        assert!(
            text.lines().any(|line| line.starts_with("own ") && line.ends_with("reports no address family")),
            "{text}"
        );
    }

    /// Regression: if the ebpf backend had reported last, no command read the rules of the nft backend beside it.
    #[test]
    fn the_ebpf_backend_does_not_hide_the_one_beside_it() {
        let backend = |name: &str, age_millis| Backend { name: name.to_owned(), age_millis, ..Backend::default() };
        for (backends, newest) in
            [(&[("ebpf", 1), ("ipvs", 9), ("nft", 2)][..], Some("nft")), (&[("ebpf", 1)], Some("ebpf")), (&[], None)]
        {
            let backends = backends.iter().map(|(name, age)| backend(name, *age)).collect();
            let status = Status { backends, ..Status::default() };
            assert_eq!(status.newest().map(|backend| &*backend.name), newest);
        }
    }

    #[test]
    fn the_ebpf_backend_may_have_the_tables_of_nft() {
        let backend = |name: &str, mode| Backend { name: name.to_owned(), mode, ..Backend::default() };
        let nftables = Some(Mode::Nftables);
        for (name, mode, has) in
            [("nft", nftables, true), ("ebpf", None, false), ("ebpf", nftables, true), ("other", nftables, false)]
        {
            assert_eq!(backend(name, mode).has_nft_tables(), has, "{name}");
        }
    }

    #[test]
    fn problems_with_the_same_cause_are_merged() {
        let trouble = |of: &str, problem: &str, age_millis| wire::SourceProblem {
            of: of.to_owned(),
            problem: problem.to_owned(),
            age_millis,
            code: "api-unreachable".to_owned(),
        };
        let all = vec![trouble("nodes", "away", 1_000), trouble("services", "away", 2_000), trouble("x", "no", 1)];
        let lines: Vec<String> = source_problems(all).iter().map(SourceProblem::line).collect();
        assert_eq!(
            lines,
            [
                "the brain has been unable to read nodes, services for 2 s: away",
                "the brain has been unable to read x for 0 s: no"
            ]
        );
    }
}
