//! `--dry-run`: prints the plan as JSON. It reads HNS and changes nothing.

use std::io::{self, Write as _};

use localnet_client::{Backend, Diagnostic, Mode, Synced};
use localnet_proto::{Changes, Snapshot};

use crate::{
    WinBackend,
    hcn::schema::{self, Endpoint, LoadBalancer},
    kernel::Kernel,
    plan::Plan,
};

/// Prints the plan of each state.
#[derive(Debug)]
pub struct DryRun<K>(WinBackend<K>);

impl<K: Kernel> DryRun<K> {
    /// Prints the plans of this backend.
    pub fn new(backend: WinBackend<K>) -> Self {
        Self(backend)
    }
}

/// Returns the endpoints and load balancers of a plan with their identifiers, and what is skipped, as JSON with one object per
/// line.
pub fn text(plan: &Plan, skipped: &[Diagnostic]) -> String {
    let endpoints =
        plan.endpoints.iter().map(|(id, endpoint)| schema::write(&Endpoint { id: Some(*id), ..endpoint.clone() }));
    let balancers = plan.balancers.iter().map(|(frontend, planned)| {
        schema::write(&LoadBalancer { id: Some(frontend.id()), ..planned.document.clone() })
    });
    let skipped = skipped.iter().map(|one| schema::write(&one.to_string()));
    let list = |name: &str, lines: Vec<String>| {
        let lines: Vec<String> = lines.iter().map(|line| format!("\n    {line}")).collect();
        let end = if lines.is_empty() { "" } else { "\n  " };
        format!("  \"{name}\": [{}{end}]", lines.join(","))
    };
    let lists = [
        list("Endpoints", endpoints.collect()),
        list("LoadBalancers", balancers.collect()),
        list("Skipped", skipped.collect()),
    ];
    format!("{{\n{}\n}}\n", lists.join(",\n"))
}

impl<K: Kernel> Backend for DryRun<K> {
    fn name(&self) -> &'static str {
        "win"
    }

    fn mode(&self) -> Option<Mode> {
        Some(Mode::Kernelspace)
    }

    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        let (plan, skipped) = self.0.plan(state, changes)?;
        let mut out = io::stdout().lock();
        out.write_all(text(&plan, &skipped).as_bytes())?;
        out.flush()?;
        Ok(Synced { skipped, ..Synced::default() })
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
