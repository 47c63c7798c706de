//! `localnet doctor`: checks the node as a whole and prints one line per check. Judging the evidence is pure.

use localnet_client::Snapshot;
use localnet_core::{Code, Diagnostic, Severity, Subject};
use localnet_linux::nft::family_name;
use localnet_proto::{ByFamily, Family, Service};
use serde::Serialize;

use crate::{
    diagnostics::{is_guessed, no_backend, no_family, of_backend, of_source, rules_differ, usual},
    diff::Differences,
    kernel::Kernel,
    origin::Origin,
    output::Show,
    status::Status,
    style::{Style, Tone},
    table::Table,
};

/// The results of all checks.
#[derive(Debug, Default, Serialize)]
pub struct Findings {
    /// One entry per check.
    pub checks: Vec<Check>,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The ID of the check. IDs never change, so programs can rely on them.
    pub id: &'static str,
    /// The verdict of the check.
    pub verdict: Verdict,
    /// The observed facts; empty if there is a diagnostic.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub seen: String,
    /// What is wrong or unknown; `None` if the check passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnostic: Option<Diagnostic>,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The check passes.
    Ok,
    /// The check found something unusual, which may be a problem.
    Warning,
    /// The check found a fault that keeps Services from answering.
    Failing,
    /// The check could not be made.
    Unknown,
}

/// A family, whether the table of this family exists, and the chains in the table that differ from the plan.
pub type OwnTable = (Family, bool, Vec<String>);

/// The evidence about the node.
#[derive(Debug, Default)]
pub struct Evidence {
    /// The address of the brain.
    pub api: String,
    /// The status of the brain and its backends, or why it is unknown.
    pub status: Option<Result<Status, String>>,
    /// The number of Services in the state, and how many of them have no eligible endpoint; or why there is no state.
    pub state: Option<Result<(usize, usize), String>>,
    /// The configuration that the checks use.
    pub configuration: Option<Origin>,
    /// Our tables, or why they are unknown.
    pub tables: Option<Result<Vec<OwnTable>, Diagnostic>>,
    /// How the plans of backends other than nft differ from the kernel, or why that is unknown.
    pub lines: Option<Result<Differences, Diagnostic>>,
    /// Whether the kernel has all features that localnet-nft needs, or else what it lacks; `None` if it cannot be asked.
    pub features: Option<Result<(), String>>,
    /// The tables of other programs in nf_tables.
    pub others: Vec<String>,
    /// Whether the kernel forwards packets; `None` if unknown.
    pub forwards: ByFamily<Option<bool>>,
    /// The value of `net.ipv4.conf.all.route_localnet`.
    pub route_localnet: Option<i64>,
    /// The number of tracked flows, and the kernel's maximum.
    pub tracked: Option<(i64, i64)>,
    /// Whether legacy ip_tables are in use.
    pub legacy: bool,
}

impl Findings {
    fn ok(&mut self, id: &'static str, seen: String) {
        self.checks.push(Check { id, verdict: Verdict::Ok, seen, diagnostic: None });
    }

    fn add(&mut self, id: &'static str, diagnostic: Diagnostic) {
        let verdict = match (diagnostic.code, diagnostic.severity) {
            (Code::StatusUnknown | Code::ConfigurationUnknown | Code::KernelDenied | Code::KernelNotRead, _) => {
                Verdict::Unknown
            }
            (_, Severity::Warning) => Verdict::Warning,
            (_, Severity::Error) => Verdict::Failing,
        };
        self.checks.push(Check { id, verdict, seen: String::new(), diagnostic: Some(diagnostic) });
    }

