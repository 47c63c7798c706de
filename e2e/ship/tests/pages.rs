//! Executes the commands in the README and in `docs/` exactly as written.
//!
//! The commands of one page run in sequence in one shell, as root, at the root of the repository. PATH contains the programs that
//! are built for tests, and those of `make controlplane` and `make helm`.
//!
//! | a block begins with | and runs |
//! |---|---|
//! | ```` ```sh run ```` | in namespaces of its own (network, mounts, processes) with an empty `/run` |
//! | ```` ```sh cluster ```` | with a KUBECONFIG of a real API server that has kube-proxy's DaemonSet |
//! | ```` ```sh ```` | not at all; [`NOT_RUN`] gives the reason |

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use localnet_controlplane::{ControlPlane, Options};
use localnet_e2e::program;
use serde_json::json;

/// The pages with such blocks, each with commands to run first, which the reader knows from another page.
const PAGES: [(&str, &str); 7] = [
    ("README.md", ""),
    ("docs/README.md", ""),
    ("docs/backends/iptables.md", BRAIN),
    ("docs/backends/nft.md", BRAIN),
    ("docs/migrating.md", ""),
    ("docs/pushing-services.md", ""),
    ("docs/reading-v1.md", ""),
];

/// Starts the brain of the README.
const BRAIN: &str = "\
localnet-brain --source file:examples --node-name demo-node &
until [ -S /run/localnet/brain.sock ]; do sleep 0.1; done
";

/// The pages with such blocks that need only the files of a release. `packages::authors` runs all of their blocks.
const AUTHORS: [&str; 3] = ["docs/first-backend-go.md", "docs/first-backend-python.md", "docs/first-backend.md"];

/// The pages with commands for a cluster.
const CLUSTER_PAGES: [&str; 2] = ["charts/localnet/README.md", "docs/migrating.md"];

/// Blocks that are not run: the page, the beginning of the block, and the reason.
const NOT_RUN: [(&str, &str, &str); 22] = [
    ("README.md", "make demo", "CI runs it"),
    ("README.md", "helm install", "the chart's own page runs it"),
    ("README.md", "localnet-node", "it needs kube-proxy's file: `system::drop_in` runs it with one"),
    ("README.md", "make test", "this test is part of it"),
    (
        "docs/writing-a-backend.md",
        "localnet-brain",
        "the brain does not exit: `conformance::examples` runs the examples beside it",
    ),
    ("docs/writing-a-backend.md", "localnet-conformance", "`conformance::examples` runs it"),
    ("docs/README.md", "apt-get install", "it installs packages, and builds programs that exist already"),
    ("charts/localnet/README.md", "kubectl debug", "it needs a node with a kubelet"),
    ("docs/migrating.md", "helm install", "it needs nodes with kubelets: `make kubernetes-migrate` runs it"),
    ("docs/migrating.md", "kubectl label", "the same"),
    ("docs/migrating.md", "localnet canary", "the same"),
    ("docs/migrating.md", "localnet takeover", "the same"),
    ("docs/migrating.md", "localnet give-back", "the same"),
    ("docs/migrating.md", "localnet-brain --shadow", "it needs a node with kube-proxy: `system::shadow` has one"),
    ("docs/migrating.md", "localnet-brain --canary", "the same: `system::canary`"),
    ("docs/migrating.md", "kubectl --namespace NAMESPACE label service", "the same"),
    (
        "docs/backends/ipvs.md",
        "localnet-ipvs",
        "it needs a kernel with IPVS: e2e/tests/tests/guest_system runs it in a guest",
    ),
    ("docs/dns.md", "localnet-brain", "neither program exits: `dns` of e2e/tests and `make dns` run both"),
    (
        "docs/backends/ebpf.md",
        "localnet-ebpf",
        "it would translate the connections of this machine: `backend-ebpf/tests/kernel` does so in a cgroup of its own",
    ),
    ("docs/operations/packages.md", "helm install", "it needs a published release: `packages::release` publishes one"),
    ("docs/operations/packages.md", "identity=", "the same, with real signatures"),
    (
        "docs/operations/packages.md",
        "apt-get install",
        "it installs a service on this machine: `packages::debian` does so in a copy of it",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The blocks of a page with this mark.
fn blocks<'a>(page: &'a str, mark: &str) -> Vec<&'a str> {
    let mark = format!("\n```sh{mark}\n");
    page.split(&mark).skip(1).filter_map(|rest| rest.split("\n```").next()).collect()
}

