//! Runs the brain and one backend in one process, without gRPC between them: KEP-2104's in-memory mode.
//!
//! [`FeedSource`] passes the states of the brain's feed to the loop of the client library. Other backends get the same
//! states over a socket.

pub mod args;
pub mod backends;
mod feed_source;

pub use feed_source::FeedSource;
