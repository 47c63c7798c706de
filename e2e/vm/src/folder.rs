//! The folder through which host and guest exchange files: `run/PID-N` in the cache, removed when dropped.
//!
//! A guest that a whole test program shares is never dropped: what it leaves is swept when the next guest boots, as the process
//! id in the name says whether the owner still lives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context as _;

#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes one below `cache`.
    pub(crate) fn create(cache: &Path) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let all = cache.join("run");
        sweep(&all);
        let path = all.join(format!("{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        // The guest and QEMU have working directories of their own.
        Ok(Self(path.canonicalize().with_context(|| format!("finding {}", path.display()))?))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The last lines of a file that the guest or QEMU wrote: enough for a kernel's last words.
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
        // What is left behind is swept later.
        fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

/// Removes what dead processes left, and what an earlier process left that had our own id.
fn sweep(all: &Path) {
    static SWEPT: std::sync::Once = std::sync::Once::new();
    SWEPT.call_once(|| {
        for entry in fs::read_dir(all).into_iter().flatten().flatten() {
            let owner = entry.file_name().to_str().and_then(owner);
            let gone = |owner: u32| owner == process::id() || !Path::new(&format!("/proc/{owner}")).exists();
            if owner.is_some_and(gone) {
                // Another process may be sweeping the same one.
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
    fn a_name_tells_its_owner() {
        assert_eq!(owner("12-0"), Some(12));
        assert_eq!(owner("12"), None);
        assert_eq!(owner("x-0"), None);
    }
}
