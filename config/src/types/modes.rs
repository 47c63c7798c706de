//! Modes, names and versions.

use localnet_core::Code;

use super::FieldType;
use crate::{
    check::Check,
    field::Field,
    gates::{FeatureGates, IPVS},
    kind::Kind,
    model::{DetectLocalMode, IpFamilyPolicy, MinorVersion, Mode, Platform},
};

/// The minor version of the kube-proxy whose validation this crate follows.
const KUBERNETES: MinorVersion = MinorVersion { major: 1, minor: 37 };

/// The maximum length of an interface's name in bytes: the kernel's `IFNAMSIZ` without the terminating byte.
const LONGEST_INTERFACE: usize = 15;

impl FieldType for FeatureGates {
    const KIND: Kind = Kind::Gates;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let gates = Self::of(check.document.get(field.path));
        gates.check(check.findings);
        gates
    }
}

impl FieldType for Mode {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let (given, modes) = (check.document.text(field.path), check.reader.platform.modes());
        let is_enabled = |mode: &&Self| **mode != Self::Ipvs || check.gate(IPVS);
        let names: Vec<_> = modes.iter().filter(is_enabled).map(|mode| mode.as_str()).collect();
        if !given.is_empty() && !names.contains(&given) {
            let why = format!("must be {} or blank", names.join(", "));
            check.invalid(field, format_args!("{given:?}"), &why, "use one of them");
        }
        check.mode()
    }
}

/// Adds an error if the value of a field is neither empty nor in `supported`.
fn supported(check: &mut Check<'_>, field: &Field, supported: &[&str]) {
    let given = check.document.text(field.path);
    if !given.is_empty() && !supported.contains(&given) {
        let supported: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
        let problem = format!("Unsupported value: {given:?}: supported values: {}", supported.join(", "));
        check.findings.add(Code::ValueUnsupported, field.path, problem, "use one of them, or remove the field");
    }
}

/// In documents, `None` is an empty string.
impl FieldType for Option<IpFamilyPolicy> {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        supported(check, field, &IpFamilyPolicy::ALL.iter().map(|policy| policy.as_str()).collect::<Vec<_>>());
        let policy = IpFamilyPolicy::named(check.document.text(field.path));
        if policy == Some(IpFamilyPolicy::SingleStack) && check.document.texts("nodeIPOverride").len() > 1 {
            let why = "nodeIPOverride has addresses of two families";
            check.invalid(field, "\"SingleStack\"", why, "remove one of the addresses, or use PreferDualStack");
        }
        policy
    }
}

impl FieldType for DetectLocalMode {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        supported(check, field, &Self::ALL.iter().map(|mode| mode.as_str()).collect::<Vec<_>>());
        check.detect_local_mode()
    }
}

/// The name of an interface, or a prefix of such names. The field must be set if `detectLocalMode` selects it.
pub(crate) enum Interface {}

impl FieldType<String> for Interface {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> String {
        let (name, mode) = (check.document.text(field.path), check.detect_local_mode().as_str());
        if !mode.eq_ignore_ascii_case(field.name()) {
            return name.to_owned();
        }
        if name.is_empty() {
            check.invalid(field, "\"\"", "must not be empty", &format!("detectLocalMode {mode} needs it"));
        } else if name.len() > LONGEST_INTERFACE {
            // kube-proxy accepts such a name, but the kernel then refuses every rule that contains it.
            let why = format!("must be no longer than {LONGEST_INTERFACE} bytes");
            check.invalid(field, format_args!("{name:?}"), &why, "no interface has a longer name");
        }
        name.to_owned()
    }
}

/// `hostnameOverride`, without surrounding spaces and in lower case, as Nodes are named. In documents, `None` is an empty
/// string.
pub(crate) enum NodeName {}

impl FieldType<Option<String>> for NodeName {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Option<String> {
        let given = check.document.text(field.path);
        let name = given.trim().to_lowercase();
        if name.is_empty() && !given.is_empty() {
            let (why, remedy) = ("empty hostname-override is invalid", "write the Node's name, or remove the field");
            check.invalid(field, format_args!("{given:?}"), why, remedy);
        }
        Some(name).filter(|name| !name.is_empty())
    }
}

/// `winkernel.rootHnsEndpointName`: `cbr0` by default, but only on Windows. In documents, `None` is an empty string.
pub(crate) enum RootEndpoint {}

impl FieldType<Option<String>> for RootEndpoint {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Option<String> {
        let default = (check.reader.platform == Platform::Windows).then(|| "cbr0".to_owned());
        Option::<String>::read(check, field).or(default)
    }
}

/// `showHiddenMetricsForVersion`. Only the previous minor version has hidden metrics that can be shown.
impl FieldType for Option<MinorVersion> {
    const KIND: Kind = Kind::Text;

    fn read(check: &mut Check<'_>, field: &Field) -> Self {
        let previous = MinorVersion { minor: KUBERNETES.minor - 1, ..KUBERNETES };
        let given = check.document.text(field.path);
        if !given.is_empty() && given != previous.to_string() {
            let why = format!("only the previous minor version is meaningful, {previous}");
            check.invalid(field, format_args!("{given:?}"), &why, "use that, or remove the field");
        }
        (given == previous.to_string()).then_some(previous)
    }
}
