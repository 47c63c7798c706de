//! The scripts of `packaging/release`, from a new version to what users download.

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

use crate::{folder, output, root, script};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn git(repository: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main"];
    output(Command::new("git").current_dir(repository).args(identity).args(arguments))
}

/// A repository whose only commit contains the files of this one.
fn copy() -> anyhow::Result<TempDir> {
    let copy = folder()?;
    let lines = "git ls-files -z --cached --others --exclude-standard | tar --null --files-from - --create | tar --extract --directory \"$1\"";
    output(Command::new("sh").args(["-euc", lines, "sh"]).arg(copy.path()).current_dir(root()))?;
    git(copy.path(), &["init", "--quiet"])?;
    git(copy.path(), &["config", "user.name", "test"])?;
    git(copy.path(), &["config", "user.email", "test@example.com"])?;
    git(copy.path(), &["add", "--all"])?;
    git(copy.path(), &["commit", "--quiet", "--message", "all"])?;
    Ok(copy)
}

#[test]
fn all_files_name_the_same_version() -> anyhow::Result<()> {
    assert_eq!(output(&mut script("release/version.sh"))?.trim(), VERSION);
    Ok(())
}

#[test]
fn one_command_sets_the_version_and_the_tags() -> anyhow::Result<()> {
    let copy = copy()?;
    let version = |arguments: &[&str]| {
        output(Command::new(copy.path().join("packaging/release/version.sh")).args(arguments).env("HOME", copy.path()))
    };
    fs::create_dir_all(copy.path().join("go"))?;
    fs::write(copy.path().join("go/go.mod"), "module example.com/go\n")?;
    let changed = version(&["9.8.7"]).expect_err("a change is not committed").to_string();
    assert!(changed.contains("commit your changes first"), "{changed}");
    git(copy.path(), &["add", "--all"])?;
    git(copy.path(), &["commit", "--quiet", "--allow-empty", "--message", "a Go module"])?;

    version(&["9.8.7"])?;
    assert_eq!(version(&[])?.trim(), "9.8.7");
    assert_eq!(git(copy.path(), &["tag", "--points-at", "HEAD"])?, "go/v9.8.7\nv9.8.7\n");
    assert_eq!(git(copy.path(), &["log", "-1", "--format=%s"])?, "release: 9.8.7\n");
    assert!(version(&["notes"])?.contains("### Added"));
    let names_old = |line: &&str| {
        line.contains(&format!("localnet-nft:{VERSION}")) || line.contains(&format!("localnet-{VERSION}"))
    };
    let chart = fs::read_to_string(copy.path().join("charts/localnet/tests/golden/nft.yaml"))?;
    assert_eq!(chart.lines().find(names_old), None);
    // Cargo accepts the lock file as it is.
    let cargo = ["metadata", "--locked", "--offline", "--format-version=1"];
    output(Command::new(env!("CARGO")).args(cargo).current_dir(copy.path()))?;

    let again = version(&["9.8.7"]).expect_err("the version exists").to_string();
    assert!(again.contains("the tag v9.8.7 exists"), "{again}");
    let forgotten = copy.path().join("docs/operations/packages.md");
    fs::write(&forgotten, fs::read_to_string(&forgotten)?.replace("localnet_9.8.7", "localnet_9.8.6"))?;
    let differs = version(&[]).expect_err("a page names another version").to_string();
    assert!(differs.contains("Cargo.toml has 9.8.7, other files have 9.8.6"), "{differs}");
    Ok(())
}
