//! Runs the command of the backend under test, and reads the backend's state.

use std::{
    fs::{self, File},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use localnet_lab::{Namespace, Running};
use localnet_proto::{Address, Revision, Snapshot};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{
    brain::{Brain, loopback},
    dump::Dump,
};

/// The interval between two checks of a dump or of a process.
const POLL: Duration = Duration::from_millis(3);
/// The maximum number of log lines in an error.
const TAIL: usize = 12;

/// The command that starts a backend, with its placeholders.
#[derive(Clone, Debug)]
pub struct BackendCommand {
    text: String,
    folder: PathBuf,
    api: Address,
}

impl BackendCommand {
    /// The command of a backend whose files are in `folder`. The brain listens on `port` of the loopback interface, or on a unix
    /// socket in the folder.
    pub fn new(text: &str, folder: &Path, port: Option<u16>) -> Self {
        let api = port.map_or_else(|| Address::Unix(folder.join("brain.sock")), loopback);
        Self { text: text.to_owned(), folder: folder.to_owned(), api }
    }

    /// Another command with the same placeholders.
    pub fn with_text(&self, text: &str) -> Self {
        Self { text: text.to_owned(), ..self.clone() }
    }

    /// The brain's address.
    pub fn api(&self) -> &Address {
        &self.api
    }

    /// The path of the backend's dump; `None` if the backend writes no dump.
    pub fn dump(&self) -> Option<PathBuf> {
        (self.text.contains("{dump}") || self.text.contains("LOCALNET_DUMP")).then(|| self.folder.join("dump"))
    }

    fn filled(&self, flags: &[String]) -> String {
        let text = self.text.replace("{api}", &self.api.to_string());
        let text = match &self.api {
            Address::Tcp { host, port } => text.replace("{tcp}", &format!("{host}:{port}")),
            Address::Unix(path) => text.replace("{socket}", &path.display().to_string()),
            Address::Pipe(_) => text,
        };
        let text = text.replace("{dump}", &self.folder.join("dump").display().to_string());
        text.replace("{folder}", &self.folder.display().to_string()).replace("{flags}", &flags.join(" "))
    }

    /// Starts the command, in the namespace `inside` if there is one. `flags` are kube-proxy's flags for the node.
    ///
    /// # Errors
    /// Returns an error if the process cannot be started.
    pub fn start(&self, inside: Option<&Namespace>, flags: &[String]) -> anyhow::Result<Backend> {
        let log = self.folder.join("log");
        let output = File::options().create(true).append(true).open(&log).context("cannot open the backend's log")?;
        let errors = output.try_clone()?;
        let line = format!("exec {}", self.filled(flags));
        let (api, dump) = (self.api.to_string(), self.folder.join("dump"));
        let set_up = |command: &mut Command| {
            command.env("LOCALNET_API", api).env("LOCALNET_DUMP", dump);
            command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        };
        let process = match inside {
            Some(namespace) => Process::Inside(namespace.spawn("sh", |command| {
                command.args(["-c", &line]);
                set_up(command);
                command
            })?),
            None => {
                let mut command = Command::new("sh");
                command.args(["-c", &line]);
                set_up(&mut command);
                Process::Plain(command.spawn().with_context(|| format!("failed to start {line:?}"))?)
            }
        };
        Ok(Backend { process, dump: self.dump(), log })
    }

    /// Runs the command, and waits until it exits.
    ///
    /// # Errors
    /// Returns an error if the command fails or exceeds `patience`.
    pub fn run(&self, inside: Option<&Namespace>, flags: &[String], patience: Duration) -> anyhow::Result<()> {
        let mut backend = self.start(inside, flags)?;
        let ended = backend.await_exit(patience)?;
        anyhow::ensure!(ended.success(), "{:?} exited with {ended}{}", self.text, backend.log_tail());
        Ok(())
    }

    /// Runs the command until it exits, and returns the lines of its output, sorted.
    ///
    /// # Errors
    /// Returns an error if the command cannot be started or fails.
    pub fn output_lines(&self, inside: Option<&Namespace>) -> anyhow::Result<Vec<String>> {
        let mut command = Command::new("sh");
        command.args(["-c", &self.filled(&[])]);
        let printed = match inside {
            Some(namespace) => namespace.output(&mut command)?,
            None => {
                let output = command.output().with_context(|| format!("failed to start {:?}", self.text))?;
                let (ended, errors) = (output.status, String::from_utf8_lossy(&output.stderr));
                anyhow::ensure!(ended.success(), "{:?} exited with {ended}: {errors}", self.text);
                String::from_utf8(output.stdout).with_context(|| format!("invalid output of {:?}", self.text))?
            }
        };
        let mut lines: Vec<_> = printed.lines().map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    }
}

#[derive(Debug)]
enum Process {
    Plain(Child),
    Inside(Running),
}

impl Process {
    fn child(&mut self) -> &mut Child {
        match self {
            Self::Plain(child) => child,
            Self::Inside(running) => running,
        }
    }
}

/// A running backend. Dropping this value kills the backend and all processes that the backend started.
#[derive(Debug)]
pub struct Backend {
    process: Process,
    dump: Option<PathBuf>,
    log: PathBuf,
}

impl Backend {
    /// Sends a signal to the backend and to all processes that it started.
    ///
    /// # Errors
    /// Returns an error if no process is left.
    pub fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        let id = i32::try_from(self.process.child().id()).ok().and_then(Pid::from_raw).context("no process ID")?;
        kill_process_group(id, signal).context("failed to send a signal to the backend")
    }

    /// Checks that the backend still runs.
    ///
    /// # Errors
    /// Returns an error with the end of the backend's log if the backend has exited.
    pub fn is_alive(&mut self) -> anyhow::Result<()> {
        is_alive(&mut self.process, &self.log)
    }

    /// Waits until the backend exits.
    ///
    /// # Errors
    /// Returns an error if the backend does not exit within `patience`.
    pub fn await_exit(&mut self, patience: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(ended) = self.process.child().try_wait().context("failed to check the backend")? {
                return Ok(ended);
            }
            if Instant::now() > deadline {
                bail!("the backend did not exit within {patience:?}{}", self.log_tail());
            }
            std::thread::sleep(POLL);
        }
    }

    /// The state in the backend's dump, if the backend writes a dump.
    pub fn dump(&self) -> Option<Dump> {
        let text = fs::read_to_string(self.dump.as_ref()?).ok()?;
        Dump::parse(&text)
    }

    /// Whether the backend writes a dump.
    pub fn dumps(&self) -> bool {
        self.dump.is_some()
    }

    /// Waits until the backend holds exactly `state`.
    ///
    /// # Errors
    /// Returns an error if the backend does not hold `state` within `patience`, holds a different state under this revision, or
    /// reports an error.
    pub fn await_state(
        &mut self,
        brain: &Brain,
        revision: Revision,
        state: &Snapshot,
        patience: Duration,
    ) -> anyhow::Result<()> {
        if self.dump.is_none() {
            return self.await_report(brain, revision, patience);
        }
        let expected = Dump { revision, ..Dump::of(state) };
        let deadline = Instant::now() + patience;
        loop {
            let dump = self.dump();
            match &dump {
                Some(dump) if dump.revision == revision => {
                    let differences = dump.differences(&expected);
                    anyhow::ensure!(
                        differences.is_empty(),
                        "the backend's state of revision {revision} differs from the brain's:{differences}"
                    );
                    return Ok(());
                }
                _ => {}
            }
            self.is_alive()?;
            if Instant::now() > deadline {
                let at = dump.map_or("no state".to_owned(), |dump| format!("revision {}", dump.revision));
                bail!(
                    "the backend did not apply revision {revision} within {patience:?}; its dump contains {at}{}",
                    self.log_tail()
                );
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits until the backend reports that it has applied a revision.
    fn await_report(&mut self, brain: &Brain, revision: Revision, patience: Duration) -> anyhow::Result<()> {
        let what = format!("a report that {revision} is applied (or a dump of the state)");
        let mut error = None;
        let (process, log) = (&mut self.process, &self.log);
        let reported = brain.wait_while(
            patience,
            &what,
            || is_alive(process, log),
            |log| {
                let of = |report: &&localnet_proto::wire::BackendReport| {
                    report.instance_id == revision.instance && report.rev == revision.rev
                };
                let report = log.reports.iter().rev().find(of)?;
                error = report.families.iter().map(|family| family.error.clone()).find(|error| !error.is_empty());
                let applied = report.families.iter().all(|family| family.applied_rev == revision.rev);
                (applied && error.is_none() && !report.families.is_empty()).then_some(())
            },
        );
        match (reported, error) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => {
                bail!("the backend reports that it cannot apply {revision}: {error}{}", self.log_tail())
            }
            (Err(missing), None) => Err(missing.context(self.log_tail())),
        }
    }

    /// The last lines of the backend's log, each after a line break and an indent, as an error shows them.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log)
    }
}

fn log_tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL)..];
    last.iter().map(|line| format!("\n  | {line}")).collect()
}

fn is_alive(process: &mut Process, log: &Path) -> anyhow::Result<()> {
    match process.child().try_wait().context("failed to check the backend")? {
        None => Ok(()),
        Some(ended) => bail!("the backend exited with {}{}", described(ended), log_tail(log)),
    }
}

fn described(ended: ExitStatus) -> String {
    match (ended.code(), ended.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => ended.to_string(),
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // These signals fail only if the backend has exited.
        _ = self.signal(Signal::CONT);
        _ = self.signal(Signal::KILL);
        _ = self.process.child().wait();
    }
}
