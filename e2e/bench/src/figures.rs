//! The results of a run, in the format of `docs/performance.json`. Times are in milliseconds and memory is in MiB, unless a name
//! says otherwise.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{cluster::Size, machine::Machine, statistics::Times};

/// All results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) machine: Machine,
    /// Whether the sizes and times were reduced, to test the benchmark and not to compare.
    pub(crate) quick: bool,
    /// The requested number of changes per second.
    pub(crate) rate: u32,
    pub(crate) runs: Vec<Run>,
    /// The brain without a backend.
    #[serde(default)]
    pub(crate) alone: Vec<Alone>,
    /// What reaches a reader of a busy cluster's activity.
    #[serde(default)]
    pub(crate) reduction: Option<Reduction>,
    /// Recorded changes, replayed.
    #[serde(default)]
    pub(crate) replay: Vec<Replay>,
    /// Programming the kernel from a state in memory, without brain and API server.
    #[serde(default)]
    pub(crate) kernel: Vec<Kernel>,
    /// The same for the ebpf backend.
    #[serde(default)]
    pub(crate) ebpf: Option<Ebpf>,
    /// Single steps: name → nanoseconds.
    #[serde(default)]
    pub(crate) steps: BTreeMap<String, f64>,
}

/// One contestant at one size.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) contestant: String,
    pub(crate) services: u32,
    /// The number of endpoints of each Service.
    pub(crate) endpoints: u32,
    /// Whether the Services have session affinity.
    #[serde(default)]
    pub(crate) affinity: bool,
    /// The start. `None` if it exceeded its time limit.
    pub(crate) start: Option<Start>,
    pub(crate) connect: Option<Connect>,
    pub(crate) change: Option<Change>,
    pub(crate) load: Option<UnderLoad>,
    pub(crate) delete: Option<Delete>,
    pub(crate) readers: Option<Readers>,
    /// The time from a flush by another program until packets are answered again.
    #[serde(default)]
    pub(crate) repair: Option<Times>,
    #[serde(default)]
    pub(crate) traffic: Option<Traffic>,
    #[serde(default)]
    pub(crate) kills: Option<Kills>,
    /// The share of the machine's CPU time in percent that neither contestant, control plane nor benchmark used during the run.
    pub(crate) others_percent: f64,
}

/// The time from the start of the programs until every Service answers, and its costs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) took: f64,
    pub(crate) cpu: f64,
    pub(crate) memory: BTreeMap<String, Memory>,
}

/// The memory of one process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) resident: f64,
    /// The peak of the resident memory.
    pub(crate) peak: f64,
}

/// The time to establish new TCP connections: medians in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Connect {
    pub(crate) n: usize,
    /// A direct connection to an endpoint before the contestant was started, so without any rules.
    pub(crate) bare_us: f64,
    /// A direct connection to an endpoint with all rules. If the rules are a list, the packet passes its end.
    pub(crate) direct_us: f64,
    pub(crate) first_us: f64,
    pub(crate) middle_us: f64,
    pub(crate) last_us: f64,
}

impl Connect {
    /// The time through the slowest VIP.
    pub(crate) fn slowest_us(&self) -> f64 {
        [self.first_us, self.middle_us, self.last_us].into_iter().fold(f64::MIN, f64::max)
    }

    /// The extra time through that VIP, compared with a direct connection at the same time.
    pub(crate) fn extra_us(&self) -> f64 {
        self.slowest_us() - self.direct_us
    }
}

/// The time from the change of one endpoint until a packet goes to another endpoint.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    /// The time since the API server's first message about the change: the answer to the write, or the event to another
    /// watcher.
    pub(crate) event: Times,
    /// The time since the write was sent to the API server.
    pub(crate) write: Times,
    /// The number of changes without an effect within the time limit.
    pub(crate) lost: usize,
}

/// The time of a change, while many other Services change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UnderLoad {
    pub(crate) change: Option<Change>,
    /// The changes of other Services per second that the API server accepted.
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
    /// CPU time of the contestant per second.
    pub(crate) cpu_per_second: f64,
    /// CPU time per second of the control plane and the benchmark, which share the processors with the contestant.
    pub(crate) surroundings_per_second: f64,
    pub(crate) memory: BTreeMap<String, Memory>,
}

