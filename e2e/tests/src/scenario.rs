//! One fault of `e2e/faults`, reproduced on a node.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use localnet_lab::{Namespace, Network, Running, Topology, topology::CLUSTER_CIDRS};
use serde::Deserialize;

use crate::{Backend, Programs, await_condition, program};

/// A fault, and the command to diagnose it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The backend whose rules the steps change: `nft`, `iptables`, `ipvs` or `win`; `None` if the fault does not depend on the
    /// backend.
    #[serde(default)]
    pub backend: Option<String>,
    /// The backends with which the Service answers nevertheless, because their kernel cannot do what the fault needs.
    #[serde(default)]
    pub answers_with: Vec<String>,
    /// The Service and its port, as an argument of `localnet explain`.
    pub ask: String,
    /// The sender, as an argument of `localnet explain`.
    #[serde(default)]
    pub from: Option<String>,
    /// The destination, as an argument of `localnet explain`.
    #[serde(default)]
    pub to: Option<String>,
    /// What happens on the node, in order.
    #[serde(default = "backend_alone")]
    pub steps: Vec<String>,
    /// The code of the cause.
    pub cause: String,
}

impl Fault {
    /// Whether the fault exists with a backend.
    pub fn is_with(&self, backend: &str) -> bool {
        self.backend.as_deref().is_none_or(|of| of == backend) && !self.answers_with.iter().any(|of| of == backend)
    }

    /// Whether a step changes something on the node or in a pod.
    pub fn changes_node(&self) -> bool {
        self.steps.iter().any(|step| step.starts_with("node:") || step.starts_with("pod "))
    }
}

fn backend_alone() -> Vec<String> {
    vec!["backend".to_owned()]
}

