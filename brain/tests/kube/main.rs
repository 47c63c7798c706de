//! Tests of the `kube` source with a fake API server. The tests in `e2e` use a real one.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod absent;
mod configuration;
mod credentials;
mod events;
mod fake;
mod faulty;
mod half_open;
mod interrupted;
mod listing;
mod log;
mod unreadable;
