//! Runs the brain and one backend in one process, without gRPC between them: KEP-2104's in-memory mode.
//!
//! [`FeedSource`] passes the states of the brain's feed to the loop of the client library. Other backends get the same
//! states over a socket. On Linux, in place of a backend, `shadow` compares what kube-proxy's rules do with what localnet would do.

pub mod args;
pub mod backends;
mod feed_source;
#[cfg(windows)]
mod no_shadow;
#[cfg(unix)]
pub mod shadow;
#[cfg(windows)]
use no_shadow as shadow;

pub use feed_source::FeedSource;
