//! The faults. To add one, add a row to [`FAULTS`], and what it does to [`inject`].

use std::time::Duration;

use localnet_cluster::objects::Kind;
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};

use crate::{
    api::{Api, End, Mood},
    kernel::{CommitFault, Kernel},
    link::Link,
    subsystem::Subsystem,
};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The API server drops its history.
    Compaction,
    /// The watches of a kind end, in one of the ways of [`End`].
    EndedWatches,
    /// The watches of a kind deliver nothing more, as over a half-open connection.
    SilentWatches,
    /// The changes of a kind arrive late.
    SlowWatches,
    /// The API server cannot be reached for a while.
    ApiDown,
    /// The API server answers with an error for a while: 429, 500 or 503.
    ApiRefuses,
    /// The API server accepts requests for a while, but answers none.
    ApiHangs,
    /// The API server breaks off in the middle of some pages of lists for a while.
    TruncatedLists,
    /// etcd is restored from a backup.
    Restore,
    /// The brain is killed or stopped, and starts again later.
    BrainEnds,
    /// The brain crashes in the middle of one of its next requests to the API server, and starts again later.
    BrainCrashes,
    /// The brain is replaced by one of an older version, which sends no deltas, and knows neither reports nor `localnet.v1`.
    Downgrade,
    /// The configuration of the node's addresses changes.
    Configuration,
    /// The backend is killed at one of its next polls, and starts again later.
    BackendEnds,
    /// Time passes, and no task runs, as if the machine was suspended.
    StandStill,
    /// The wall clock jumps.
    ClockJump,
    /// Some of the next commits fail, in one of the ways of [`CommitFault`].
    FailedCommits,
    /// The kernel lacks memory for some of the commits for a while.
    ShortMemory,
    /// The backend lacks its privileges for a while.
    Denied,
    /// Reads of the kernel fail for a while.
    Unreadable,
    /// The kernel refuses an object for a while.
    RefusedObject,
    /// Another program changes the backend's objects.
    ForeignEdit,
    /// The backend requests states late for a while.
    SlowReader,
    /// Calls from the backend to the brain break off for a while, in one of the ways of `Cut`.
    BrokenCalls,
    /// Flows can be neither read nor deleted for a while.
    UnreadableFlows,
    /// The thread that deletes stale flows does not get to run for a while.
    LateCleaner,
    /// Packets that are in flight create some of the deleted flows again.
    LatePackets,
}

impl Fault {
    /// Whether the fault has an effect only if the backend changes something meanwhile.
    pub fn needs_change(self) -> bool {
        use Fault::{Denied, FailedCommits, LateCleaner, RefusedObject, ShortMemory, UnreadableFlows};
        matches!(self, FailedCommits | ShortMemory | Denied | RefusedObject | UnreadableFlows | LateCleaner)
    }
}

/// The faults, and how many of a hundred steps of a run with this fault are such a fault.
pub const FAULTS: [(Fault, u32); 27] = [
    (Fault::Compaction, 4),
    (Fault::EndedWatches, 8),
    (Fault::SilentWatches, 2),
    (Fault::SlowWatches, 3),
    (Fault::ApiDown, 3),
    (Fault::ApiRefuses, 3),
    (Fault::ApiHangs, 2),
    (Fault::TruncatedLists, 3),
    (Fault::Restore, 3),
    (Fault::BrainEnds, 4),
    (Fault::BrainCrashes, 4),
    (Fault::Downgrade, 2),
    (Fault::Configuration, 4),
    (Fault::BackendEnds, 4),
    (Fault::StandStill, 3),
    (Fault::ClockJump, 3),
    (Fault::FailedCommits, 10),
    (Fault::ShortMemory, 3),
    (Fault::Denied, 3),
    (Fault::Unreadable, 2),
    (Fault::RefusedObject, 4),
    (Fault::ForeignEdit, 5),
    (Fault::SlowReader, 4),
    (Fault::BrokenCalls, 4),
    (Fault::UnreadableFlows, 4),
    (Fault::LateCleaner, 4),
    (Fault::LatePackets, 4),
];

/// What the driver has to do about a fault that concerns more than the API server or the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Nothing.
    Nothing,
    /// End the fault after this time.
    HealAfter(Duration),
    /// Restore the backup.
    Restore,
    /// End the brain, and start it again after this time. If `gracefully` is set, it gets a signal. Otherwise it is
    /// killed after its tasks have been polled this many times.
    EndBrain {
        /// Whether the brain can finish its work.
        gracefully: bool,
        /// After how many polls.
        polls: u32,
        /// How long it is down.
        down: Duration,
    },
    /// Kill the backend after it has been polled this many times.
    EndBackend {
        /// After how many polls.
        polls: u32,
    },
    /// Let this time pass while no task runs.
    StandStill(Duration),
    /// Change the configuration of the brain.
    Configure,
    /// Let another program change the backend's objects so many more times, a few milliseconds apart.
    EditAgain(u32),
}

