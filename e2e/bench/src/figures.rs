//! All that a run found out, as `docs/performance.json` holds it. Times are in milliseconds, memory in MiB, unless a name says otherwise.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{machine::Machine, statistics::Times};

/// Everything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) machine: Machine,
    /// Fewer and smaller sizes, shorter times: to see that all works, not to compare.
    pub(crate) quick: bool,
    /// Changes a second that were asked for.
    pub(crate) rate: u32,
    pub(crate) runs: Vec<Run>,
    /// From a state in memory, without brain and API server.
    #[serde(default)]
    pub(crate) kernel: Vec<Kernel>,
    /// Steps alone: name → nanoseconds.
    #[serde(default)]
    pub(crate) steps: BTreeMap<String, f64>,
}

/// One contestant at one size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) contestant: String,
    pub(crate) services: u32,
    /// Of each Service.
    pub(crate) endpoints: u32,
    /// None: not within the time that it was given.
    pub(crate) start: Option<Start>,
    pub(crate) connect: Option<Connect>,
    pub(crate) change: Option<Change>,
    pub(crate) load: Option<UnderLoad>,
    pub(crate) delete: Option<Delete>,
    pub(crate) readers: Option<Readers>,
    /// From a flush by another process until packets are answered again.
    #[serde(default)]
    pub(crate) repair: Option<Times>,
    /// Share of all processors that neither contestant nor control plane nor benchmark used meanwhile, in percent.
    pub(crate) others_percent: f64,
}

/// From the start of the programs until every Service is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) took: f64,
    pub(crate) cpu: f64,
    pub(crate) memory: BTreeMap<String, Memory>,
}

/// Of one process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) resident: f64,
    /// At most so far.
    pub(crate) peak: f64,
}

/// New TCP connections, medians in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Connect {
    pub(crate) n: usize,
    /// Directly, before the contestant was started: nothing looks at packets.
    pub(crate) bare_us: f64,
    /// Directly, with all rules: where these are a list, it is gone through to its end.
    pub(crate) direct_us: f64,
    pub(crate) first_us: f64,
    pub(crate) middle_us: f64,
    pub(crate) last_us: f64,
}

impl Connect {
    /// Through the slowest VIP.
    pub(crate) fn slowest_us(&self) -> f64 {
        [self.first_us, self.middle_us, self.last_us].into_iter().fold(f64::MIN, f64::max)
    }

    /// What that costs more than to go directly at the same time.
    pub(crate) fn extra_us(&self) -> f64 {
        self.slowest_us() - self.direct_us
    }
}

/// One endpoint changed, until a packet is seen to go elsewhere.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    /// Since the API server told the change: its answer to the write, or its event to a third party, whichever was first.
    pub(crate) event: Times,
    /// Since the write was sent to the API server.
    pub(crate) write: Times,
    /// Changes that were not seen within the time that they were given.
    pub(crate) lost: usize,
}

/// The same, while many other Services change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UnderLoad {
    pub(crate) change: Option<Change>,
    /// Changes of others that the API server took each second.
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
    /// CPU time of the contestant in each second.
    pub(crate) cpu_per_second: f64,
    /// The same of the control plane and of the benchmark itself, which have to share the processors with it.
    pub(crate) surroundings_per_second: f64,
    pub(crate) memory: BTreeMap<String, Memory>,
}

/// All Services and EndpointSlices deleted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Delete {
    /// How long the API server took.
    pub(crate) api: f64,
    /// From then until nothing is answered any more; none: not in time.
    pub(crate) after: Option<f64>,
    pub(crate) cpu: f64,
}

/// Many readers of one brain.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Readers {
    pub(crate) readers: usize,
    pub(crate) stalled: usize,
    /// The brain's resident memory without and with them.
    pub(crate) memory: [f64; 2],
    /// One endpoint changed, until the backend's packets go elsewhere, without and with them.
    pub(crate) change: [Times; 2],
    /// From the first reader's answer to the last one's, of those that read.
    pub(crate) spread: Times,
}

/// An empty kernel → all rules.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Kernel {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    pub(crate) median: f64,
    /// What one commit of it took at most.
    pub(crate) longest: f64,
    /// `nft -f` of the same.
    pub(crate) nft: Option<f64>,
}

impl Figures {
    /// The run of a contestant at a size.
    pub(crate) fn run(&self, contestant: &str, services: u32) -> Option<&Run> {
        self.runs.iter().find(|run| run.contestant == contestant && run.services == services)
    }

    /// The sizes, smallest first.
    pub(crate) fn sizes(&self) -> Vec<(u32, u32)> {
        let mut sizes: Vec<_> = self.runs.iter().map(|run| (run.services, run.endpoints)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}
