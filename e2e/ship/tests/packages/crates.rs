//! Tests the crates that authors of backends in Rust use. No test needs the network.

use std::{collections::BTreeSet, process::Command};

use anyhow::Context as _;
use serde_json::Value;

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

/// crates.io accepts the packages, and each contains what its page on docs.rs needs. `packaging/release/publish.sh` also builds
/// them, which needs the network and a commit.
#[test]
fn the_library_for_backends_can_be_published() -> anyhow::Result<()> {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])?)?;
    let packages = metadata["packages"].as_array().context("the packages")?;
    let published: Vec<_> = packages.iter().filter(|package| package["publish"].is_null()).collect();
    let names: Vec<_> = published.iter().filter_map(|package| package["name"].as_str()).collect();
    assert!(names.contains(&"localnet-client"), "{names:?}");
    for package in &published {
        for field in ["description", "license", "repository", "readme"] {
            assert!(package[field].is_string(), "{}: {field} is missing", package["name"]);
        }
        for field in ["keywords", "categories"] {
            assert!(package[field].as_array().is_some_and(|list| !list.is_empty()), "{}: {field}", package["name"]);
        }
    }
    let target = folder()?;
    let of_all = names.iter().flat_map(|name| ["--package", name]);
    let path = target.path().to_str().context("a path in UTF-8")?;
    let arguments = ["package", "--no-verify", "--allow-dirty", "--quiet", "--target-dir", path];
    cargo(&arguments.into_iter().chain(of_all).collect::<Vec<_>>())?;
    for name in names {
        let prefix = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let archive = target.path().join("package").join(format!("{prefix}.crate"));
        let files = output(Command::new("tar").arg("-tf").arg(archive))?;
        for file in ["Cargo.lock", "LICENSE", "README.md", "src/lib.rs"] {
            assert!(files.lines().any(|line| line == format!("{prefix}/{file}")), "{name} lacks {file}: {files}");
        }
        assert!(!files.contains("/tests/"), "tests need crates that are not published: {files}");
    }
    Ok(())
}
