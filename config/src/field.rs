//! [`Field`]: a row of the [table](crate::table). It describes one setting: its field in `v1alpha1`, its field in
//! `v1alpha2`, and its flag.

use serde_json::Value;

use crate::kind::Kind;

/// A field of v1alpha2 that contains a value, not a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The path of the field, such as `linux.conntrack.min`.
    pub path: &'static str,
    /// The type of the field's value.
    pub kind: Kind,
    /// The place of the field in v1alpha1.
    pub formerly: Formerly,
    /// kube-proxy's flag without dashes. Several fields may have the same flag.
    pub flag: Option<&'static str>,
    /// kube-proxy's flag in the mode ipvs, if that mode has a flag of its own.
    pub ipvs_flag: Option<&'static str>,
    /// Whether the flag overrides the file of `--config`. If not, the flag is ignored whenever `--config` is given.
    pub flag_overrides_file: bool,
    /// The effect of the field in localnet.
    pub effect: Effect,
    /// The part of kube-proxy's work that the field affects; `None` means both parts.
    pub used_by: Option<Part>,
    /// Whether zero or an empty string counts as missing.
    pub empty_is_default: bool,
    default: Option<&'static str>,
    v1alpha1_default: Option<&'static str>,
    docs: &'static [&'static str],
}

/// A part of kube-proxy's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Reading the API and answering health checks: `localnet-brain`.
    Brain,
    /// Programming the node: a backend.
    Backend,
}

/// The effect of a field in localnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A change to the file takes effect immediately.
    Live,
    /// The value takes effect when a program starts.
    AtStart,
    /// The value affects only the backend of the mode that the field belongs to.
    OfMode,
    /// The field has no effect. The string is the reason.
    No(&'static str),
}

/// The place of a field in v1alpha1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formerly {
    /// The same place as in v1alpha2.
    Same,
    /// A different path.
    At(&'static str),
    /// v1alpha1 has one field for each of several modes, at these paths, each with a default. The modes `ipvs` and
    /// `nftables` use the field in their own section, if there is one; all other modes use the field in the section
    /// `iptables`. Zero counts as missing.
    InModes(&'static [(&'static str, &'static str)]),
    /// In v1alpha1, the field is a single string with this path and type, not a list. An empty string counts as missing.
    Text(&'static str, Kind),
    /// v1alpha1 has no such field.
    New,
}

/// A field with the same path in v1alpha1, and without a default or a flag.
pub(crate) const fn field(path: &'static str) -> Field {
    Field {
        path,
        kind: Kind::Text,
        formerly: Formerly::Same,
        flag: None,
        ipvs_flag: None,
        flag_overrides_file: false,
        effect: Effect::Live,
        used_by: None,
        empty_is_default: false,
        default: None,
        v1alpha1_default: None,
        docs: &[],
    }
}

/// The columns of the table.
impl Field {
    /// Sets the default. Without this column, the default is false, zero or empty.
    pub(crate) const fn default(self, text: &'static str) -> Self {
        Self { default: Some(text), ..self }
    }

    /// Zero or an empty string counts as missing.
    pub(crate) const fn empty_is_default(self) -> Self {
        Self { empty_is_default: true, ..self }
    }

    /// The path in v1alpha1.
    pub(crate) const fn v1alpha1(self, path: &'static str) -> Self {
        Self { formerly: Formerly::At(path), ..self }
    }

    /// The paths in v1alpha1, one for each mode, and their defaults.
    pub(crate) const fn v1alpha1_in_modes(self, paths: &'static [(&'static str, &'static str)]) -> Self {
        Self { formerly: Formerly::InModes(paths), ..self }
    }

    /// The path in v1alpha1, where the list is a single string.
    pub(crate) const fn v1alpha1_text(self, path: &'static str, kind: Kind) -> Self {
        Self { formerly: Formerly::Text(path, kind), ..self }
    }

    /// v1alpha1 has no such field.
    pub(crate) const fn new_in_v1alpha2(self) -> Self {
        Self { formerly: Formerly::New, ..self }
    }

    /// The default in v1alpha1, if it differs.
    pub(crate) const fn v1alpha1_default(self, text: &'static str) -> Self {
        Self { v1alpha1_default: Some(text), ..self }
    }

    /// kube-proxy's flag.
    pub(crate) const fn flag(self, name: &'static str) -> Self {
        Self { flag: Some(name), ..self }
    }

    /// kube-proxy's flag in the mode ipvs.
    pub(crate) const fn ipvs_flag(self, name: &'static str) -> Self {
        Self { ipvs_flag: Some(name), ..self }
    }

    /// kube-proxy's flag, which overrides the file of `--config`.
    pub(crate) const fn overriding_flag(self, name: &'static str) -> Self {
        Self { flag_overrides_file: true, ..self }.flag(name)
    }

    /// Only the brain uses the field.
    pub(crate) const fn brain(self) -> Self {
        Self { used_by: Some(Part::Brain), ..self }
    }

    /// Only backends use the field.
    pub(crate) const fn backend(self) -> Self {
        Self { used_by: Some(Part::Backend), ..self }
    }

    /// The value takes effect when a program starts.
    pub(crate) const fn at_start(self) -> Self {
        Self { effect: Effect::AtStart, ..self }
    }

    /// The value affects the backend of its mode.
    pub(crate) const fn of_mode(self) -> Self {
        Self { effect: Effect::OfMode, ..self }
    }

    /// The field has no effect, for this reason.
    pub(crate) const fn no_effect(self, reason: &'static str) -> Self {
        Self { effect: Effect::No(reason), ..self }
    }

    /// Sets what the macro of the table derives from a row: the type and the doc comment.
    pub(crate) const fn of(self, kind: Kind, docs: &'static [&'static str]) -> Self {
        Self { kind, docs, ..self }
    }
}

/// Returns the section that applies in a v1alpha1 document with this mode.
pub(crate) fn section_of_mode(mode: &str) -> &'static str {
    match mode {
        "ipvs" => "ipvs",
        "nftables" => "nftables",
        _ => "iptables",
    }
}

