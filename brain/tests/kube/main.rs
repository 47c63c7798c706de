//! The watches against an API server that the test plays, request by request. A real one is used elsewhere.

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
