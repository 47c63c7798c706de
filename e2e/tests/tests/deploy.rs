//! Alerts and dashboard: their expressions are valid PromQL, and use only metrics and labels that exist.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::Context as _;
use localnet_brain::{exposition::text, feed::Feed, reports::Reports};
use localnet_cluster::localize::Localized;
use localnet_proto::{
    traffic::{Drains, PortTraffic, Refusals, TrafficReport, TrafficTotal},
    wire::{Attempts, BackendReport, FamilyReport, IpFamily},
};
use serde::Deserialize;
use serde_json::Value;

fn read(name: &str) -> anyhow::Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// The series and labels of a brain with a reporting backend. Counters of health answers have no series before the first answer.
fn exported() -> anyhow::Result<(BTreeSet<String>, BTreeSet<String>)> {
    let (feed, reports) = (Feed::new(7), Reports::default());
    feed.publish(Localized::default()).context("the first state is one")?;
    let family = FamilyReport {
        family: IpFamily::IPv4.into(),
        applied_rev: 1,
        full: Some(Attempts::default()),
        partial: Some(Attempts::default()),
        ..FamilyReport::default()
    };
    let report = BackendReport {
        backend: "nft".to_owned(),
        proxy_mode: "nftables".to_owned(),
        instance_id: 7,
        rev: 1,
        families: vec![family],
        ..Default::default()
    };
    reports.record(report)?;
    let refused = vec![Refusals { reason: 1, packets: 1 }];
    let (total, drains) = (Some(TrafficTotal::default()), Some(Drains::default()));
    let port = PortTraffic { total, refused, drains, ..PortTraffic::default() };
    reports.record_traffic(TrafficReport { backend: "nft".to_owned(), ports: vec![port], ..TrafficReport::default() });
    let (mut series, mut labels) = (BTreeSet::new(), BTreeSet::new());
    for line in text(feed.metrics(), &feed.state(), &reports.all()).lines().filter(|line| !line.starts_with('#')) {
        let (name, _) = line.rsplit_once(' ').with_context(|| format!("no sample: {line}"))?;
        let (name, of) = name.split_once('{').unwrap_or((name, ""));
        series.insert(name.to_owned());
        labels
            .extend(of.trim_end_matches('}').split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned())));
    }
    let later = [
        "kubeproxy_proxy_healthz_total",
        "kubeproxy_proxy_livez_total",
        "localnet_backend_behind_seconds",
        "localnet_conntrack_entries",
        "localnet_conntrack_entries_limit",
        "localnet_source_failing",
        "localnet_source_heard_timestamp_seconds",
        "localnet_source_held_objects",
        "localnet_source_restored_total",
        // A series of Prometheus itself.
        "up",
    ];
    series.extend(later.map(str::to_owned));
    for measured in ["localnet_apply_duration_seconds", "kubeproxy_network_programming_duration_seconds"] {
        series.insert(format!("{measured}_bucket"));
    }
    // The labels of Prometheus itself, and of the series above.
    labels.extend(["instance", "job", "code", "of", "le"].map(str::to_owned));
    Ok((series, labels))
}

/// The functions, operators and keywords of PromQL that are used.
const WORDS: &[&str] = &[
    "and",
    "by",
    "histogram_quantile",
    "increase",
    "max",
    "max_over_time",
    "on",
    "or",
    "rate",
    "sum",
    "time",
    "unless",
];

/// The names in an expression, each with whether an opening parenthesis follows. Fails if the rest is invalid.
fn names(expression: &str) -> anyhow::Result<Vec<(String, bool)>> {
    let (mut names, mut open, mut rest) = (Vec::new(), Vec::new(), expression.chars().peekable());
    while let Some(letter) = rest.next() {
        match letter {
            '(' | '[' | '{' => open.push(letter),
            ')' | ']' | '}' => {
                let opened = open.pop().with_context(|| format!("{letter} closes nothing"))?;
                anyhow::ensure!(
                    ["()", "[]", "{}"].contains(&format!("{opened}{letter}").as_str()),
                    "{opened} meets {letter}"
                );
            }
            '"' => anyhow::ensure!(rest.by_ref().any(|letter| letter == '"'), "a text does not end"),
            letter if letter.is_ascii_alphabetic() || letter == '_' => {
                let mut name = letter.to_string();
                while let Some(letter) = rest.next_if(|letter| letter.is_ascii_alphanumeric() || *letter == '_') {
                    name.push(letter);
                }
                while rest.next_if_eq(&' ').is_some() {}
                names.push((name, rest.peek() == Some(&'(')));
            }
            // Numbers, and durations such as 5m.
            letter if letter.is_ascii_digit() => {
                while rest.next_if(|letter| letter.is_ascii_alphanumeric() || *letter == '.').is_some() {}
            }
            ' ' | ',' | '=' | '~' | '!' | '<' | '>' | '-' | '+' | '*' | '/' => {}
            other => anyhow::bail!("{other:?} is no PromQL"),
        }
    }
    anyhow::ensure!(open.is_empty(), "{open:?} is not closed");
    Ok(names)
}