    /// Judges the evidence.
    pub fn of(evidence: &Evidence) -> Self {
        let mut findings = Self::default();
        match &evidence.state {
            None => {}
            Some(Ok((services, 0))) => {
                findings.ok("state", format!("{services} Services, and each has an eligible endpoint"));
            }
            Some(Ok((services, bare))) => {
                let problem = format!("{bare} of {services} Services have no eligible endpoint");
                let remedy = "list them with localnet get services; find the cause with localnet explain --why-not";
                findings.add("state", warning(Code::NoEndpointServes, problem).remedy(remedy));
            }
            Some(Err(error)) => findings.add("state", of(Code::BrainUnreachable, error.clone())),
        }
        match &evidence.status {
            None => {}
            Some(Err(error)) => findings.add("backends", of(Code::StatusUnknown, error.clone())),
            Some(Ok(status)) => {
                of_source(status).for_each(|problem| findings.add("source", problem));
                // Without a state, backends have nothing to report.
                if !matches!(evidence.state, Some(Err(_))) {
                    findings.backends(status);
                }
            }
        }
        if let Some(origin) = &evidence.configuration {
            let seen = format!("{}: {}", origin.text, origin.values);
            match is_guessed(Some(origin)) {
                true => findings.add("configuration", of(Code::ConfigurationUnknown, seen)),
                false => findings.ok("configuration", seen),
            }
        }
        findings.tables(evidence);
        findings.settings(evidence);
        findings
    }

    /// Whether any check fails.
    pub fn fail(&self) -> bool {
        self.checks.iter().any(|check| check.verdict == Verdict::Failing)
    }

    fn backends(&mut self, status: &Status) {
        no_backend(status).into_iter().for_each(|missing| self.add("backends", missing));
        for backend in &status.backends {
            let name = &backend.name;
            no_family(backend).into_iter().for_each(|missing| self.add("backends", missing));
            for family in &backend.families {
                match of_backend(backend, family) {
                    Some(problem) => self.add("backends", problem),
                    None if status.unread => {
                        let age = backend.age_millis / 1000;
                        let problem = format!(
                            "the last report of the backend {name} for {} is {age} s old, and no backend waits for the next state",
                            family.family
                        );
                        self.add("backends", of(Code::BackendStopped, problem));
                    }
                    None => {
                        let seen =
                            format!("the backend {name} has applied revision {} in {}", family.applied, family.family);
                        self.ok("backends", seen);
                    }
                }
            }
            if let Some(first) = backend.skipped.first() {
                let count = backend.skipped_count;
                let problem = format!("the backend {name} skips {count} parts of Services, such as {first}");
                let remedy =
                    "change the Services as the reasons suggest; list the reasons with localnet get revision -o wide";
                self.add("skipped", warning(Code::BackendSkips, problem).remedy(remedy));
            }
            for warning in &backend.warnings {
                let problem = format!("{name}: {}", warning.problem);
                self.add("warnings", Diagnostic { problem, ..warning.clone() });
            }
        }
    }

    fn tables(&mut self, evidence: &Evidence) {
        match &evidence.lines {
            None => {}
            Some(Err(unread)) => self.add("tables", unread.clone()),
            Some(Ok(found)) => match rules_differ(&found.names(), Subject::Program, evidence.configuration.as_ref()) {
                None => self.ok("tables", format!("the kernel matches the backend's plan ({} lines)", found.compared)),
                Some(differ) => {
                    let first = found.names().swap_remove(0);
                    let problem = format!(
                        "{} lines of the kernel differ from the backend's plan, the first in {first}",
                        found.count
                    );
                    self.add("tables", Diagnostic { problem, ..differ });
                }
            },
        }
        match &evidence.tables {
            None => {}
            // Only `KernelDenied` gets its usual remedy. Any other reason contains its own remedy, if there is one.
            Some(Err(unread)) => {
                let remedy = if unread.code == Code::KernelDenied { unread.code.remedy() } else { "" };
                self.add("tables", unread.clone().remedy(remedy));
            }
            Some(Ok(tables)) => {
                for (family, is_there, damaged) in tables {
                    let table = format!("table {} localnet", family_name(*family));
                    let differ = rules_differ(damaged, Subject::Program, evidence.configuration.as_ref());
                    match differ {
                        _ if !is_there => {
                            self.add("tables", of(Code::TableMissing, format!("{table} does not exist")));
                        }
                        None => self.ok("tables", format!("{table} has all planned chains")),
                        Some(differ) => {
                            let problem = format!("chains of {table} differ from the plan: {}", damaged.join(", "));
                            self.add("tables", Diagnostic { problem, ..differ });
                        }
                    }
                }
            }
        }
        match &evidence.features {
            None => {}
            Some(Ok(())) => self.ok("kernel", "nf_tables has all features that localnet-nft needs".to_owned()),
            Some(Err(problem)) => self.add("kernel", of(Code::KernelLacks, problem)),
        }
        for other in evidence.others.iter().filter(|table| table.ends_with(" kube-proxy")) {
            let problem =
                format!("kube-proxy's table {other} also exists: the first rule that matches a packet translates it");
            self.add("other-proxy", of(Code::OtherProxy, problem));
        }
        if evidence.legacy {
            let problem = "ip_tables (iptables-legacy) has rules, which this command does not read";
            self.add("legacy", of(Code::LegacyRules, problem));
        }
    }

