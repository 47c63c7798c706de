//! Traffic: counts the connections, packets and bytes of each Service port and endpoint.
//!
//! The kernel counts the packets and bytes of every flow itself (`nf_conntrack_acct`), so counting costs no rule and no map
//! lookup for any packet. A thread adds the flows up: those that end, from an event of the kernel, and those that last, from a
//! regular dump of the table. No nf_tables object is involved, so replacing, adopting or repairing the tables loses no count.
//!
//! ```text
//!  backend ─ Change ─▶ Counter (a thread) ─▶ Ledger (pure) ─▶ Traffic
//!                         ▲   ▲     ▲
//!          Ends (events) ─┘   │     └─ conntrack::Kernel::translated (a dump)
//!                             └─ Source ─▶ Tally: other counters of the kernel
//! ```
//!
//! Connection tracking knows nothing about refused packets, so a backend can add a [`Source`] of other counters.

mod counter;
mod ends;
mod ledger;
mod tally;

pub use counter::{Counter, Reading, Source};
pub use ledger::{Change, Drains, Ledger, PortName, PortTotals, Reason, Refused, Served, Total, Traffic};
pub use tally::Tally;
