//! Connection tracking after a change of endpoints: deletes the entries that would keep a flow at an endpoint that
//! no longer serves.
//!
//! A packet of a tracked flow never reaches the NAT rules again, so a new rule alone does not move it. UDP and SCTP
//! clients may send for hours without an answer, and a TCP connection attempt that is repeated from the same port
//! sticks as well.
//!
//! ```text
//!  backend ─ Commit ─▶ Cleaner (a thread) ─ set, remove ─▶ Reconciler ─ run ─▶ Conntrack::dump ─▶ is_stale (pure) ─▶ Conntrack::delete
//! ```
//!
//! Refuses to flush: each deletion names one entry, by its reply tuple and the kernel's id of it. An entry whose
//! destination is no known frontend is never touched, an established TCP connection neither.

mod cleaner;
#[cfg(test)]
mod fake;
mod flow;
mod frontends;
mod kernel;
#[cfg(test)]
mod laws;
mod limits;
mod recheck;
mod reconcile;
mod reconciler;

pub use cleaner::{Cleaner, Commit};
pub use flow::{Counters, Flow, Selection, Status, TcpState, Tuple, Zone};
pub use frontends::{Endpoints, Frontend, Frontends, Serving};
pub use kernel::{Conntrack, Error, Kernel};
pub use limits::Limits;
pub use recheck::Recheck;
pub use reconcile::is_stale;
pub use reconciler::{Due, OfFamily, Reconciler, Report};

pub use crate::nft::{Family, Protocol};
