//! Prints the answer about a packet.

use std::{fmt::Write as _, net::SocketAddr};

use localnet_proto::{HashBy, reasons::Nearness};

use super::{Explanation, Hashed, Many};
use crate::{
    origin::Origin,
    output::Show,
    style::{NONE, Style, Tone},
    table::Table,
};

impl Explanation {
    fn head(&self, style: Style) -> String {
        let tone = if self.outcome == "endpoints" { Tone::Good } else { Tone::Bad };
        let verdict = match self.outcome {
            "endpoints" => {
                let sum: f64 = self.weights.values().copied().map(f64::from).sum();
                let endpoint = |endpoint: &SocketAddr| match self.weights.get(endpoint) {
                    Some(weight) => format!("{endpoint} ({:.1} %)", 100.0 * f64::from(*weight) / sum),
                    None => endpoint.to_string(),
                };
                let endpoints: Vec<String> = self.endpoints.iter().map(endpoint).collect();
                let shown = endpoints.iter().take(8).cloned().collect::<Vec<_>>().join(" ");
                let more = endpoints.len().saturating_sub(8);
                if more > 0 { format!("{shown} and {more} more") } else { shown }
            }
            "reject" => "rejected: connection refused".to_owned(),
            "drop" => "dropped: no answer".to_owned(),
            _ => "no Service: the packet goes to its original destination".to_owned(),
        };
        let from =
            if self.from.is_empty() { self.origin.to_owned() } else { format!("{} ({})", self.from, self.origin) };
        let mut text = format!("{from} -> {}/{}\n", self.to, self.protocol.to_lowercase());
        let mut facts = Table::of_prose();
        if let (Some(service), Some(port)) = (&self.service, &self.port) {
            facts.row(["service", &format!("{service}, port {port} ({})", self.destination)]);
        }
        facts.add(|row| _ = row.cell("verdict").toned(verdict, Some(tone)));
        facts.row(["because", &self.why]);
        if self.outcome == "endpoints" {
            let source = match (self.masquerade, self.hairpin.is_empty()) {
                (true, _) => "replaced by the node's address",
                (false, true) => "kept",
                (false, false) => "kept, but replaced if the endpoint is the sender itself",
            };
            facts.row(["source", source]);
        }
        if self.translated_on_connect {
            let instead =
                "localnet-ebpf replaces the destination before the first packet, and the source is always kept";
            facts.row(["connection", instead]);
        }
        if let Some(affinity) = self.affinity {
            facts.row(["affinity", &format!("the sender keeps its endpoint for {affinity}")]);
        }
        if let Some(Hashed { by, slots, endpoint }) = &self.hash {
            let hashed = match by {
                HashBy::Source => "the sender's address selects",
                HashBy::Connection => "the sender's address and port select",
            };
            let reached = endpoint.map(|endpoint| format!(", which leads to {endpoint}")).unwrap_or_default();
            facts.row(["hash", &format!("{hashed} one of {slots} slots{reached}")]);
        }
        text.push_str(&facts.text(style, 2));
        text
    }

    fn reasons(&self, style: Style) -> String {
        let mut text = String::new();
        for hints in self.hints.iter().filter(|_| self.outcome == "endpoints" || !self.ineligible.is_empty()) {
            let line = match hints.nearness {
                Nearness::Everywhere | Nearness::Unknown if hints.unhinted => continue,
                Nearness::Everywhere | Nearness::Unknown => {
                    format!("topology hints are ignored: {}", hints.not_same_zone)
                }
                Nearness::SameNode => "topology hints apply: only endpoints for this node are eligible".to_owned(),
                Nearness::SameZone => "topology hints apply: only endpoints for this zone are eligible".to_owned(),
            };
            // Writing to a string cannot fail.
            _ = writeln!(text, "  {line}");
        }
        if !self.ineligible.is_empty() {
            text.push_str("not eligible\n");
            let mut table = Table::bare();
            for of in &self.ineligible {
                let at = if of.number == 0 { of.address.clone() } else { format!("{}:{}", of.address, of.number) };
                table.add(|row| {
                    row.cell(at).toned(of.rule.name(), Some(Tone::Odd)).cell(&of.problem);
                    if style.wide {
                        row.toned(format_args!("{} {}", of.slice, of.field), Some(Tone::Dim));
                    }
                });
            }
            text.push_str(&table.text(style, 2));
        }
        if let Some(unknown) = &self.reasons_unknown {
            _ = writeln!(text, "not eligible: unknown: {unknown}");
        }
        text
    }

