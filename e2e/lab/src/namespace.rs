//! A network namespace: created by name, entered by threads, and removed when dropped.
//!
//! Its name is `lab-PID-N-ROLE`. The pid tells whether the owner still runs: before a process creates its first namespaces, it
//! removes those of dead processes. Programs that a process started in a namespace end with the process.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use anyhow::{Context, anyhow, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const NAMED: &str = "/run/netns";
const PREFIX: &str = "lab-";
// The source ports of probes are above the ports of our programs and of the control plane, below NodePorts and below the kernel's
// ephemeral ports. So neither a server nor a flow of a load generator in the same namespace ever has the port of a probe.
const FIRST_SOURCE_PORT: u16 = 14_000;
const LAST_SOURCE_PORT: u16 = 29_999;
/// The source ports of flows that stay open, above the kernel's ephemeral ports.
const KEPT_PORTS: [u16; 2] = [61_000, 65_500];

/// A network namespace of the lab.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    handle: File,
    next_source_port: AtomicU16,
    next_kept_port: AtomicU16,
}

impl Namespace {
    /// Creates the namespaces named `lab-PID-RUN-ROLE`, in the order of `roles`.
    pub(crate) fn create_all(run: u32, roles: &[String]) -> anyhow::Result<Vec<Self>> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let names: Vec<_> = roles.iter().map(|role| format!("{PREFIX}{}-{run}-{role}", std::process::id())).collect();
        let created = ip_batch(None, names.iter().map(|name| format!("netns add {name}")))
            .context("creating network namespaces (needs root and iproute2)")
            .and_then(|()| names.iter().map(|name| Self::open(name.clone())).collect());
        if created.is_err() {
            remove(&names);
        }
        created
    }

    fn open(name: String) -> anyhow::Result<Self> {
        let path = Path::new(NAMED).join(&name);
        let handle = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let (next_source_port, next_kept_port) = (AtomicU16::new(FIRST_SOURCE_PORT), AtomicU16::new(KEPT_PORTS[0]));
        Ok(Self { name, handle, next_source_port, next_kept_port })
    }

    /// The name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file through which programs can enter the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new(NAMED).join(&self.name)
    }

    /// Runs `work` on a new thread inside of the namespace and waits for it. Threads, processes and sockets that `work` creates are
    /// inside as well. A panic of `work` continues in the caller.
    ///
    /// # Errors
    /// Returns an error if the namespace cannot be entered, or `work` fails.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let inside = || {
            enter(&self.handle, &self.name)?;
            work()
        };
        std::thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// Runs a command to its end inside of the namespace and returns its standard output.
    ///
    /// # Errors
    /// Returns an error if the command fails. The error contains its standard error.
    pub fn output(&self, command: &mut Command) -> anyhow::Result<String> {
        self.run(|| output(command, None))
    }

    /// As [`Namespace::output`], with `input` on the command's standard input.
    ///
    /// # Errors
    /// Returns the errors of [`Namespace::output`].
    pub fn output_with_input(&self, command: &mut Command, input: &str) -> anyhow::Result<String> {
        self.run(|| output(command, Some(input)))
    }

    /// Starts a program inside of the namespace. `set_up` sets its arguments, environment and streams. The program is killed when
    /// the result is dropped, or when this process ends for any reason.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started.
    pub fn spawn(
        &self,
        program: impl AsRef<OsStr>,
        set_up: impl FnOnce(&mut Command) -> &mut Command,
    ) -> anyhow::Result<Running> {
        let mut command = Command::new("setpriv");
        set_up(command.args(["--pdeathsig", "KILL"]).arg(program.as_ref()));
        let (handle, name) = (self.handle.try_clone().context("duplicating a handle")?, self.name.clone());
        let (sender, started) = mpsc::channel();
        let (guard, dropped) = mpsc::channel::<Infallible>();
        let mut start = move || -> anyhow::Result<Child> {
            enter(&handle, &name)?;
            command.spawn().with_context(|| format!("starting {command:?} (setpriv is in util-linux)"))
        };
        // The kernel's parent-death signal refers to the thread that started the program, so this thread lives as long as the program.
        let parent = std::thread::Builder::new().name("lab-parent".to_owned()).spawn(move || {
            if sender.send(start()).is_ok() {
                let Err(mpsc::RecvError) = dropped.recv();
            }
        });
        let parent = parent.context("starting the thread of a program")?;
        let child = started.recv().context("the thread of a program has ended")??;
        Ok(Running { child, parent: Some((guard, parent)) })
    }

    /// Writes sysctls of this namespace, by their path below /proc/sys: `("net/ipv4/ip_forward", "1")`.
    ///
    /// # Errors
    /// Returns an error if a setting cannot be written.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> anyhow::Result<()> {
        self.run(|| {
            for (key, value) in settings {
                let path = Path::new("/proc/sys").join(key);
                std::fs::write(&path, value).with_context(|| format!("writing {value} to {}", path.display()))?;
            }
            Ok(())
        })
    }

    /// Runs the lines as one `ip -batch` inside of the namespace.
    ///
    /// # Errors
    /// Returns an error if a line fails. The error contains the script.
    pub fn ip(&self, lines: impl IntoIterator<Item = String>) -> anyhow::Result<()> {
        ip_batch(Some(&self.name), lines)
    }

    /// The next source port for a probe, so that no probe reuses the conntrack entry of an earlier one.
    pub(crate) fn next_source_port(&self) -> u16 {
        next(&self.next_source_port, [FIRST_SOURCE_PORT, LAST_SOURCE_PORT])
    }

    /// The next source port for a flow that stays open; no probe uses it.
    pub(crate) fn next_kept_port(&self) -> u16 {
        next(&self.next_kept_port, KEPT_PORTS)
    }
}

