//! Tests of the gRPC server from a client's side: generated clients, over real unix and TCP sockets, and a feed that the
//! tests fill.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod history;
mod hostile;
mod introspection;
mod memory;
mod next;
mod readers;
mod reasons;
mod server;
mod sockets;
mod state;
mod status;
mod tls;
mod watch;
