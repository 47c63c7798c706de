//! Connection tracking after endpoints change: deletes the entries that would keep a flow at an endpoint that is no longer
//! eligible.
//!
//! Packets of a tracked flow do not pass the NAT rules again, so a new rule has no effect on the flow. UDP and SCTP clients may
//! keep sending for hours without an answer. A TCP client that repeats an unanswered SYN from the same port also keeps its entry.
//!
//! ```text
//!  backend ─ Commit ─▶ Queue ─▶ Cleaner (a thread) ─ set, remove ─▶ Reconciler ─ run ─▶ Conntrack::dump ─▶ is_stale (pure) ─▶ Conntrack::delete
//! ```
//!
//! The module never flushes the table: each deletion identifies one entry by its reply tuple and the kernel's ID. It never
//! deletes an established TCP connection unless its Service requests this (`closing`), or an entry whose destination is not one of
//! the backend's frontends.

mod cleaner;
mod closing;
mod flow;
mod frontends;
pub(crate) mod kernel;
mod limits;
mod queue;
mod recheck;
mod reconciler;
mod stale;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use cleaner::Cleaner;
pub(crate) use cleaner::processor_time;
pub use flow::{Counters, Flow, Selection, Status, TcpState, Tuple, Volume, Zone};
pub use frontends::{Endpoints, Frontend, Frontends, Serving};
pub use kernel::{Conntrack, Error, Kernel, Part};
pub use limits::Limits;
pub use queue::{Commit, Queue};
pub use recheck::Recheck;
pub use reconciler::{Due, FamilyReport, Reconciler, Report};
pub use stale::is_stale;
