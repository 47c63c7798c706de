//! Settings of the node besides the rules: limits of connection tracking, and the OOM score of this process.

use anyhow::bail;
use localnet_config::{Config, Linux, Mode};
use tracing::{info, warn};

use crate::{
    conntrack::Limits,
    sysctl::{self, Set, Settings},
};

/// Applies the configured settings when a backend starts. Failures are logged and do not stop the backend.
pub fn start(config: &Linux) {
    Setup::from_config(config).at_start(&Settings::default());
}

/// Applies the configured settings of the node for a mode, but not those of this process.
///
/// # Errors
/// Returns an error if at least one setting could not be applied. The message lists these settings.
pub fn init(config: &Config, mode: Mode) -> anyhow::Result<()> {
    init_in(config, mode, &Settings::default())
}

/// Applies the settings under a root folder. A setting that fails does not stop the others.
fn init_in(config: &Config, mode: Mode, settings: &Settings) -> anyhow::Result<()> {
    let localhost = match config.node_ports_on_localhost(mode) {
        true => settings.ensure(ROUTE_LOCALNET, 1).map(drop),
        false => Ok(()),
    };
    let limits = Setup::from_config(&config.linux).init(settings);
    localhost?;
    limits
}

/// Sets `route_localnet` if the configuration asks for NodePorts on 127.0.0.1 in this mode. Packets to 127.0.0.1 can then be
/// translated and leave the node. Returns whether NodePorts can answer on 127.0.0.1. `remedy` tells the user how to switch
/// off NodePorts on 127.0.0.1.
pub fn route_localhost(config: &Config, mode: Mode, remedy: &str) -> bool {
    if !config.node_ports_on_localhost(mode) {
        return false;
    }
    match Settings::default().ensure(ROUTE_LOCALNET, 1) {
        Ok(Set::Already) => true,
        Ok(Set::From(_)) => {
            info!(
                "net.ipv4.conf.all.route_localnet was set to 1, so NodePorts answer on 127.0.0.1; to avoid this, {remedy}"
            );
            true
        }
        Err(error) => {
            warn!("{error}; NodePorts do not answer on 127.0.0.1: set the sysctl yourself, or {remedy}");
            false
        }
    }
}

const ROUTE_LOCALNET: &str = "proc/sys/net/ipv4/conf/all/route_localnet";

/// The settings of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Limits of connection tracking.
    pub limits: Limits,
    /// `oom_score_adj` of this process, from -1000 (never killed) to 1000 (killed first).
    pub oom_score: i16,
}

impl Setup {
    /// The settings in kube-proxy's configuration.
    pub fn from_config(config: &Linux) -> Self {
        let conntrack = &config.conntrack;
        let limits = Limits {
            max_per_core: conntrack.max_per_core,
            min: conntrack.min,
            tcp_established_timeout: conntrack.tcp_established_timeout,
            tcp_close_wait_timeout: conntrack.tcp_close_wait_timeout,
            tcp_be_liberal: conntrack.tcp_be_liberal,
            udp_timeout: conntrack.udp_timeout,
            udp_stream_timeout: conntrack.udp_stream_timeout,
        };
        Self { limits, oom_score: config.oom_score_adj }
    }

    /// Applies all settings when a backend starts. Failures are logged and do not stop the backend.
    pub fn at_start(&self, settings: &Settings) {
        for error in self.limit(settings) {
            warn!("{error}; run the command `init` once with more privileges, or change the setting yourself");
        }
        match sysctl::set_oom_score(settings, self.oom_score) {
            Ok(Set::Already) => {}
            Ok(Set::From(before)) => info!(before, now = self.oom_score, "oom_score_adj was changed"),
            // Lowering the score needs CAP_SYS_RESOURCE, which few deployments grant.
            Err(error) => info!("{error}; keeping the default OOM score"),
        }
    }

    /// Applies the settings of the node, but not those of this process. This is for an init container that runs with more
    /// privileges than the backend.
    ///
    /// # Errors
    /// Returns an error if at least one setting could not be applied. The message lists these settings.
    pub fn init(&self, settings: &Settings) -> anyhow::Result<()> {
        let errors = self.limit(settings);
        if errors.is_empty() {
            info!("the node's settings were applied");
            return Ok(());
        }
        let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
        bail!("{}", lines.join("; "))
    }

    /// Sets the limits of connection tracking, and returns the failures.
    fn limit(&self, settings: &Settings) -> Vec<sysctl::Error> {
        let mut errors = Vec::new();
        for done in self.limits.apply(settings) {
            match done {
                Ok((_, Set::Already)) => {}
                Ok((name, Set::From(before))) => info!(name, before, "a kernel setting was changed"),
                Err(error) => errors.push(error),
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use localnet_config::{Platform, Reader};

    use super::*;

    #[test]
    fn a_setting_that_fails_does_not_stop_the_others() {
        const UDP_TIMEOUT: &str = "proc/sys/net/netfilter/nf_conntrack_udp_timeout";
        for (localhost, has_route, has_timeout, expected) in [
            (true, true, true, None),
            (false, true, true, None),
            (true, false, true, Some("net.ipv4.conf.all.route_localnet")),
            (true, true, false, Some("net.netfilter.nf_conntrack_udp_timeout")),
        ] {
            let about = format!("{localhost} {has_route} {has_timeout}");
            let root = tempfile::tempdir().unwrap();
            for (name, value) in [(has_route, (ROUTE_LOCALNET, "0")), (has_timeout, (UDP_TIMEOUT, "30"))]
                .into_iter()
                .filter_map(|(has, setting)| has.then_some(setting))
            {
                let path = root.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, value).unwrap();
            }
            let text = format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\niptables: {{localhostNodePorts: {localhost}}}\n\
                 conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 17s}}\n"
            );
            let reader = Reader { platform: Platform::Linux, empty_mode: Mode::Iptables };
            let config = reader.read(&text).unwrap().config;
            let done = init_in(&config, Mode::Iptables, &Settings::at(root.path()));
            let value = |name: &str| std::fs::read_to_string(root.path().join(name)).ok();
            let route = has_route.then(|| if localhost { "1" } else { "0" }.to_owned());
            assert_eq!(value(ROUTE_LOCALNET), route, "{about}");
            assert_eq!(value(UDP_TIMEOUT), has_timeout.then(|| "17".to_owned()), "{about}");
            match (done, expected) {
                (Ok(()), None) => {}
                (Err(error), Some(setting)) => assert!(error.to_string().contains(setting), "{about}: {error}"),
                (done, _) => panic!("{about}: {done:?}"),
            }
        }
    }

    #[test]
    fn init_alone_fails_if_a_setting_cannot_be_applied() {
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