/// Runs commands until one fails. The error names that command and contains the output. `wrapped` is the command that starts the
/// shell.
fn run(commands: &str, wrapped: &[&str], environment: &[(&str, &Path)]) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (script, log) = (folder.path().join("script"), folder.path().join("log"));
    let tools = localnet_controlplane::binary("grpcurl")?;
    let cache = tools.ancestors().nth(3).context("finding the cache")?.to_owned();
    let folders = [program("localnet-brain")?.with_file_name(""), tools.with_file_name(""), cache.join("helm/bin")];
    let folders = folders.map(|folder| folder.display().to_string()).join(":");
    let path = std::env::var("PATH").unwrap_or_default();
    fs::write(&script, format!("set -eux\nPATH={folders}:{path}\n{commands}"))?;
    let output = File::create(&log)?;
    let status = Command::new("timeout")
        .args(["--kill-after=1", "240"])
        .args(wrapped)
        .arg("bash")
        .arg(&script)
        .envs(environment.iter().copied())
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

/// Runs commands in separate namespaces.
fn run_alone(commands: &str) -> anyhow::Result<()> {
    let apart = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    run(&format!("mount -t tmpfs tmpfs /run\n{commands}"), &apart, &[])
}

fn read(page: &str) -> anyhow::Result<String> {
    fs::read_to_string(root().join(page)).with_context(|| format!("reading {page}"))
}

fn page(name: &str) -> anyhow::Result<()> {
    let (_, before) = PAGES.iter().find(|(page, _)| *page == name).context("an unknown page")?;
    let text = read(name)?;
    run_alone(&format!("{before}{}\n", blocks(&text, " run").join("\n"))).with_context(|| name.to_owned())
}

#[test]
fn the_commands_of_the_readme_work() -> anyhow::Result<()> {
    page("README.md")
}

#[test]
fn the_start_page_ends_with_a_service_that_answers() -> anyhow::Result<()> {
    page("docs/README.md")
}

#[test]
fn the_page_about_pushing_ends_with_a_pushed_service() -> anyhow::Result<()> {
    page("docs/pushing-services.md")
}

/// This page was once in the list of pages, but no test ran it.
#[test]
fn the_commands_for_readers_of_localnet_v1_work() -> anyhow::Result<()> {
    page("docs/reading-v1.md")
}

#[test]
fn every_page_is_run() -> anyhow::Result<()> {
    let source = fs::read_to_string(root().join("e2e/ship/tests/pages.rs"))?;
    for (name, _) in PAGES {
        assert!(source.contains(&format!("page(\"{name}\")")), "no test runs {name}");
    }
    Ok(())
}

#[test]
fn the_commands_of_the_migration_page_work() -> anyhow::Result<()> {
    page("docs/migrating.md")
}

#[test]
fn the_commands_of_the_backend_pages_work() -> anyhow::Result<()> {
    page("docs/backends/nft.md")?;
    page("docs/backends/iptables.md")
}