    fn settings(&mut self, evidence: &Evidence) {
        for (family, forwards) in evidence.forwards {
            match forwards {
                None => {}
                Some(true) => self.ok("forwarding", format!("the node forwards {family} packets")),
                Some(false) => {
                    let problem = format!("the node does not forward {family} packets");
                    let remedy = format!("set {} to 1", crate::kernel::forwarding(family));
                    self.add("forwarding", warning(Code::ForwardingOff, problem).remedy(remedy));
                }
            }
        }
        if evidence.route_localnet.is_some_and(|value| value != 0) {
            let problem = "route_localnet is on: neighbours of the node may reach programs that listen on 127.0.0.1 (CVE-2020-8558)";
            self.add("route-localnet", of(Code::RouteLocalnet, problem));
        }
        if let Some((count, max)) = evidence.tracked.filter(|(_, max)| *max > 0) {
            let seen = format!("{count} of {max} tracked flows");
            match count * 100 / max {
                100.. => self.add("tracking", of(Code::TrackingFull, seen + ": the kernel drops new connections")),
                80.. => self.add("tracking", warning(Code::TrackingFull, seen)),
                _ => self.ok("tracking", seen),
            }
        }
    }
}

fn of(code: Code, problem: impl Into<String>) -> Diagnostic {
    usual(code, Subject::Program, problem)
}

fn warning(code: Code, problem: String) -> Diagnostic {
    of(code, problem).severity(Severity::Warning)
}

/// Reads the evidence from the kernel.
pub fn read_kernel(
    kernel: &mut Result<Kernel, Diagnostic>,
    evidence: &mut Evidence,
    planned: impl Fn(Family) -> Vec<std::sync::Arc<localnet_linux::nft::Chain>>,
) {
    let kernel = match kernel {
        Ok(kernel) => kernel,
        Err(error) => {
            evidence.tables = Some(Err(error.clone()));
            return;
        }
    };
    let mut tables = Vec::new();
    for family in Family::BOTH {
        let is_there = matches!(kernel.chains(family), Ok(Some(_)));
        let damaged = kernel.damaged(family, &planned(family)).unwrap_or_default();
        // A host without IPv6 has no IPv6 table.
        if family == Family::V4 || is_there || crate::kernel::forwards(family).is_some() {
            tables.push((family, is_there, if is_there { damaged } else { Vec::new() }));
        }
    }
    evidence.tables = Some(Ok(tables));
    evidence.features = crate::kernel::features();
    evidence.others = kernel.other_tables().unwrap_or_default();
    evidence.legacy = std::fs::read_to_string("/proc/net/ip_tables_names").is_ok_and(|names| !names.trim().is_empty());
    read_settings(evidence);
}

/// Reads the settings of the kernel, which concern every backend.
pub fn read_settings(evidence: &mut Evidence) {
    evidence.forwards = ByFamily::from_fn(crate::kernel::forwards);
    evidence.route_localnet = crate::kernel::setting("proc/sys/net/ipv4/conf/all/route_localnet");
    evidence.tracked = crate::kernel::tracked();
}

/// Returns the number of Services in `state`, and the number of those without an eligible endpoint.
pub fn count(state: &Snapshot) -> (usize, usize) {
    let is_served = |service: &Service| service.endpoints.iter().any(|endpoint| endpoint.scopes.is_eligible());
    let bare = state.services.values().filter(|service| !is_served(service));
    (state.services.len(), bare.count())
}

