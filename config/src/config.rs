//! Values that programs derive from a [`Config`].

use std::time::Duration;

use crate::{
    model::Mode,
    table::{Config, Logging},
};

impl Config {
    /// The minimum time between two syncs for a backend whose syncs take time in proportion to the changes.
    ///
    /// This is `minSyncPeriod` if the configuration sets it explicitly. Otherwise it is zero, and not kube-proxy's
    /// default of one second: kube-proxy needs that default only for syncs whose duration grows with the cluster.
    pub fn min_interval(&self) -> Duration {
        if self.explicit.min_sync_period { self.min_sync_period } else { Duration::ZERO }
    }

    /// The bit of the packet mark that requests masquerading in a mode, 0–31.
    pub fn masquerade_bit(&self, mode: Mode) -> u8 {
        match mode {
            Mode::Ipvs => self.ipvs.masquerade_bit,
            Mode::Nftables => self.nftables.masquerade_bit,
            Mode::Iptables | Mode::Kernelspace => self.iptables.masquerade_bit,
        }
    }
}

impl Logging {
    /// The log level for `verbosity`. As in kube-proxy, values below 4 log only the usual lines, and values from 6 on log
    /// everything.
    pub fn level(&self) -> &'static str {
        match self.verbosity {
            0..4 => "info",
            4..6 => "debug",
            _ => "trace",
        }
    }
}
