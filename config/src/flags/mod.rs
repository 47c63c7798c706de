//! kube-proxy's flags: accepted by every program of ours, with kube-proxy's meaning and precedence.
//!
//! With `--config` nearly all of them are ignored, as in kube-proxy: only those count that say what the program is to do, how it
//! logs, and what the Node is called.

mod apply;
mod table;
mod value;

use std::{ffi::OsString, path::Path};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
pub use table::{FLAGS, Flag, Kind, Sets};

/// The flags of kube-proxy that were given. Flatten it into a program's arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeProxyFlags {
    given: Vec<Given>,
}

/// A flag, and its values in the order of the command line; there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    flag: &'static Flag,
    values: Vec<String>,
}

impl Given {
    /// Of a flag with one value the last one counts.
    fn last(&self) -> &str {
        self.values.last().map_or("", String::as_str)
    }
}

/// A part of what kube-proxy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It reads the API and answers health checks: `localnet-brain`.
    Brain,
    /// It programs the node.
    Backend,
}

/// What a program is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToDo<'a> {
    /// `--config`: the file to read.
    pub config: Option<&'a Path>,
    /// `--write-config-to`: write the configuration there, and start nothing.
    pub write_config_to: Option<&'a Path>,
    /// `--cleanup`: remove everything, and exit.
    pub cleanup: bool,
    /// `--init-only`: do what needs privileges, and exit.
    pub init_only: bool,
    /// `--master`: URL of the API server.
    pub master: Option<&'a str>,
}

impl KubeProxyFlags {
    /// What the program is to do.
    ///
    /// # Errors
    /// `--cleanup` or `--init-only` is neither true nor false; or two flags are given of which each ends the program. kube-proxy
    /// obeys one of them and ignores the other.
    pub fn to_do(&self) -> Result<ToDo<'_>, crate::Problems> {
        let path = |name| self.text(name).map(Path::new);
        let to_do = ToDo {
            config: path("config"),
            write_config_to: path("write-config-to"),
            cleanup: self.is_set("cleanup")?,
            init_only: self.is_set("init-only")?,
            master: self.text("master"),
        };
        let ends = [
            ("--write-config-to", to_do.write_config_to.is_some()),
            ("--cleanup", to_do.cleanup),
            ("--init-only", to_do.init_only),
        ];
        let ends: Vec<_> = ends.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect();
        if let [first, others @ ..] = ends.as_slice()
            && !others.is_empty()
        {
            return Err(crate::Problems(vec![crate::Problem {
                line: 0,
                field: (*first).to_owned(),
                problem: format!("cannot be combined with {}: each of them ends the program", others.join(" and ")),
                remedy: "give one of them, and run the program again for the other".to_owned(),
            }]));
        }
        Ok(to_do)
    }

    /// Whether someone has chosen how the node is to be set up: by a file, or by a flag about connection tracking or memory.
    /// kube-proxy sets up every node that it runs on; a program that is merely tried out should not.
    pub fn configures_node(&self) -> bool {
        let about_node = |name: &str| name == "config" || name == "oom-score-adj" || name.starts_with("conntrack-");
        self.given.iter().any(|given| about_node(given.flag.name))
    }

    /// The arguments for some of the flags, for a program that reads no others.
    pub fn some_args(names: &[&str]) -> impl Iterator<Item = Arg> {
        FLAGS.iter().filter(|flag| names.contains(&flag.name)).map(arg)
    }

    /// Reads some of the flags: those that [`Self::some_args`] defines for the same names.
    pub fn some_from(matches: &ArgMatches, names: &[&str]) -> Self {
        let given = FLAGS.iter().filter(|flag| names.contains(&flag.name)).filter_map(|flag| {
            let values: Vec<String> = matches.get_many(flag.name)?.cloned().collect();
            Some(Given { flag, values }).filter(|given| !given.values.is_empty())
        });
        Self { given: given.collect() }
    }

    /// The names of the flags that were given.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.given.iter().map(|given| given.flag.name)
    }

    /// The flags that are given and have no effect in this part of kube-proxy, each with the remedy. None beside `--config`, which
    /// both parts are given alike.
    pub fn elsewhere(&self, here: Part) -> Vec<crate::Problem> {
        if self.text("config").is_some() {
            return Vec::new();
        }
        let (others, remedy) = match here {
            Part::Brain => (table::OF_BACKENDS, "give it to the backend"),
            Part::Backend => (table::OF_THE_BRAIN, "give it to localnet-brain"),
        };
        let others = self.given.iter().filter(|given| others.contains(&given.flag.name));
        others.map(|given| value::problem(given, "has no effect in this program".to_owned(), remedy)).collect()
    }

    fn text(&self, name: &str) -> Option<&str> {
        let given = self.given.iter().find(|given| given.flag.name == name)?;
        Some(given.last()).filter(|text| !text.is_empty())
    }

    fn is_set(&self, name: &str) -> Result<bool, crate::Problems> {
        let given = self.given.iter().find(|given| given.flag.name == name);
        given.map_or(Ok(false), |given| value::boolean(given).map_err(|problem| crate::Problems(vec![problem])))
    }
}

/// The arguments of a program with flags spelled as clap knows them: kube-proxy takes `_` for `-` in the name of a flag.
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
        .help(flag.help)
        .help_heading(HEADING)
        .action(ArgAction::Append)
        .hide_short_help(true)
        .hide(flag.sets == Sets::Nothing)
        .allow_hyphen_values(matches!(flag.kind, Kind::Int | Kind::Float | Kind::Duration));
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