/// Checks an expression.
fn check(expression: &str) -> anyhow::Result<()> {
    // A variable of Grafana that stands for a duration.
    let names = names(&expression.replace("$__rate_interval", "5m")).with_context(|| expression.to_owned())?;
    let (series, labels) = exported()?;
    let is_known = |(name, called): &(String, bool)| {
        WORDS.contains(&name.as_str()) || (!called && (series.contains(name) || labels.contains(name)))
    };
    let unknown: Vec<_> = names.iter().filter(|name| !is_known(name)).collect();
    anyhow::ensure!(unknown.is_empty(), "{expression}: no program exports {unknown:?}");
    anyhow::ensure!(names.iter().any(|(name, _)| series.contains(name)), "{expression} uses no metric");
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    r#for: String,
    labels: Labels,
    annotations: Annotations,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Labels {
    severity: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Annotations {
    summary: String,
    description: String,
    /// The page and the section with the instructions for an alert.
    runbook: String,
}

#[test]
fn alerts_use_only_exported_metrics() -> anyhow::Result<()> {
    let rules: Rules = serde_saphyr::from_str(&read("alerts.yaml")?)?;
    let (mut names, (_, exported_labels)) = (BTreeSet::new(), exported()?);
    for Group { name: group, rules } in &rules.groups {
        assert!(!group.is_empty() && !rules.is_empty());
        for Rule { alert, expr, r#for: lasting, labels, annotations } in rules {
            assert!(names.insert(alert), "{alert} is defined twice");
            check(expr).context(alert.clone())?;
            let digits = lasting.trim_end_matches(['s', 'm', 'h']);
            assert!(digits.len() + 1 == lasting.len() && digits.parse::<u32>().is_ok(), "{alert}: for {lasting}");
            assert!(
                ["critical", "warning", "info"].contains(&labels.severity.as_str()),
                "{alert}: {}",
                labels.severity
            );
            assert!(!annotations.description.is_empty(), "{alert} has no description");
            let (page, section) = annotations.runbook.split_once('#').context("a runbook has a section")?;
            let page = read(&format!("../{page}"))?;
            assert_eq!(section, alert.to_lowercase());
            assert!(page.contains(&format!("\n## {alert}\n")), "{}: no such section", annotations.runbook);
            for label in annotations.summary.split("$labels.").skip(1) {
                let label: String =
                    label.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
                assert!(exported_labels.contains(&label), "{alert}: no label {label}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_dashboard_uses_only_exported_metrics() -> anyhow::Result<()> {
    let dashboard: Value = serde_json::from_str(&read("dashboard.json")?)?;
    let panels = dashboard["panels"].as_array().context("a dashboard has panels")?;
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    for panel in panels {
        let title = panel["title"].as_str().context("a panel has a title")?;
        let targets = panel["targets"].as_array().with_context(|| format!("{title} shows something"))?;
        assert!(!targets.is_empty(), "{title} shows something");
        for target in targets {
            check(target["expr"].as_str().with_context(|| format!("{title} has no query"))?)
                .context(title.to_owned())?;
        }
    }
    Ok(())
}

#[test]
fn an_unknown_metric_is_detected() {
    for (expression, wrong) in [
        ("localnet_revisions", "localnet_revisions"),
        ("localnet_revision{node=\"a\"}", "node"),
        ("sum by (shard) (localnet_revision)", "shard"),
        ("rates(localnet_revision[5m])", "rates"),
        ("sum by (le (localnet_revision)", "not closed"),
        ("sum(localnet_revision])", "( meets ]"),
        ("localnet_revision{backend=\"a}", "does not end"),
        ("1 > 0", "uses no metric"),
    ] {
        let error = format!("{:#}", check(expression).expect_err(expression));
        assert!(error.contains(wrong), "{expression}: {error}");
    }
}
