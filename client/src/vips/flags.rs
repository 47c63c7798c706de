//! The flags that choose how to program the node. They and the file of `--config` determine the configuration.

use std::io::{self, Write as _};

use anyhow::{bail, ensure};
use clap::Args;
use localnet_config::{
    KubeProxyFlags, Mode, Platform, Reader,
    flags::{Part, ToDo},
};
use localnet_config_file::{Begin, Running, begin};
use tracing::warn;

use super::Config;

/// The flags that determine how the node is programmed; every backend that proxies has them.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    /// Bit of the packet mark that requests masquerading; overrides the configuration
    #[arg(long, value_name = "BIT", value_parser = clap::value_parser!(u8).range(0..32))]
    pub masquerade_bit: Option<u8>,
    /// kube-proxy's flags, `--config` among them.
    #[command(flatten)]
    pub kube_proxy: KubeProxyFlags,
}

impl ConfigArgs {
    /// Reads the configuration. If the configured mode is empty, `mode` applies. With `--write-config-to`, writes the
    /// configuration to that file and returns `None`.
    ///
    /// # Errors
    /// Returns an error if a flag or the file is invalid.
    pub fn begin(&self, mode: Mode) -> anyhow::Result<Option<Box<Running>>> {
        let platform = if mode == Mode::Kernelspace { Platform::Windows } else { Platform::Linux };
        match begin(self.kube_proxy.clone(), Reader { platform, empty_mode: mode })? {
            Begin::Run(running) => Ok(Some(running)),
            Begin::Done { messages } => {
                let lines: String = messages.iter().map(|line| format!("{line}\n")).collect();
                // A closed standard error must not stop the program.
                _ = io::stderr().write_all(lines.as_bytes());
                Ok(None)
            }
        }
    }