/// The directories under `e2e/faults`.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn all() -> anyhow::Result<Vec<PathBuf>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("faults");
    let entries = fs::read_dir(&root).with_context(|| format!("reading {}", root.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<PathBuf>>>()?;
    let mut found: Vec<PathBuf> = paths.into_iter().filter(|path| path.is_dir()).collect();
    found.sort();
    Ok(found)
}

/// The directory of a fault.
///
/// # Panics
/// Panics if there is no such fault.
pub fn named(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("faults").join(name);
    assert!(path.is_dir(), "e2e/faults has no {name}");
    path
}

/// The directory of a Case.
///
/// # Panics
/// Panics if there is no such Case.
pub fn case(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("cases").join(name);
    assert!(path.is_dir(), "e2e/cases has no {name}");
    path
}

/// The steps on the node. A Case has no steps of its own.
///
/// # Errors
/// Returns the errors of [`read`].
pub fn steps(folder: &Path) -> anyhow::Result<Vec<String>> {
    if folder.join("fault.yaml").exists() { Ok(read(folder)?.steps) } else { Ok(backend_alone()) }
}

/// Reads the `fault.yaml` of a directory.
///
/// # Errors
/// Returns an error if the file cannot be read, or has another field or type.
pub fn read(path: &Path) -> anyhow::Result<Fault> {
    let file = path.join("fault.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("reading {}", file.display()))
}

/// The output of a command, and its exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRun {
    /// The standard output.
    pub out: String,
    /// The standard error.
    pub error: String,
    /// The exit code, or -1 after a signal.
    pub code: i32,
}

/// A node on which the steps of a fault were executed.
#[derive(Debug)]
pub struct Scenario {
    /// The node, its pods and a client outside.
    pub network: Network,
    /// The programs that run on the node.
    pub programs: Programs,
    brain: Option<Running>,
    backend: Option<Running>,
    chosen: Backend,
    folder: PathBuf,
}

impl Scenario {
    /// Executes the steps with the nft backend.
    ///
    /// # Errors
    /// Returns the errors of [`Self::build_on`].
    pub fn build(folder: &Path, steps: &[String]) -> anyhow::Result<Self> {
        Self::build_on(Backend::Nft, folder, steps)
    }

    /// Executes the steps with a backend.
    ///
    /// # Errors
    /// Returns an error if the node cannot be built, or a step fails.
    pub fn build_on(chosen: Backend, folder: &Path, steps: &[String]) -> anyhow::Result<Self> {
        let mut topology = Topology::with_pods(["10.180.0.1", "10.180.0.2", "10.180.0.3", "10.180.1.1"])?;
        topology.node_addresses.clear();
        let network = Network::build(topology)?;
        let programs = Programs::new()?;
        let source = programs.path().join("cluster.yaml");
        fs::copy(folder.join("cluster.yaml"), &source).context("copying cluster.yaml")?;
        let brain = programs.start_brain(network.node(), &format!("file:{}", source.display()))?;
        let socket = programs.path().join("brain.sock");
        await_condition("the brain's socket", || socket.exists())?;
        let folder = folder.to_owned();
        let mut scenario = Self { network, programs, brain: Some(brain), backend: None, chosen, folder };
        scenario.await_revision(1)?;
        for step in steps {
            scenario.step(step).with_context(|| format!("step {step:?}"))?;
        }
        Ok(scenario)
    }

    /// Executes a step.
    ///
    /// # Errors
    /// Returns an error if the step fails or does not exist.
    pub fn step(&mut self, step: &str) -> anyhow::Result<()> {
        match step {
            _ if step == "backend" || step.starts_with("backend --") => {
                let flags: Vec<&str> = step.split(' ').skip(1).collect();
                let backend = self.programs.start_backend_with(self.network.node(), self.chosen, &flags)?;
                self.backend = Some(backend);
                self.await_applied()
            }
            "kill backend" => {
                self.backend = None;
                Ok(())
            }
            "kill brain" => {
                self.stop_brain();
                Ok(())
            }
            "table" => {
                let mut command = Command::new(program("localnet-nft")?);
                let (api, cluster) = (self.programs.api(), CLUSTER_CIDRS.join(","));
                command.args(["--once", "--dry-run", "--api", &api, "--cluster-cidr", &cluster]);
                let plan = self.network.node().output(&mut command)?;
                self.network.node().output_with_input(Command::new("nft").args(["-f", "-"]), &plan)?;
                Ok(())
            }
            "later" => {
                self.becomes_later()?;
                self.await_revision(2)
            }
            "unreadable" => {
                self.becomes_later()?;
                let is_reported =
                    || self.status().is_some_and(|status| status["sourceProblems"][0]["of"][0] == "files");
                await_condition("the brain's problem", is_reported).with_context(|| self.programs.log("localnet-brain"))
            }
            _ => {
                let (place, command) = step.split_once(": ").context("a step is a word, or PLACE: COMMAND")?;
                let namespace: &Namespace = match place.split_once(' ') {
                    None if place == "node" => self.network.node(),
                    Some(("pod", address)) => self.network.pod(address.parse::<IpAddr>().context("reading a pod")?)?,
                    _ => bail!("{place:?} is not a place"),
                };
                let mut bash = Command::new("bash");
                // IPVS sends packets from the hook input to the hook output.
                bash.env("HOOK", if self.chosen == Backend::Ipvs { "output" } else { "forward" });
                if let Backend::Iptables(flavour) = self.chosen {
                    bash.env("FLAVOUR", flavour);
                }
                namespace.output(bash.args(["-c", command])).map(drop)
            }
        }
    }

    /// Replaces the file in one step, as editors and ConfigMaps do.
    fn becomes_later(&self) -> anyhow::Result<()> {
        let beside = self.programs.path().join("later.tmp");
        fs::copy(self.folder.join("later.yaml"), &beside).context("copying later.yaml")?;
        fs::rename(beside, self.programs.path().join("cluster.yaml")).context("replacing cluster.yaml")
    }

    /// Ends the brain.
    pub fn stop_brain(&mut self) {
        self.brain = None;
    }

    /// Runs `localnet` on the node.
    ///
    /// # Errors
    /// Returns an error if the program cannot run, or prints other text than UTF-8.
    pub fn localnet(&self, arguments: &[&str]) -> anyhow::Result<CommandRun> {
        let mut command = Command::new(program("localnet")?);
        command.args(arguments).env("LOCALNET_API", self.programs.api()).env_remove("NO_COLOR");
        self.network.node().run(|| {
            let ended = command.output().context("running localnet")?;
            Ok(CommandRun {
                out: String::from_utf8(ended.stdout)?,
                error: String::from_utf8(ended.stderr)?,
                code: ended.status.code().unwrap_or(-1),
            })
        })
    }

    /// What `localnet get revision` prints; `None` if it prints no JSON.
    pub fn status(&self) -> Option<serde_json::Value> {
        let run = self.localnet(&["get", "revision", "-o", "json"]).ok()?;
        serde_json::from_str(&run.out).ok()
    }

    fn await_revision(&self, revision: u64) -> anyhow::Result<()> {
        let is_there = || self.status().is_some_and(|status| status["revision"].as_u64() >= Some(revision));
        await_condition(&format!("revision {revision}"), is_there).with_context(|| self.programs.log("localnet-brain"))
    }

    /// Waits until a backend has applied the brain's state.
    ///
    /// # Errors
    /// Returns an error if this takes longer than [`crate::PATIENCE`].
    pub fn await_applied(&self) -> anyhow::Result<()> {
        let is_applied = || {
            let Some(status) = self.status() else { return false };
            let families = status["backends"][0]["families"].as_array().cloned().unwrap_or_default();
            !families.is_empty()
                && families.iter().all(|family| family["lag"] == 0 && family["applied"].as_u64() > Some(0))
        };
        await_condition("the backend", is_applied).with_context(|| self.programs.log(self.chosen.program()))
    }
}
