//! Commands in the README and in `docs/` do what they say: blocks that begin with ```` ```sh run ```` are executed as they stand.
//!
//! Those of one page run one after the other in one shell, as root, at the root of the repository, in namespaces of their own
//! (network, mounts, processes) with an empty `/run`; the programs as built for tests and those of `make controlplane` are in PATH.

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use localnet_e2e::program;

/// The pages that have such blocks: a page that loses its blocks, or their mark, is noticed.
const PAGES: [&str; 2] = ["docs/README.md", "docs/migrating.md"];

const MARK: &str = "```sh run\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Commands of a page, in their order.
fn commands(page: &str) -> String {
    let blocks = page.split(MARK).skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.flat_map(|block| [block, "\n"]).collect()
}

/// Runs commands until one fails; then says which, and what was printed.
fn run(commands: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (script, log) = (folder.path().join("script"), folder.path().join("log"));
    let tools = localnet_controlplane::binary("grpcurl")?;
    let programs = program("localnet-brain")?;
    let [tools, programs] =
        [&tools, &programs].map(|path| path.parent().unwrap_or(Path::new("/")).display().to_string());
    let path = std::env::var("PATH").unwrap_or_default();
    fs::write(&script, format!("set -eux\nmount -t tmpfs tmpfs /run\nPATH={programs}:{tools}:{path}\n{commands}"))?;
    let output = File::create(&log)?;
    let status = Command::new("timeout")
        .args([
            "--kill-after=1",
            "240",
            "unshare",
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .arg("bash")
        .arg(&script)
        .current_dir(root())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .context("starting a shell in namespaces of its own")?;
    anyhow::ensure!(
        status.success(),
        "{}{}:\n{}",
        status.code().map(|code| format!("ended with {code}")).unwrap_or_default(),
        status.signal().map(|signal| format!("ended by signal {signal}")).unwrap_or_default(),
        fs::read_to_string(&log)?
    );
    Ok(())
}

fn page(name: &str) -> anyhow::Result<()> {
    let text = fs::read_to_string(root().join(name)).with_context(|| format!("reading {name}"))?;
    run(&commands(&text)).with_context(|| name.to_owned())
}

#[test]
fn the_start_page_ends_with_a_service_that_answers() -> anyhow::Result<()> {
    page("docs/README.md")
}

#[test]
fn migrating_is_done_as_its_page_says() -> anyhow::Result<()> {
    page("docs/migrating.md")
}

#[test]
fn every_page_with_such_commands_is_run() -> anyhow::Result<()> {
    let (mut folders, mut found) = (vec![root().join("docs")], Vec::new());
    let mut files = vec![root().join("README.md"), root().join("charts/localnet/README.md")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    for path in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        if fs::read_to_string(path)?.contains(MARK) {
            found.push(path.strip_prefix(root())?.display().to_string());
        }
    }
    found.sort();
    assert_eq!(found, PAGES);
    Ok(())
}

#[test]
fn a_command_that_fails_is_told() {
    let text = "A page.\n```sh run\ntrue\n```\n```sh\nexit 4\n```\n```sh run\necho here | grep there\nexit 5\n```\n";
    assert_eq!(commands(text), "true\necho here | grep there\nexit 5\n");
    let error = format!("{:#}", run(&commands(text)).expect_err("grep finds nothing"));
    assert!(error.starts_with("ended with 1:") && error.contains("+ grep there"), "{error}");
}
