//! The flags of the command. The parts that a program with a brain inside shares are structs of their own.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Parser};
use localnet_proto::{Address, DEFAULT_ADDRESS};

use crate::{
    cluster,
    health::{self, HealthzAddress, node_ports::NodePortAddresses},
    serve::{self, TlsFiles},
    telemetry::LogFormat,
};

/// Turns Kubernetes Services, EndpointSlices and this machine's Node into the state of one node, and serves it to backends.
#[derive(Clone, Debug, Parser)]
#[command(name = "localnet-brain", version)]
pub struct Arguments {
    /// Where the objects come from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Where the state is served.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Where it tells how the node is.
    #[command(flatten)]
    pub health: HealthArgs,
    /// How it logs.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Where the objects come from.
#[derive(Args, Clone, Debug)]
pub struct SourceArgs {
    /// file:PATH (a file or folder of Kubernetes YAML or JSON), kube (the usual configuration) or kube:KUBECONFIG
    #[arg(long, value_name = "SOURCE", value_parser = Source::from_str)]
    pub source: Source,
    /// Name of the node, as the cluster knows it [default: the host name in lower case]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub node_name: Option<String>,
    /// Serve the Services that name this proxy in the label service.kubernetes.io/service-proxy-name, instead of those without it
    #[arg(long, value_name = "NAME", value_parser = label_value)]
    pub service_proxy_name: Option<String>,
}

impl SourceArgs {
    /// What the brain is told of its node.
    ///
    /// # Errors
    /// No name is given and the host has none.
    pub fn cluster(&self) -> anyhow::Result<cluster::Options> {
        let node_name = match &self.node_name {
            Some(name) => name.clone(),
            None => {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                node_name(&host).map_err(|_| anyhow::anyhow!("this host has no name; pass --node-name"))?
            }
        };
        let service_proxy_name = self.service_proxy_name.clone();
        Ok(cluster::Options { service_proxy_name, ..cluster::Options::of_node(node_name) })
    }
}

/// A place that objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file or folder of Kubernetes YAML or JSON.
    File(PathBuf),
    /// An API server, found through this kubeconfig or in the usual places.
    Kube(Option<PathBuf>),
}

/// A text that names no source.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected file:PATH, kube or kube:KUBECONFIG")]
pub struct BadSource;

impl FromStr for Source {
    type Err = BadSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "kube" => Ok(Self::Kube(None)),
            Some(("kube", path)) if !path.is_empty() => Ok(Self::Kube(Some(path.into()))),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(BadSource),
        }
    }
}

/// Where the state is served.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Where to listen: unix:///path or tcp://host:port; may be given several times
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_ADDRESS)]
    pub listen: Vec<Address>,
    /// Group (name or number) that may connect to unix sockets, whose mode is 0660
    #[arg(long, value_name = "GROUP", value_parser = group)]
    pub socket_group: Option<u32>,
    /// User (number) that may connect to unix sockets; may be given several times, and then nobody else may [default: all that can open them]
    #[arg(long, value_name = "UID")]
    pub allow_uid: Vec<u32>,
    /// The same for the members of a group (number): their primary group, or another of their groups in so far as this can be seen in /proc
    #[arg(long, value_name = "GID")]
    pub allow_gid: Vec<u32>,
    /// Certificate of the brain for TCP, in PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "tls_client_ca")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Certificates of the authorities that clients' certificates have to come from, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Serve TCP beyond loopback without TLS, to everybody who can reach it
    #[arg(long)]
    pub insecure_tcp: bool,
}

impl ServeArgs {
    /// How to listen.
    pub fn options(&self) -> serve::Options {
        let files = (self.tls_cert.clone(), self.tls_key.clone(), self.tls_client_ca.clone());
        let tls = match files {
            (Some(certificate), Some(key), Some(client_ca)) => Some(TlsFiles { certificate, key, client_ca }),
            _ => None,
        };
        serve::Options {
            socket_gid: self.socket_group,
            allow_uids: self.allow_uid.clone(),
            allow_gids: self.allow_gid.clone(),
            tls,
            insecure_tcp: self.insecure_tcp,
        }
    }
}

