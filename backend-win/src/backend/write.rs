//! Writes the difference between plan and HNS, call by call.
//!
//! A sync deletes load balancers, creates endpoints, creates and changes load balancers, and deletes endpoints, in this order.
//! An endpoint therefore exists for as long as a load balancer refers to it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use localnet_proto::Family;
use tracing::{debug, info, warn};

use super::WinBackend;
use crate::{
    diff::Write,
    hcn::{
        Failure, Guid, Reason,
        schema::{self, Endpoint, LoadBalancer, Odd},
    },
    kernel::Kernel,
    plan::{Frontend, Plan},
};

/// The function that opens a load balancer.
const OPEN: &str = "HcnOpenLoadBalancer";

/// The result of a sync's calls.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) failed: Vec<(Family, anyhow::Error)>,
    /// Frontends that HNS reports as taken, although no listed load balancer has them.
    pub(super) taken: Vec<(Write, Failure)>,
    /// The load balancers whose change has failed without a refusal: HNS may have made it.
    unknown: Vec<Guid>,
    /// The number of calls that changed HNS.
    pub(super) calls: usize,
}

impl<K: Kernel> WinBackend<K> {
    /// Writes the difference between the plan and HNS.
    pub(super) fn write(&mut self, plan: &Plan) -> Outcome {
        let diff = self.diff(plan);
        self.memory.adopt(&diff.kept, &self.inventory);
        let mut outcome = Outcome::default();
        for id in &diff.delete_balancers {
            let shown = self.inventory.balancers().get(id).and_then(Option::as_ref);
            let family = shown.and_then(|shown| Frontend::all_of(shown).first().map(Frontend::family));
            let deleted = self.delete_balancer(*id, &mut outcome);
            outcome.note(family, deleted.with_context(|| format!("failed to delete load balancer {id}")));
        }
        for id in &diff.replace_endpoints {
            let deleted = self.delete_endpoint(*id, &mut outcome);
            outcome.note(None, deleted.with_context(|| format!("failed to replace endpoint {id}")));
        }
        let mut names: BTreeMap<Guid, Option<Guid>> = BTreeMap::new();
        for (id, endpoint) in &diff.create_endpoints {
            let family = endpoint.addresses().next().map(Family::of);
            match self.create_endpoint(*id, endpoint, &mut outcome) {
                Ok(made) => _ = names.insert(*id, Some(made)),
                Err(error) => {
                    names.insert(*id, None);
                    outcome.note(family, Err(error));
                }
            }
        }
        for mut write in diff.balancers {
            let endpoints = &mut write.planned.document.host_compute_endpoints;
            *endpoints = endpoints.iter().filter_map(|id| names.get(id).copied().unwrap_or(Some(*id))).collect();
            if endpoints.is_empty() {
                continue;
            }
            let family = write.frontend.family();
            if let Err(failure) = self.write_balancer(&write, &mut outcome) {
                match failure.reason() {
                    Reason::Exists => outcome.taken.push((write, failure)),
                    Reason::Invalid => self.refuse(write, &failure),
                    _ => {
                        let what = format!("load balancer {} of Service {}", write.frontend, write.planned.service);
                        outcome.note(Some(family), Err(anyhow::Error::new(failure).context(what)));
                    }
                }
            }
        }
        // Keep endpoints that a load balancer still refers to, for instance because its change was refused. HNS might delete
        // them although they are in use.
        let balancers = self.inventory.balancers().values().flatten();
        let named: BTreeSet<Guid> = balancers.flat_map(|one| one.host_compute_endpoints.iter().copied()).collect();
        for id in diff.delete_endpoints.difference(&named) {
            let deleted = self.delete_endpoint(*id, &mut outcome);
            outcome.note(None, deleted.with_context(|| format!("failed to delete endpoint {id}")));
        }
        // The next read fetches their documents. Until here, their endpoints counted as in use.
        for id in std::mem::take(&mut outcome.unknown) {
            self.inventory.deleted_balancer(id);
        }
        outcome
    }

    pub(super) fn delete_balancer(&mut self, id: Guid, outcome: &mut Outcome) -> Result<(), Failure> {
        outcome.calls += 1;
        gone(self.kernel.delete_load_balancer(id))?;
        self.inventory.deleted_balancer(id);
        self.memory.lost(id);
        Ok(())
    }

