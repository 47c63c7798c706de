//! A cgroup and a BPF file system for one test. Both exist only for the thread of the test and the threads that it starts.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, bail};
use localnet_client::vips::Config;
use localnet_ebpf::{EbpfBackend, host::Host};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::gettid,
};
use tempfile::TempDir;

/// The environment of this thread, until it is dropped.
pub(crate) struct Sandbox {
    mounts: TempDir,
    pub(crate) bpffs: PathBuf,
    pub(crate) cgroup: PathBuf,
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
    /// Moves this thread to a new cgroup, and to a mount namespace with a new BPF file system.
    pub(crate) fn enter() -> anyhow::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS).context("entering a mount namespace (needs root)")?;
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
            .context("making mounts private")?;
        let mounts = tempfile::tempdir()?;
        let bpffs = mounts.path().join("bpf");
        fs::create_dir(&bpffs)?;
        mount(Some("bpf"), &bpffs, Some("bpf"), MsFlags::empty(), nothing).context("mounting a BPF file system")?;
        let root = mounts.path().join("cgroup");
        fs::create_dir(&root)?;
        mount(Some("cgroup2"), &root, Some("cgroup2"), MsFlags::empty(), nothing).context("mounting cgroup v2")?;
        let mut all = SANDBOXES.lock().unwrap_or_else(PoisonError::into_inner);
        let process = root.join(format!("{PREFIX}{}", std::process::id()));
        if all.now == 0 {
            sweep(&root)?;
            let own = fs::read_to_string("/proc/self/cgroup")?;
            let own =
                own.lines().find_map(|line| line.strip_prefix("0::/")).context("finding the cgroup of the test")?;
            all.home = own.to_owned();
            fs::create_dir(&process).context("creating a cgroup")?;
            fs::write(process.join("cgroup.procs"), std::process::id().to_string()).context("entering a cgroup")?;
        }
        (all.now, all.ever) = (all.now + 1, all.ever + 1);
        let cgroup = process.join(format!("test-{}", all.ever));
        fs::create_dir(&cgroup).context("creating a cgroup")?;
        // Only threaded cgroups can contain single threads of a process.
        fs::write(cgroup.join("cgroup.type"), "threaded").context("making a threaded cgroup")?;
        fs::write(cgroup.join("cgroup.threads"), gettid().to_string()).context("entering a threaded cgroup")?;
        Ok(Self { mounts, bpffs, cgroup })
    }

    /// Runs `work` in a thread outside of the cgroup, as processes of other hosts are.
    pub(crate) fn outside<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let threads = self.cgroup.with_file_name("cgroup.threads");
        let outside = || {
            fs::write(&threads, gettid().to_string()).context("leaving a threaded cgroup")?;
            work()
        };
        std::thread::scope(|scope| scope.spawn(outside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    pub(crate) fn host(&self) -> anyhow::Result<Host> {
        Host::open(&self.bpffs, &self.cgroup)
    }

    /// A backend that has programmed nothing yet.
    pub(crate) fn backend(&self, config: Config) -> anyhow::Result<EbpfBackend<Host>> {
        Ok(EbpfBackend::new(config, self.host()?))
    }
}

impl Drop for Sandbox {
    /// Removes the cgroups. What cannot be removed is left to the next test.
    fn drop(&mut self) {
        let process = self.cgroup.with_file_name("");
        let _ = fs::write(process.join("cgroup.threads"), gettid().to_string());
        let _ = fs::remove_dir(&self.cgroup);
        let mut all = SANDBOXES.lock().unwrap_or_else(PoisonError::into_inner);
        all.now -= 1;
        if all.now == 0 {
            let home = self.mounts.path().join("cgroup").join(&all.home).join("cgroup.procs");
            let _ = fs::write(home, std::process::id().to_string());
            let _ = fs::remove_dir(&process);
        }
    }
}

/// Removes the cgroups of processes that no longer run. Cgroups without processes can be removed.
fn sweep(root: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(root).context("listing cgroups")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix(PREFIX) else { continue };
        if Path::new("/proc").join(process).exists() {
            continue;
        }
        for inner in fs::read_dir(entry.path())? {
            let inner = inner?.path();
            if inner.is_dir() {
                fs::remove_dir(&inner).with_context(|| inner.display().to_string())?;
            }
        }
        fs::remove_dir(entry.path()).with_context(|| name.clone())?;
    }
    Ok(())
}

/// The names in a folder, with those in its folders.
pub(crate) fn tree(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            names.extend(tree(&entry.path())?.into_iter().map(|inner| format!("{name}/{inner}")));
        }
        names.push(name);
    }
    names.sort();
    if names.len() > 1000 {
        bail!("{} has too many entries", folder.display());
    }
    Ok(names)
}
