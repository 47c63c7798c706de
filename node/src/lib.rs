//! Brain and one backend in one process, no gRPC between them: KEP-2104's in-memory mode.
//!
//! [`FeedSource`] hands the states of a brain's feed to the client library's loop: what others would be sent,
//! without a socket in between.

pub mod args;
mod feed_source;

pub use feed_source::FeedSource;