impl Show for Findings {
    fn human(&self, style: Style) -> String {
        let mut table = Table::of_prose();
        for check in &self.checks {
            let (word, tone) = match check.verdict {
                Verdict::Ok => ("ok", Tone::Good),
                Verdict::Warning => ("warning", Tone::Odd),
                Verdict::Failing => ("FAILING", Tone::Bad),
                Verdict::Unknown => ("unknown", Tone::Dim),
            };
            let text = check.diagnostic.as_ref().map_or(&check.seen, |of| &of.problem);
            table.add(|row| _ = row.toned(word, Some(tone)).cell(check.id).cell(text));
            if let Some(of) = check.diagnostic.as_ref().filter(|of| !of.remedy.is_empty()) {
                let remedy = format!("-> {}", of.remedy);
                table.add(|row| _ = row.cell("").cell("").toned(remedy, Some(Tone::Dim)));
            }
        }
        table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        let failing = self.checks.iter().filter(|check| check.verdict == Verdict::Failing);
        failing.map(|check| check.id.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::Difference;
    use crate::status::{Backend, FamilyStatus, SourceProblem};

    fn healthy() -> Evidence {
        let family =
            FamilyStatus { family: Family::V4, applied: 9, digest: None, differs: false, lag: 0, error: String::new() };
        let backend = Backend { name: "nft".to_owned(), families: vec![family], ..Backend::default() };
        Evidence {
            status: Some(Ok(Status { revision: 9, backends: vec![backend], ..Status::default() })),
            state: Some(Ok((3, 0))),
            tables: Some(Ok(vec![(Family::V4, true, vec![])])),
            forwards: ByFamily::new(Some(true), None),
            features: Some(Ok(())),
            tracked: Some((1, 100)),
            ..Evidence::default()
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Evidence), id: &str, is: Verdict) {
        let mut evidence = healthy();
        change(&mut evidence);
        let findings = Findings::of(&evidence);
        let found = findings.checks.iter().find(|check| check.id == id && check.verdict != Verdict::Ok);
        assert_eq!(found.map(|check| check.verdict), Some(is), "{findings:?}");
        assert_eq!(findings.fail(), is == Verdict::Failing);
    }

    #[test]
    fn all_checks_of_a_healthy_node_are_ok() {
        let findings = Findings::of(&healthy());
        assert!(
            findings.checks.iter().all(|check| check.verdict == Verdict::Ok && check.diagnostic.is_none()),
            "{findings:?}"
        );
        assert_eq!(findings.checks.len(), 6);
        assert!(!findings.fail());
    }

    /// The remedy must name the setting of the affected family, not that of the other one.
    #[test]
    fn the_remedy_for_forwarding_names_the_setting_of_its_family() {
        let settings = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
        for (family, setting) in Family::BOTH.into_iter().zip(settings) {
            let mut evidence = healthy();
            evidence.forwards = ByFamily::from_fn(|of| Some(of != family));
            let findings = Findings::of(&evidence);
            let remedies: Vec<_> =
                findings.checks.iter().filter_map(|check| Some(&check.diagnostic.as_ref()?.remedy)).collect();
            assert_eq!(remedies, [&format!("set {setting} to 1")]);
        }
    }

    fn differing_lines() -> Differences {
        let of = |name: &str| Difference {
            table: "ip nat".to_owned(),
            place: name.to_owned(),
            what: "missing",
            text: "-j RETURN".to_owned(),
            live: None,
        };
        Differences { differences: vec![of("KUBE-A"), of("KUBE-B")], count: 2, compared: 9, ..Differences::default() }
    }

    #[test]
    fn the_plan_of_other_backends_is_compared_line_by_line() {
        let tables = |lines: Differences| {
            let evidence = Evidence { tables: None, lines: Some(Ok(lines)), ..healthy() };
            let text = Findings::of(&evidence).human(Style::default());
            text.lines().find(|line| line.contains("tables")).unwrap().trim_end().to_owned()
        };
        let matching = tables(Differences { compared: 9, ..Differences::default() });
        assert!(matching.ends_with("the kernel matches the backend's plan (9 lines)"), "{matching}");
        let differing = tables(differing_lines());
        assert!(
            differing.ends_with("2 lines of the kernel differ from the backend's plan, the first in ip nat KUBE-A"),
            "{differing}"
        );
    }

    #[test]
    fn each_problem_has_its_severity() {
        check(|evidence| evidence.state = Some(Err("refused".to_owned())), "state", Verdict::Failing);
        check(|evidence| evidence.state = Some(Ok((3, 1))), "state", Verdict::Warning);
        check(|evidence| evidence.status = Some(Ok(Status::default())), "backends", Verdict::Failing);
        check(|evidence| evidence.status = Some(Err("old".to_owned())), "backends", Verdict::Unknown);
        let troubled = |evidence: &mut Evidence| {
            let Some(Ok(status)) = &mut evidence.status else { panic!("a node that is healthy has a status") };
            status.source_problems.push(SourceProblem {
                code: Code::YamlInvalid,
                of: vec!["files".to_owned()],
                problem: "a.yaml:1: no".to_owned(),
                age_millis: 0,
            });
        };
        check(troubled, "source", Verdict::Failing);
        let no_state_yet = |evidence: &mut Evidence| {
            troubled(evidence);
            evidence.state = Some(Err("it does not answer".to_owned()));
        };
        check(no_state_yet, "source", Verdict::Failing);
        let unread = |evidence: &mut Evidence| {
            let Some(Ok(status)) = &mut evidence.status else { panic!("a node that is healthy has a status") };
            status.unread = true;
        };
        check(unread, "backends", Verdict::Failing);
        let differing = |evidence: &mut Evidence| {
            let Some(Ok(status)) = &mut evidence.status else { panic!("a node that is healthy has a status") };
            status.backends[0].families[0].differs = true;
        };
        check(differing, "backends", Verdict::Warning);
        let unknown = |evidence: &mut Evidence| {
            let Some(Ok(status)) = &mut evidence.status else { panic!("a node that is healthy has a status") };
            status.backends[0].families.clear();
        };
        check(unknown, "backends", Verdict::Failing);
        check(|evidence| evidence.tables = Some(Ok(vec![(Family::V4, false, vec![])])), "tables", Verdict::Failing);
        check(
            |evidence| evidence.tables = Some(Ok(vec![(Family::V4, true, vec!["services".to_owned()])])),
            "tables",
            Verdict::Failing,
        );
        let guessed = |evidence: &mut Evidence| {
            evidence.tables = Some(Ok(vec![(Family::V4, true, vec!["services".to_owned()])]));
            evidence.configuration = Some(Origin { source: "defaults", ..Origin::default() });
        };
        check(guessed, "tables", Verdict::Warning);
        for (code, remedy) in [(Code::KernelDenied, Code::KernelDenied.remedy()), (Code::KernelNotRead, "")] {
            let unread = |evidence: &mut Evidence| {
                evidence.tables = Some(Err(Diagnostic::new(code, Subject::Program, "any text")));
            };
            check(unread, "tables", Verdict::Unknown);
            let mut evidence = healthy();
            unread(&mut evidence);
            let checks = Findings::of(&evidence).checks;
            let tables = checks.iter().find(|check| check.id == "tables").unwrap().diagnostic.as_ref().unwrap();
            assert_eq!((tables.problem.as_str(), tables.remedy.as_str()), ("any text", remedy));
        }
        check(|evidence| evidence.lines = Some(Ok(differing_lines())), "tables", Verdict::Failing);
        let unread_lines = |evidence: &mut Evidence| evidence.lines = Some(Err(crate::kernel::unread("any text")));
        check(unread_lines, "tables", Verdict::Unknown);
        check(|evidence| evidence.features = Some(Err("no masquerading".to_owned())), "kernel", Verdict::Failing);
        check(|evidence| evidence.others = vec!["ip kube-proxy".to_owned()], "other-proxy", Verdict::Warning);
        check(|evidence| evidence.forwards = ByFamily::new(Some(false), None), "forwarding", Verdict::Warning);
        check(|evidence| evidence.route_localnet = Some(1), "route-localnet", Verdict::Warning);
        check(|evidence| evidence.tracked = Some((100, 100)), "tracking", Verdict::Failing);
        check(|evidence| evidence.tracked = Some((85, 100)), "tracking", Verdict::Warning);
        check(|evidence| evidence.legacy = true, "legacy", Verdict::Warning);
    }
}
