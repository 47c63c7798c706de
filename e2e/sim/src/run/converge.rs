//! The end of a run: all faults end, and the node must soon hold the state of the cluster and then rest.

use std::{sync::Arc, time::Duration};

use localnet_cluster::{
    Cluster, Options,
    localize::{Localized, NodeIps},
    objects::{Event as Change, Kind, Object},
};
use localnet_proto::{Digest, Family, Revision, Snapshot};
use rand::{SeedableRng as _, rngs::StdRng};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::Instant;

use super::{Driver, Due};
use crate::{backends::Program, world::Objects};

/// How long after the last fault the node may take to hold the state of the cluster. The brain keeps objects that are
/// suddenly missing from a list for 300 s, and asks again about once a minute; a silent watch takes 300 s to notice.
const CONVERGENCE: Duration = Duration::from_secs(1800);
/// The most tasks and file descriptors at the end of a run.
const MOST_TASKS: usize = 40;
const MOST_DESCRIPTORS: usize = 30;
/// How long the threads of former brains may take to end, in real time.
const THREADS_END: Duration = Duration::from_secs(10);
/// The time between two checks at the end.
const PAUSE: Duration = Duration::from_secs(5);

impl<S: Program> Driver<S> {
    /// Ends all faults, and checks that the node soon holds the state of the cluster and then rests.
    pub(super) async fn converge(&mut self) -> anyhow::Result<()> {
        self.trace.add("all faults end");
        self.heal();
        self.api.crash_after(None);
        self.backend.kill_after(None);
        if self.link.is_old() {
            self.end_brain(true).await;
        }
        self.queue(Duration::ZERO, Due::StartBrain);
        self.play().await?;
        let deadline = Instant::now() + CONVERGENCE;
        loop {
            self.queue(PAUSE, Due::Heal);
            self.play().await?;
            let Some(missing) = self.missing() else {
                // What a sync may leave undone after a fault, such as the removal of unused chains, the next one does.
                if self.kernel.is_troubled() && Instant::now() < deadline {
                    let mut rng = StdRng::from_rng(&mut self.rng);
                    self.change(&mut rng);
                    continue;
                }
                break;
            };
            if self.ledger.violation().is_none() && Instant::now() > deadline {
                self.ledger.violated("converges", missing);
            }
            if self.ledger.violation().is_some() {
                return Ok(());
            }
        }
        self.trace.add("converged");
        self.check_fresh_plan();
        // Nothing happens without a reason, and a new backend finds nothing to change.
        let commits = self.kernel.commits();
        let revision = self.brain.as_ref().map(|running| running.brain.feed().state().revision());
        let is_affine = |object: &Arc<Value>| object["spec"]["sessionAffinity"] == "ClientIP";
        let has_affinity = S::KEEPS_SLOTS && self.api.with_objects(|objects| objects.values().any(is_affine));
        for restarts in [false, true] {
            if restarts && (has_affinity || self.kernel.ask(|kernel| kernel.has_strays())) {
                break;
            }
            if restarts {
                self.backend.kill();
            }
            self.queue(Duration::from_secs(60), Due::Heal);
            self.play().await?;
            if self.kernel.commits() != commits {
                self.ledger.violated("quiet-resync", format!("commits without a change; after a restart: {restarts}"));
            }
        }
        if self.brain.as_ref().map(|running| running.brain.feed().state().revision()) != revision {
            self.ledger.violated("quiet-idle", "a new revision without a change");
        }
        if let Some(brain) = &self.brain {
            brain.check_replay(&self.ledger);
        }
        self.check_no_leak();
        Ok(())
    }

    /// The state that follows from the objects.
    fn want(&self) -> Snapshot {
        self.api.with_objects(|objects| snapshot(objects, &self.node_ips))
    }

