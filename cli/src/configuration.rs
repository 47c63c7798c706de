//! Selects the configuration that answers are computed with: from the backend's report, the command line, or the defaults.
//!
//! | given | configuration |
//! |---|---|
//! | nothing, and a backend reports | the reported one |
//! | some flags, and a backend reports | the reported one, overridden by these flags |
//! | `--config` | the file |
//! | some flags, and no backend reports | the flags, and the defaults for the rest |
//! | nothing, and no backend reports | the defaults |

use std::net::IpAddr;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use localnet_client::vips::{Config, Facts, flags::ConfigArgs};
use localnet_config::{KubeProxyFlags, Mode};
use localnet_proto::Node;

use crate::{
    failure::Failure,
    origin::{Origin, Values},
    status::Status,
};

/// The flags of kube-proxy that affect the outcome for a packet.
const FLAGS: [&str; 7] = [
    "config",
    "cluster-cidr",
    "detect-local-mode",
    "masquerade-all",
    "nodeport-addresses",
    "pod-bridge-interface",
    "pod-interface-name-prefix",
];
const MASQUERADE_BIT: &str = "masquerade-bit";
const HEADING: &str = "Configuration [default: as the backend reports it]";

/// The flags that override the reported configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationArgs {
    masquerade_bit: Option<u8>,
    flags: KubeProxyFlags,
}