/// Where a brain tells how the node is.
#[derive(Args, Clone, Copy, Debug)]
pub struct HealthArgs {
    /// Where to answer /healthz and /livez: IP:PORT (0.0.0.0 or :: is every address of both families), or nothing for nowhere
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:10256", value_parser = HealthzAddress::from_str)]
    pub healthz_bind_address: HealthzAddress,
}

impl HealthArgs {
    /// Where to answer, and when to be unhealthy.
    pub fn options(&self) -> health::Options {
        health::Options {
            healthz: self.healthz_bind_address,
            node_port_addresses: NodePortAddresses::default(),
            timeout: health::TIMEOUT,
        }
    }
}

/// How a program logs.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// How log lines look
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or directives as in RUST_LOG
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = "info")]
    pub log_level: String,
}

fn node_name(text: &str) -> Result<String, &'static str> {
    let name = text.trim().to_lowercase();
    let good = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if good { Ok(name) } else { Err("not the name of a Node: letters, digits, '-', '.'") }
}

/// A value that can stand in a label selector.
fn label_value(text: &str) -> Result<String, &'static str> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = [text.bytes().next(), text.bytes().last()];
    let good = text.len() <= 63
        && text.bytes().all(inner)
        && ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()));
    if good { Ok(text.to_owned()) } else { Err("not the value of a label: at most 63 letters, digits, '-', '_', '.'") }
}

fn group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err("there is no such group".to_owned()),
        Err(error) => Err(format!("the group cannot be looked up: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["localnet-brain"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn sources_are_read() {
        let rows = [
            ("file:examples", Ok(Source::File("examples".into()))),
            ("file:/a:b", Ok(Source::File("/a:b".into()))),
            ("kube", Ok(Source::Kube(None))),
            ("kube:/etc/kubeconfig", Ok(Source::Kube(Some("/etc/kubeconfig".into())))),
            ("kube:", Err(BadSource)),
            ("file:", Err(BadSource)),
            ("file", Err(BadSource)),
            ("examples", Err(BadSource)),
        ];
        for (text, expected) in rows {
            assert_eq!(text.parse::<Source>(), expected, "{text}");
        }
    }

    #[test]
    fn defaults_serve_the_default_socket() {
        let arguments = parse("--source kube --node-name Node-A").unwrap();
        assert_eq!(arguments.serve.listen, [DEFAULT_ADDRESS.parse().unwrap()]);
        assert_eq!(arguments.source.cluster().unwrap().node_name, "node-a");
        assert_eq!(arguments.serve.options().tls, None);
    }

    #[test]
    fn the_node_is_called_as_the_host_unless_said_otherwise() {
        let name = parse("--source kube").unwrap().source.cluster().unwrap().node_name;
        assert!(!name.is_empty() && name == name.to_lowercase());
    }

    #[test]
    fn several_addresses_and_all_certificates_are_taken() {
        let arguments = parse(
            "--source file:x --listen unix:///a --listen tcp://[::1]:0 --tls-cert c --tls-key k --tls-client-ca a --socket-group 7",
        )
        .unwrap();
        assert_eq!(arguments.serve.listen.len(), 2);
        let options = arguments.serve.options();
        assert_eq!(options.socket_gid, Some(7));
        assert_eq!(options.tls, Some(TlsFiles { certificate: "c".into(), key: "k".into(), client_ca: "a".into() }));
    }

    #[test]
    fn groups_have_names_too() {
        assert_eq!(group("root"), Ok(0));
        assert!(group("no such group").is_err());
    }

    #[test]
    fn health_is_told_on_the_port_of_kube_proxy_unless_said_otherwise() {
        let address = |line: &str| parse(line).unwrap().health.options().healthz.0.map(|address| address.to_string());
        assert_eq!(address("--source kube").as_deref(), Some("0.0.0.0:10256"));
        assert_eq!(address("--source kube --healthz-bind-address ::").as_deref(), Some("[::]:10256"));
        assert_eq!(address("--source kube --healthz-bind-address="), None);
    }

    #[test]
    fn nonsense_is_a_usage_error() {
        let lines = [
            "--source kube --healthz-bind-address :10256",
            "",
            "--source nowhere",
            "--source kube --listen /run/brain.sock",
            "--source kube --tls-cert c",
            "--source kube --tls-cert c --tls-key k",
            "--source kube --node-name= ",
            "--source kube --service-proxy-name a,b",
            "--source kube --socket-group no-such-group-here",
        ];
        for line in lines {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
