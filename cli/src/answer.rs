//! The answer of `localnet explain --why-not`.

use std::fmt::Write as _;

use localnet_core::{Diagnostic, Severity, Subject};
use serde::Serialize;

use crate::{
    causes::rank,
    evidence::{Evidence, Front},
    origin::Origin,
    output::Show,
    style::{Style, Tone},
};

/// The causes, the likeliest first, and what was checked.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The port as the user wrote it.
    pub question: String,
    /// The causes, the likeliest first.
    pub causes: Vec<Diagnostic>,
    /// The addresses that were checked, and the outcome at each.
    pub checked: Vec<String>,
    /// What could not be checked, and why.
    pub not_checked: Vec<String>,
    /// The configuration that the answer was computed with; `None` if there was no state.
    pub configuration: Option<Origin>,
}

impl Answer {
    /// Builds the answer from the evidence.
    pub fn of(evidence: &Evidence) -> Self {
        let checked = |front: &Front| format!("{} {}: {}", front.kind, front.to, front.outcome);
        let unanswered = evidence.unanswered_node_port.map(|number| {
            format!("NodePort {number}: no address of this node answers it, according to the Node's addresses and nodePortAddresses")
        });
        let kernel = evidence.kernel_unknown.iter().map(|why| format!("the kernel: {why}"));
        let foreign = evidence.foreign_unread.then(|| {
            "the rules of other programs: they are evaluated only if the node's backend is nft, iptables or ipvs"
                .to_owned()
        });
        Self {
            question: format!("{}:{}", evidence.service, evidence.port),
            causes: rank(evidence),
            checked: evidence.fronts.iter().map(checked).collect(),
            not_checked: unanswered.into_iter().chain(kernel).chain(foreign).collect(),
            configuration: evidence.configuration.clone(),
        }
    }
}

impl Show for Answer {
    fn human(&self, style: Style) -> String {
        let mut text = String::new();
        for (number, cause) in (1..).zip(&self.causes) {
            let Diagnostic { subject, field, code, severity, problem, remedy } = cause;
            let (tone, may) = match severity {
                Severity::Error => (Tone::Bad, ""),
                Severity::Warning => (Tone::Odd, " (possible)"),
            };
            let (at, place) = match subject {
                Subject::Vip(vip) => (format!(" at {vip}"), String::new()),
                _ if field.is_empty() => (String::new(), String::new()),
                subject => (String::new(), format!("{subject} {field}: ")),
            };
            // Writing to a string cannot fail.
            _ = writeln!(text, "{number}. {}{may}{at}", style.paint(tone, code.as_str()));
            _ = writeln!(text, "   {place}{problem}");
            _ = writeln!(text, "   {} {remedy}", style.paint(Tone::Dim, "remedy:"));
        }
        if self.causes.is_empty() {
            _ = writeln!(text, "{}", style.paint(Tone::Good, "no problem found on this node"));
            _ = writeln!(
                text,
                "   what remains to check: the endpoints, network policies on other nodes, and the route of the replies"
            );
        }
        for checked in self.checked.iter().filter(|_| style.wide || self.causes.is_empty()) {
            _ = writeln!(text, "   checked {checked}");
        }
        for not in &self.not_checked {
            _ = writeln!(text, "   not checked {not}");
        }
        text.extend(self.configuration.iter().map(Origin::line));
        text
    }

    fn names(&self) -> Vec<String> {
        self.causes.iter().map(|cause| cause.code.to_string()).collect()
    }
}
