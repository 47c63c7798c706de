//! Kernel settings: files under `/proc/sys`, and module parameters under `/sys/module`. Those under `/proc/sys/net` belong to
//! the network namespace of the calling thread.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A failure to read or write a setting.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action}: {source}{}", remedy.as_ref().map(|remedy| format!(": {remedy}")).unwrap_or_default())]
pub struct Error {
    /// The action that failed: `read NAME` or `set NAME to VALUE`.
    action: String,
    /// The setting, as `sysctl` names it.
    pub name: String,
    /// The cause.
    #[source]
    pub source: io::Error,
    /// The remedy, if it is known.
    remedy: Option<String>,
}

/// The effect of [`Settings::ensure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// The setting already had a suitable value.
    Already,
    /// The setting was changed; this is the previous value.
    From(i64),
}

/// The settings of a kernel, below a root folder.
#[derive(Clone, Debug)]
pub struct Settings {
    root: PathBuf,
}

impl Default for Settings {
    /// The settings of the running kernel.
    fn default() -> Self {
        Self::at("/")
    }
}

impl Settings {
    /// The settings below `root`, for tests.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The value of a setting. `name` is its path with slashes, but without a leading slash: `proc/sys/net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or does not contain an integer.
    pub fn get(&self, name: &str) -> Result<i64, Error> {
        let error = |source: io::Error| {
            let remedy = self.remedy(name, &source).map(str::to_owned);
            Error { action: format!("read {}", shown(name)), name: shown(name), source, remedy }
        };
        let text = fs::read_to_string(self.root.join(name)).map_err(error)?;
        text.trim().parse().map_err(|_| error(io::ErrorKind::InvalidData.into()))
    }

    /// Sets a setting to `value`. A setting that already has the value is not written, because a container may be able to read
    /// `/proc/sys` but not to write it.
    ///
    /// # Errors
    /// Returns an error if the setting cannot be read or written.
    pub fn ensure(&self, name: &str, value: i64) -> Result<Set, Error> {
        self.ensure_that(name, value, |now| now == value)
    }

    /// Raises a setting to `value` unless it is at least that high.
    ///
    /// # Errors
    /// Returns an error if the setting cannot be read or written.
    pub fn ensure_at_least(&self, name: &str, value: i64) -> Result<Set, Error> {
        self.ensure_that(name, value, |now| now >= value)
    }

    fn ensure_that(&self, name: &str, value: i64, good: impl Fn(i64) -> bool) -> Result<Set, Error> {
        let before = self.get(name)?;
        if good(before) {
            return Ok(Set::Already);
        }
        let error = |source| not_set(name, value, source);
        fs::write(self.root.join(name), value.to_string()).map_err(error)?;
        Ok(Set::From(before))
    }

    /// Whether no process can write the setting, whatever its privileges.
    pub fn is_read_only(&self, name: &str) -> bool {
        fs::metadata(self.root.join(name)).is_ok_and(|file| file.permissions().readonly())
    }

    /// How to make a missing setting appear.
    fn remedy(&self, name: &str, error: &io::Error) -> Option<&'static str> {
        const IPVS: &str = "proc/sys/net/ipv4/vs";
        if error.kind() != io::ErrorKind::NotFound {
            None
        } else if name.starts_with(IPVS) && !self.root.join(IPVS).exists() {
            Some("load the module ip_vs (modprobe ip_vs)")
        } else if name.starts_with("proc/sys/net/netfilter/nf_conntrack") {
            Some("load the module nf_conntrack (modprobe nf_conntrack)")
        } else {
            None
        }
    }

    /// The kernel release, such as `6.1.0-56-amd64`.
    ///
    /// # Errors
    /// Returns an error if `/proc/sys/kernel/osrelease` cannot be read.
    pub fn release(&self) -> Result<String, Error> {
        let name = "proc/sys/kernel/osrelease";
        let error = |source| Error { action: format!("read {}", shown(name)), name: shown(name), source, remedy: None };
        fs::read_to_string(self.root.join(name)).map(|release| release.trim().to_owned()).map_err(error)
    }

    /// The number of online processors of the machine. CPU affinity and cgroup limits of this process do not count, as in
    /// kube-proxy's conntrack limit.
    pub fn processors(&self) -> u32 {
        let online = fs::read_to_string(self.root.join("sys/devices/system/cpu/online")).ok();
        online.as_deref().and_then(count).unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
        })
    }
}

/// The error for a failed write. A container's `/proc/sys` is often read-only, so the remedy is to change the setting on the
/// node.
fn not_set(name: &str, value: i64, source: io::Error) -> Error {
    let denied = matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem);
    let sysctl = name.starts_with("proc/sys/").then(|| shown(name)).filter(|_| denied);
    let remedy = sysctl.map(|name| {
        format!("set it on the node (sysctl -w {name}={value}), or run this in a container that may write to /proc/sys")
    });
    Error { action: format!("set {} to {value}", shown(name)), name: shown(name), source, remedy }
}