/// Sets the status of every DaemonSet to rolled out. In a cluster with nodes, kubelets and a controller do so.
async fn roll_out(client: Client) -> anyhow::Result<()> {
    let sets: Api<DaemonSet> = Api::namespaced(client.clone(), "kube-system");
    let mut changes = watcher(sets.clone(), watcher::Config::default()).default_backoff().applied_objects().boxed();
    while let Some(set) = changes.try_next().await? {
        let seen = set.status.and_then(|status| status.observed_generation);
        if seen == set.metadata.generation {
            continue;
        }
        let status = json!({ "status": {
            "observedGeneration": set.metadata.generation, "desiredNumberScheduled": 1, "currentNumberScheduled": 1,
            "updatedNumberScheduled": 1, "numberAvailable": 1, "numberReady": 1, "numberMisscheduled": 0,
        } });
        let name = set.metadata.name.context("an object has a name")?;
        sets.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    Ok(())
}

/// Creates kube-proxy's DaemonSet, with the fields that these pages need.
async fn add_kube_proxy(client: Client) -> anyhow::Result<()> {
    let labels = json!({ "k8s-app": "kube-proxy" });
    let set: DaemonSet = serde_json::from_value(json!({
        "metadata": { "name": "kube-proxy" },
        "spec": {
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "kube-proxy", "image": "kube-proxy" }] },
            },
        },
    }))?;
    Api::namespaced(client, "kube-system").create(&PostParams::default(), &set).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_for_a_cluster_work_with_an_api_server() -> anyhow::Result<()> {
    for name in CLUSTER_PAGES {
        let plane = ControlPlane::start(Options { controllers: false, ..Options::default() }).await?;
        add_kube_proxy(plane.client()).await?;
        let rolling = tokio::spawn(roll_out(plane.client()));
        let commands = blocks(&read(name)?, " cluster").join("\n");
        let home = tempfile::tempdir()?;
        let environment = [("KUBECONFIG", plane.kubeconfig()), ("HOME", home.path())];
        let ran = tokio::task::block_in_place(|| run(&commands, &[], &environment));
        rolling.abort();
        ran.with_context(|| name.to_owned())?;
    }
    Ok(())
}

/// The first lines of blocks without a language. Commands in them would not be run.
fn unnamed(page: &str) -> impl Iterator<Item = &str> {
    let (mut inside, mut found) = (false, Vec::new());
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            inside = !inside;
            if inside && line == "```" {
                found.extend(lines.peek());
            }
        }
    }
    found.into_iter()
}

#[test]
fn every_command_runs_or_has_a_reason_not_to() -> anyhow::Result<()> {
    let (mut folders, mut files) = (vec![root().join("docs")], Vec::new());
    files.extend(["README.md", "CONTRIBUTING.md", "charts/localnet/README.md"].map(|page| root().join(page)));
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    let (mut run, mut cluster, mut not) = (Vec::new(), Vec::new(), Vec::new());
    for path in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let page = path.strip_prefix(root())?.display().to_string();
        let text = fs::read_to_string(path)?;
        if !blocks(&text, " run").is_empty() {
            run.push(page.clone());
        }
        if !blocks(&text, " cluster").is_empty() {
            cluster.push(page.clone());
        }
        not.extend(blocks(&text, "").iter().map(|block| (page.clone(), (*block).to_owned())));
        let unnamed = unnamed(&text).find(|line| line.starts_with("localnet-"));
        assert!(unnamed.is_none(), "{page}: a block of commands begins with ```sh: {unnamed:?}");
    }
    run.sort();
    cluster.sort();
    let mut pages = [&PAGES.map(|(page, _)| page)[..], &AUTHORS].concat();
    pages.sort_unstable();
    assert_eq!(run, pages);
    assert_eq!(cluster, CLUSTER_PAGES);
    for (page, block) in &not {
        let listed = NOT_RUN.iter().any(|(of, begin, _)| of == page && block.starts_with(begin));
        assert!(listed, "{page}: no test runs this, and NOT_RUN has no reason: {block}");
    }
    for (page, begin, why) in NOT_RUN {
        let there = not.iter().any(|(of, block)| of == page && block.starts_with(begin));
        assert!(there, "{page} has no block {begin} any more ({why})");
    }
    Ok(())
}

#[test]
fn a_failing_command_is_reported() {
    let text = "A page.\n```sh run\ntrue\n```\n```sh\nexit 4\n```\n```sh run\necho here | grep there\nexit 5\n```\n";
    let commands = blocks(text, " run").join("\n");
    assert_eq!(commands, "true\necho here | grep there\nexit 5");
    let error = format!("{:#}", run_alone(&commands).expect_err("grep finds nothing"));
    assert!(error.starts_with("ended with 1:") && error.contains("+ grep there"), "{error}");
}
