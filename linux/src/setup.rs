//! How the node, and this process on it, are set up beside the rules: limits of connection tracking, and how readily the kernel
//! ends the process when memory is short.

use anyhow::bail;
use localnet_config::Linux;
use tracing::{info, warn};

use crate::{
    conntrack::Limits,
    sysctl::{self, Set, Settings},
};

/// How a node is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Limits of connection tracking.
    pub limits: Limits,
    /// How readily the kernel ends this process, -1000 (never) to 1000.
    pub oom_score: i16,
}

impl Setup {
    /// What kube-proxy's configuration says of it.
    pub fn of(said: &Linux) -> Self {
        let conntrack = &said.conntrack;
        let limits = Limits {
            max_per_core: conntrack.max_per_core,
            min: conntrack.min,
            tcp_established_timeout: conntrack.tcp_established_timeout,
            tcp_close_wait_timeout: conntrack.tcp_close_wait_timeout,
            tcp_be_liberal: conntrack.tcp_be_liberal,
            udp_timeout: conntrack.udp_timeout,
            udp_stream_timeout: conntrack.udp_stream_timeout,
        };
        Self { limits, oom_score: said.oom_score_adj }
    }

    /// Sets up what this process may, and says what it may not: rules are programmed all the same.
    pub fn at_start(&self, settings: &Settings) {
        for error in self.limit(settings) {
            warn!("{error}; run the command `init` once with more privileges, or set it otherwise");
        }
        match sysctl::set_oom_score(settings, self.oom_score) {
            Ok(Set::Already) => {}
            Ok(Set::From(before)) => info!(before, now = self.oom_score, "set oom_score_adj"),
            // Nearly no program may make it less.
            Err(error) => info!("{error}; the kernel ends this process as readily as others"),
        }
    }

    /// Sets up the node, and nothing of this process: for a process of its own, with the privileges that it takes.
    ///
    /// # Errors
    /// Not everything could be set.
    pub fn init(&self, settings: &Settings) -> anyhow::Result<()> {
        let errors = self.limit(settings);
        if errors.is_empty() {
            info!("the node is set up");
            return Ok(());
        }
        let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
        bail!("{}", lines.join("; "))
    }

    /// Sets the limits; what failed.
    fn limit(&self, settings: &Settings) -> Vec<sysctl::Error> {
        let mut errors = Vec::new();
        for done in self.limits.apply(settings) {
            match done {
                Ok((_, Set::Already)) => {}
                Ok((name, Set::From(before))) => info!(name, before, "set"),
                Err(error) => errors.push(error),
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    #[test]
    fn what_cannot_be_set_is_an_error_of_init_alone() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let read = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        let (timeout, score) = ("proc/sys/net/netfilter/nf_conntrack_udp_timeout", "proc/self/oom_score_adj");
        write(timeout, "30");
        write(score, "0");
        let limits = Limits { udp_timeout: Some(Duration::from_secs(17)), ..Limits::default() };
        let settings = Settings::at(root.path());
        let setup = Setup { limits: limits.clone(), oom_score: -998 };
        setup.init(&settings).unwrap();
        assert_eq!((read(timeout), read(score)), ("17".to_owned(), "0".to_owned()));
        let impossible = Setup { limits: Limits { tcp_be_liberal: true, ..limits }, oom_score: -998 };
        impossible.at_start(&settings);
        assert_eq!(read(score), "-998");
        let error = impossible.init(&settings).unwrap_err().to_string();
        assert!(error.contains("failed to read net.netfilter.nf_conntrack_tcp_be_liberal"), "{error}");
    }
}
