//! `localnet diff --dump`: compares the output of a backend's command `dump` with the state. Pure.

use std::collections::BTreeSet;

use localnet_client::{
    Snapshot,
    served::{BadLine, Expected, Lack, Served},
};
use serde::Serialize;

use crate::{
    output::Show,
    style::{Style, Tone},
};

/// The lines in which a dump differs from the state.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dumped {
    /// The lines that the state requires and the dump lacks.
    pub missing: BTreeSet<String>,
    /// The lines of the dump that the state does not require.
    pub unplanned: BTreeSet<String>,
    /// The number of destinations in the dump.
    pub compared: usize,
}

/// Compares a dump with a state. The backend's kernel cannot hold what is in `lacks`.
///
/// # Errors
/// Returns an error for the first line of the dump with invalid syntax.
pub fn compare(state: &Snapshot, lacks: &[Lack], dump: &str) -> Result<Dumped, BadLine> {
    let served = Served::parse(dump.lines())?;
    let expected = Expected::without(state, &lacks.iter().copied().collect());
    let (missing, unplanned) = expected.compare(&served);
    Ok(Dumped { missing, unplanned, compared: served.0.len() })
}

impl Dumped {
    /// Whether the dump is what the state requires.
    pub fn is_equal(&self) -> bool {
        self.missing.is_empty() && self.unplanned.is_empty()
    }
}

impl Show for Dumped {
    fn human(&self, style: Style) -> String {
        if self.is_equal() {
            let equal = style.paint(Tone::Good, "the dump matches the state");
            return format!("{equal} ({} destinations compared)\n", self.compared);
        }
        let line = |tone, sign: char, line: &String| style.paint(tone, &format!("{sign} {line}")) + "\n";
        let unplanned = self.unplanned.iter().map(|of| line(Tone::Bad, '-', of));
        let missing = self.missing.iter().map(|of| line(Tone::Good, '+', of));
        let lines: String = unplanned.chain(missing).collect();
        lines + "- is in the kernel but not in the state, + is in the state but not in the kernel\n"
    }

    fn names(&self) -> Vec<String> {
        self.missing.union(&self.unplanned).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_compared_with_what_its_kernel_can_hold() {
        let state = crate::source::read(
            "node: {name: n, addresses: [192.168.0.2]}
services:
- {service: shop/web, type: ClusterIP, clusterIPs: [10.96.0.1], ports: [{name: a, protocol: TCP, port: 80}, {name: b, protocol: SCTP, port: 80}],
   endpoints: [{address: 10.0.0.1, ports: [{name: a, port: 8080}, {name: b, port: 8080}], scopes: {internal: true}}]}
",
        )
        .unwrap();
        let found = |lacks: &[Lack], dump: &str| compare(&state, lacks, dump).unwrap().human(Style::default());
        let tcp = "10.96.0.1 TCP 80 -> 10.0.0.1:8080";
        assert_eq!(found(&[Lack::Outside], tcp), "the dump matches the state (1 destinations compared)\n");
        let legend = "- is in the kernel but not in the state, + is in the state but not in the kernel\n";
        assert_eq!(found(&[], tcp), format!("+ 10.96.0.1 SCTP 80 -> 10.0.0.1:8080\n{legend}"));
        let other = "10.96.0.1 TCP 80 -> 10.0.0.9:8080";
        assert_eq!(found(&[Lack::Outside], other), format!("- {other}\n+ {tcp}\n{legend}"));
        assert!(compare(&state, &[], "table ip localnet {").is_err());
    }
}
