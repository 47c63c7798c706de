//! A backend as a program: the flags, the commands and the steps that all backends of this repository share.
//!
//! ```text
//!  BackendProgram ─┬─► main            the program localnet-NAME
//!                  └─► localnet-node   with the brain in one process
//! ```

mod dry_run;
mod follow;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use localnet_config::{Config, Mode, flags::spelled};

pub use dry_run::Planner;
pub use follow::run;

use self::dry_run::DryRun;
use crate::{
    Options,
    args::{ClientArgs, exit, terminated},
    backend::Backend,
    served::{self, Served},
    source::Source as _,
    vips::flags::ConfigArgs,
};

/// A backend as a program. The implementing type holds the flags that only this backend has.
pub trait BackendProgram: Args + Send + Sync + 'static {
    /// The name in reports to the brain, which is also the value of `localnet-node --backend`.
    const NAME: &'static str;
    /// The name of the program.
    const PROGRAM: &'static str;
    /// The mode of kube-proxy whose section of the configuration the backend uses.
    const MODE: Mode;
    /// What the program does, for `--help`.
    const ABOUT: &'static str;
    /// What `--dry-run` does, for `--help`.
    const DRY_RUN: &'static str;
    /// What the command `cleanup` does, for `--help`.
    const CLEANUP: &'static str;

    /// The flags of the command `cleanup` besides those of the program.
    type Cleanup: Args + Default;
    /// The commands that only this backend has; [`std::convert::Infallible`] if there are none.
    type Command: Subcommand;
    /// The backend that the program runs.
    type Backend: Backend;
    /// The planner whose plans `--dry-run` prints.
    type Planner: Planner;

    /// Opens the backend of this node, and applies the configured settings of the node. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be programmed at all, for instance without privileges.
    fn open(&self, flags: &ConfigArgs, config: &Config) -> impl Future<Output = anyhow::Result<Self::Backend>>;

    /// Opens the planner for `--dry-run`. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if a value of the configuration is invalid, or if the node cannot be read.
    fn planner(&self, flags: &ConfigArgs, config: &Config) -> impl Future<Output = anyhow::Result<Self::Planner>>;

    /// Reads from the kernel which VIPs it serves. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot be read.
    fn dump(&self) -> impl Future<Output = anyhow::Result<Served>>;

    /// Removes everything that this backend ever wrote. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if something could not be removed.
    fn cleanup(
        &self,
        flags: &ConfigArgs,
        config: &Config,
        more: Self::Cleanup,
    ) -> impl Future<Output = anyhow::Result<()>>;

    /// Applies the settings of the node that need full root privileges, like kube-proxy's `--init-only`.
    ///
    /// # Errors
    /// Returns an error if a setting could not be applied.
    fn init(&self, config: &Config) -> anyhow::Result<()>;

    /// Runs a command that only this backend has.
    ///
    /// # Errors
    /// Returns an error if the command fails.
    fn command(command: Self::Command) -> anyhow::Result<()>;

    /// Starts logging.
    ///
    /// # Errors
    /// Returns an error if `RUST_LOG` contains an invalid level, or if the log cannot be opened.
    fn start_log(&self, client: &ClientArgs, config: &Config) -> anyhow::Result<()> {
        client.start_log(config, None)
    }
}

/// The command line of a backend's program.
#[derive(Parser)]
#[command(name = P::PROGRAM, version, about = P::ABOUT, args_conflicts_with_subcommands = true)]
pub struct Arguments<P: BackendProgram> {
    /// The command. Without one, the program serves as a backend.
    #[command(subcommand)]
    pub command: Option<Command<P>>,
    /// The source of the state, and the options of the loop.
    #[command(flatten)]
    pub client: ClientArgs,
    /// How to program the node.
    #[command(flatten)]
    pub flags: ConfigArgs,
    /// The flags that only this backend has.
    #[command(flatten)]
    pub own: P,
    /// Whether to print the plan.
    #[arg(long, help = P::DRY_RUN)]
    pub dry_run: bool,
}

