//! What `build.sh` made, and how this machine can run it.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

/// Names the kernel's package, if not the default one.
const KERNEL: &str = "LOCALNET_VM_KERNEL";
/// `kvm` or `tcg`: how the guest's processor is made, if not the best that this machine has.
const ACCELERATOR: &str = "LOCALNET_VM_ACCEL";

/// The files of a guest.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    /// The folder with `modules.dep`.
    pub(crate) modules: PathBuf,
}

impl Image {
    /// The guest that `build.sh` made. Fails when there is none, so that a test without it fails and says what to do.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let cache = cache()?;
        let default = cache.join("kernel");
        let package = match env::var(KERNEL) {
            Ok(package) => package,
            Err(_) => fs::read_to_string(&default)
                .with_context(|| format!("the guest is not built ({} is missing): run `make vm`", default.display()))?,
        };
        let package = package.trim();
        let folder = cache.join(package);
        let stamp = folder.join("stamp");
        ensure!(
            stamp.is_file(),
            "the guest with {package} is not built ({} is missing): run `e2e/vm/build.sh {package}`",
            stamp.display()
        );
        let version = package.strip_prefix("linux-image-").unwrap_or(package);
        Ok(Self {
            kernel: folder.join("vmlinux"),
            initramfs: folder.join("initramfs"),
            modules: folder.join("lib/modules").join(version),
        })
    }
}

/// The folder of `build.sh`: in `$LOCALNET_CACHE`, else in `.cache` at the root of the repository.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let cache = match env::var_os("LOCALNET_CACHE") {
        Some(cache) => PathBuf::from(cache),
        None => {
            let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
            repository.context("the crate is not two folders below the repository's root")?.join(".cache")
        }
    };
    Ok(cache.join("vm"))
}

/// What makes the guest's processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// This machine's processor, shared.
    Kvm,
    /// A program.
    Tcg,
}

impl Accelerator {
    /// Those to try, best first.
    pub(crate) fn candidates() -> anyhow::Result<Vec<Self>> {
        match env::var(ACCELERATOR).as_deref() {
            Ok("kvm") => return Ok(vec![Self::Kvm]),
            Ok("tcg") => return Ok(vec![Self::Tcg]),
            Ok(other) => bail!("{ACCELERATOR}={other} means nothing: it is kvm or tcg"),
            Err(_) => {}
        }
        let usable = || {
            let device = File::options().read(true).write(true).open("/dev/kvm").is_ok();
            device && fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| can_be_shared(&text))
        };
        Ok(if usable() { vec![Self::Kvm, Self::Tcg] } else { vec![Self::Tcg] })
    }

    /// As QEMU names it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// The processor to show to the guest.
    pub(crate) fn processor(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max",
        }
    }
}

/// Whether the processor of this `/proc/cpuinfo` helps with guests. Where it does not, `/dev/kvm` may be there all the same
/// (paravirtual hosts have one of their own), but no stock kernel gets through its boot on it.
fn can_be_shared(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter_map(|line| line.strip_prefix("flags")).filter_map(|line| line.split_once(':'));
    flags.flat_map(|(_, flags)| flags.split_whitespace()).any(|flag| matches!(flag, "vmx" | "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_helps_with_guests_says_so() {
        for (cpuinfo, expected) in [
            ("processor\t: 0\nflags\t\t: fpu vme vmx sse2\nbugs\t\t: none\n", true),
            ("processor\t: 0\nflags\t\t: fpu svm\n", true),
            ("flags\t\t: fpu vme hypervisor\nvmx flags\t: ept\n", false),
            ("flags\t\t: novmx svm_lock\n", false),
            ("", false),
        ] {
            assert_eq!(can_be_shared(cpuinfo), expected, "{cpuinfo}");
        }
    }
}
