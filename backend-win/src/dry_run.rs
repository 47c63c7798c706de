//! `--dry-run`: prints the plan as JSON. It reads HNS and changes nothing.

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

impl<K: Kernel> Planner for DryRun<K> {
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)> {
        let (plan, skipped) = self.0.plan(state, changes)?;
        Ok((text(&plan, &skipped), skipped))
    }
}
