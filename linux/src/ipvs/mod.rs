//! IPVS over generic netlink, without `ipvsadm`.
//!
//! ```text
//!  planner ──▶ server (plain values) ──▶ change ──┬─▶ text    (dry run, golden files, `ipvsadm -R`)
//!                                                 └─▶ encode ─▶ socket ─▶ kernel
//!                                   server ◀─ parse ◀───────────┘
//! ```
//!
//! A virtual server (the kernel calls it a service) is an address, a protocol and a port that clients send to; its
//! destinations (real servers) are where its scheduler sends each connection. Each network namespace has its own.
//!
//! IPVS has no transactions: each change succeeds or fails by itself, in the order in which they are given. Many of them
//! travel in one conversation. There are no notifications either: who wants to know what others changed must look.

mod change;
mod encode;
mod kernel;
mod list;
mod parse;
mod server;
mod settings;
mod socket;
mod text;

pub use change::{Change, Refused};
pub use list::{DestinationState, ServerState};
pub use server::{
    Connections, Destination, Flags, Forwarding, InvalidScheduler, Persistence, Scheduler, Timeouts, VirtualServer,
};
pub use settings::apply_settings;
pub use socket::{Applied, Error, Socket};
pub use text::{listing, script};

pub use crate::conntrack::Frontend;
pub use crate::nft::{Family, Protocol};
