//! The folder through which host and guest exchange files: `run/PID-N` in the cache, removed when dropped.
//!
//! A guest that a whole test program shares is never dropped. So before a guest boots, the folders of dead processes are removed;
//! the pid in the name tells whether the owner still runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context as _;

#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Creates a folder below `cache`.
    pub(crate) fn create(cache: &Path) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let all = cache.join("run");
        sweep(&all);
        let path = all.join(format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        // Absolute, because the guest and QEMU have working directories of their own.
        Ok(Self(path.canonicalize().with_context(|| format!("finding {}", path.display()))?))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The last 80 lines of a file that the guest or QEMU wrote, which is enough for a kernel panic.
    pub(crate) fn tail(&self, name: &str) -> String {
        const LINES: usize = 80;
        let text = fs::read(self.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A later process removes what this one cannot.
        fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

/// Removes the folders of dead processes, and those of an earlier process with our pid.
fn sweep(all: &Path) {
    static SWEPT: std::sync::Once = std::sync::Once::new();
    SWEPT.call_once(|| {
        for entry in fs::read_dir(all).into_iter().flatten().flatten() {
            let owner = entry.file_name().to_str().and_then(owner);
            let is_dead = |owner: u32| owner == process::id() || !Path::new(&format!("/proc/{owner}")).exists();
            if owner.is_some_and(is_dead) {
                // Another process may remove the same one at the same time.
                fs::remove_dir_all(entry.path()).unwrap_or_default();
            }
        }
    });
}

fn owner(name: &str) -> Option<u32> {
    name.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_contains_its_owner_s_pid() {
        assert_eq!(owner("12-0"), Some(12));
        assert_eq!(owner("12"), None);
        assert_eq!(owner("x-0"), None);
    }
}