/// Injects a fault.
pub fn inject<S: Subsystem>(fault: Fault, rng: &mut StdRng, api: &Api, kernel: &Kernel<S>, link: &Link) -> Todo {
    let kind = *Kind::ALL.choose(rng).unwrap_or(&Kind::Slice);
    let polls = rng.random_range(0..60);
    let longest = if rng.random_bool(0.1) { 200_000 } else { 20_000 };
    let a_while = Duration::from_millis(rng.random_range(10..longest));
    match fault {
        Fault::Compaction => {
            api.compact();
            // The next watch may start at a version that no longer exists.
            if rng.random() {
                api.end(kind, if rng.random() { End::Closed } else { End::Broken });
            }
        }
        Fault::EndedWatches => {
            let ends = [End::Closed, End::Broken, End::Cut, End::Expired];
            api.end(kind, *ends.choose(rng).unwrap_or(&End::Closed));
        }
        Fault::SilentWatches => api.silence(kind),
        Fault::SlowWatches => {
            api.set_latency(kind, a_while / 10);
            return Todo::HealAfter(a_while);
        }
        Fault::ApiDown | Fault::ApiRefuses | Fault::ApiHangs | Fault::TruncatedLists => {
            let code = *[429, 500, 503].choose(rng).unwrap_or(&500);
            api.set_mood(match fault {
                Fault::ApiDown => Mood::Down,
                Fault::ApiRefuses => Mood::Refusing(code),
                Fault::ApiHangs => Mood::Hanging,
                _ => Mood::Truncating,
            });
            // Without lists, none breaks off.
            let has_lists = fault == Fault::TruncatedLists;
            if has_lists || rng.random() {
                let end = if has_lists || rng.random() { End::Expired } else { End::Broken };
                Kind::ALL.into_iter().for_each(|kind| api.end(kind, end));
                // The brain then has to list what it has missed.
                if rng.random() {
                    api.forget();
                }
            }
            return Todo::HealAfter(a_while);
        }
        Fault::Restore => return Todo::Restore,
        Fault::BrainEnds => return Todo::EndBrain { gracefully: rng.random(), polls, down: a_while / 4 },
        Fault::BrainCrashes => {
            api.crash_after(Some(rng.random_range(0..8)));
            if rng.random() {
                api.end(kind, End::Expired);
            }
        }
        Fault::Downgrade => {
            link.downgrade_next();
            return Todo::EndBrain { gracefully: rng.random(), polls, down: a_while / 4 };
        }
        Fault::Configuration => return Todo::Configure,
        Fault::BackendEnds => return Todo::EndBackend { polls },
        Fault::StandStill => return Todo::StandStill(a_while),
        Fault::ClockJump => link.jump(rng.random(), a_while * 100),
        Fault::FailedCommits => {
            use CommitFault::{AnswerLost, CrashAfter, CrashBefore, EditAfter, EditBefore, Short, Unanswered};
            let all = [Short, Unanswered, AnswerLost, CrashBefore, CrashAfter, EditBefore, EditAfter];
            let spared = if rng.random() { 0 } else { rng.random_range(1..12) };
            let count = if rng.random() { 1 } else { rng.random_range(2..6_u8) };
            let faults = (0..count).filter_map(|_| all.choose(rng).copied());
            kernel.fail_after(spared, faults.collect());
        }
        Fault::ShortMemory => {
            kernel.set_short();
            return Todo::HealAfter(a_while);
        }
        Fault::Denied => {
            kernel.deny();
            return Todo::HealAfter(a_while);
        }
        Fault::Unreadable => {
            kernel.hide();
            return Todo::HealAfter(a_while);
        }
        Fault::RefusedObject => {
            kernel.hate();
            // Some of the objects have to be written again.
            if rng.random() {
                kernel.edit(false, false);
            }
            // A backend that starts meets them right after it has read everything. They are refused until another fault ends.
            if rng.random_bool(0.3) {
                return Todo::EndBackend { polls };
            }
            return Todo::HealAfter(a_while);
        }
        Fault::SlowReader => {
            link.set_pause(a_while / 10);
            return Todo::HealAfter(a_while);
        }
        Fault::BrokenCalls => {
            link.break_calls();
            return Todo::HealAfter(a_while);
        }
        Fault::UnreadableFlows => {
            kernel.flows().set_failing(true);
            return Todo::HealAfter(a_while);
        }
        Fault::LateCleaner => {
            kernel.flows().set_busy(true);
            return Todo::HealAfter(a_while);
        }
        Fault::LatePackets => kernel.flows().set_late(rng.random_range(1..5)),
        Fault::ForeignEdit => {
            kernel.edit(rng.random_bool(0.3), rng.random_bool(0.3));
            if rng.random_bool(0.3) {
                return Todo::EditAgain(rng.random_range(1..20));
            }
        }
    }
    Todo::Nothing
}
