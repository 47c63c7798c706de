//! IPVS over generic netlink, without `ipvsadm`.
//!
//! ```text
//!  planner ──▶ server (plain values) ──▶ change ──┬─▶ text    (dry run, golden files, `ipvsadm -R`)
//!                                                 └─▶ encode ─▶ socket ─▶ kernel
//!                                   server ◀─ parse ◀───────────┘
//! ```
//!
//! A virtual server (the kernel calls it a service) is an address, a protocol and a port that clients send to. Its scheduler
//! distributes new connections over its destinations (real servers). Each network namespace has virtual servers of its own.
//!
//! IPVS has no transactions: the kernel applies changes in order, and each change succeeds or fails independently of the others.
//! One batch contains many changes. IPVS sends no notifications either, so a program that wants to see the changes of others has
//! to poll.

mod change;
mod encode;
mod list;
mod parse;
mod server;
mod settings;
mod socket;
mod text;
mod uapi;

pub use change::{Change, Refused};
pub use server::{
    Connections, Destination, DestinationState, Flags, Forwarding, InvalidScheduler, Persistence, Scheduler,
    ServerState, Timeouts, VirtualServer,
};
pub use settings::apply_settings;
pub use socket::{Applied, Error, Socket};
pub use text::{listing, script};

pub use crate::conntrack::Frontend;
