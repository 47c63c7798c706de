//! Tests files that operators, editors and ConfigMaps change while a program runs.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Parser;
use localnet_config::{KubeProxyFlags, Platform, Reader};
use localnet_config_file::{Begin, Running, begin};
use tokio::time::timeout;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    flags: KubeProxyFlags,
}

fn flags(given: &[&str]) -> KubeProxyFlags {
    Program::try_parse_from([&["program"], given].concat()).unwrap().flags
}

fn run(given: &[&str]) -> anyhow::Result<Running> {
    match begin(flags(given), Reader::kube_proxy(Platform::Linux))? {
        Begin::Run(running) => Ok(*running),
        Begin::Done { messages } => anyhow::bail!("expected a running program, not: {messages:?}"),
    }
}

fn text(period: &str) -> String {
    format!("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nsyncPeriod: {period}\n")
}

/// The sync period after the next change of the file.
async fn next(running: &mut Running) -> Duration {
    timeout(Duration::from_secs(60), running.changed()).await.unwrap().sync_period
}

const SECOND: Duration = Duration::from_secs(1);

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, name: &str) -> Running {
        run(&["--config", self.path(name).to_str().unwrap()]).unwrap()
    }
}

/// Replaces a file atomically, as careful writers do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[tokio::test]
async fn a_written_or_replaced_file_is_read_again() {
    let files = Files::new();
    let path = files.path("config.yaml");
    fs::write(&path, text("1m")).unwrap();
    let mut running = files.run("config.yaml");
    assert_eq!(running.config().sync_period, 60 * SECOND);
    fs::write(&path, text("2m")).unwrap();
    assert_eq!(next(&mut running).await, 120 * SECOND, "written before the watch began");
    fs::write(&path, text("3m")).unwrap();
    assert_eq!(next(&mut running).await, 180 * SECOND);
    replace(&path, &text("4m"));
    assert_eq!(next(&mut running).await, 240 * SECOND);
    assert_eq!(running.config().sync_period, 240 * SECOND);
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_until_it_is_valid() {
    let files = Files::new();
    let path = files.path("config.yaml");
    fs::write(&path, text("1m")).unwrap();
    let mut running = files.run("config.yaml");
    replace(&path, &text("-1s"));
    fs::remove_file(&path).unwrap();
    fs::write(&path, text("5m")).unwrap();
    assert_eq!(next(&mut running).await, 300 * SECOND);
}

/// Publishes a new version as the kubelet does: creates a folder with the new files, and renames a link to it over the old one.
fn publish(folder: &Path, version: &str, text: &str) {
    let data = folder.join(format!("..{version}"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("config.conf"), text).unwrap();
    let link = folder.join("..data_tmp");
    symlink(format!("..{version}"), &link).unwrap();
    let before = fs::read_link(folder.join("..data")).ok();
    fs::rename(link, folder.join("..data")).unwrap();
    if let Some(before) = before {
        fs::remove_dir_all(folder.join(before)).unwrap();
    }
}

#[tokio::test]
async fn a_swapped_config_map_is_read_again() {
    let files = Files::new();
    publish(files.folder.path(), "2026_11_21", &text("1m"));
    symlink("..data/config.conf", files.path("config.conf")).unwrap();
    let mut running = files.run("config.conf");
    for (version, period) in [("2026_11_22", 70), ("2026_11_23", 80), ("2026_11_24", 90)] {
        publish(files.folder.path(), version, &text(&format!("{period}s")));
        assert_eq!(next(&mut running).await, period * SECOND);
    }
}

#[tokio::test]
async fn a_link_to_another_folder_is_followed() {
    let (files, elsewhere) = (Files::new(), Files::new());
    fs::write(elsewhere.path("a.yaml"), text("1m")).unwrap();
    symlink(elsewhere.path("a.yaml"), files.path("config.yaml")).unwrap();
    let mut running = files.run("config.yaml");
    fs::write(elsewhere.path("a.yaml"), text("2m")).unwrap();
    assert_eq!(next(&mut running).await, 120 * SECOND);
    fs::write(elsewhere.path("a.yaml"), text("3m")).unwrap();
    assert_eq!(next(&mut running).await, 180 * SECOND);
}

#[tokio::test]
async fn flags_that_apply_beside_a_file_still_apply_after_it_changes() {
    let files = Files::new();
    let path = files.path("config.yaml");
    fs::write(&path, text("1m")).unwrap();
    let mut running = run(&["--config", path.to_str().unwrap(), "--hostname-override=node-a"]).unwrap();
    replace(&path, &format!("{}hostnameOverride: node-b\n", text("2m")));
    assert_eq!(next(&mut running).await, 120 * SECOND);
    assert_eq!(running.config().hostname_override.as_deref(), Some("node-a"));
}

#[tokio::test]
async fn all_parts_of_a_program_follow_the_file() {
    let files = Files::new();
    let path = files.path("config.yaml");
    fs::write(&path, text("1m")).unwrap();
    let (mut first, following) = files.run("config.yaml").follow();
    let mut second = first.clone();
    replace(&path, &text("2m"));
    for current in [&mut first, &mut second] {
        assert_eq!(timeout(Duration::from_secs(60), current.changed()).await.unwrap().sync_period, 120 * SECOND);
        assert_eq!(current.now().sync_period, 120 * SECOND);
    }
    drop(following);
    assert_eq!(first.now().sync_period, 120 * SECOND);
}

#[test]
fn an_error_about_an_unusable_file_names_the_file() {
    let files = Files::new();
    let path = files.path("config.yaml");
    let shown = path.display();
    let error = |given: &[&str]| run(given).unwrap_err().to_string();
    let config = ["--config", path.to_str().unwrap()];
    let missing = format!(
        "{shown}: cannot be read: No such file or directory (os error 2); give the path of a KubeProxyConfiguration"
    );
    assert_eq!(error(&config), missing);
    fs::write(&path, b"\xff").unwrap();
    assert_eq!(error(&config), format!("{shown}: is not UTF-8 text; save it as UTF-8"));
    fs::write(&path, format!("{}mode: x\nfoo: 1\n", text("-1s"))).unwrap();
    assert_eq!(error(&config), format!("{shown}:5: foo: unknown field \"foo\"; remove it, or correct its name"));
    fs::write(&path, format!("{}mode: x\n", text("-1s"))).unwrap();
    assert_eq!(
        error(&config),
        format!(
            "{shown}:4: mode: Invalid value: \"x\": must be iptables, ipvs, nftables or blank; use one of them\n{shown}:3: syncPeriod: Invalid value: \"-1s\": must be greater than 0; write it like 30s"
        )
    );
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(error(&config), format!("{shown}: is not a regular file; give the path of a KubeProxyConfiguration"));
    assert_eq!(error(&["--conntrack-min=x"]), "--conntrack-min: \"x\" is not a whole number; write it in digits");
}

#[test]
fn a_configuration_is_written_in_the_latest_version() {
    let files = Files::new();
    let (old, new) = (files.path("old.yaml"), files.path("new.yaml"));
    let v1alpha1 = "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 10.0.0.1
mode: nftables
portRange: 1-2
odd: 1
nftables:
  syncPeriod: 20s
";
    fs::write(&old, v1alpha1).unwrap();
    let given = ["--config", old.to_str().unwrap(), "--write-config-to", new.to_str().unwrap()];
    let Begin::Done { messages } = begin(flags(&given), Reader::kube_proxy(Platform::Linux)).unwrap() else {
        panic!("expected a written file")
    };
    let shown = old.display();
    assert_eq!(
        messages,
        [
            format!(
                "{shown}:6: odd: unknown field \"odd\"; skipped, because v1alpha1 is parsed leniently; remove it, or correct its name"
            ),
            format!(
                "{shown}:5: portRange: \"1-2\" is not carried over; no mode has used it since the userspace mode was removed"
            ),
        ]
    );
    let written = fs::read_to_string(&new).unwrap();
    for line in
        ["apiVersion: kubeproxy.config.k8s.io/v1alpha2", "mode: nftables", "syncPeriod: 20s", "configHardFail: false"]
    {
        assert!(written.lines().any(|there| there == line), "{line} in {written}");
    }
    let (before, after) = (run(&given[..2]).unwrap(), run(&["--config", new.to_str().unwrap()]).unwrap());
    assert_eq!(before.config(), after.config());
    // The same works with flags instead of a file.
    let given = ["--proxy-mode=ipvs", "--write-config-to", new.to_str().unwrap()];
    assert!(
        matches!(begin(flags(&given), Reader::kube_proxy(Platform::Linux)), Ok(Begin::Done { messages }) if messages.is_empty())
    );
    assert!(fs::read_to_string(&new).unwrap().contains("\nmode: ipvs\n"));
    let nowhere = ["--write-config-to", "/no/such/folder/new.yaml"];
    let error = begin(flags(&nowhere), Reader::kube_proxy(Platform::Linux)).unwrap_err();
    assert_eq!(error.to_string(), "failed to write /no/such/folder/new.yaml");
}