    /// What the node lacks to hold the state of the cluster.
    fn missing(&self) -> Option<String> {
        if self.writing || self.restored_from.is_some() && !self.queue.is_empty() {
            return Some("the controllers still write".to_owned());
        }
        let want = self.want();
        let Some(running) = &self.brain else { return Some("the brain does not run".to_owned()) };
        let state = running.brain.feed().state();
        if state.digest() != Digest::of(&want) {
            let have = state.snapshot().unwrap_or_default();
            return Some(format!("the brain serves {have:#?}\nand not {want:#?}"));
        }
        if Family::BOTH.into_iter().any(|family| self.ledger.applied()[family] != state.revision()) {
            return Some(format!("the backend has not applied {}", state.revision()));
        }
        if self.ledger.is_damaged() {
            return Some("the backend has not repaired the changes of another program".to_owned());
        }
        if let Some((kind, _)) = self.api.counts().iter().find(|(_, counts)| counts.open == 0) {
            return Some(format!("the brain does not watch {kind}"));
        }
        if let Some(unsettled) = self.kernel.ask(|kernel| kernel.unsettled()) {
            return Some(unsettled);
        }
        if self.kernel.flows().owes() {
            return Some("the backend has not tried again to end stale sockets".to_owned());
        }
        let report = running.reports.last(S::NAME).map(|received| received.report).unwrap_or_default();
        let reported = |family: &localnet_proto::wire::FamilyReport| {
            let revision = Revision { instance: report.instance_id, rev: family.applied_rev };
            revision == state.revision() && family.error.is_empty()
        };
        if report.families.len() != 2 || !report.families.iter().all(reported) {
            return Some(format!("the backend reports {report:?}"));
        }
        if let Some(skipped) = report.skipped.iter().find(|skipped| !S::SKIPS.contains(&skipped.code.as_str())) {
            return Some(format!("the backend skips {skipped:?}"));
        }
        // Damage that packets do not meet is repaired later, and what a fault has left is removed by the next sync.
        self.differences(&want).filter(|_| !S::NAMES_REPAIRS && !self.kernel.is_troubled())
    }

    /// Neither tasks nor file descriptors remain of former brains, backends and connections.
    fn check_no_leak(&self) {
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let mut descriptors = descriptors();
        // The threads with which former brains watched their sockets end in their own time, not in the simulated one.
        let began = std::time::Instant::now();
        while descriptors.len() > MOST_DESCRIPTORS && began.elapsed() < THREADS_END {
            std::thread::park_timeout(Duration::from_millis(10));
            descriptors = self::descriptors();
        }
        if tasks > MOST_TASKS || descriptors.len() > MOST_DESCRIPTORS {
            let open: Vec<_> = descriptors.iter().filter_map(|one| std::fs::read_link(one.path()).ok()).collect();
            self.ledger.violated("no-leak", format!("{tasks} tasks and {} files remain: {open:?}", descriptors.len()));
        }
    }

    /// The kernel serves what a new backend programs on an empty kernel, and its other objects are equal, too.
    fn check_fresh_plan(&self) {
        let state = self.want();
        let (has, wants) = (self.kernel.contents(), self.empty.clone().after(&state));
        if has.served() != wants.served() {
            self.ledger.violated("fresh-plan", format!("{}\nand not\n{}", has.served(), wants.served()));
        }
        if let Some(differences) = self.differences(&state) {
            self.ledger.violated("fresh-plan", differences);
        }
    }

    /// How the kernel's objects differ from those that a new backend programs.
    fn differences(&self, state: &Snapshot) -> Option<String> {
        let [has, wants] =
            [self.kernel.contents(), self.empty.clone().after(state)].map(|kernel| kernel.objects(state));
        let only = |one: &[String], other: &[String]| {
            one.iter().filter(|line| !other.contains(line)).fold(String::new(), |all, line| all + "\n  " + line)
        };
        (has != wants).then(|| format!("the kernel has{}\nand not{}", only(&has, &wants), only(&wants, &has)))
    }
}

/// The state that follows from the objects and the configuration of the node's addresses: the oracle.
fn snapshot(objects: &Objects, node_ips: &NodeIps) -> Snapshot {
    let mut cluster = Cluster::new(Options::of_node(crate::world::NODE));
    cluster.set_node_ips(node_ips.clone());
    for kind in Kind::ALL {
        let of_kind = objects.iter().filter(|((of, _), object)| *of == kind && crate::api::is_selected(kind, object));
        let objects = of_kind.filter_map(|(_, object)| read(kind, object).ok()).collect();
        cluster.handle(Change::Replace { kind, objects });
    }
    let Localized { node, services, .. } = cluster.localize().unwrap_or_default();
    let services = services.into_iter().filter_map(|(key, service)| Some((key, service?))).collect();
    Snapshot { revision: Revision::default(), node: node.unwrap_or_default(), services }
}

fn read(kind: Kind, object: &Value) -> serde_json::Result<Object> {
    use k8s_openapi::api::{core::v1, discovery::v1::EndpointSlice, networking::v1::ServiceCIDR};
    Ok(match kind {
        Kind::Service => Object::Service(v1::Service::deserialize(object)?.into()),
        Kind::Slice => Object::Slice(EndpointSlice::deserialize(object)?.into()),
        Kind::Node => Object::Node(v1::Node::deserialize(object)?.into()),
        Kind::ServiceCidr => Object::ServiceCidr(ServiceCIDR::deserialize(object)?.into()),
    })
}

/// The open file descriptors of this process.
fn descriptors() -> Vec<std::fs::DirEntry> {
    std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten().collect()
}