impl Args for ConfigurationArgs {
    fn augment_args(command: Command) -> Command {
        let bit = Arg::new(MASQUERADE_BIT)
            .long(MASQUERADE_BIT)
            .value_name("BIT")
            .help("bit of the packet mark that requests masquerading")
            .value_parser(value_parser!(u8).range(0..32));
        let args = KubeProxyFlags::some_args(&FLAGS).chain([bit]);
        command.args(args.map(|arg| arg.help_heading(HEADING).hide_short_help(false)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConfigurationArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let masquerade_bit = matches.get_one(MASQUERADE_BIT).copied();
        Ok(Self { masquerade_bit, flags: KubeProxyFlags::some_from(matches, &FLAGS) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The configuration that an answer is computed with, and its origin.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The values that affect packets.
    pub config: Config,
    /// The addresses that answer NodePorts, as the backend reports them; `None` without a report.
    reported_addresses: Option<Vec<IpAddr>>,
    /// The origin of the configuration.
    pub origin: Origin,
}

impl Configuration {
    /// Selects the configuration. `status` is the status of the backends, or why it is unknown.
    ///
    /// # Errors
    /// Returns an error if a flag or the file of `--config` is invalid.
    pub fn of(args: &ConfigurationArgs, status: Result<&Status, &str>) -> Result<Self, Failure> {
        let backend = status.ok().and_then(Status::newest);
        let mut given: Vec<&str> = args.flags.names().collect();
        given.extend(args.masquerade_bit.map(|_| MASQUERADE_BIT));
        let from_command_line = || -> Result<Config, Failure> {
            let args = ConfigArgs { masquerade_bit: args.masquerade_bit, kube_proxy: args.flags.clone() };
            let mode = backend.and_then(|backend| backend.mode).unwrap_or(Mode::Nftables);
            let running = args.begin(mode)?;
            let running = running.ok_or_else(|| Failure::Usage("this command writes no configuration".to_owned()))?;
            Ok(args.config(running.config()))
        };
        if given.contains(&"config") {
            return Ok(Self::chosen(from_command_line()?));
        }
        let reported = backend.and_then(|backend| Some((backend, backend.configuration.as_ref()?)));
        match reported {
            Some((backend, Ok(effective))) => {
                let name = &backend.name;
                let mut used = Self {
                    config: effective.config.clone(),
                    reported_addresses: Some(effective.node_port_addresses.clone()),
                    origin: Origin::default(),
                };
                let mut text = format!("reported by the {name} backend");
                if !given.is_empty() {
                    used.replace(&given, from_command_line()?);
                    text.push_str(&format!(", except --{}", given.join(", --")));
                }
                let values = Values::of(&used.config);
                used.origin = Origin { source: "reported", backend: Some(name.clone()), text, values };
                Ok(used)
            }
            _ if !given.is_empty() => Ok(Self::chosen(from_command_line()?)),
            unusable => {
                let why = match (unusable, backend, status) {
                    (Some((backend, Err(unreadable))), ..) => {
                        format!("cannot read the report of the {} backend: {unreadable}", backend.name)
                    }
                    (_, Some(backend), _) => format!("the {} backend does not report its configuration", backend.name),
                    (_, None, Ok(_)) => "no backend has reported".to_owned(),
                    (_, None, Err(why)) => why.to_owned(),
                };
                let mut used = Self::chosen(from_command_line()?);
                (used.origin.source, used.origin.text) = ("defaults", format!("defaults: {why}"));
                Ok(used)
            }
        }
    }

    /// Wraps a configuration that the caller has selected.
    pub fn chosen(config: Config) -> Self {
        let text = "from the command line".to_owned();
        let origin = Origin { source: "commandLine", backend: None, text, values: Values::of(&config) };
        Self { config, reported_addresses: None, origin }
    }

    /// Copies the values of the given flags from `other`.
    fn replace(&mut self, flags: &[&str], other: Config) {
        let any = |of: &[&str]| flags.iter().any(|flag| of.contains(flag));
        if any(&["cluster-cidr", "detect-local-mode", "pod-bridge-interface", "pod-interface-name-prefix"]) {
            self.config.detector = other.detector;
        }
        if any(&["nodeport-addresses"]) {
            self.config.node_port_addresses = other.node_port_addresses;
            self.reported_addresses = None;
        }
        if any(&["masquerade-all"]) {
            self.config.masquerade_all = other.masquerade_all;
        }
        if any(&[MASQUERADE_BIT]) {
            self.config.masquerade_bit = other.masquerade_bit;
        }
    }

    /// Returns the facts that plans need. `local` contains the addresses of the node's interfaces if this program runs on the
    /// node.
    pub fn facts(&self, node: &Node, local: Option<&[IpAddr]>) -> Facts {
        let mut facts = Facts::new(&self.config, node, local.unwrap_or(&node.addresses));
        if let (Some(reported), None) = (&self.reported_addresses, local) {
            facts.node_port_addresses.clone_from(reported);
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use localnet_client::vips::{Detector, Effective, NodePortAddresses, Unreadable};

    use super::*;
    use crate::status::Backend;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        configuration: ConfigurationArgs,
    }

    fn args(flags: &[&str]) -> ConfigurationArgs {
        Line::parse_from([&["localnet"], flags].concat()).configuration
    }

    fn status(name: &str, configuration: Option<Result<Effective, Unreadable>>) -> Status {
        let backend = Backend { name: name.to_owned(), configuration, ..Backend::default() };
        Status { backends: vec![backend], ..Status::default() }
    }

    fn reported() -> Effective {
        let detector = Detector::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
        let all = NodePortAddresses { localhost: true, ..NodePortAddresses::default() };
        let config = Config { detector, masquerade_bit: 7, node_port_addresses: all, ..Config::default() };
        Effective { config, node_port_addresses: ["127.0.0.1", "192.168.0.9"].map(|ip| ip.parse().unwrap()).into() }
    }

    #[test]
    fn flags_override_the_reported_configuration() {
        let status = status("iptables", Some(Ok(reported())));
        let used = |flags: &[&str]| Configuration::of(&args(flags), Ok(&status)).unwrap();
        let plain = used(&[]);
        assert_eq!(plain.config, reported().config);
        assert_eq!(plain.origin.line(), "configuration: reported by the iptables backend\n");
        assert_eq!(plain.origin.values.to_string(), "pods: ClusterCIDR 10.244.0.0/16; NodePorts: all addresses");
        let other = used(&["--cluster-cidr", "10.0.0.0/8", "--masquerade-all"]);
        let detector = Detector::ClusterCidr(vec!["10.0.0.0/8".parse().unwrap()]);
        assert_eq!(other.config, Config { detector, masquerade_all: true, ..reported().config });
        assert_eq!(other.origin.text, "reported by the iptables backend, except --cluster-cidr, --masquerade-all");
        let bit = used(&["--masquerade-bit", "3", "--detect-local-mode", "NodeCIDR"]).config;
        assert_eq!(bit, Config { masquerade_bit: 3, detector: Detector::NodeCidr, ..reported().config });
        let primary = used(&["--nodeport-addresses", "primary"]).config;
        assert_eq!(primary, Config { node_port_addresses: NodePortAddresses::PRIMARY, ..reported().config });
    }

    #[test]
    fn without_a_report_flags_or_defaults_apply() {
        let used = |flags: &[&str], status: Result<&Status, &str>| {
            let used = Configuration::of(&args(flags), status).unwrap();
            (used.config, used.origin.text)
        };
        let plain = Config { node_port_addresses: NodePortAddresses::default(), ..Config::default() };
        let defaults = |why: &str| (plain.clone(), format!("defaults: {why}"));
        assert_eq!(used(&[], Ok(&Status::default())), defaults("no backend has reported"));
        assert_eq!(used(&[], Err("a saved state has none")), defaults("a saved state has none"));
        assert_eq!(used(&[], Ok(&status("nft", None))), defaults("the nft backend does not report its configuration"));
        let unreadable = Unreadable { field: "DetectLocal", value: "9".to_owned() };
        let (_, text) = used(&[], Ok(&status("nft", Some(Err(unreadable)))));
        assert!(text.contains("cannot read the report of the nft backend: DetectLocal is \"9\""), "{text}");
        let node_cidr = Config { detector: Detector::NodeCidr, ..plain.clone() };
        let chosen = (node_cidr, "from the command line".to_owned());
        assert_eq!(used(&["--detect-local-mode", "NodeCIDR"], Ok(&Status::default())), chosen);
    }

    #[test]
    fn a_file_replaces_the_reported_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: 10.9.0.0/16\n";
        std::fs::write(&file, text).unwrap();
        let status = status("nft", Some(Ok(reported())));
        let used = Configuration::of(&args(&["--config", file.to_str().unwrap()]), Ok(&status)).unwrap();
        assert_eq!(used.config.detector, Detector::ClusterCidr(vec!["10.9.0.0/16".parse().unwrap()]));
        assert_eq!((used.config.masquerade_bit, used.origin.source), (14, "commandLine"));
    }

    #[test]
    fn node_ports_answer_on_the_addresses_that_the_backend_reports() {
        let status = status("iptables", Some(Ok(reported())));
        let used = Configuration::of(&args(&[]), Ok(&status)).unwrap();
        let node = Node { addresses: vec!["192.168.0.2".parse().unwrap()], ..Node::default() };
        let addresses = |local: Option<&[IpAddr]>| {
            let facts = used.facts(&node, local);
            facts.node_port_addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(addresses(None), ["127.0.0.1", "192.168.0.9"]);
        let local = ["127.0.0.1", "192.168.0.3"].map(|ip| ip.parse().unwrap());
        assert_eq!(addresses(Some(&local)), ["127.0.0.1", "192.168.0.3"]);
    }
}
