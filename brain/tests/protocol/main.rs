//! The protocol as a client sees it: generated clients, over real unix and TCP sockets, against a feed filled by hand.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod hostile;
mod introspection;
mod memory;
mod next;
mod readers;
mod reasons;
mod server;
mod sockets;
mod tls;
mod watch;
