//! The conformance kit as `packaging/kit.sh` packs it for authors of backends.

use std::{fs, process::Command};

use anyhow::Context as _;

use crate::{folder, output, root, script};

/// A copy of the kit with one Case runs this Case, not those in the repository.
#[test]
fn the_kit_brings_its_cases() -> anyhow::Result<()> {
    let made = folder()?;
    let kit = made.path().join("kit");
    output(script("kit.sh").arg(localnet_e2e::program("localnet-conformance")?).arg(&kit))?;
    for entry in fs::read_dir(kit.join("share/localnet/cases"))? {
        let path = entry?.path();
        if !path.ends_with("cluster-ip") {
            fs::remove_dir_all(path)?;
        }
    }
    let backend = format!("{} --fault none --api {{api}} --dump {{dump}}", localnet_e2e::program("broken")?.display());
    let mut run = Command::new(kit.join("bin/localnet-conformance"));
    let table = output(run.args(["--levels", "state", "--backend", &backend]))?;
    assert!(table.contains("state            1       0            0"), "{table}");
    Ok(())
}

/// A link leads to a file of the archive, or to a file of the repository at the version of the kit.
#[test]
fn the_links_on_the_pages_of_the_kit_lead_to_files() -> anyhow::Result<()> {
    let made = folder()?;
    let (collected, kit) = (made.path().join("collected"), made.path().join("kit"));
    output(script("kit.sh").arg("/bin/true").arg(&collected))?;
    output(script("kit.sh").arg("pack").arg(&collected).arg("amd64").arg(made.path()).env("COMPRESSION", "none"))?;
    fs::create_dir(&kit)?;
    let version = env!("CARGO_PKG_VERSION");
    let archive = made.path().join(format!("localnet-conformance_{version}_linux_amd64.tar.gz"));
    output(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&kit))?;

    let repository = format!("{}/blob/v{version}/", env!("CARGO_PKG_REPOSITORY"));
    let pages = kit.join("share/doc/localnet-conformance");
    let (mut inside, mut outside, mut broken) = (0, 0, Vec::new());
    for entry in fs::read_dir(&pages)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().context("a link has a start")?;
            let (target, count) = match file.strip_prefix(&repository) {
                Some(file) => (root().join(file), &mut outside),
                None if file.is_empty() || file.contains("://") || file.contains(char::is_whitespace) => continue,
                None => (pages.join(file), &mut inside),
            };
            *count += 1;
            if !target.exists() {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(inside > 10 && outside > 10, "{inside} links to files of the kit, {outside} to the repository");
    Ok(())
}

/// Authors copy these files into repositories with other licences.
#[test]
fn each_proto_file_of_the_kit_names_its_licence() -> anyhow::Result<()> {
    let made = folder()?;
    output(script("kit.sh").arg("/bin/true").arg(made.path().join("kit")))?;
    let proto = made.path().join("kit/share/localnet/proto");
    let all = output(Command::new("find").arg(&proto).args(["-name", "*.proto"]))?;
    let licence = format!("// SPDX-License-Identifier: {}\n", env!("CARGO_PKG_LICENSE"));
    for path in all.lines() {
        assert!(fs::read_to_string(path)?.starts_with(&licence), "{path} does not start with {licence:?}");
    }
    assert!(all.contains("/localnetv1.proto") && all.contains("/source.proto"), "{all}");
    Ok(())
}
