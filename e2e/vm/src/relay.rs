//! A test's body here, or the same test in a guest.

use std::any::type_name;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::guest::{Guest, MARKER, Network, Options};

/// `guest`: a guest even where this machine's kernel has IPVS.
const WHERE: &str = "LOCALNET_VM";
/// How long one test may take in the guest.
const LIMIT: Duration = Duration::from_secs(1200);
/// The memory of a guest for programs that talk to something outside.
const BESIDE_MIB: u32 = 2048;

/// One body at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Runs the body of a test on a kernel that has IPVS. Where this machine's kernel has it, that is all. Otherwise a guest boots, once for
/// the whole test program, and runs this one test of the same program; what it prints is printed here, and it fails if that fails.
///
/// One body runs at a time: the kernel lists virtual servers by positions in which those of all namespaces count, so one test would
/// disturb the lists of another.
///
/// The body must be a closure in the function of the test itself: that is where the test's name comes from.
///
/// ```no_run
/// #[test]
/// fn a_virtual_server_is_listed() {
///     localnet_vm::on_ipvs(|| assert!(std::path::Path::new("/proc/net/ip_vs").exists()));
/// }
/// ```
///
/// # Panics
/// If the test fails, or no guest can run it.
#[track_caller]
pub fn on_ipvs<Body: FnOnce()>(body: Body) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if is_inside() || has_ipvs() {
        return body();
    }
    match shared().and_then(|guest| relay(guest, test_name(type_name::<Body>()), &[], LIMIT)) {
        Ok(said) => print!("{said}"),
        Err(error) => panic!("{error:#}"),
    }
}

/// What a test needs beside the kernel with IPVS, and has on this machine while the test runs in a guest.
#[derive(Clone, Debug)]
pub struct Outside {
    /// How the test reaches it.
    pub network: Network,
    /// What the test finds in its environment, and does not find where there is no guest.
    pub variables: Vec<(&'static str, OsString)>,
    /// How long the test may take.
    pub limit: Duration,
}

/// As [`on_ipvs`], with something beside it that need not be on that kernel, and would take long on an emulated processor: if there is to
/// be a guest, `outside` makes it, and what else it returns is dropped when the test has ended. The guest is the test's own.
///
/// # Panics
/// If the test fails, or no guest can run it.
#[track_caller]
pub fn on_ipvs_beside<Kept, Body: FnOnce()>(outside: impl FnOnce() -> anyhow::Result<(Outside, Kept)>, body: Body) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if is_inside() || has_ipvs() {
        return body();
    }
    let relayed = || {
        let (Outside { network, variables, limit }, _kept) = outside().context("making what is beside the guest")?;
        let guest = Guest::boot(&Options { memory_mib: BESIDE_MIB, network: Some(network), ..Options::default() })?;
        relay(&guest, test_name(type_name::<Body>()), &variables, limit)
    };
    match relayed() {
        Ok(said) => print!("{said}"),
        Err(error) => panic!("{error:#}"),
    }
}

/// Whether this process runs in a guest.
pub fn is_inside() -> bool {
    env::var_os(MARKER).is_some()
}

/// Whether this kernel has IPVS, in itself or as a module that it may load.
fn has_ipvs() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if env::var_os(WHERE).is_some_and(|wanted| wanted == "guest") {
            return false;
        }
        let loadable = || {
            let mut modprobe = Command::new("modprobe");
            modprobe.args(["--dry-run", "--quiet", "ip_vs"]).stdout(Stdio::null()).stderr(Stdio::null());
            modprobe.status().is_ok_and(|status| status.success())
        };
        Path::new("/proc/net/ip_vs").exists() || loadable()
    })
}

/// The guest of this process.
fn shared() -> anyhow::Result<&'static Guest> {
    static GUEST: OnceLock<Result<Guest, String>> = OnceLock::new();
    let guest = GUEST.get_or_init(|| Guest::boot(&Options::default()).map_err(|error| format!("{error:#}")));
    guest.as_ref().map_err(|error| anyhow::Error::msg(error.clone()))
}

/// Runs the test of that name in a guest and returns what it printed.
fn relay(guest: &Guest, name: &str, variables: &[(&str, OsString)], limit: Duration) -> anyhow::Result<String> {
    let program = env::current_exe().context("finding this test program")?;
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).envs(variables.iter().map(|(k, v)| (k, v)));
    let output = guest.run(&command, limit).with_context(|| format!("running {name} in the guest"))?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let passed = output.status.success() && said.contains("test result: ok. 1 passed");
    ensure!(passed, "{name} failed in the guest ({}):\n{said}", output.status);
    Ok(said)
}

/// The name of a test as its harness knows it, from the type of a closure in it: `program::module::test::{{closure}}`.
fn test_name(closure: &str) -> &str {
    let path = closure.split_once("::").map_or(closure, |(_, path)| path);
    path.trim_end_matches("::{{closure}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn name_of<Body: FnOnce()>(_: Body) -> &'static str {
        test_name(type_name::<Body>())
    }

    #[test]
    fn a_test_knows_its_name() {
        assert_eq!(name_of(|| ()), "relay::tests::a_test_knows_its_name");
        assert_eq!(test_name("program::test::{{closure}}::{{closure}}"), "test");
    }
}
