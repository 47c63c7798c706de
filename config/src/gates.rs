//! Feature gates. kube-proxy accepts every gate of Kubernetes, but uses only a few of them. Only these few have an effect
//! in localnet.
//!
//! localnet accepts every other name, with a warning that the gate has no effect. kube-proxy refuses names that its release
//! does not know. localnet cannot do the same: gates come and go with each release, and a ConfigMap that was made for
//! another release must still work.

use localnet_core::Code;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::problem::Findings;

/// The gates that a configuration sets. All other gates have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct FeatureGates {
    named: Map<String, Value>,
}

/// A gate that kube-proxy v1.37 uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The name of the gate.
    pub name: &'static str,
    /// The maturity of the feature.
    pub stage: Stage,
    /// Whether the gate is enabled by default.
    pub default: bool,
    /// Whether the gate can no longer be changed.
    pub locked: bool,
    /// The effect of the gate in kube-proxy.
    pub meaning: &'static str,
}

/// The maturity of a feature. `AllAlpha` and `AllBeta` switch all gates of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Disabled by default.
    Alpha,
    /// Enabled by default.
    Beta,
    /// Permanent, or about to be removed.
    Final,
}

/// All gates that kube-proxy v1.37 uses, and the two gates that switch a whole stage.
pub const GATES: &[Gate] = &[
    gate("AllAlpha", Stage::Final, false, false, "all alpha gates"),
    gate("AllBeta", Stage::Final, false, false, "all beta gates"),
    gate("AllowServiceExternalIPs", Stage::Final, true, false, "`spec.externalIPs` of Services are served"),
    gate("ComponentFlagz", Stage::Beta, true, false, "`/flagz` on the metrics address"),
    gate("ComponentStatusz", Stage::Beta, true, false, "`/statusz` on the metrics address"),
    gate("ContextualLogging", Stage::Beta, true, false, "more structure in log lines"),
    gate(IPVS, Stage::Final, true, false, "mode ipvs"),
    gate(
        LOCALHOST_NODE_PORTS,
        Stage::Alpha,
        false,
        false,
        "mode nftables: NodePorts on the loopback addresses in `nodePortAddresses`",
    ),
    gate(LOGGING_ALPHA_OPTIONS, Stage::Alpha, false, false, "`logging.options`"),
    gate("LoggingBetaOptions", Stage::Beta, true, false, "log format `json`"),
    gate("MultiCIDRServiceAllocator", Stage::Final, true, true, "ServiceCIDR objects are read"),
    gate("NativeHistograms", Stage::Beta, true, false, "native histograms among metrics"),
    gate("NFTablesNetlink", Stage::Beta, true, false, "mode nftables without the program nft"),
    gate("NFTablesProxyMode", Stage::Final, true, true, "mode nftables"),
    gate("PreferSameTrafficDistribution", Stage::Final, true, true, "PreferSameZone and PreferSameNode"),
    gate("WinDSR", Stage::Final, true, true, "direct server return on Windows"),
    gate("WinOverlay", Stage::Final, true, true, "overlay networks on Windows"),
];

/// The gate that mode ipvs needs.
pub(crate) const IPVS: &str = "KubeProxyIPVS";
/// The gate that NodePorts on loopback addresses need in mode nftables.
pub(crate) const LOCALHOST_NODE_PORTS: &str = "KubeProxyNFTablesLocalhostNodePorts";
/// The gate that [`logging.options`](crate::Logging::text) needs.
pub(crate) const LOGGING_ALPHA_OPTIONS: &str = "LoggingAlphaOptions";

const fn gate(name: &'static str, stage: Stage, default: bool, locked: bool, meaning: &'static str) -> Gate {
    Gate { name, stage, default, locked, meaning }
}

impl FeatureGates {
    /// The gates that a document names.
    pub(crate) fn of(given: &Value) -> Self {
        Self { named: given.as_object().cloned().unwrap_or_default() }
    }

    pub(crate) fn check(&self, findings: &mut Findings) {
        for (name, on) in &self.named {
            let field = format!("featureGates.{name}");
            let Some(gate) = GATES.iter().find(|gate| gate.name == name) else {
                // A diagnostic about the flag does not show the field, so the text has to contain the name of the gate.
                let problem = format!("feature gate {name} is unknown and has no effect");
                findings.add(Code::GateUnknown, &field, problem, "remove it");
                continue;
            };
            if gate.locked && *on != gate.default {
                let why = format!("cannot set feature gate {name} to {on}, feature is locked to {}", gate.default);
                findings.invalid(&field, on, &why, "remove it");
            }
        }
    }

    /// Whether a gate is enabled. If the configuration sets the gate, that value applies. Otherwise, if the configuration
    /// sets the gate of its whole stage, that value applies; otherwise the default applies. An unknown gate is disabled
    /// unless the configuration enables it.
    pub fn enabled(&self, name: &str) -> bool {
        let named = |name: &str| self.named.get(name).and_then(Value::as_bool);
        let Some(gate) = GATES.iter().find(|gate| gate.name == name) else { return named(name).unwrap_or_default() };
        let by_stage = match gate.stage {
            Stage::Alpha => named("AllAlpha"),
            Stage::Beta => named("AllBeta"),
            Stage::Final => None,
        };
        named(name).or(by_stage).unwrap_or(gate.default)
    }

    /// The gates that the configuration names, each with its value.
    pub fn named(&self) -> impl Iterator<Item = (&str, bool)> {
        self.named.iter().map(|(name, on)| (name.as_str(), *on == true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(gates: &[(&str, bool)], name: &str, expected: bool) {
        let named = gates.iter().map(|(name, on)| ((*name).to_owned(), (*on).into())).collect();
        assert_eq!(FeatureGates { named }.enabled(name), expected, "{gates:?}: {name}");
    }

    #[test]
    fn a_gate_follows_its_own_value_or_that_of_its_stage() {
        check(&[], "ComponentStatusz", true);
        check(&[("ComponentStatusz", false)], "ComponentStatusz", false);
        check(&[("AllBeta", false)], "ComponentStatusz", false);
        check(&[("AllBeta", false), ("ComponentStatusz", true)], "ComponentStatusz", true);
        check(&[("AllBeta", false)], "AllowServiceExternalIPs", true);
        check(&[("AllAlpha", true)], "LoggingAlphaOptions", true);
        check(&[("AllAlpha", true)], "KubeProxyNFTablesLocalhostNodePorts", true);
        check(&[("AllBeta", false)], "NativeHistograms", false);
        check(&[], "Unknown", false);
        check(&[("Unknown", true)], "Unknown", true);
    }

    #[test]
    fn gates_are_sorted_and_unique() {
        assert!(GATES.is_sorted_by(|a, b| a.name.to_lowercase() < b.name.to_lowercase()));
    }
}
