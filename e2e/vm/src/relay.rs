//! Runs the body of a test here, or the same test in a guest.

use std::any::type_name;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::guest::{Guest, MARKER};
use crate::options::{Network, Options};

/// The environment variable that forces a guest (`guest`) even if this machine's kernel has IPVS.
const WHERE: &str = "LOCALNET_VM";
/// The time limit of a test in the guest.
const LIMIT: Duration = Duration::from_secs(1200);
/// The memory of a guest whose test has a host side, in MiB.
const BESIDE_MIB: u32 = 2048;

/// Serializes the bodies.
static ONE: Mutex<()> = Mutex::new(());

/// Runs the body of a test on a kernel that has IPVS. If this machine's kernel has it, the body simply runs. Otherwise a guest boots,
/// once per test program, and runs this one test of the same program. The test's output is printed here, and its failure is a
/// failure here.
///
/// One body runs at a time. The kernel lists virtual servers by positions that count those of all namespaces, so one test would
/// disturb the lists of another.
///
/// The body must be a closure in the test function itself, because the closure's type contains the test's name.
///
/// ```no_run
/// #[test]
/// fn a_virtual_server_is_listed() {
///     localnet_vm::on_ipvs(|| assert!(std::path::Path::new("/proc/net/ip_vs").exists()));
/// }
/// ```
///
/// # Panics
/// Panics if the test fails, or no guest can run it.
#[track_caller]
pub fn on_ipvs<Body: FnOnce()>(body: Body) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if is_guest() || has_ipvs() {
        return body();
    }
    match shared().and_then(|guest| relay(guest, test_name(type_name::<Body>()), &[], LIMIT)) {
        Ok(output) => print!("{output}"),
        Err(error) => panic!("{error:#}"),
    }
}

/// The part of a test that runs on this machine while the test runs in a guest.
#[derive(Clone, Debug)]
pub struct HostSide {
    /// The connection between guest and host side.
    pub network: Network,
    /// Environment variables of the test in the guest. The test does not find them if it runs without a guest.
    pub variables: Vec<(&'static str, OsString)>,
    /// The time limit of the test.
    pub limit: Duration,
}

/// Does the same as [`on_ipvs`] for a test that also needs other programs, which can run on any kernel and would be slow on an
/// emulated processor. If the test runs in a guest, `host_side` first starts these programs on this machine. The second value
/// that it returns is dropped when the test has ended. Each such test has a guest of its own.
///
/// # Panics
/// Panics if the test fails, or no guest can run it.
#[track_caller]
pub fn on_ipvs_with_host_side<Kept, Body: FnOnce()>(
    host_side: impl FnOnce() -> anyhow::Result<(HostSide, Kept)>,
    body: Body,
) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if is_guest() || has_ipvs() {
        return body();
    }
    let relayed = || {
        let (HostSide { network, variables, limit }, _kept) = host_side().context("starting the host side")?;
        let guest = Guest::boot(&Options { memory_mib: BESIDE_MIB, network: Some(network), ..Options::default() })?;
        relay(&guest, test_name(type_name::<Body>()), &variables, limit)
    };
    match relayed() {
        Ok(output) => print!("{output}"),
        Err(error) => panic!("{error:#}"),
    }
}

/// Whether this process runs in a guest.
pub fn is_guest() -> bool {
    env::var_os(MARKER).is_some()
}

/// Whether this kernel has IPVS, built in or as a module that can be loaded.
fn has_ipvs() -> bool {
    static HAS_IPVS: OnceLock<bool> = OnceLock::new();
    *HAS_IPVS.get_or_init(|| {
        if env::var_os(WHERE).is_some_and(|place| place == "guest") {
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

/// The guest that all tests of this process share.
fn shared() -> anyhow::Result<&'static Guest> {
    static GUEST: OnceLock<Result<Guest, String>> = OnceLock::new();
    let guest = GUEST.get_or_init(|| Guest::boot(&Options::default()).map_err(|error| format!("{error:#}")));
    guest.as_ref().map_err(|error| anyhow::Error::msg(error.clone()))
}

/// Runs the test with that name in a guest and returns its output.
fn relay(guest: &Guest, name: &str, variables: &[(&str, OsString)], limit: Duration) -> anyhow::Result<String> {
    let program = env::current_exe().context("finding this test program")?;
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).envs(variables.iter().map(|(k, v)| (k, v)));
    let output = guest.run(&command, limit).with_context(|| format!("running {name} in the guest"))?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let passed = output.status.success() && text.contains("test result: ok. 1 passed");
    ensure!(passed, "{name} failed in the guest ({}):\n{text}", output.status);
    Ok(text)
}

/// The name of a test in its harness, from the type of a closure in it: `program::module::test::{{closure}}`.
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
