//! A cgroup and a BPF file system for one test of a backend with eBPF programs. Both exist only for the thread of the test, and
//! for the threads and processes that it starts.

use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;
use tempfile::TempDir;

/// The environment of a thread. In the sandbox, the thread and everything that it starts are the processes of a node, and the
/// standard paths lead to the cgroup and to the BPF file system.
#[derive(Debug)]
pub struct Sandbox {
    mounts: TempDir,
    cgroup: PathBuf,
}

/// The sandboxes of this process.
struct Sandboxes {
    /// How many exist. The cgroup of the process exists as long as there is one.
    now: usize,
    /// How many there were, for the names of cgroups.
    ever: usize,
    /// The cgroup in which the process started.
    home: String,
}

/// The prefix of the cgroup that contains this process. Its name ends with the ID of the process.
const PREFIX: &str = "localnet-test-";
static SANDBOXES: Mutex<Sandboxes> = Mutex::new(Sandboxes { now: 0, ever: 0, home: String::new() });

impl Sandbox {
    /// The mount point of the BPF file system.
    pub const BPFFS: &str = "/sys/fs/bpf";
    /// The mount point of the cgroup.
    pub const CGROUP: &str = "/sys/fs/cgroup";

    /// Runs `work` in a new thread, which [enters](Self::enter) a sandbox. A panic of `work` continues in the caller.
    ///
    /// # Errors
    /// Returns an error if the sandbox cannot be entered, or if `work` fails.
    pub fn run<T: Send>(work: impl FnOnce(&Self) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let inside = || work(&Self::enter()?);
        std::thread::scope(|scope| scope.spawn(inside).join().unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Moves this thread to a new cgroup, and to a mount namespace with a new BPF file system. A thread enters only one sandbox.
    ///
    /// # Errors
    /// Returns an error if the process is not root, or the kernel lacks BPF or cgroup v2.
    pub fn enter() -> anyhow::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS).context("entering a mount namespace (needs root)")?;
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
            .context("making mounts private")?;
        mount(Some("bpf"), Self::BPFFS, Some("bpf"), MsFlags::empty(), nothing)
            .context("mounting a BPF file system (the kernel needs CONFIG_BPF_SYSCALL)")?;
        let mounts = tempfile::tempdir()?;
        let root = mounts.path();
        mount(Some("cgroup2"), root, Some("cgroup2"), MsFlags::empty(), nothing).context("mounting cgroup v2")?;
        let mut all = SANDBOXES.lock().unwrap_or_else(PoisonError::into_inner);
        let process = root.join(format!("{PREFIX}{}", std::process::id()));
        if all.now == 0 {
            sweep(root);
            let own = fs::read_to_string("/proc/self/cgroup")?;
            let own =
                own.lines().find_map(|line| line.strip_prefix("0::/")).context("finding the cgroup of the test")?;
            all.home = own.to_owned();
            // It exists if programs of the last sandbox still run in it.
            fs::create_dir_all(&process).context("creating a cgroup")?;
            fs::write(process.join("cgroup.procs"), std::process::id().to_string()).context("entering a cgroup")?;
        }
        (all.now, all.ever) = (all.now + 1, all.ever + 1);
        let cgroup = process.join(format!("test-{}", all.ever));
        fs::create_dir(&cgroup).context("creating a cgroup")?;
        // Only threaded cgroups can contain single threads of a process.
        fs::write(cgroup.join("cgroup.type"), "threaded").context("making a threaded cgroup")?;
        fs::write(cgroup.join("cgroup.threads"), gettid().to_string()).context("entering a threaded cgroup")?;
        mount(Some(&cgroup), Self::CGROUP, nothing, MsFlags::MS_BIND, nothing).context("mounting the cgroup")?;
        Ok(Self { mounts, cgroup })
    }

    /// Runs `work` in a thread outside of the cgroup, as processes of other hosts are.
    ///
    /// # Errors
    /// Returns an error if the thread cannot leave the cgroup, or if `work` fails.
    pub fn outside<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let threads = self.cgroup.with_file_name("cgroup.threads");
        let outside = || {
            fs::write(&threads, gettid().to_string()).context("leaving a threaded cgroup")?;
            work()
        };
        std::thread::scope(|scope| scope.spawn(outside).join().unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl Drop for Sandbox {
    /// Removes the cgroups. Cgroups that cannot be removed are left to the next process.
    fn drop(&mut self) {
        let process = self.cgroup.with_file_name("");
        let _ = fs::write(process.join("cgroup.threads"), gettid().to_string());
        let _ = fs::remove_dir(&self.cgroup);
        let mut all = SANDBOXES.lock().unwrap_or_else(PoisonError::into_inner);
        all.now -= 1;
        if all.now == 0 {
            let home = self.mounts.path().join(&all.home).join("cgroup.procs");
            let _ = fs::write(home, std::process::id().to_string());
            let _ = fs::remove_dir(&process);
        }
        // Otherwise, the temporary folder cannot be removed.
        let _ = umount2(self.mounts.path(), MntFlags::MNT_DETACH);
    }
}

/// Removes the cgroups of processes that no longer run. Other processes may do so at the same time.
fn sweep(root: &Path) {
    for (name, process) in folders(root) {
        let is_dead = |process: &str| !Path::new("/proc").join(process).exists();
        if name.strip_prefix(PREFIX).is_some_and(is_dead) {
            for (_, inner) in folders(&process) {
                let _ = fs::remove_dir(inner);
            }
            let _ = fs::remove_dir(process);
        }
    }
}

/// The names and paths of the folders in a folder.
fn folders(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
}
