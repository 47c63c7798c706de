//! `localnet canary`.

use std::io::Write as _;

use anyhow::Context as _;
use clap::{Args, Subcommand};

use super::{Answered, takeover::kubectl};
use crate::{
    canary::{Label, Services, Which},
    output,
};

/// Move Services between kube-proxy and localnet, on nodes where localnet runs beside kube-proxy
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  localnet canary add --plan --namespace shop
  localnet canary add --namespace shop --selector tier=front
  localnet canary add --namespace shop web api
  localnet canary remove --namespace shop

On such a node, localnet-brain --canary proxy=localnet and localnet-nft --canary run. Connections continue. To move a Service that was
created later, repeat the command.")]
pub(crate) struct Canary {
    #[command(subcommand)]
    to: To,
}

#[derive(Debug, Subcommand)]
enum To {
    /// Let localnet serve Services
    Add(Flags),
    /// Let kube-proxy serve Services again
    Remove(Flags),
}

#[derive(Debug, Args)]
struct Flags {
    /// Names of the Services [default: all Services of the namespace]
    #[arg(value_name = "SERVICE")]
    names: Vec<String>,
    /// The namespace of the Services
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: String,
    /// Move only the Services of the namespace that match this label selector
    #[arg(long, value_name = "SELECTOR", conflicts_with = "names", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    selector: Option<String>,
    /// The label that the brain's flag --canary selects
    #[arg(long, value_name = "KEY=VALUE", default_value = "proxy=localnet")]
    label: Label,
    /// Print the command of kubectl, and change nothing
    #[arg(long)]
    plan: bool,
    /// The context of kubectl
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

pub(super) async fn run(Canary { to }: Canary) -> Answered {
    let (adds, flags) = match to {
        To::Add(flags) => (true, flags),
        To::Remove(flags) => (false, flags),
    };
    let Flags { names, namespace, selector, label, plan, context } = flags;
    let which = match selector {
        Some(selector) => Which::Selected(selector),
        None if names.is_empty() => Which::All,
        None => Which::Named(names),
    };
    let flags = context.iter().map(|context| format!("--context={context}")).collect();
    let services = Services { flags, namespace, which, label };
    let (step, name, undo) =
        if adds { (services.add(), "add", "remove") } else { (services.remove(), "remove", "add") };
    output::print(|out| Ok(writeln!(out, "# {}\n{}", step.purpose, step.command())?))?;
    if !plan {
        let failed = || {
            format!(
                "canary {name} failed; after you have mended the cause, repeat it, or undo it with: localnet canary {undo}"
            )
        };
        let text = kubectl(&step.arguments).await.with_context(failed)?;
        output::print(|out| Ok(out.write_all(&text)?))?;
    }
    Ok(false)
}
