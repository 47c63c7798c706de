//! Turns a comparison into the report of a backend, so that `localnet status`, metrics and alerts show it. Pure.

use std::collections::BTreeMap;

use localnet_client::{Code, Diagnostic, Outcome, Report, Subject};
use localnet_proto::{Family, ServiceKey};

use super::{Difference, Shadow, told};

/// The name in reports to the brain.
const NAME: &str = "shadow";

impl Shadow {
    /// The report. The Services that differ for no reason in docs/differences.md count as skipped.
    pub fn report(&self) -> Report {
        let outcome = || Outcome { applied: self.revision.rev, ..Outcome::default() };
        Report {
            backend: NAME,
            mode: None,
            received: self.revision,
            families: Family::BOTH.into_iter().map(|family| (family, outcome())).collect(),
            skipped: self.diagnostics(),
            warnings: Vec::new(),
            configuration: None,
            counts: None,
        }
    }

    /// One diagnostic for each Service, or destination without a Service, that differs for no reason in docs/differences.md.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let mut by_subject: BTreeMap<Subject, Vec<&Difference>> = BTreeMap::new();
        for difference in self.differences.iter().filter(|difference| difference.entry.is_none()) {
            let service = difference.service.as_deref().and_then(|service| service.split_once('/'));
            let of_service = |(namespace, name): (&str, &str)| Subject::service(&ServiceKey::new(namespace, name));
            by_subject.entry(service.map_or(Subject::Vip(difference.to), of_service)).or_default().push(difference);
        }
        let diagnostic = |(subject, differences): (Subject, Vec<&Difference>)| {
            let first = differences.first()?;
            let more = match differences.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} other packets"),
            };
            let Difference { origin, from, to, protocol, .. } = first;
            let theirs = first.unknown.clone().unwrap_or_else(|| told(&first.kube_proxy));
            let problem = format!(
                "a packet from {origin} {from} to {to}/{protocol}: localnet would give {}, kube-proxy gives {theirs}{more}",
                told(&first.localnet)
            );
            Some(Diagnostic::new(Code::ShadowDiffers, subject, problem).remedy("run localnet shadow on the node"))
        };
        by_subject.into_iter().filter_map(diagnostic).collect()
    }
}

#[cfg(test)]
mod tests {
    use localnet_proto::Revision;

    use super::*;
    use crate::shadow::{Mode, verdict::Verdict};

    fn difference(service: Option<&str>, port: u16, entry: Option<u8>) -> Difference {
        Difference {
            from: [10, 0, 0, 1].into(),
            origin: "pod",
            to: ([10, 96, 0, 1], port).into(),
            protocol: "TCP",
            service: service.map(str::to_owned),
            localnet: [Verdict::Reject].into(),
            kube_proxy: [Verdict::Drop].into(),
            entry,
            unknown: None,
        }
    }

    #[test]
    fn each_service_that_differs_is_reported_once() {
        let shadow = Shadow {
            revision: Revision { instance: 7, rev: 3 },
            mode: Mode::Iptables,
            compared: 9,
            equal: 5,
            deliberate: 1,
            flows: 0,
            flows_elsewhere: Vec::new(),
            differences: vec![
                difference(Some("shop/web"), 80, None),
                difference(Some("shop/web"), 81, None),
                difference(Some("shop/api"), 80, Some(5)),
                difference(None, 82, None),
            ],
        };
        let report = shadow.report();
        let lines: Vec<String> = report.skipped.iter().map(ToString::to_string).collect();
        let [web, unused] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(web.starts_with("Service shop/web: a packet from pod 10.0.0.1 to 10.96.0.1:80/TCP"), "{web}");
        assert!(web.contains(", and 1 other packets"), "{web}");
        assert!(unused.starts_with("10.96.0.1:82: "), "{unused}");
        assert_eq!((report.received.rev, report.families.len()), (3, 2));
    }
}
