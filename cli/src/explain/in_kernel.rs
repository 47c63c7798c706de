//! The path of a packet through the kernel: the steps of the plan, and whether the kernel holds them.

use localnet_client::vips::VipKey;
use localnet_proto::Family;
use serde::Serialize;

use crate::{
    kernel::{Held, Kernel},
    path::{self, Step},
    world::World,
};

/// The maximum number of slots of session affinity that are read.
const AFFINITY_SLOTS: u32 = 64;

/// One step of a packet through the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PathRow {
    /// The chain, set or map. For iptables, the table and the chain.
    pub place: String,
    /// The rule or element as the subsystem's tool prints it.
    pub text: String,
    /// The kernel's handle of the rule.
    pub handle: Option<u64>,
    /// Whether the kernel holds the object of the step: `yes`, `no`, `other` or `unknown`.
    pub held: &'static str,
    /// For `other`: the object that the kernel holds instead.
    pub found: Option<String>,
}

/// Returns each step, and whether the kernel holds the object of the step. If the kernel could not be read, also returns the
/// reason.
pub fn in_kernel(world: &mut World, family: Family, steps: &[Step]) -> (Vec<PathRow>, Option<String>) {
    let row = |step: &Step, held: Option<Held>| {
        let (held, handle, found) = match held {
            None => ("unknown", None, None),
            Some(Held::Yes(handle)) => ("yes", handle, None),
            Some(Held::No) => ("no", None, None),
            Some(Held::Other(found)) => ("other", None, Some(found)),
        };
        PathRow { place: step.place.clone(), text: step.text.clone(), handle, held, found }
    };
    let kernel = match &mut world.kernel {
        Ok(kernel) => kernel,
        Err(unknown) => return (steps.iter().map(|step| row(step, None)).collect(), Some(unknown.to_string())),
    };
    let mut unknown = None;
    let mut rows = Vec::new();
    for step in steps {
        let held = kernel.holds(family, step).map_err(|error| unknown = Some(error.to_string())).ok();
        rows.push(row(step, held));
    }
    (rows, unknown)
}

/// Returns the affinity slots of a VIP as the kernel holds them. A plan cannot predict which endpoint has which slot.
pub(super) fn affinity_rows(kernel: &mut Kernel, family: Family, key: &VipKey) -> Vec<PathRow> {
    let keys = (0..AFFINITY_SLOTS).map(|slot| path::affinity_key(key, slot));
    let found = kernel.affinity(family, keys).unwrap_or_default();
    let row = |endpoint: String| PathRow {
        place: "affinity-endpoints".to_owned(),
        text: endpoint,
        handle: None,
        held: "yes",
        found: None,
    };
    found.into_iter().map(row).collect()
}
