//! [`Check`]: a complete document whose values are being checked. The errors have kube-proxy's wording.
//!
//! kube-proxy does not validate values that the configured mode does not use. If such a value is invalid, localnet skips
//! the value with a warning, or reports an error if `configHardFail` is set.

use std::fmt;

use localnet_core::Code;

use crate::{
    document::Document,
    field::Field,
    gates::FeatureGates,
    model::{DetectLocalMode, Mode, Platform},
    problem::Findings,
};

/// The context in which a document is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The operating system of the node.
    pub platform: Platform,
    /// The meaning of an empty `mode`. In kube-proxy, an empty mode means `iptables` on Linux and `kernelspace` on Windows.
    pub empty_mode: Mode,
}

impl Reader {
    /// A reader with kube-proxy's meaning of an empty `mode`.
    pub const fn kube_proxy(platform: Platform) -> Self {
        let empty_mode = match platform {
            Platform::Linux => Mode::Iptables,
            Platform::Windows => Mode::Kernelspace,
        };
        Self { platform, empty_mode }
    }
}

/// A complete document of v1alpha2, and the problems that were found in it.
pub(crate) struct Check<'a> {
    pub(crate) document: &'a Document,
    pub(crate) reader: Reader,
    pub(crate) findings: &'a mut Findings,
}

impl Check<'_> {
    pub(crate) fn mode(&self) -> Mode {
        let given = Mode::named(self.document.text("mode"));
        given.filter(|mode| self.reader.platform.modes().contains(mode)).unwrap_or(self.reader.empty_mode)
    }

    /// The method that recognizes the node's own pods.
    pub(crate) fn detect_local_mode(&self) -> DetectLocalMode {
        DetectLocalMode::named(self.document.text("detectLocalMode")).unwrap_or_default()
    }

    /// Whether a feature gate is enabled.
    pub(crate) fn gate(&self, name: &str) -> bool {
        FeatureGates::of(self.document.get("featureGates")).enabled(name)
    }

    /// Adds an error about a field.
    pub(crate) fn invalid(&mut self, field: &Field, value: impl fmt::Display, why: &str, remedy: &str) {
        self.findings.invalid(field.path, value, why, remedy);
    }

    /// Adds a finding about an invalid value: an error if the mode uses the field or if `configHardFail` is set, otherwise a
    /// warning that the value is skipped.
    pub(crate) fn invalid_if_used(&mut self, used: bool, path: &str, value: &str, why: &str, remedy: &str) {
        if used || self.document.get("configHardFail") == true {
            self.findings.invalid(path, value, why, remedy);
        } else {
            let problem = format!("Invalid value: {value}: {why}; skipped, because the mode does not use it");
            self.findings.unused(Code::ValueInvalid, path, problem, remedy);
        }
    }

    /// Whether the mode uses a field. The fields of the sections `ipvs` and `nftables` are used only in the mode of the same
    /// name. All other fields, including those of the section `iptables`, are used in every mode.
    pub(crate) fn is_used(&self, field: &Field) -> bool {
        match field.path.split('.').next() {
            Some(section @ ("ipvs" | "nftables")) => self.mode().as_str() == section,
            _ => true,
        }
    }
}
