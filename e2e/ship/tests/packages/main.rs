//! Tests the images and the Debian package, made of the programs that are built for tests: their content, that builds are
//! reproducible, and that programs start from them. Also tests the packages of crates, the scripts that make a release, and the pages for readers who have
//! only a release.
//!
//! `make images VERIFY=1` verifies that the programs of a release are static, small and reproducible.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod authors;
mod contract;
mod crates;
mod debian;
mod images;
mod kit;
mod release;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The output of a command. If the command fails, the error contains its messages.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let run = command.output().with_context(|| format!("starting {command:?}"))?;
    let (output, wrong) = (String::from_utf8(run.stdout)?, String::from_utf8_lossy(&run.stderr).into_owned());
    anyhow::ensure!(run.status.success(), "{command:?}: {}: {output}{wrong}", run.status);
    Ok(output)
}

/// A script of `packaging/`, to be run at the root of the repository.
fn script(name: &str) -> Command {
    let mut command = Command::new(root().join("packaging").join(name));
    command.current_dir(root());
    command
}

/// A folder that every user can enter.
fn folder() -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// The folder of what other tasks have built or downloaded: `make helm`, `make examples`, `make python`.
fn cache() -> PathBuf {
    env::var_os("LOCALNET_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from)
}

/// Debian's name of this machine's processor architecture.
fn arch() -> anyhow::Result<String> {
    Ok(output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned())
}

/// Copies programs of the workspace into a folder, without debug information, which is four fifths of their size.
fn put_programs(names: &[&str], into: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(into)?;
    for name in names {
        let program = localnet_e2e::program(name)?;
        output(Command::new("objcopy").arg("--strip-debug").arg(program).arg(into.join(name)))?;
    }
    Ok(())
}

/// Creates programs that do nothing and are quick to pack.
fn put_stand_ins(names: &[&str], into: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(into)?;
    for name in names {
        fs::copy("/bin/true", into.join(name))?;
    }
    Ok(())
}

/// Creates an executable script, and its folder.
fn put_script(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}