    /// The tasks that kube-proxy's flags request besides programming the node.
    ///
    /// # Errors
    /// Returns an error if such a flag is neither true nor false, or if `dry_run` is set and such a flag would make a
    /// change.
    pub fn to_do(&self, dry_run: bool) -> anyhow::Result<ToDo<'_>> {
        let to_do = self.kube_proxy.to_do()?;
        for (is_set, flag) in [(to_do.cleanup, "--cleanup"), (to_do.init_only, "--init-only")] {
            ensure!(!(is_set && dry_run), "--dry-run changes nothing, but {flag} does; remove one of the two flags");
        }
        Ok(to_do)
    }

    /// Checks kube-proxy's flags for a command such as `init`, which also accepts them.
    ///
    /// # Errors
    /// Returns an error if a flag requests something that the command does not do.
    pub fn only(&self, command: &str) -> anyhow::Result<()> {
        let to_do = self.kube_proxy.to_do()?;
        let others = [
            ("--cleanup", to_do.cleanup),
            ("--init-only", to_do.init_only),
            ("--write-config-to", to_do.write_config_to.is_some()),
        ];
        match others.iter().find(|(_, given)| *given) {
            Some((flag, _)) => bail!("{flag}: does not apply to the command {command}; remove the flag or the command"),
            None => Ok(()),
        }
    }

    /// Warns about flags that only affect the brain.
    pub fn warn_of_brain_flags(&self) {
        for problem in self.kube_proxy.elsewhere(Part::Backend) {
            warn!("{problem}");
        }
    }

    /// Logs a warning if the configured mode is not the one that this backend programs.
    pub fn warn_of_other_mode(config: &localnet_config::Config, ours: Mode) {
        if config.mode != ours {
            let (mode, programmed) = (config.mode.as_str(), ours.as_str());
            warn!(
                mode,
                programmed,
                "the configured mode belongs to another backend; this backend programs its own mode, but with the settings of the configured mode"
            );
        }
    }

    /// The part of a configuration that a backend uses. When it changes, the backend restarts.
    pub fn concerns(&self, config: &localnet_config::Config) -> impl PartialEq + use<> {
        let modes = (config.iptables, config.ipvs.clone(), config.winkernel.clone());
        let periods = (config.min_interval(), config.sync_period);
        (self.config(config), config.linux.conntrack.clone(), modes, config.healthz_bind_address, periods)
    }

    /// How to program the node.
    pub fn config(&self, config: &localnet_config::Config) -> Config {
        let vips = Config::of(config);
        Config { masquerade_bit: self.masquerade_bit.unwrap_or(vips.masquerade_bit), ..vips }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::vips::{Detector, NodePortAddresses};

    #[derive(Debug, Parser)]
    struct Arguments {
        #[command(flatten)]
        config: ConfigArgs,
    }

    fn config(flags: &[&str]) -> Result<Config, String> {
        let arguments = Arguments::try_parse_from([&["backend"], flags].concat()).map_err(|e| e.to_string())?;
        let running = arguments.config.begin(Mode::Nftables).map_err(|error| error.to_string())?;
        Ok(arguments.config.config(running.ok_or("the flags only write a file")?.config()))
    }

    #[test]
    fn flags_become_a_configuration() {
        // As in kube-proxy, NodePorts are answered on all addresses unless the configuration names the mode nftables
        // explicitly.
        let all = NodePortAddresses::default();
        let defaults = Config { node_port_addresses: all.clone(), ..Config::default() };
        let node_ports = |texts: &[&str]| {
            let cidrs = NodePortAddresses::in_cidrs(texts.iter().map(|text| text.parse().unwrap()).collect());
            Ok(Config { node_port_addresses: cidrs, ..defaults.clone() })
        };
        let detector = |detector| Ok(Config { detector, ..defaults.clone() });
        let cidrs = |texts: &[&str]| Detector::ClusterCidr(texts.iter().map(|text| text.parse().unwrap()).collect());
        for (flags, expected) in [
            (&[][..], Ok(defaults.clone())),
            (&["--cluster-cidr", "10.0.0.0/8,fd00::/48"], detector(cidrs(&["10.0.0.0/8", "fd00::/48"]))),
            (&["--detect-local-mode", "NodeCIDR"], detector(Detector::NodeCidr)),
            (
                &["--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "cni0"],
                detector(Detector::BridgeInterface("cni0".into())),
            ),
            (
                &["--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "veth"],
                detector(Detector::InterfaceNamePrefix("veth".into())),
            ),
            (&["--masquerade-all", "--masquerade-bit", "31"], {
                Ok(Config { masquerade_all: true, masquerade_bit: 31, ..defaults.clone() })
            }),
            (&["--nodeport-addresses", "primary"], Ok(Config::default())),
            (&["--proxy-mode=nftables"], Ok(Config::default())),
            (&["--nodeport-addresses", "192.168.0.0/24,::/0"], node_ports(&["192.168.0.0/24", "::/0"])),
            (&["--proxy-mode=iptables", "--iptables-masquerade-bit=7"], {
                Ok(Config { masquerade_bit: 7, node_port_addresses: all, ..Config::default() })
            }),
        ] {
            assert_eq!(config(flags), expected, "{flags:?}");
        }
    }

    #[test]
    fn errors_of_flags_name_the_flag() {
        for (flags, expected) in [
            (&["--cluster-cidr", "10.0.0.0/8,11.0.0.0/8"][..], "a dual-stack pair of CIDRs"),
            (&["--cluster-cidr", "10.0.0"], "10.0.0"),
            (&["--detect-local-mode", "BridgeInterface"], "detectLocal.bridgeInterface"),
            (&["--masquerade-bit", "32"], "32"),
            (&["--nodeport-addresses", "primary,10.0.0.0/8,primary"], "Duplicate value: \"primary\""),
            (&["--nodeport-addresses", "192.168.0.2"], "\"192.168.0.2\": must be a valid CIDR"),
            (
                &["--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "a-very-long-name"],
                "longer than 15 bytes",
            ),
            (&["--config", "/no/such/file"], "/no/such/file: cannot be read"),
        ] {
            let error = config(flags).unwrap_err();
            assert!(error.contains(expected), "{flags:?}: {error}");
        }
    }
}
