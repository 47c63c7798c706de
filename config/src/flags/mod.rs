//! kube-proxy's flags. Every program of localnet accepts them, with kube-proxy's meaning and precedence.
//!
//! With `--config`, nearly all flags are ignored, as in kube-proxy. The exceptions are the flags that determine what the
//! program does, how it logs, and the name of the Node.

mod apply;
mod table;
mod value;

use std::{ffi::OsString, path::Path};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use localnet_core::{Code, Diagnostic, Subject};
pub use table::{FLAGS, Flag, Sets};

pub use crate::{field::Part, kind::Kind};

/// The flags of kube-proxy on the command line. Flatten this struct into a program's arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeProxyFlags {
    given: Vec<Given>,
}

/// A flag and its values in the order of the command line. There is at least one value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    flag: &'static Flag,
    values: Vec<String>,
}

impl Given {
    /// The last value. It applies if the flag can have only one value.
    fn last(&self) -> &str {
        self.values.last().map_or("", String::as_str)
    }
}

/// The actions that the flags request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToDo<'a> {
    /// `--config`: the file to read.
    pub config: Option<&'a Path>,
    /// `--write-config-to`: write the configuration to this file and exit.
    pub write_config_to: Option<&'a Path>,
    /// Whether to remove all rules and exit (`--cleanup`).
    pub cleanup: bool,
    /// Whether to apply the settings that need more privileges, and exit (`--init-only`).
    pub init_only: bool,
    /// `--master`: the URL of the API server.
    pub master: Option<&'a str>,
}

impl KubeProxyFlags {
    /// Returns the actions that the flags request.
    ///
    /// # Errors
    /// Returns an error if `--cleanup` or `--init-only` is neither true nor false, or if the flags request two actions
    /// after which the program exits. kube-proxy performs one of two such actions and ignores the other.
    pub fn to_do(&self) -> Result<ToDo<'_>, crate::Invalid> {
        let path = |name| self.text(name).map(Path::new);
        let to_do = ToDo {
            config: path("config"),
            write_config_to: path("write-config-to"),
            cleanup: self.is_set("cleanup")?,
            init_only: self.is_set("init-only")?,
            master: self.text("master"),
        };
        let ends = [
            ("write-config-to", to_do.write_config_to.is_some()),
            ("cleanup", to_do.cleanup),
            ("init-only", to_do.init_only),
        ];
        let ends: Vec<_> = ends.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect();
        if let [first, others @ ..] = ends.as_slice()
            && !others.is_empty()
        {
            let others: Vec<_> = others.iter().map(|name| format!("--{name}")).collect();
            let problem = format!("cannot be combined with {}: each of them ends the program", others.join(" and "));
            let conflict = Diagnostic::new(Code::FlagConflict, Subject::Flag(first), problem);
            return Err(conflict.remedy("run the program once for each flag").into());
        }
        Ok(to_do)
    }

    /// Whether the user has configured settings of the node, by a file or by a flag about connection tracking or memory.
    /// If not, the program should not change these settings, because the user may only be trying the program out.
    /// kube-proxy changes them on every node.
    pub fn configures_node(&self) -> bool {
        let about_node = |name: &str| name == "config" || name == "oom-score-adj" || name.starts_with("conntrack-");
        self.given.iter().any(|given| about_node(given.flag.name))
    }

    /// Returns the arguments for the named flags, for a program that accepts no others.
    pub fn some_args(names: &[&str]) -> impl Iterator<Item = Arg> {
        FLAGS.iter().filter(|flag| names.contains(&flag.name)).map(arg)
    }

    /// Reads the named flags from the arguments that [`Self::some_args`] defines.
    pub fn some_from(matches: &ArgMatches, names: &[&str]) -> Self {
        let given = FLAGS.iter().filter(|flag| names.contains(&flag.name)).filter_map(|flag| {
            let values: Vec<String> = matches.get_many(flag.name)?.cloned().collect();
            Some(Given { flag, values }).filter(|given| !given.values.is_empty())
        });
        Self { given: given.collect() }
    }

    /// The names of the given flags.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.given.iter().map(|given| given.flag.name)
    }

    /// Returns a diagnostic for each given flag that affects only the other part of kube-proxy's work, not the part `here`.
    /// If `--config` is given, returns no diagnostics, because both parts then receive the same flags.
    pub fn elsewhere(&self, here: Part) -> Vec<Diagnostic> {
        if self.text("config").is_some() {
            return Vec::new();
        }
        let (other, remedy) = match here {
            Part::Brain => (Part::Backend, "pass it to the backend"),
            Part::Backend => (Part::Brain, "pass it to localnet-brain"),
        };
        let others = self.given.iter().filter(|given| given.flag.used_by == Some(other));
        others
            .map(|given| value::about(Code::FlagIgnored, given, "has no effect in this program".to_owned(), remedy))
            .collect()
    }

    fn text(&self, name: &str) -> Option<&str> {
        let given = self.given.iter().find(|given| given.flag.name == name)?;
        Some(given.last()).filter(|text| !text.is_empty())
    }

    fn is_set(&self, name: &str) -> Result<bool, crate::Invalid> {
        let given = self.given.iter().find(|given| given.flag.name == name);
        given.map_or(Ok(false), |given| Ok(value::boolean(given)?))
    }
}

/// Converts the flags to the spelling that clap knows: kube-proxy accepts `_` for `-` in flag names.
pub fn spelled(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut only_values = false;
    arguments.map(move |argument| {
        only_values |= argument == "--";
        match argument.to_str().filter(|text| text.starts_with("--") && !only_values) {
            Some(text) => match text.split_once('=') {
                Some((name, value)) => format!("{}={value}", name.replace('_', "-")).into(),
                None => text.replace('_', "-").into(),
            },
            None => argument,
        }
    })
}

const HEADING: &str = "kube-proxy's flags";

fn arg(flag: &'static Flag) -> Arg {
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .help(flag.help.as_str())
        .help_heading(HEADING)
        .action(ArgAction::Append)
        .hide_short_help(true)
        .hide(flag.sets == Sets::Nothing)
        .allow_hyphen_values(matches!(flag.kind, Kind::Int | Kind::Unsigned | Kind::Float | Kind::Duration));
    let arg = match flag.short {
        Some(short) => arg.short(short),
        None => arg,
    };
    match flag.kind {
        Kind::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL"),
        kind => arg.value_name(value::name(kind)),
    }
}

impl Args for KubeProxyFlags {
    fn augment_args(command: Command) -> Command {
        command.args(FLAGS.iter().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KubeProxyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
        Ok(Self::some_from(matches, &names))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
