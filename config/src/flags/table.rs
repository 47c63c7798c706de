//! All flags of kube-proxy v1.37 and of earlier versions. Most of them set fields and come from the
//! [table of fields](crate::table).

use std::sync::LazyLock;

use crate::{
    field::{Effect, Field, Formerly, Part},
    kind::Kind,
    model::Platform,
    table::FIELDS,
};

/// A flag of kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The name without dashes.
    pub name: &'static str,
    /// The name of one letter; `None` if the flag has only a long name.
    pub short: Option<char>,
    /// The type of the flag's value.
    pub kind: Kind,
    /// What the flag sets.
    pub sets: Sets,
    /// Whether the flag applies even if `--config` is given. If not, the flag is ignored whenever `--config` is given.
    pub beside_config: bool,
    /// The platform that has the flag; `None` means every platform.
    pub platform: Option<Platform>,
    /// The part of kube-proxy's work that the flag affects; `None` means both parts or neither part.
    pub used_by: Option<Part>,
    /// The help text.
    pub help: String,
    /// Why the flag has no effect in localnet; `None` if it has an effect.
    pub no_effect: Option<&'static str>,
}

/// What a flag sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// Each field of the table that has this flag.
    Fields,
    /// Deprecated: the port for the address in this field, if that address has no port. 0 disables the server.
    Port(&'static str),
    /// What the program does.
    Program,
    /// Nothing: only an earlier version of kube-proxy had the flag.
    Nothing,
}

/// All flags, sorted by name. Those with [`Sets::Nothing`] belong to kube-proxy before v1.37.
pub static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(|| {
    let mut flags: Vec<_> = of_program().into_iter().chain(GONE.iter().map(|(name, kind)| gone(name, *kind))).collect();
    for field in FIELDS.iter() {
        flags.extend(field.flag.map(|name| Flag::of(field, name, "")));
        flags.extend(field.ipvs_flag.map(|name| Flag::of(field, name, ", in mode ipvs")));
    }
    // If a flag sets several fields, the first field describes the flag.
    flags.sort_by_key(|flag| flag.name);
    flags.dedup_by_key(|flag| flag.name);
    flags
});

impl Flag {
    /// A flag without special properties.
    fn new(name: &'static str, kind: Kind, sets: Sets, help: impl Into<String>) -> Self {
        Self {
            name,
            short: None,
            kind,
            sets,
            beside_config: false,
            platform: None,
            used_by: None,
            help: help.into(),
            no_effect: None,
        }
    }

    /// The flag of a field. `mode` is appended to the help text.
    fn of(field: &Field, name: &'static str, mode: &str) -> Self {
        let kind = match field.formerly {
            Formerly::Text(_, kind) => kind,
            _ => field.kind,
        };
        let meaning = field.meaning().replace('`', "");
        let is_windows = field.path.starts_with("win");
        Self {
            short: (name == "v").then_some('v'),
            beside_config: field.flag_overrides_file,
            platform: is_windows.then_some(Platform::Windows),
            used_by: field.used_by,
            no_effect: match field.effect {
                Effect::No(why) => Some(why),
                _ => None,
            },
            ..Self::new(name, kind, Sets::Fields, meaning.trim_end_matches('.').to_owned() + mode)
        }
    }

    /// The fields that the flag sets in a mode.
    pub(super) fn fields(&self, mode: &str) -> impl Iterator<Item = &'static Field> {
        FIELDS.iter().filter(|field| field.flag_in(mode) == Some(self.name))
    }
}

/// The flags that select what the program does, and the deprecated flags for ports.
fn of_program() -> [Flag; 7] {
    let flag = |name, kind, help| Flag::new(name, kind, Sets::Program, help);
    let port =
        |name, path, help| Flag { used_by: Some(Part::Brain), ..Flag::new(name, Kind::Int, Sets::Port(path), help) };
    let beside = |flag| Flag { beside_config: true, ..flag };
    [
        beside(flag("cleanup", Kind::Bool, "Remove everything that the backend has programmed, and exit")),
        beside(flag(
            "config",
            Kind::Path,
            "File with a KubeProxyConfiguration, v1alpha1 or v1alpha2. With this file, most other flags have no effect",
        )),
        beside(flag(
            "init-only",
            Kind::Bool,
            "Apply the node's settings that need full root privileges, such as conntrack limits, and exit",
        )),
        beside(flag("write-config-to", Kind::Path, "Write the configuration as a v1alpha2 file, and exit")),
        Flag {
            used_by: Some(Part::Brain),
            ..beside(flag("master", Kind::Text, "URL of the API server; overrides the URL in the kubeconfig"))
        },
        port("healthz-port", "healthzBindAddress", "Deprecated: use --healthz-bind-address. 0 disables health checks"),
        port("metrics-port", "metricsBindAddress", "Deprecated: use --metrics-bind-address"),
    ]
}

/// The flags of earlier versions of kube-proxy, which command lines may still contain.
const GONE: &[(&str, Kind)] = &[
    ("add-dir-header", Kind::Bool),
    ("alsologtostderr", Kind::Bool),
    ("boot-id-file", Kind::Text),
    ("cleanup-ipvs", Kind::Bool),
    ("log-backtrace-at", Kind::Text),
    ("log-dir", Kind::Path),
    ("log-file-max-size", Kind::Int),
    ("logtostderr", Kind::Bool),
    ("machine-id-file", Kind::Text),
    ("one-output", Kind::Bool),
    ("proxy-port-range", Kind::Text),
    ("resource-container", Kind::Text),
    ("skip-headers", Kind::Bool),
    ("skip-log-headers", Kind::Bool),
    ("stderrthreshold", Kind::Text),
];

fn gone(name: &'static str, kind: Kind) -> Flag {
    let no_effect = Some("kube-proxy no longer has this flag");
    Flag { beside_config: true, no_effect, ..Flag::new(name, kind, Sets::Nothing, "") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_sorted_and_unique() {
        assert!(FLAGS.is_sorted_by(|a, b| a.name < b.name));
        for flag in FLAGS.iter() {
            if let Sets::Port(path) = flag.sets {
                assert!(FIELDS.iter().any(|field| field.path == path), "--{}: {path}", flag.name);
            }
        }
    }
}