/// The name to show: `net.netfilter.nf_conntrack_max` for a sysctl, the absolute path for a module parameter.
fn shown(name: &str) -> String {
    match name.strip_prefix("proc/sys/") {
        Some(name) => name.replace('/', "."),
        None => Path::new("/").join(name).display().to_string(),
    }
}

/// How many numbers a list of ranges such as `0-3,5` contains; `None` if it is malformed.
fn count(ranges: &str) -> Option<u32> {
    let mut count: u32 = 0;
    for range in ranges.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Sets `oom_score_adj` of this process, from -1000 (never killed) to 1000. Lowering it needs `CAP_SYS_RESOURCE`.
///
/// # Errors
/// Returns an error if the kernel refuses the change, or if the score is out of range.
pub fn set_oom_score(settings: &Settings, score: i16) -> Result<Set, Error> {
    settings.ensure("proc/self/oom_score_adj", score.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_written_only_if_it_differs() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("proc/sys/net/a");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "7\n").unwrap();
        let settings = Settings::at(root.path());
        let name = "proc/sys/net/a";
        assert_eq!(settings.get(name).unwrap(), 7);
        assert_eq!(settings.ensure(name, 7).unwrap(), Set::Already);
        assert_eq!(fs::read_to_string(&file).unwrap(), "7\n", "not written");
        assert_eq!(settings.ensure(name, 9).unwrap(), Set::From(7));
        assert_eq!(settings.ensure_at_least(name, 8).unwrap(), Set::Already);
        assert_eq!(settings.ensure_at_least(name, 10).unwrap(), Set::From(9));
        assert_eq!(fs::read_to_string(&file).unwrap(), "10");
    }

    #[test]
    fn errors_use_sysctl_s_names() {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings::at(root.path());
        let missing = settings.ensure("proc/sys/net/netfilter/nf_conntrack_max", 1).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "failed to read net.netfilter.nf_conntrack_max: No such file or directory (os error 2): load the module nf_conntrack \
             (modprobe nf_conntrack)"
        );
        fs::create_dir(root.path().join("sys")).unwrap();
        fs::write(root.path().join("sys/a"), "words").unwrap();
        assert_eq!(settings.get("sys/a").unwrap_err().to_string(), "failed to read /sys/a: invalid data");
    }

    #[test]
    fn errors_for_missing_or_denied_settings_name_the_remedy() {
        let (bare, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(full.path().join("proc/sys/net/ipv4/vs")).unwrap();
        let name = "proc/sys/net/ipv4/vs/conntrack";
        let text = |root: &tempfile::TempDir| Settings::at(root.path()).get(name).unwrap_err().to_string();
        let absent = "failed to read net.ipv4.vs.conntrack: No such file or directory (os error 2)";
        assert_eq!(text(&bare), format!("{absent}: load the module ip_vs (modprobe ip_vs)"));
        assert_eq!(text(&full), absent, "with IPVS loaded there is no remedy");
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
            let error = not_set(name, 1, kind.into()).to_string();
            assert!(error.starts_with("failed to set net.ipv4.vs.conntrack to 1: "), "{error}");
            assert!(error.contains("set it on the node (sysctl -w net.ipv4.vs.conntrack=1)"), "{error}");
            let error = not_set("sys/module/a/parameters/b", 1, kind.into()).to_string();
            assert!(!error.contains("sysctl"), "{error}");
        }
    }

    #[test]
    fn processors_are_counted() {
        for (text, expected) in [
            ("0\n", Some(1)),
            ("0-3\n", Some(4)),
            ("0-3,5,8-9", Some(7)),
            ("", None),
            ("3-0", None),
            ("0-4294967295", None),
            ("x", None),
        ] {
            assert_eq!(count(text), expected, "{text:?}");
        }
        assert!(Settings::default().processors() > 0 && Settings::at("/nowhere").processors() > 0);
    }

    #[test]
    fn a_kernel_has_a_release() {
        assert!(Settings::default().release().unwrap().contains('.'));
        let error = Settings::at("/nowhere").release().unwrap_err().to_string();
        assert_eq!(error, "failed to read kernel.osrelease: No such file or directory (os error 2)");
    }

    #[test]
    fn the_oom_score_of_this_process_can_be_raised() {
        let settings = Settings::default();
        // The current value: other tests share this process.
        let now = i16::try_from(settings.get("proc/self/oom_score_adj").unwrap()).unwrap();
        assert_eq!(set_oom_score(&settings, now).unwrap(), Set::Already);
        assert!(set_oom_score(&settings, 2_000).is_err());
    }
}
