//! The files that `build.sh` made, and the accelerators that can run them.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

/// The environment variable with the name of the kernel's package, if it is not the default one.
const KERNEL: &str = "LOCALNET_VM_KERNEL";
/// The environment variable that forces an accelerator: `kvm` or `tcg`.
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
    /// Finds the guest that `build.sh` made.
    ///
    /// # Errors
    /// Returns an error if the guest is not built. The error names the command that builds it.
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

/// The output folder of `build.sh`: in `$LOCALNET_CACHE`, or in `.cache` at the root of the repository.
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

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// This machine's processor, by hardware virtualization.
    Kvm,
    /// QEMU's emulator.
    Tcg,
}

impl Accelerator {
    /// The accelerators to try, best first.
    ///
    /// # Errors
    /// Returns an error if the environment variable has a value other than `kvm` and `tcg`.
    pub(crate) fn candidates() -> anyhow::Result<Vec<Self>> {
        match env::var(ACCELERATOR).as_deref() {
            Ok("kvm") => return Ok(vec![Self::Kvm]),
            Ok("tcg") => return Ok(vec![Self::Tcg]),
            Ok(other) => bail!("{ACCELERATOR}={other} is invalid: set it to kvm or tcg"),
            Err(_) => {}
        }
        let usable = || {
            let device = File::options().read(true).write(true).open("/dev/kvm").is_ok();
            device && fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| can_be_shared(&text))
        };
        Ok(if usable() { vec![Self::Kvm, Self::Tcg] } else { vec![Self::Tcg] })
    }

    /// QEMU's name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// The processor model of the guest, as a value of `-cpu`.
    pub(crate) fn processor(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "max",
        }
    }
}

/// Whether the processor in this `/proc/cpuinfo` supports virtualization. On paravirtual hosts, `/dev/kvm` exists
/// without this support, but no stock kernel boots with it.
fn can_be_shared(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter_map(|line| line.strip_prefix("flags")).filter_map(|line| line.split_once(':'));
    flags.flat_map(|(_, flags)| flags.split_whitespace()).any(|flag| matches!(flag, "vmx" | "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtualization_is_detected_by_the_processor_s_flags() {
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