fn next(port: &AtomicU16, [first, last]: [u16; 2]) -> u16 {
    let next = |port| Some(if port >= last { first } else { port + 1 });
    match port.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
        Ok(port) | Err(port) => port,
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(std::slice::from_ref(&self.name));
    }
}

/// A process in a namespace, killed and waited for when dropped. The kernel also kills it when the thread that started it ends.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// The thread that started the process, and a sender: the thread ends when the sender is dropped.
    parent: Option<(mpsc::Sender<Infallible>, JoinHandle<()>)>,
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process ended and was waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some((guard, parent)) = self.parent.take() {
            drop(guard);
            // The thread keeps the namespace alive, so wait for its end. It does not panic.
            let _ = parent.join();
        }
    }
}

fn enter(namespace: &File, name: &str) -> anyhow::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("entering network namespace {name} (needs root)"))
}

pub(crate) fn ip_batch(namespace: Option<&str>, lines: impl IntoIterator<Item = String>) -> anyhow::Result<()> {
    let script: Vec<String> = lines.into_iter().collect();
    let mut command = Command::new("ip");
    if let Some(namespace) = namespace {
        command.args(["-n", namespace]);
    }
    command.args(["-batch", "-"]);
    let input = script.join("\n") + "\n";
    output(&mut command, Some(&input)).with_context(|| format!("running this script:\n{input}"))?;
    Ok(())
}

fn output(command: &mut Command, input: Option<&str>) -> anyhow::Result<String> {
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting {command:?} (is it installed?)"))?;
    let fed = match (input, child.stdin.take()) {
        (Some(input), Some(mut stdin)) => stdin.write_all(input.as_bytes()),
        _ => Ok(()),
    };
    let ended = child.wait_with_output().with_context(|| format!("waiting for {command:?}"))?;
    if !ended.status.success() {
        bail!("{command:?} ended with {}: {}", ended.status, String::from_utf8_lossy(&ended.stderr).trim());
    }
    fed.with_context(|| format!("writing to {command:?}"))?;
    String::from_utf8(ended.stdout).map_err(|_| anyhow!("the output of {command:?} is not UTF-8"))
}

/// Removes the namespaces with these names, if they exist.
pub(crate) fn remove(names: &[String]) {
    let exist: Vec<_> = names.iter().filter(|name| Path::new(NAMED).join(name).exists()).collect();
    if exist.is_empty() {
        return;
    }
    if let Err(error) = ip_batch(None, exist.iter().map(|name| format!("netns del {name}"))) {
        eprintln!("failed to remove namespaces; the next run removes them: {error:#}");
    }
}

/// Removes the namespaces of dead processes, and those of an earlier process with our pid.
fn sweep() {
    let left: Vec<_> = named()
        .filter(|name| match owner_of(name) {
            Some(owner) => owner == std::process::id() || !Path::new(&format!("/proc/{owner}")).exists(),
            None => false,
        })
        .collect();
    for name in left {
        // Another process may remove the same one at the same time.
        let _ = ip_batch(None, [format!("netns del {name}")]);
    }
}

fn named() -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(NAMED).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

fn owner_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_contains_its_owner_s_pid() {
        assert_eq!(owner_of("lab-12-0-node"), Some(12));
        assert_eq!(owner_of("lab-12"), None);
        assert_eq!(owner_of("lab-x-0-node"), None);
        assert_eq!(owner_of("other-12-0-node"), None);
    }
}
