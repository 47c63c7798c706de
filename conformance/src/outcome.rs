//! The results of the checks: a table for people, JUnit XML for machines. Pure.

use std::{fmt::Write as _, time::Duration};

use crate::level::Level;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The backend passed.
    Passed,
    /// The backend failed, for this reason.
    Failed(String),
    /// The check did not run, or proved nothing. The reason names what is missing: a claim, a flag or root.
    NotClaimed(String),
}

/// A check and its result.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The level that the check belongs to.
    pub level: Level,
    /// The name within the level.
    pub name: String,
    /// The result.
    pub verdict: Verdict,
    /// The duration.
    pub took: Duration,
}

/// The results of all checks.
#[derive(Clone, Debug, Default)]
pub struct Outcomes(pub Vec<Outcome>);

impl Outcomes {
    /// Whether no check failed.
    pub fn passed(&self) -> bool {
        self.failed().next().is_none()
    }

    /// The names of the failed checks, as `LEVEL/NAME`.
    pub fn failed(&self) -> impl Iterator<Item = String> {
        let failed = self.0.iter().filter(|outcome| matches!(outcome.verdict, Verdict::Failed(_)));
        failed.map(|outcome| format!("{}/{}", outcome.level, outcome.name))
    }

    /// How many checks passed or failed. Checks that are not claimed do not count.
    pub fn count(&self) -> usize {
        self.0.iter().filter(|outcome| !matches!(outcome.verdict, Verdict::NotClaimed(_))).count()
    }

    /// A line for each failed check, or for each check if `all` is set; then a table with the counts of each level.
    pub fn table(&self, all: bool) -> String {
        let mut text = String::new();
        for outcome in &self.0 {
            let (word, why) = match &outcome.verdict {
                Verdict::Passed => ("ok", ""),
                Verdict::Failed(why) => ("FAILED", why.as_str()),
                Verdict::NotClaimed(why) => ("-", why.as_str()),
            };
            if all || word == "FAILED" {
                let name = format!("{}/{}", outcome.level, outcome.name);
                _ = writeln!(text, "{word:<7} {name:<60} {:>6} ms", outcome.took.as_millis());
                for line in why.lines() {
                    _ = writeln!(text, "        {line}");
                }
            }
        }
        _ = writeln!(text, "{:<10} {:>7} {:>7} {:>12}", "level", "passed", "failed", "not claimed");
        for level in Level::ALL {
            let of = |matches: fn(&Verdict) -> bool| {
                let all = self.0.iter().filter(|outcome| outcome.level == level && matches(&outcome.verdict));
                all.count()
            };
            let passed = of(|verdict| *verdict == Verdict::Passed);
            let failed = of(|verdict| matches!(verdict, Verdict::Failed(_)));
            let not_claimed = of(|verdict| matches!(verdict, Verdict::NotClaimed(_)));
            if passed + failed + not_claimed > 0 {
                _ = writeln!(text, "{:<10} {passed:>7} {failed:>7} {not_claimed:>12}", level.to_string());
            }
        }
        text
    }

    /// JUnit XML with a test suite for each level.
    pub fn junit(&self, backend: &str) -> String {
        let mut text =
            format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"{}\">\n", escaped(backend));
        for level in Level::ALL {
            let of: Vec<&Outcome> = self.0.iter().filter(|outcome| outcome.level == level).collect();
            if of.is_empty() {
                continue;
            }
            let failures = of.iter().filter(|outcome| matches!(outcome.verdict, Verdict::Failed(_))).count();
            let skipped = of.iter().filter(|outcome| matches!(outcome.verdict, Verdict::NotClaimed(_))).count();
            let seconds: f64 = of.iter().map(|outcome| outcome.took.as_secs_f64()).sum();
            _ = writeln!(
                text,
                "  <testsuite name=\"{level}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\" time=\"{seconds:.3}\">",
                of.len()
            );
            for outcome in of {
                let (name, seconds) = (escaped(&outcome.name), outcome.took.as_secs_f64());
                _ = write!(text, "    <testcase classname=\"{level}\" name=\"{name}\" time=\"{seconds:.3}\"");
                _ = match &outcome.verdict {
                    Verdict::Passed => writeln!(text, "/>"),
                    Verdict::Failed(why) => writeln!(
                        text,
                        "><failure message=\"{}\">{}</failure></testcase>",
                        escaped(why.lines().next().unwrap_or_default()),
                        escaped(why)
                    ),
                    Verdict::NotClaimed(why) => {
                        writeln!(text, "><skipped message=\"{}\"/></testcase>", escaped(why))
                    }
                };
            }
            text.push_str("  </testsuite>\n");
        }
        text + "</testsuites>\n"
    }
}

/// Escapes a text for XML, which allows no control characters but tab, newline and carriage return.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' | '\r' => escaped.push(' '),
            control if control.is_control() => escaped.push('?'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes() -> Outcomes {
        let outcome = |level, name: &str, verdict| Outcome {
            level,
            name: name.to_owned(),
            verdict,
            took: Duration::from_millis(1500),
        };
        Outcomes(vec![
            outcome(Level::Wire, "resumes", Verdict::Passed),
            outcome(Level::Wire, "cut", Verdict::Failed("applied <2>\nof \"1\"\u{1}".to_owned())),
            outcome(Level::Packets, "sctp", Verdict::NotClaimed("sctp".to_owned())),
        ])
    }

    #[test]
    fn the_table_counts_results_and_names_failed_checks() {
        let table = outcomes().table(false);
        assert!(table.starts_with("FAILED  wire/cut"), "{table}");
        assert!(table.contains("wire             1       1            0"), "{table}");
        assert!(table.contains("packets          0       0            1"), "{table}");
        assert!(!table.contains("resumes") && outcomes().table(true).contains("resumes"));
        assert_eq!(outcomes().failed().collect::<Vec<_>>(), ["wire/cut"]);
        assert!(!outcomes().passed());
    }

    #[test]
    fn junit_xml_is_escaped() {
        let junit = outcomes().junit("a & b");
        let expected = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<testsuites name=\"a &amp; b\">
  <testsuite name=\"wire\" tests=\"2\" failures=\"1\" skipped=\"0\" time=\"3.000\">
    <testcase classname=\"wire\" name=\"resumes\" time=\"1.500\"/>
    <testcase classname=\"wire\" name=\"cut\" time=\"1.500\"><failure message=\"applied &lt;2&gt;\">applied &lt;2&gt;&#10;of &quot;1&quot;?</failure></testcase>
  </testsuite>
  <testsuite name=\"packets\" tests=\"1\" failures=\"0\" skipped=\"1\" time=\"1.500\">
    <testcase classname=\"packets\" name=\"sctp\" time=\"1.500\"><skipped message=\"sctp\"/></testcase>
  </testsuite>
</testsuites>
";
        assert_eq!(junit, expected);
    }
}
