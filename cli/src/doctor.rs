//! `localnet doctor`: checks the node as a whole and prints one line per check. Judging the evidence is pure.

use localnet_client::Snapshot;
use localnet_core::{Code, Diagnostic};
use localnet_linux::nft::family_name;
use localnet_proto::{ByFamily, Family};
use serde::Serialize;

use crate::{
    causes::{differs_remedy, is_guessed},
    kernel::Kernel,
    origin::Origin,
    output::Show,
    reasons::Status,
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
    /// A stable identifier for programs.
    pub id: &'static str,
    /// The verdict.
    pub is: Is,
    /// The observed facts.
    pub seen: String,
    /// How to correct it; empty if the check passes.
    pub remedy: String,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Is {
    /// The check passes.
    Ok,
    /// Unusual; may be a problem.
    Warning,
    /// Wrong: Services do not answer because of it.
    Failing,
    /// The check could not be made.
    Unknown,
}

/// Our table of a family: whether it exists, and the chains that differ from the plan.
pub type OwnTable = (Family, bool, Vec<String>);

/// The evidence about the node.
#[derive(Debug, Default)]
pub struct Evidence {
    /// The address of the brain.
    pub api: String,
    /// The status of the brain and its backends, or why it is unknown.
    pub status: Option<Result<Status, String>>,
    /// The number of Services in the state and of those without an eligible endpoint, or why there is no state.
    pub state: Option<Result<(usize, usize), String>>,
    /// The configuration that the checks use.
    pub configuration: Option<Origin>,
    /// Our tables, or why they are unknown.
    pub tables: Option<Result<Vec<OwnTable>, Diagnostic>>,
    /// The other tables in nf_tables.
    pub others: Vec<String>,
    /// Whether the kernel forwards packets; `None` if unknown.
    pub forwards: ByFamily<Option<bool>>,
    /// The setting `route_localnet` of all interfaces.
    pub route_localnet: Option<i64>,
    /// The number of tracked flows and its limit.
    pub tracked: Option<(i64, i64)>,
    /// Whether legacy ip_tables are in use.
    pub legacy: bool,
}

impl Findings {
    /// Judges the evidence.
    pub fn of(evidence: &Evidence) -> Self {
        let mut checks = Vec::new();
        let mut add =
            |id, is, seen: String, remedy: &str| checks.push(Check { id, is, seen, remedy: remedy.to_owned() });
        match &evidence.state {
            None => {}
            Some(Ok((services, 0))) => {
                add("state", Is::Ok, format!("{services} Services, each with an eligible endpoint"), "");
            }
            Some(Ok((services, bare))) => add(
                "state",
                Is::Warning,
                format!("{services} Services, {bare} of them without an eligible endpoint"),
                "localnet get services lists them; localnet explain --why-not shows the cause",
            ),
            Some(Err(error)) => add(
                "state",
                Is::Failing,
                error.clone(),
                "start localnet-brain, or give its address with --api; the kernel stays unchanged until then",
            ),
        }
        match &evidence.status {
            None => {}
            Some(Err(error)) => {
                add("backends", Is::Unknown, error.clone(), "upgrade localnet-brain to the version of this command");
            }
            Some(Ok(status)) => {
                for trouble in &status.troubles {
                    let remedy = "correct what the message names; the brain retries with backoff, and the state stays unchanged until then";
                    add("source", Is::Failing, trouble.line(), remedy);
                }
                // Without a state, backends have nothing to report.
                if !matches!(evidence.state, Some(Err(_))) {
                    of_backends(status, &mut add);
                }
            }
        }
        if let Some(origin) = &evidence.configuration {
            let seen = format!("{}: {}", origin.text, origin.values);
            match origin.source {
                "defaults" => add(
                    "configuration",
                    Is::Unknown,
                    seen,
                    "the checks below use it; pass --config or --cluster-cidr if the backend's differs",
                ),
                _ => add("configuration", Is::Ok, seen, ""),
            }
        }
        of_tables(evidence, &mut add);
        for (family, forwards) in evidence.forwards {
            let seen = format!(
                "{} packets are {}passed on",
                family_name(family),
                if forwards == Some(true) { "" } else { "not " }
            );
            match forwards {
                Some(true) => add("forwarding", Is::Ok, seen, ""),
                Some(false) => {
                    let remedy = match family {
                        Family::V4 => "set net.ipv4.ip_forward to 1",
                        Family::V6 => "set net.ipv6.conf.all.forwarding to 1",
                    };
                    add("forwarding", Is::Warning, seen, remedy);
                }
                None => {}
            }
        }
        if evidence.route_localnet.is_some_and(|value| value != 0) {
            let seen = "route_localnet is on: neighbours may reach programs that listen on 127.0.0.1 (CVE-2020-8558)"
                .to_owned();
            add(
                "route-localnet",
                Is::Warning,
                seen,
                "localnet needs it only for NodePorts on localhost; otherwise set it to 0",
            );
        }
        if let Some((count, max)) = evidence.tracked.filter(|(_, max)| *max > 0) {
            let seen = format!("{count} of {max} tracked flows");
            let remedy = "raise net.netfilter.nf_conntrack_max: localnet-nft init, conntrack.maxPerCore";
            match count * 100 / max {
                100.. => add("tracking", Is::Failing, seen + ": new connections are dropped", remedy),
                80.. => add("tracking", Is::Warning, seen, remedy),
                _ => add("tracking", Is::Ok, seen, ""),
            }
        }
        Self { checks }
    }

    /// Whether any check fails.
    pub fn fail(&self) -> bool {
        self.checks.iter().any(|check| check.is == Is::Failing)
    }
}

fn of_backends(status: &Status, add: &mut impl FnMut(&'static str, Is, String, &str)) {
    if status.backends.is_empty() {
        let remedy = "start localnet-nft or another backend";
        add("backends", Is::Failing, "no backend has reported: nothing programs the node".to_owned(), remedy);
    }
    for backend in &status.backends {
        let name = &backend.name;
        for of in &backend.families {
            let family = of.family;
            let age = backend.age_millis / 1000;
            match (of.error.as_str(), of.behind) {
                ("", 0) if status.unread => add(
                    "backends",
                    Is::Failing,
                    format!("{name} {family}: it last reported {age} s ago, and no backend waits for the next state"),
                    "check that it runs and reaches the brain; its log has the error",
                ),
                ("", 0) => add("backends", Is::Ok, format!("{name} {family}: revision {} is applied", of.applied), ""),
                ("", behind) => add(
                    "backends",
                    Is::Failing,
                    format!("{name} {family}: lags by {behind} revisions; it last reported {age} s ago"),
                    "check that it runs and reaches the brain; its log has the error",
                ),
                (error, _) => add(
                    "backends",
                    Is::Failing,
                    format!("{name} {family}: {error}"),
                    "correct what the error names; the backend retries with backoff",
                ),
            }
        }
        if backend.skipped_count > 0 {
            let first = backend.skipped.first().map(|(of, why)| format!(", such as {of}: {why}")).unwrap_or_default();
            let seen = format!("{name} skips {} parts of Services{first}", backend.skipped_count);
            add(
                "skipped",
                Is::Warning,
                seen,
                "change the Services as the reasons suggest: localnet get revision -o wide",
            );
        }
        for warning in &backend.warnings {
            add("warnings", Is::Warning, format!("{name}: {warning}"), "");
        }
    }
}

fn of_tables(evidence: &Evidence, add: &mut impl FnMut(&'static str, Is, String, &str)) {
    match &evidence.tables {
        None => {}
        // The reason may name a further remedy.
        Some(Err(unread)) => {
            let remedy = if unread.code == Code::KernelDenied { "run it as root, on the node" } else { "" };
            add("tables", Is::Unknown, unread.to_string(), remedy);
        }
        Some(Ok(tables)) => {
            for (family, is_there, damaged) in tables {
                let table = format!("table {} localnet", family_name(*family));
                match (is_there, damaged.as_slice()) {
                    (true, []) => add("tables", Is::Ok, format!("{table} has its chains"), ""),
                    (true, damaged) => add(
                        "tables",
                        if is_guessed(evidence.configuration.as_ref()) { Is::Warning } else { Is::Failing },
                        format!("{table}: not as planned: {}", damaged.join(", ")),
                        differs_remedy(evidence.configuration.as_ref()),
                    ),
                    (false, _) => {
                        add(
                            "tables",
                            Is::Failing,
                            format!("{table} does not exist"),
                            "start the backend: it creates the table within a second",
                        );
                    }
                }
            }
        }
    }
    for other in evidence.others.iter().filter(|table| table.ends_with(" kube-proxy")) {
        let remedy = "stop kube-proxy, then localnet-nft cleanup --kube-proxy";
        add(
            "other-proxy",
            Is::Warning,
            format!("table {other} is kube-proxy's: the first rule that matches translates a packet"),
            remedy,
        );
    }
    if evidence.legacy {
        let seen = "ip_tables (iptables-legacy) has rules, which this command does not read".to_owned();
        add("legacy", Is::Warning, seen, "list them with iptables-legacy-save");
    }
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
        // A host without IPv6 has no table for it.
        if family == Family::V4 || is_there || crate::kernel::forwards(family).is_some() {
            tables.push((family, is_there, if is_there { damaged } else { Vec::new() }));
        }
    }
    evidence.tables = Some(Ok(tables));
    evidence.others = kernel.other_tables().unwrap_or_default();
    evidence.forwards = ByFamily::from_fn(crate::kernel::forwards);
    evidence.route_localnet = crate::kernel::setting("proc/sys/net/ipv4/conf/all/route_localnet");
    let tracked = |name: &str| crate::kernel::setting(&format!("proc/sys/net/netfilter/nf_conntrack_{name}"));
    evidence.tracked = tracked("count").zip(tracked("max"));
    evidence.legacy = std::fs::read_to_string("/proc/net/ip_tables_names").is_ok_and(|names| !names.trim().is_empty());
}

/// Returns the number of Services in a state, and of those without an eligible endpoint.
pub fn count(state: &Snapshot) -> (usize, usize) {
    let is_bare = |service: &&std::sync::Arc<localnet_proto::Service>| {
        let mut scopes = service.endpoints.iter().map(|endpoint| endpoint.scopes);
        !scopes.any(|scopes| scopes.internal || scopes.external || scopes.short_circuit)
    };
    (state.services.len(), state.services.values().filter(is_bare).count())
}

impl Show for Findings {
    fn human(&self, style: Style) -> String {
        let mut table = Table::of_prose();
        for check in &self.checks {
            let (word, tone) = match check.is {
                Is::Ok => ("ok", Tone::Good),
                Is::Warning => ("warning", Tone::Odd),
                Is::Failing => ("FAILING", Tone::Bad),
                Is::Unknown => ("unknown", Tone::Dim),
            };
            table.toned([(word.to_owned(), Some(tone)), (check.id.to_owned(), None), (check.seen.clone(), None)]);
            if !check.remedy.is_empty() {
                table.toned([
                    (String::new(), None),
                    (String::new(), None),
                    (format!("-> {}", check.remedy), Some(Tone::Dim)),
                ]);
            }
        }
        table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        self.checks.iter().filter(|check| check.is == Is::Failing).map(|check| check.id.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use localnet_core::Subject;

    use super::*;
    use crate::reasons::{Backend, FamilyStatus, Trouble};

    fn healthy() -> Evidence {
        let family = FamilyStatus { family: localnet_proto::Family::V4, applied: 9, behind: 0, error: String::new() };
        let backend = Backend { name: "nft".to_owned(), families: vec![family], ..Backend::default() };
        Evidence {
            status: Some(Ok(Status { revision: 9, backends: vec![backend], ..Status::default() })),
            state: Some(Ok((3, 0))),
            tables: Some(Ok(vec![(Family::V4, true, vec![])])),
            forwards: ByFamily::new(Some(true), None),
            tracked: Some((1, 100)),
            ..Evidence::default()
        }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Evidence), id: &str, is: Is) {
        let mut evidence = healthy();
        change(&mut evidence);
        let findings = Findings::of(&evidence);
        let found = findings.checks.iter().find(|check| check.id == id && check.is != Is::Ok);
        assert_eq!(found.map(|check| check.is), Some(is), "{findings:?}");
        assert_eq!(findings.fail(), is == Is::Failing);
    }

    #[test]
    fn all_checks_of_a_healthy_node_are_ok() {
        let findings = Findings::of(&healthy());
        assert!(findings.checks.iter().all(|check| check.is == Is::Ok && check.remedy.is_empty()), "{findings:?}");
        assert_eq!(findings.checks.len(), 5);
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
                findings.checks.iter().filter(|check| check.is != Is::Ok).map(|check| check.remedy.as_str()).collect();
            assert_eq!(remedies, [format!("set {setting} to 1")]);
        }
    }

    #[test]
    fn each_problem_has_its_severity() {
        check(|evidence| evidence.state = Some(Err("refused".to_owned())), "state", Is::Failing);
        check(|evidence| evidence.state = Some(Ok((3, 1))), "state", Is::Warning);
        check(|evidence| evidence.status = Some(Ok(Status::default())), "backends", Is::Failing);
        check(|evidence| evidence.status = Some(Err("old".to_owned())), "backends", Is::Unknown);
        let troubled = |evidence: &mut Evidence| {
            let Some(Ok(status)) = &mut evidence.status else { panic!("a node that is healthy has a status") };
            status.troubles.push(Trouble::default());
        };
        check(troubled, "source", Is::Failing);
        let no_state_yet = |evidence: &mut Evidence| {
            troubled(evidence);
            evidence.state = Some(Err("it does not answer".to_owned()));
        };
        check(no_state_yet, "source", Is::Failing);
        let unread = |evidence: &mut Evidence| {
            let Some(Ok(status)) = &mut evidence.status else { panic!("a node that is healthy has a status") };
            status.unread = true;
        };
        check(unread, "backends", Is::Failing);
        check(|evidence| evidence.tables = Some(Ok(vec![(Family::V4, false, vec![])])), "tables", Is::Failing);
        check(
            |evidence| evidence.tables = Some(Ok(vec![(Family::V4, true, vec!["services".to_owned()])])),
            "tables",
            Is::Failing,
        );
        let guessed = |evidence: &mut Evidence| {
            evidence.tables = Some(Ok(vec![(Family::V4, true, vec!["services".to_owned()])]));
            evidence.configuration = Some(Origin { source: "defaults", ..Origin::default() });
        };
        check(guessed, "tables", Is::Warning);
        for (code, remedy) in [(Code::KernelDenied, "run it as root, on the node"), (Code::KernelNotRead, "")] {
            let unread = |evidence: &mut Evidence| {
                evidence.tables = Some(Err(Diagnostic::new(code, Subject::Program, "any text")));
            };
            check(unread, "tables", Is::Unknown);
            let mut evidence = healthy();
            unread(&mut evidence);
            let checks = Findings::of(&evidence).checks;
            let tables = checks.iter().find(|check| check.id == "tables").unwrap();
            assert_eq!((tables.seen.as_str(), tables.remedy.as_str()), ("any text", remedy));
        }
        check(|evidence| evidence.others = vec!["ip kube-proxy".to_owned()], "other-proxy", Is::Warning);
        check(|evidence| evidence.forwards = ByFamily::new(Some(false), None), "forwarding", Is::Warning);
        check(|evidence| evidence.route_localnet = Some(1), "route-localnet", Is::Warning);
        check(|evidence| evidence.tracked = Some((100, 100)), "tracking", Is::Failing);
        check(|evidence| evidence.tracked = Some((85, 100)), "tracking", Is::Warning);
        check(|evidence| evidence.legacy = true, "legacy", Is::Warning);
    }
}
