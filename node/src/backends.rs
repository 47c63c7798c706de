//! The registry: the backends that this program can run.

use std::{fmt, future::Future, pin::Pin};

use anyhow::bail;
use clap::{
    Arg, ArgMatches, Args, Command, CommandFactory as _, FromArgMatches, builder::PossibleValue,
    builder::PossibleValuesParser, parser::ValueSource,
};
use localnet_client::{
    Options,
    program::{self, Arguments, BackendProgram},
    vips::flags::ConfigArgs,
};
use localnet_config::{Config, Mode};
use localnet_config_file::Current;

use crate::FeedSource;

/// All backends for this system.
#[cfg(unix)]
pub static BACKENDS: &[Entry] = &[
    // The first backend is also the default for the modes of kube-proxy that have no backend in this list.
    Entry::of::<localnet_nft::Nft>(),
    Entry::of::<localnet_iptables::Iptables>(),
    Entry::of::<localnet_ipvs::Ipvs>(),
    Entry::of::<localnet_ebpf::Ebpf>(),
];

/// All backends for this system.
#[cfg(windows)]
pub static BACKENDS: &[Entry] = &[Entry::of::<localnet_win::Win<localnet_win::windows::Host>>()];

/// Resolves when the program should end.
pub type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The future that a function of [`Entry`] returns. The future runs in the task of the caller.
pub type Work<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// A backend in the registry: the parts of a [`BackendProgram`]. In the functions, the parameter `own` contains the values of
/// the flags that only this backend has.
pub struct Entry {
    /// See [`BackendProgram::NAME`].
    pub name: &'static str,
    /// See [`BackendProgram::PROGRAM`].
    pub program_name: &'static str,
    /// See [`BackendProgram::ABOUT`].
    pub about: &'static str,
    /// See [`BackendProgram::MODE`].
    pub mode: Mode,
    /// The command line of the backend's own program.
    pub program: fn() -> Command,
    /// Adds the flags that only this backend has.
    pub with_flags: fn(Command) -> Command,
    /// See [`BackendProgram::cleanup`].
    pub cleanup: for<'a> fn(own: &'a ArgMatches, &'a ConfigArgs, &'a Config) -> Work<'a>,
    /// See [`BackendProgram::init`].
    pub init: fn(own: &ArgMatches, &Config) -> anyhow::Result<()>,
    /// Runs the backend until the program should end, or with [`Options::once`] until one state is applied.
    pub run: for<'a> fn(own: &'a ArgMatches, &'a ConfigArgs, Current, FeedSource, Options, Ended) -> Work<'a>,
}

impl Entry {
    const fn of<P: BackendProgram>() -> Self {
        Self {
            name: P::NAME,
            program_name: P::PROGRAM,
            about: P::ABOUT,
            mode: P::MODE,
            program: Arguments::<P>::command,
            with_flags: P::augment_args,
            cleanup: cleanup::<P>,
            init: |own, config| P::from_arg_matches(own)?.init(config),
            run: run::<P>,
        }
    }
}

fn cleanup<'a, P: BackendProgram>(own: &'a ArgMatches, flags: &'a ConfigArgs, config: &'a Config) -> Work<'a> {
    Box::pin(async move { P::from_arg_matches(own)?.cleanup(flags, config, P::Cleanup::default()).await })
}

fn run<'a, P: BackendProgram>(
    own: &'a ArgMatches,
    flags: &'a ConfigArgs,
    current: Current,
    source: FeedSource,
    options: Options,
    ended: Ended,
) -> Work<'a> {
    Box::pin(async move {
        let program = P::from_arg_matches(own)?;
        let open = async |config: &Config| Ok((program.open(flags, config).await?, options.clone().configured(config)));
        program::run(current, |config| flags.concerns(config), open, source, ended).await
    })
}

/// The flag `--backend`, and the flags that only one backend has.
#[derive(Clone)]
pub struct BackendArgs {
    /// The backend that `--backend` names.
    pub chosen: Option<&'static Entry>,
    /// The values of the flags that only one backend has.
    pub own: ArgMatches,
}

impl fmt::Debug for BackendArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BackendArgs").field(&self.chosen.map(|entry| entry.name)).finish()
    }
}

const FLAG: &str = "backend";

