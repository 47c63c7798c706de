//! Windows has no `--shadow`: localnet cannot evaluate what HNS does to a packet.

use std::net::SocketAddr;

use clap::Args;
use localnet_client::vips::flags::ConfigArgs;
use localnet_config_file::Current;

use crate::{
    FeedSource,
    backends::{Ended, Work},
};

/// No flags.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShadowArgs {}

/// A comparison, which cannot exist.
#[derive(Debug)]
pub(crate) enum Shadow {}

impl ShadowArgs {
    /// Returns `None`.
    pub(crate) fn chosen(&self) -> Option<&Shadow> {
        None
    }

    /// Returns `None`.
    pub(crate) fn metrics_at(&self) -> Option<SocketAddr> {
        None
    }
}

/// Cannot be called.
pub(crate) fn run<'a>(shadow: &Shadow, _: &'a ConfigArgs, _: Current, _: FeedSource, _: Ended) -> Work<'a> {
    match *shadow {}
}