/// The time to delete all Services and EndpointSlices.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Delete {
    /// The API server's part of the time.
    pub(crate) api: f64,
    /// The time from the API server's last deletion until no VIP answers. `None` if the time exceeded its limit.
    pub(crate) after: Option<f64>,
    pub(crate) cpu: f64,
}

/// Many readers of one brain.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Readers {
    pub(crate) readers: usize,
    pub(crate) stalled: usize,
    /// The brain's resident memory, without and with the readers.
    pub(crate) memory: [f64; 2],
    /// The time of a change until the backend's packets go to another endpoint, without and with the readers.
    pub(crate) change: [Times; 2],
    /// The time from the first reader's answer to the last one's, without stalled readers.
    pub(crate) spread: Times,
}

/// The rate of connections and the throughput.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Traffic {
    /// Directly to the endpoint.
    pub(crate) direct: Flow,
    /// Through the VIP.
    pub(crate) vip: Flow,
}

/// Means.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Flow {
    /// New TCP connections per second, one after the other.
    pub(crate) connections: f64,
    /// Megabits per second of one TCP connection.
    pub(crate) tcp_megabits: f64,
    /// Megabits per second that arrived in datagrams of 1,400 bytes from one sender.
    pub(crate) udp_megabits: f64,
}

/// Kills of the contestant's programs with SIGKILL, under load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Kills {
    pub(crate) kills: usize,
    /// The number of connections that a pod opened in the meantime.
    pub(crate) connections: usize,
    /// The number of those that were not accepted.
    pub(crate) failed: usize,
    /// The time from the start of a program until the change of an endpoint, written at that moment, has reached packets.
    /// `None` if no change was seen in time.
    pub(crate) recovery: Option<Times>,
}

/// The brain with one reader and without a backend, at one size.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Alone {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    /// The time from the start of the brain until the reader has the whole state.
    pub(crate) start: f64,
    /// The brain's CPU time until then.
    pub(crate) cpu: f64,
    pub(crate) memory: Memory,
    /// The time since the API server's first message about a changed endpoint, until the reader has the change.
    pub(crate) change: Times,
}

/// The counts of `benches/reduction.rs`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Reduction {
    /// Writes to the API server.
    pub(crate) writes: usize,
    /// Events that the brain's watches delivered, and their bytes as JSON.
    pub(crate) events: usize,
    pub(crate) event_bytes: usize,
    /// Revisions of the node's state, and the bytes that a reader got for them.
    pub(crate) revisions: usize,
    pub(crate) reader_bytes: usize,
}

/// The medians of `benches/ebpf.rs` in ms.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ebpf {
    /// To load and attach all programs.
    pub(crate) attach: f64,
    /// To load 10,000 Services of three endpoints.
    pub(crate) load: f64,
    /// To replace one endpoint.
    pub(crate) change: f64,
}

/// The figures of `benches/replay.rs`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Replay {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    pub(crate) changes: u32,
    /// The time of `localnet replay`.
    pub(crate) took: f64,
    pub(crate) trace_bytes: u64,
    /// The bytes that the brain's history needs for one change.
    pub(crate) recorded_bytes: f64,
}

/// The time from an empty kernel to all rules.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Kernel {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
    pub(crate) median: f64,
    /// The time of the longest commit.
    pub(crate) longest: f64,
    /// The time of `nft -f` with the same rules.
    pub(crate) nft: Option<f64>,
}

impl Run {
    pub(crate) fn size(&self) -> Size {
        Size { services: self.services, endpoints: self.endpoints, affinity: self.affinity }
    }
}

impl Figures {
    /// The run of a contestant at the usual size with this number of Services.
    pub(crate) fn run(&self, contestant: &str, services: u32) -> Option<&Run> {
        let mut runs = self.runs.iter().filter(|run| run.size().is_usual());
        runs.find(|run| run.contestant == contestant && run.services == services)
    }

    /// The sizes, smallest first.
    pub(crate) fn sizes(&self) -> Vec<Size> {
        let mut sizes: Vec<_> = self.runs.iter().map(Run::size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}