    fn in_kernel(&self, style: Style) -> String {
        let mut text = String::new();
        if !self.path.is_empty() {
            text.push_str("kernel\n");
            let mut table = Table::bare();
            for row in &self.path {
                let (word, tone) = match row.held {
                    "yes" => ("held", Tone::Good),
                    "no" => ("MISSING", Tone::Bad),
                    "other" => ("DIFFERS", Tone::Bad),
                    _ => ("?", Tone::Dim),
                };
                let handle = row.handle.map(|handle| format!("#{handle}")).unwrap_or_default();
                let found = row.found.as_ref().map(|found| format!("  (found: {found})")).unwrap_or_default();
                let text = format!("{}{found}", row.text);
                table.add(|to| {
                    _ = to.toned(word, Some(tone)).cell(&row.place).toned(handle, Some(Tone::Dim)).cell(text);
                });
            }
            text.push_str(&table.text(style, 2));
        }
        if let Some(unknown) = &self.kernel_unknown {
            _ = writeln!(text, "kernel: not read: {unknown}");
        }
        if !self.flows.is_empty() {
            _ = writeln!(text, "flows ({} in all)", self.flows_count);
            let mut table = Table::bare();
            for flow in &self.flows {
                let state = if flow.answered { "answered" } else { "unanswered" };
                let stale = if flow.stale { "STALE: the endpoint is no longer eligible" } else { "" };
                let at = format!("at {}", flow.endpoint);
                table.add(|row| _ = row.cell(flow.from).cell(at).cell(state).toned(stale, Some(Tone::Bad)));
            }
            text.push_str(&table.text(style, 2));
        } else if let Some(unknown) = &self.flows_unknown {
            _ = writeln!(text, "flows: unknown: {unknown}");
        }
        text
    }
}

impl Show for Explanation {
    fn human(&self, style: Style) -> String {
        let configuration = self.configuration.as_ref().map(Origin::line);
        self.head(style) + &self.reasons(style) + &self.in_kernel(style) + &configuration.unwrap_or_default()
    }

    fn names(&self) -> Vec<String> {
        self.endpoints.iter().map(ToString::to_string).collect()
    }
}

impl Show for Many {
    fn human(&self, style: Style) -> String {
        let mut table = Table::new(["FROM", "TO", "PROTOCOL", "SERVICE", "OUTCOME", "ENDPOINTS"]);
        for one in &self.0 {
            let endpoints: Vec<String> = one.endpoints.iter().map(ToString::to_string).collect();
            let from = if one.from.is_empty() { one.origin } else { &one.from };
            let service = one.service.as_deref().unwrap_or(NONE);
            table.row([from, &one.to, one.protocol, service, one.outcome, &endpoints.join(",")]);
        }
        table.text(style, 0)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|one| one.outcome.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_shown_if_weights_differ() {
        let [a, b] = ["10.0.0.1:80", "10.0.0.2:80"].map(|endpoint| endpoint.parse().unwrap());
        let even = Explanation { outcome: "endpoints", endpoints: [a, b].into(), ..Explanation::default() };
        assert!(even.head(Style::default()).contains("10.0.0.1:80 10.0.0.2:80\n"));
        let weighed = Explanation { weights: [(a, 3), (b, 1)].into(), ..even };
        assert!(weighed.head(Style::default()).contains("10.0.0.1:80 (75.0 %) 10.0.0.2:80 (25.0 %)\n"));
        for (by, endpoint, expected) in [
            (HashBy::Source, Some(b), "the sender's address selects one of 1024 slots, which leads to 10.0.0.2:80\n"),
            (HashBy::Connection, None, "the sender's address and port select one of 1024 slots\n"),
        ] {
            let hash = Some(Hashed { by, slots: 1024, endpoint });
            let hashed = Explanation { hash, outcome: "endpoints", ..Explanation::default() };
            let head = hashed.head(Style::default());
            assert!(head.contains(expected), "{head}");
        }
    }
}
