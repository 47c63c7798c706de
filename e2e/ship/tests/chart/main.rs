//! Tests the chart: its manifests, that a real API server accepts them, that uninstalling leaves nothing, and that its pages are
//! right.
//!
//! ```text
//! values.yaml ─┬─► readme   the table of charts/localnet/README.md
//!              └─► helm ──► render   golden files, RBAC, configuration, command lines
//!                      ├──► install  a real API server: apply, upgrade, rollback, uninstall
//!                      └──► pods     its pods, started as a kubelet does (`kubelet`), serve on two nodes and hand over
//! ```
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod install;
mod kubelet;
mod pods;
mod readme;
mod render;
mod schema;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use serde_json::Value;

/// The values files in `tests/values`. Each has a golden file.
const VALUES: [&str; 6] = ["nft", "iptables", "ipvs", "ebpf", "shadow", "everything"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn chart(path: &str) -> PathBuf {
    root().join("charts/localnet").join(path)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// The output of helm. If helm fails, the error contains its messages.
fn helm(arguments: &[&str]) -> anyhow::Result<String> {
    helm_in(arguments, output)
}

/// The output of a command. If the command fails, the error contains its messages.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let run = command.output()?;
    let (output, wrong) = (String::from_utf8(run.stdout)?, String::from_utf8_lossy(&run.stderr).into_owned());
    anyhow::ensure!(run.status.success(), "{command:?}: {output}{wrong}");
    Ok(output)
}

/// The output of helm, with a function that runs the command.
fn helm_in(arguments: &[&str], run: impl FnOnce(&mut Command) -> anyhow::Result<String>) -> anyhow::Result<String> {
    let cache = env::var_os("LOCALNET_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from);
    let program = cache.join("helm/bin/helm");
    anyhow::ensure!(program.is_file(), "{} is missing: run `make chart`", program.display());
    // Isolate helm from the user's own configuration.
    let home = tempfile::tempdir()?;
    let mut command = Command::new(program);
    command.args(arguments).env("HOME", home.path()).env_remove("KUBECONFIG").env("HELM_NO_PLUGINS", "1");
    for (variable, folder) in [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
    {
        command.env(variable, home.path().join(folder));
    }
    run(&mut command)
}

/// The manifests of a release `localnet` in `kube-system`, with a file of `tests/values` and further arguments.
fn template(values: &str, more: &[&str]) -> anyhow::Result<String> {
    template_of(&chart(""), values, more)
}

/// As [`template`], with another copy of the chart.
fn template_of(folder: &Path, values: &str, more: &[&str]) -> anyhow::Result<String> {
    let (chart, values) = (folder, chart(&format!("tests/values/{values}.yaml")));
    let (chart, values) = (chart.to_str().unwrap(), values.to_str().unwrap());
    let mut arguments = vec!["template", "localnet", chart, "--namespace", "kube-system", "--values", values];
    arguments.extend(more);
    helm(&arguments)
}

/// The documents of a YAML file, without those that contain only comments.
fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    let documents = format!("\n{text}");
    let documents = documents.split("\n---\n").map(|document| document.trim_start_matches("---\n"));
    let parsed: Result<Vec<Value>, _> = documents.map(serde_saphyr::from_str).collect();
    Ok(parsed?.into_iter().filter(|document| !document.is_null()).collect())
}

/// The only document of this kind and name.
fn find<'a>(documents: &'a [Value], kind: &str, name: &str) -> anyhow::Result<&'a Value> {
    let wanted = |document: &&Value| document["kind"] == kind && document["metadata"]["name"] == name;
    documents.iter().find(wanted).with_context(|| format!("there is no {kind} {name}"))
}

/// Compares a file with its expected content. `UPDATE_EXPECT=1` rewrites the file.
fn expect(path: &Path, expected: &str) -> anyhow::Result<()> {
    if env::var_os("UPDATE_EXPECT").is_some() {
        return fs::write(path, expected).with_context(|| format!("writing {}", path.display()));
    }
    let there = fs::read_to_string(path).unwrap_or_default();
    let differs = there.lines().zip(expected.lines()).position(|(there, expected)| there != expected);
    let line = differs.unwrap_or_else(|| there.lines().count().min(expected.lines().count()));
    anyhow::ensure!(
        there == expected,
        "{}:{} is {:?}, and should be {:?}: `make bless` rewrites it",
        path.display(),
        line + 1,
        there.lines().nth(line),
        expected.lines().nth(line)
    );
    Ok(())
}
