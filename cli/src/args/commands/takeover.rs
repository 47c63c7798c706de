//! `localnet takeover` and `localnet give-back`.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use clap::Args;
use tokio::{process::Command, time::sleep};

use super::{Answered, Failure};
use crate::{
    output,
    takeover::{self, DaemonSet, Proxies, Step},
};

/// Serve nodes with localnet instead of kube-proxy, step by step with kubectl
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet takeover --plan node-a
  localnet takeover node-a node-b

The chart must be installed with nodeSelector.localnet=on. Each step is printed before it is done. Connections continue.
`localnet give-back` undoes all steps, except for the affinity of kube-proxy, which then has no effect.")]
pub(crate) struct Takeover {
    #[command(flatten)]
    flags: Flags,
}

/// Serve nodes with kube-proxy again, step by step with kubectl
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet give-back --plan node-a
  localnet give-back node-a

kube-proxy must be able to bind its ports: the chart's values must still have others. Each step is printed before it is done.")]
pub(crate) struct GiveBack {
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Args)]
struct Flags {
    /// Names of the nodes, served in this order
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// Print the steps, and change nothing
    #[arg(long)]
    plan: bool,
    /// The namespace of both proxies
    #[arg(short, long, value_name = "NAMESPACE", default_value = "kube-system")]
    namespace: String,
    /// The name of localnet's DaemonSet
    #[arg(long, value_name = "NAME", default_value = "localnet")]
    localnet: String,
    /// The name of kube-proxy's DaemonSet
    #[arg(long, value_name = "NAME", default_value = "kube-proxy")]
    kube_proxy: String,
    /// The context of kubectl
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Seconds to wait until a proxy serves
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    patience: u64,
}

pub(super) async fn run(Takeover { flags }: &Takeover) -> Answered {
    flags.run("takeover", "undo it with: localnet give-back", takeover::takeover).await
}

pub(super) async fn run_back(GiveBack { flags }: &GiveBack) -> Answered {
    flags.run("give-back", "undo it with: localnet takeover", takeover::give_back).await
}

impl Flags {
    async fn run(
        &self,
        name: &str,
        undo: &str,
        steps: impl Fn(&Proxies, &str) -> Result<Vec<Step>, String>,
    ) -> Answered {
        for node in &self.nodes {
            // The steps for a node may change a DaemonSet.
            let steps = steps(&self.proxies().await?, node).map_err(Failure::Usage)?;
            for (number, step) in (1..).zip(&steps) {
                let (purpose, command) = (&step.purpose, step.command());
                output::print(|out| {
                    Ok(writeln!(out, "# {node}, step {number} of {}: {purpose}\n{command}", steps.len())?)
                })?;
                if !self.plan {
                    let stopped = || {
                        format!(
                            "{name} stopped at step {number}; after you have mended the cause, repeat it, or {undo} {node}"
                        )
                    };
                    self.do_step(step).await.with_context(stopped)?;
                }
            }
        }
        Ok(false)
    }

    async fn proxies(&self) -> anyhow::Result<Proxies> {
        let flags: Vec<String> = self.context.iter().map(|context| format!("--context={context}")).collect();
        let read = async |name: &str| -> anyhow::Result<DaemonSet> {
            let arguments = ["--namespace", &self.namespace, "get", "daemonset", name, "-o", "json"].map(str::to_owned);
            let text = kubectl(flags.iter().chain(&arguments)).await?;
            serde_json::from_slice(&text)
                .with_context(|| format!("DaemonSet {name}: kubectl's output is not understood"))
        };
        let (localnet, kube_proxy) = (read(&self.localnet).await?, read(&self.kube_proxy).await?);
        Ok(Proxies { flags, namespace: self.namespace.clone(), localnet, kube_proxy })
    }

    async fn do_step(&self, step: &Step) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match kubectl(&step.arguments).await {
                Ok(text) => return output::print(|out| Ok(out.write_all(&text)?)),
                Err(_) if step.repeats && began.elapsed() < Duration::from_secs(self.patience) => {
                    sleep(Duration::from_secs(1)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Runs kubectl, and returns its output.
pub(super) async fn kubectl(arguments: impl IntoIterator<Item = &String>) -> anyhow::Result<Vec<u8>> {
    let output = Command::new("kubectl").args(arguments).output().await;
    let output = output.context("failed to start kubectl, which must be in a folder of PATH")?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(anyhow!("kubectl: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
