//! Tests the crates that authors of backends in Rust use. No test needs the network.

use std::{collections::BTreeSet, process::Command};

use super::{output, root};

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