/// The commands of a backend's program.
#[derive(Subcommand)]
pub enum Command<P: BackendProgram> {
    /// Removes everything.
    #[command(about = P::CLEANUP)]
    Cleanup(Box<CleanupArgs<P>>),
    /// Print the VIPs in the kernel, one line for each address and port
    Dump(P),
    /// Apply the settings of the node that need full root privileges, such as limits of connection tracking, and exit
    Init(Box<InitArgs<P>>),
    /// A command that only this backend has.
    #[command(flatten)]
    Own(P::Command),
}

/// The flags of the command `cleanup`.
#[derive(Args)]
#[group(skip)]
pub struct CleanupArgs<P: BackendProgram> {
    #[command(flatten)]
    flags: ConfigArgs,
    #[command(flatten)]
    own: P,
    #[command(flatten)]
    more: P::Cleanup,
}

/// The flags of the command `init`.
#[derive(Args)]
#[group(skip)]
pub struct InitArgs<P: BackendProgram> {
    #[command(flatten)]
    flags: ConfigArgs,
    #[command(flatten)]
    own: P,
}

/// What a command line requests. `C`: the flags of the command `cleanup`.
enum Task<C> {
    Serve,
    Cleanup(C),
    Init,
}

/// The `main` of a backend's program.
pub fn main<P: BackendProgram>() -> ExitCode {
    let arguments = Arguments::<P>::parse_from(spelled(std::env::args_os()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    exit(runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(execute(arguments, terminated()))))
}

/// Executes the task that a command line requests. A backend runs until `shutdown`, or with `--once` until one state is
/// applied. Must be called in a tokio runtime.
///
/// # Errors
/// Returns an error if the flags or the configuration are invalid, or if the kernel cannot be programmed at all. With
/// `--once`, returns an error if anything failed.
pub async fn execute<P: BackendProgram>(
    arguments: Arguments<P>,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let Arguments { command, client, flags, own, dry_run } = arguments;
    let (flags, own, task) = match command {
        Some(Command::Own(command)) => return P::command(command),
        Some(Command::Dump(own)) => return served::print(&own.dump().await?),
        Some(Command::Cleanup(arguments)) => {
            let CleanupArgs { flags, own, more } = *arguments;
            flags.only("cleanup")?;
            (flags, own, Task::Cleanup(more))
        }
        Some(Command::Init(arguments)) => {
            let InitArgs { flags, own } = *arguments;
            flags.only("init")?;
            (flags, own, Task::Init)
        }
        None => {
            let to_do = flags.to_do(dry_run)?;
            let task = match (to_do.cleanup, to_do.init_only) {
                (true, _) => Task::Cleanup(P::Cleanup::default()),
                (false, true) => Task::Init,
                (false, false) => Task::Serve,
            };
            (flags, own, task)
        }
    };
    let Some(running) = flags.begin(P::MODE)? else { return Ok(()) };
    let config = running.config();
    own.start_log(&client, config)?;
    running.log_warnings();
    match task {
        Task::Cleanup(more) => return own.cleanup(&flags, config, more).await,
        Task::Init => return own.init(config),
        Task::Serve => {}
    }
    flags.warn_of_brain_flags();
    ConfigArgs::warn_of_other_mode(config, P::MODE);
    let source = client.source()?;
    if dry_run {
        let options = Options { once: true, dry_run: true, ..client.options() };
        let backend = DryRun::<P>(own.planner(&flags, config).await?);
        return crate::run(backend, source, options, shutdown).await;
    }
    running.log_start(P::PROGRAM, None, source.describe());
    let (current, mut following) = running.follow();
    let open = async |config: &Config| Ok((own.open(&flags, config).await?, client.configured_options(config)));
    tokio::select! {
        result = run(current, |config| flags.concerns(config), open, source, shutdown) => result,
        error = following.failed() => Err(error),
    }
}