    pub(super) fn delete_endpoint(&mut self, id: Guid, outcome: &mut Outcome) -> Result<(), Failure> {
        outcome.calls += 1;
        match gone(self.kernel.delete_endpoint(id)) {
            Ok(()) => {
                self.inventory.deleted_endpoint(id);
                self.memory.lost(id);
            }
            // An object that we do not know still uses the endpoint. The next sync retries the deletion.
            Err(failure) if failure.reason() == Reason::InUse => {
                debug!(%id, %failure, "keeping an endpoint that is still in use");
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn create_endpoint(&mut self, id: Guid, wanted: &Endpoint, outcome: &mut Outcome) -> anyhow::Result<Guid> {
        outcome.calls += 1;
        let addresses: Vec<String> = wanted.addresses().map(|address| address.to_string()).collect();
        let context = || format!("failed to create an endpoint for {}", addresses.join(", "));
        let network = self.inventory.network().context("HNS has not listed the network yet").with_context(context)?;
        let settings = schema::write(wanted);
        let made = match self.kernel.create_endpoint(network, id, &settings) {
            // The endpoint belongs to an earlier network of the pods, so this network does not list it.
            Err(failure) if failure.reason() == Reason::Exists => {
                self.delete_endpoint(id, outcome).with_context(context)?;
                outcome.calls += 1;
                self.kernel.create_endpoint(network, id, &settings).with_context(context)?
            }
            made => made.with_context(context)?,
        };
        let made: Endpoint = schema::read("endpoint", &made).with_context(context)?;
        let id = made.id.unwrap_or(id);
        self.memory.wrote_endpoint(id, wanted);
        self.inventory.made_endpoint(id, made);
        Ok(id)
    }

    fn write_balancer(&mut self, write: &Write, outcome: &mut Outcome) -> Result<(), Failure> {
        let wanted = &write.planned.document;
        let settings = schema::write(wanted);
        if let Some(id) = write.instead_of {
            if self.features().modify_load_balancer && !self.cannot_modify {
                outcome.calls += 1;
                match self.kernel.modify_load_balancer(id, &settings) {
                    Ok(shown) => {
                        if self.wrote(id, wanted, &shown) {
                            return Ok(());
                        }
                        info!("HNS reports success but does not change load balancers in place; recreating them");
                        self.cannot_modify = true;
                    }
                    Err(failure) if failure.reason() == Reason::Unsupported => {
                        info!(%failure, "HNS does not change load balancers in place, although its version should support it");
                        self.cannot_modify = true;
                    }
                    // NotFound from this call means that the load balancer was deleted. From any other call, it means that
                    // another object, such as an endpoint, does not exist.
                    Err(failure) if failure.reason() == Reason::NotFound && failure.call == OPEN => {}
                    Err(failure) => {
                        if !matches!(failure.reason(), Reason::Exists | Reason::Invalid) {
                            outcome.unknown.push(id);
                        }
                        return Err(failure);
                    }
                }
            }
            self.delete_balancer(id, outcome)?;
        }
        outcome.calls += 1;
        let id = write.frontend.id();
        let shown = self.kernel.create_load_balancer(id, &settings)?;
        if self.wrote(id, wanted, &shown) {
            return Ok(());
        }
        Err(Failure {
            call: "HcnCreateLoadBalancer",
            hresult: 0,
            record: format!("HNS created a different load balancer: {shown}"),
        })
    }

    /// Records the document that was written, and `shown`, the document that HNS then returned. Returns whether both documents
    /// have the same ports and the same endpoints.
    fn wrote(&mut self, requested: Guid, wanted: &LoadBalancer, shown: &str) -> bool {
        match schema::read::<LoadBalancer>("load balancer", shown) {
            Ok(shown) => {
                let id = shown.id.unwrap_or(requested);
                let does = self.memory.wrote(id, wanted, &shown);
                self.inventory.made_balancer(id, shown);
                does
            }
            Err(odd @ Odd { .. }) => {
                warn!(%odd, "cannot parse the document that HNS returned for our load balancer");
                self.inventory.made_balancer(requested, wanted.clone());
                self.memory.wrote(requested, wanted, wanted)
            }
        }
    }
}

impl Outcome {
    pub(super) fn note(&mut self, family: Option<Family>, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.failed.push((family.unwrap_or(Family::V4), error));
        }
    }
}

/// Treats a missing object as deleted.
fn gone(result: Result<(), Failure>) -> Result<(), Failure> {
    match result {
        Err(failure) if failure.reason() == Reason::NotFound => Ok(()),
        other => other,
    }
}