impl Field {
    /// The meaning, in one or two sentences.
    pub fn meaning(&self) -> String {
        let lines: Vec<_> = self.docs.iter().map(|line| line.trim()).take_while(|line| !line.is_empty()).collect();
        lines.join(" ")
    }

    /// The default value.
    pub fn default_value(&self) -> Value {
        self.default.map_or_else(|| self.kind.zero(), |text| self.kind.value(text))
    }

    /// The default value in v1alpha1.
    pub(crate) fn v1alpha1_default_value(&self) -> Value {
        Self { default: self.v1alpha1_default.or(self.default), ..*self }.default_value()
    }

    /// The fields of v1alpha1 that correspond to the field.
    pub fn in_v1alpha1(&self) -> Vec<Self> {
        let same = Self { default: self.v1alpha1_default.or(self.default), ..*self };
        match self.formerly {
            Formerly::Same => vec![same],
            Formerly::At(path) => vec![Self { path, ..same }],
            Formerly::Text(path, kind) => {
                vec![Self { path, kind, default: self.v1alpha1_default, empty_is_default: true, ..same }]
            }
            Formerly::InModes(paths) => {
                let in_mode = |(path, default)| Self { path, default: Some(default), empty_is_default: true, ..same };
                paths.iter().copied().map(in_mode).collect()
            }
            Formerly::New => Vec::new(),
        }
    }

    /// The path in a v1alpha1 document with this mode.
    pub(crate) fn v1alpha1_path(&self, mode: &str) -> Option<&'static str> {
        match self.formerly {
            Formerly::Same => Some(self.path),
            Formerly::At(path) | Formerly::Text(path, _) => Some(path),
            Formerly::InModes(paths) => {
                let of = |section: &str| paths.iter().find(|(path, _)| path.starts_with(section));
                of(section_of_mode(mode)).or_else(|| of("iptables")).map(|(path, _)| *path)
            }
            Formerly::New => None,
        }
    }

    /// The flag that sets the field in a mode.
    pub(crate) fn flag_in(&self, mode: &str) -> Option<&'static str> {
        self.ipvs_flag.filter(|_| mode == "ipvs").or(self.flag)
    }

    /// The last part of the path, such as `min` in `linux.conntrack.min`.
    pub(crate) fn name(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }
}
