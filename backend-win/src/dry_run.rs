//! `--dry-run`: prints the plan as JSON, and what a sync would change. It reads HNS and changes nothing.

use localnet_client::{Diagnostic, program::Planner};
use localnet_proto::{Changes, Snapshot};

use crate::{
    WinBackend,
    hcn::schema::{self, Endpoint, LoadBalancer},
    kernel::Kernel,
    plan::Plan,
};

/// Plans states.
#[derive(Debug)]
pub struct DryRun<K>(WinBackend<K>);

impl<K: Kernel> DryRun<K> {
    /// Plans with this backend.
    pub fn new(backend: WinBackend<K>) -> Self {
        Self(backend)
    }
}

/// Returns the endpoints and load balancers of a plan with their identifiers, and what is skipped, as JSON with one object per
/// line.
pub fn text(plan: &Plan, skipped: &[Diagnostic]) -> String {
    document(&lists(plan, skipped))
}

fn document(lists: &[String]) -> String {
    format!("{{\n{}\n}}\n", lists.join(",\n"))
}

fn lists(plan: &Plan, skipped: &[Diagnostic]) -> Vec<String> {
    let endpoints =
        plan.endpoints.iter().map(|(id, endpoint)| schema::write(&Endpoint { id: Some(*id), ..endpoint.clone() }));
    let balancers = plan.balancers.iter().map(|(frontend, planned)| {
        schema::write(&LoadBalancer { id: Some(frontend.id()), ..planned.document.clone() })
    });
    let skipped = skipped.iter().map(|one| schema::write(&one.to_string()));
    vec![list("Endpoints", endpoints), list("LoadBalancers", balancers), list("Skipped", skipped)]
}

fn list(name: &str, lines: impl Iterator<Item = String>) -> String {
    let lines: Vec<String> = lines.map(|line| format!("\n    {line}")).collect();
    let end = if lines.is_empty() { "" } else { "\n  " };
    format!("  \"{name}\": [{}{end}]", lines.join(","))
}

impl<K: Kernel> Planner for DryRun<K> {
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)> {
        let (plan, skipped) = self.0.plan(state, changes)?;
        let changes = list("Changes", self.0.changes(&plan).iter().map(schema::write));
        Ok((document(&[lists(&plan, &skipped), vec![changes]].concat()), skipped))
    }
}
