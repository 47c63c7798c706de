//! Tests the crates that authors of backends in Rust use. No test needs the network.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use serde_json::Value;
use tempfile::TempDir;

use super::{folder, output, root};

/// The most crates in a backend that reads full states from a unix socket or from TCP without TLS (decision 38).
const MOST: usize = 60;

fn cargo(arguments: &[&str]) -> anyhow::Result<String> {
    output(Command::new(env!("CARGO")).args(arguments).args(["--offline", "--locked"]).current_dir(root()))
}

#[test]
fn a_backend_needs_few_crates() -> anyhow::Result<()> {
    let tree = |features: &[&str]| {
        let tree = ["tree", "--package=localnet-client", "--edges=normal,build", "--prefix=none", "--no-dedupe"];
        let listed = cargo(&[&tree, features].concat())?;
        Ok::<BTreeSet<String>, anyhow::Error>(listed.lines().map(str::to_owned).collect())
    };
    let (least, all) = (tree(&["--no-default-features"])?, tree(&[])?);
    assert!(least.iter().any(|name| name.starts_with("tonic v")) && least.is_subset(&all), "{least:#?}");
    assert!(least.len() <= MOST, "{} crates instead of at most {MOST}: {least:#?}", least.len());
    Ok(())
}

/// The crates that crates.io gets, as `cargo metadata` describes them.
fn published() -> anyhow::Result<Vec<Value>> {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])?)?;
    let packages = metadata["packages"].as_array().context("the packages")?;
    Ok(packages.iter().filter(|package| package["publish"].is_null()).cloned().collect())
}

fn names(packages: &[Value]) -> Vec<&str> {
    packages.iter().filter_map(|package| package["name"].as_str()).collect()
}

/// Makes the packages of these crates. Returns a folder to keep, and the path of each package.
fn package(names: &[&str]) -> anyhow::Result<(TempDir, Vec<PathBuf>)> {
    let target = folder()?;
    let path = target.path().to_str().context("a path in UTF-8")?;
    let arguments = ["package", "--no-verify", "--allow-dirty", "--quiet", "--target-dir", path];
    let of_all = names.iter().flat_map(|name| ["--package", name]);
    cargo(&arguments.into_iter().chain(of_all).collect::<Vec<_>>())?;
    let archive = |name| target.path().join("package").join(format!("{}.crate", versioned(name)));
    let archives = names.iter().copied().map(archive).collect();
    Ok((target, archives))
}

/// The folder in the package of a crate.
fn versioned(name: &str) -> String {
    format!("{name}-{}", env!("CARGO_PKG_VERSION"))
}

/// crates.io accepts the packages, and each contains what its page on docs.rs needs.
#[test]
fn the_library_for_backends_can_be_published() -> anyhow::Result<()> {
    let published = published()?;
    let names = names(&published);
    assert!(names.contains(&"localnet-client"), "{names:?}");
    for package in &published {
        for field in ["description", "license", "repository", "readme"] {
            assert!(package[field].is_string(), "{}: {field} is missing", package["name"]);
        }
        for field in ["keywords", "categories"] {
            assert!(package[field].as_array().is_some_and(|list| !list.is_empty()), "{}: {field}", package["name"]);
        }
        let all = &package["metadata"]["docs"]["rs"]["all-features"];
        assert_eq!(all, true, "{}: docs.rs would show only the default features", package["name"]);
    }
    let (_target, archives) = package(&names)?;
    for (name, archive) in names.into_iter().zip(archives) {
        let prefix = versioned(name);
        let files = output(Command::new("tar").arg("-tf").arg(archive))?;
        for file in ["Cargo.lock", "LICENSE", "README.md", "src/lib.rs"] {
            assert!(files.lines().any(|line| line == format!("{prefix}/{file}")), "{name} lacks {file}: {files}");
        }
        assert!(!files.contains("/tests/"), "tests need crates that are not published: {files}");
    }
    Ok(())
}

/// The first code block of this kind on a page.
fn block<'a>(page: &'a str, kind: &str) -> anyhow::Result<&'a str> {
    let found = page.split_once(&format!("\n```{kind}\n")).and_then(|(_, rest)| rest.split_once("\n```\n"));
    Ok(found.with_context(|| format!("no block {kind}"))?.0)
}

/// The manifest of a program that depends on nothing yet, and that takes these crates from the folders of their packages. With the profile
/// of this workspace, cargo can use again what it has compiled for `make lint`.
fn manifest(names: &[&str]) -> anyhow::Result<String> {
    let workspace = fs::read_to_string(root().join("Cargo.toml"))?;
    let profile = workspace.split("\n[").filter(|section| section.starts_with("profile.dev"));
    let profile: String = profile.map(|section| format!("[{section}\n")).collect();
    let patches: String =
        names.iter().map(|name| format!("{name} = {{ path = '../{}' }}\n", versioned(name))).collect();
    let package = "[workspace]\n[package]\nname = 'printer'\nversion = '0.0.0'\nedition = '2024'\n";
    Ok(format!("{package}{profile}[patch.crates-io]\n{patches}"))
}

/// The manifest with any version of its dependencies, so that those in Cargo.lock fit. `cargo add` requires the newest versions that have been
/// downloaded, also for other programs.
fn of_any_version(manifest: &str) -> String {
    let is_version = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    let parts = manifest.split('"').map(|part| if is_version(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join("\"")
}

/// The program in the library's README compiles with the packages that crates.io gets, and the versions in Cargo.lock. Other tests
/// compile the workspace, where a crate also sees files that its package lacks, and features that only another crate enables.
#[test]
fn the_example_compiles_with_the_packages() -> anyhow::Result<()> {
    let published = published()?;
    let names = names(&published);
    let (_target, archives) = package(&names)?;
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = temporary.join("crates");
    fs::create_dir_all(&folder)?;
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    // Always the same folder: cargo stores what it compiles by the path of the source.
    let sources = folder.join("sources");
    if sources.exists() {
        fs::remove_dir_all(&sources)?;
    }
    fs::create_dir_all(sources.join("printer/src"))?;
    for archive in archives {
        // With the current time: cargo decides by it which files have changed, and in packages all have the same.
        output(Command::new("tar").arg("-xmf").arg(archive).arg("-C").arg(&sources))?;
    }

    let printer = sources.join("printer");
    let readme = fs::read_to_string(sources.join(versioned("localnet-client")).join("README.md"))?;
    fs::write(printer.join("src/main.rs"), block(&readme, "rust,no_run")?)?;
    let path = printer.join("Cargo.toml");
    fs::write(&path, manifest(&names)?)?;
    let target = temporary.parent().context("the target folder")?;
    let run = |command: &mut Command| {
        command.current_dir(&printer).env("CARGO_NET_OFFLINE", "true").env("CARGO_TARGET_DIR", target);
        output(command)
    };
    // `cargo add` finds crates only on crates.io, and in folders.
    let package = format!("--path ../{} ", versioned("localnet-client"));
    run(Command::new("sh").args(["-euc", &block(&readme, "sh")?.replace("localnet-client ", &package)]))?;
    let features = "[features]\nall = ['localnet-client/default']\n";
    fs::write(&path, of_any_version(&fs::read_to_string(&path)?) + features)?;
    fs::copy(root().join("Cargo.lock"), printer.join("Cargo.lock"))?;
    for features in ["", "all"] {
        run(Command::new(env!("CARGO")).args(["check", "--quiet", "--features", features]))?;
    }
    Ok(())
}
