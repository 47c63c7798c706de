//! A child process in a network namespace, which logs to a file and never outlives the test.
//!
//! `setpriv --pdeathsig` makes the kernel kill the child with its parent, even after a `kill -9`. For the kernel the parent is the
//! *thread* that forked, and the threads of an async runtime come and go. So each child has a thread of its own, which forks and
//! then waits until the [`Process`] is dropped.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Options;

/// How many lines of the log an error shows.
const TAIL: usize = 15;

#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    _parent: mpsc::Sender<Infallible>,
}

impl Process {
    /// Starts `program`, and appends its output to `log`.
    pub(crate) fn spawn(
        program: &Path,
        arguments: &[String],
        options: &Options,
        log: &Path,
    ) -> anyhow::Result<Process> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let starting = || format!("starting {name} (setpriv and nsenter are in util-linux: run e2e/deps.sh)");
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(netns) = &options.netns {
            let mut net = OsString::from("--net=");
            net.push(netns);
            command.arg("nsenter").arg(net);
        }
        command.arg(program).args(arguments);
        // Proxy or ETCD_… settings of the caller must not reach the control plane.
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.env_clear().env("PATH", path);
        command.env("GOGC", options.gogc.to_string());
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);

        let (parent, dropped) = mpsc::channel::<Infallible>();
        let (spawned, child) = mpsc::channel();
        thread::Builder::new().name(format!("parent of {name}")).spawn(move || {
            if spawned.send(command.spawn()).is_ok() {
                let Err(mpsc::RecvError) = dropped.recv();
            }
        })?;
        let child = child.recv().with_context(starting)?.with_context(starting)?;
        Ok(Process { name, child, log: log.to_owned(), _parent: parent })
    }

    /// Fails if the process has ended; the error contains the end of its log.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait().with_context(|| format!("checking {}", self.name))? {
            bail!("{} ended ({status})\n{}", self.name, self.tail());
        }
        Ok(())
    }

    /// The last lines of the log.
    pub(crate) fn tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(TAIL)..];
        format!("{} ends with:\n{}", self.log.display(), last.join("\n"))
    }

    /// The pid. It is the program's own, because setpriv and nsenter replace themselves by it.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process with SIGTERM and waits for its end, so that it can complete its writes.
    pub(crate) fn end(&mut self) -> anyhow::Result<()> {
        let process = Pid::from_raw(self.child.id().cast_signed());
        kill(process, Signal::SIGTERM).with_context(|| format!("stopping {}", self.name))?;
        self.child.wait().map(drop).with_context(|| format!("waiting for {}", self.name))
    }

    /// Kills the process and waits for its end.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().with_context(|| format!("killing {}", self.name))?;
        self.child.wait().map(drop).map_err(|error| anyhow!(error).context(format!("waiting for {}", self.name)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the child has ended and was waited for.
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}