impl BackendArgs {
    /// The backend for a configured mode: the one that `--backend` names, else the backend of that mode, else the first backend.
    pub fn of(&self, mode: Mode) -> &'static Entry {
        let of_mode = || BACKENDS.iter().find(|entry| entry.mode == mode);
        self.chosen.or_else(of_mode).unwrap_or(&BACKENDS[0])
    }

    /// Checks that all given flags suit the backend that `--backend` names. Without `--backend`, the check succeeds.
    ///
    /// # Errors
    /// Returns an error if a flag was given that only another backend has. The error contains the flag and that backend.
    pub fn check(&self) -> anyhow::Result<()> {
        let Some(chosen) = self.chosen else { return Ok(()) };
        let accepted = (chosen.with_flags)(Command::default());
        let is_foreign = |arg: &&Arg| accepted.get_arguments().all(|of| of.get_id() != arg.get_id());
        for entry in BACKENDS.iter().filter(|entry| entry.name != chosen.name) {
            let flags = (entry.with_flags)(Command::default());
            let is_given = |arg: &&Arg| self.own.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
            if let Some(flag) =
                flags.get_arguments().find(|arg| is_foreign(arg) && is_given(arg)).and_then(Arg::get_long)
            {
                let backend = entry.name;
                bail!("--{flag} needs --backend {backend}; choose that backend or remove --{flag}");
            }
        }
        Ok(())
    }
}

impl Args for BackendArgs {
    fn augment_args(command: Command) -> Command {
        let value = |entry: &Entry| PossibleValue::new(entry.name).help(entry.about);
        let backend = Arg::new(FLAG)
            .long(FLAG)
            .value_parser(PossibleValuesParser::new(BACKENDS.iter().map(value)))
            .help(format!(
                "Backend to run [default: the backend for the configured mode; {} if no mode is configured]",
                BACKENDS[0].name
            ));
        BACKENDS.iter().fold(command.arg(backend), |command, entry| {
            let own = (entry.with_flags)(Command::default());
            // Several backends may have the same flag.
            let new = own.get_arguments().filter(|arg| command.get_arguments().all(|of| of.get_id() != arg.get_id()));
            let new: Vec<_> = new.map(|arg| arg.clone().help_heading(entry.program_name)).collect();
            command.args(new)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for BackendArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let name = matches.get_one::<String>(FLAG);
        let chosen = name.and_then(|name| BACKENDS.iter().find(|entry| entry.name == name));
        Ok(Self { chosen, own: matches.clone() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        backend: BackendArgs,
    }

    fn args(flags: &[&str]) -> BackendArgs {
        Line::try_parse_from([&["localnet-node"], flags].concat()).unwrap_or_else(|error| panic!("{error}")).backend
    }

    #[test]
    fn the_configured_mode_selects_the_backend_unless_a_flag_names_one() {
        for (flags, mode, expected) in [
            (&[][..], Mode::Ipvs, "ipvs"),
            (&[], Mode::Nftables, "nft"),
            (&[], Mode::Kernelspace, "nft"),
            (&["--backend", "iptables"], Mode::Ipvs, "iptables"),
        ] {
            assert_eq!(args(flags).of(mode).name, expected, "{flags:?} {mode}");
        }
    }

    #[test]
    fn the_flags_of_another_backend_are_refused() {
        for (flags, expected) in [
            (&["--backend", "iptables", "--iptables-flavour", "nft"][..], None),
            (&["--iptables-flavour", "nft"], None),
            (
                &["--backend", "ipvs", "--iptables-flavour", "nft"],
                Some("--iptables-flavour needs --backend iptables; choose that backend or remove --iptables-flavour"),
            ),
            (&["--backend", "nft", "--traffic", "5"], None),
            (&["--backend", "iptables", "--traffic", "5"], None),
            (&["--backend", "ipvs", "--traffic", "5"], None),
            (
                &["--backend", "ebpf", "--traffic", "5"],
                Some("--traffic needs --backend nft; choose that backend or remove --traffic"),
            ),
            (
                &["--backend", "nft", "--scheduler", "mh"],
                Some("--scheduler needs --backend ipvs; choose that backend or remove --scheduler"),
            ),
        ] {
            let error = args(flags).check().err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected, "{flags:?}");
        }
    }
}
