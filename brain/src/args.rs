//! The flags of `localnet-brain`. The structs for groups of flags are public, because `localnet-node` also uses them.

#[cfg(windows)]
use std::fs::File;
use std::{
    io::{self, IsTerminal as _},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use localnet_config::{BadDuration, Config, GoDuration, KubeProxyFlags, LogFormat, Mode, Platform};
use localnet_config_file::start_log;
use localnet_proto::{Address, DEFAULT_ADDRESS};

use crate::{
    feed::Feed,
    platform, serve,
    source::{self, Source},
    watch::file::{is_label_key, is_label_value},
};
use localnet_cluster::{
    self as cluster,
    objects::{Publish, node_name},
};

/// Turn Services, EndpointSlices and the Node of this machine into the state of one node, and serve it to backends
#[derive(Clone, Debug, Parser)]
#[command(name = "localnet-brain", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    /// A command to run instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The sources of the objects.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The addresses to serve on, and the peers that may connect.
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Run beside another proxy: open no ports for health checks and metrics, which that proxy needs, and post no events
    #[arg(long)]
    pub shadow: bool,
    /// With --shadow, serve /metrics and /healthz at this address
    #[arg(long, value_name = "IP:PORT", requires = "shadow")]
    pub shadow_metrics_bind_address: Option<SocketAddr>,
    /// Run beside another proxy, as with --shadow, and serve only the Services that match this label selector, such as proxy=localnet
    #[arg(long, value_name = "SELECTOR", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub canary: Option<String>,
    /// File that lists the programs that may push Services to the brain, and what these Services may contain; followed when it
    /// changes
    #[arg(long, value_name = "FILE", conflicts_with = "canary")]
    pub push_grants: Option<PathBuf>,
    /// Where the history is kept.
    #[command(flatten)]
    pub history: HistoryArgs,
    /// The draft of the next API.
    #[command(flatten)]
    pub draft: DraftArgs,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
    /// kube-proxy's flags, including `--config`.
    #[command(flatten)]
    pub kube_proxy: KubeProxyFlags,
}

/// A command to run instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Print the Services that would behave differently from kube-proxy, and why. The exit code is 0 if there are none, 1 if there
    /// are some, and 2 if the check fails
    Check(CheckArguments),
}

/// The flags of `localnet-brain check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArguments {
    /// The sources of the objects.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Mode of kube-proxy that the new backend corresponds to: iptables, ipvs or nftables [default: the configured mode, or nftables]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub backend: Option<Mode>,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
    /// kube-proxy's flags, including `--config`.
    #[command(flatten)]
    pub kube_proxy: KubeProxyFlags,
}

/// The sources of the objects.
#[derive(Args, Clone, Debug)]
pub struct SourceArgs {
    /// Source of the objects: file:PATH (a file or folder of Kubernetes YAML or JSON), kube (the default kubeconfig or
    /// the service account) or kube:KUBECONFIG; may be given several times. If several sources have the same object, the brain
    /// uses that of the first of them [default: the API server in kube-proxy's flags or in the file of --config, if any]
    #[arg(long, value_name = "SOURCE", required_unless_present_any = ["config", "kubeconfig", "master", "write-config-to", "cleanup", "init-only"])]
    pub source: Vec<Source>,
    /// Name of the Node object of this machine [default: as configured, or the host name in lower case]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub node_name: Option<String>,
    /// Serve the Services whose label service.kubernetes.io/service-proxy-name has this value, instead of those without the label
    #[arg(long, value_name = "NAME", value_parser = label_value)]
    pub service_proxy_name: Option<String>,
    /// Duration, such as 90s or 5m, for which to keep Services or endpoints if more than half of them (and at least 20) are suddenly
    /// missing from a list or from the files; 0s removes them immediately
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub shrink_hold: Duration,
}

impl SourceArgs {
    /// The sources of the objects: `--source`, or else the API server of kube-proxy's configuration. If `master` is given,
    /// its URL overrides the URL in the kubeconfig.
    ///
    /// # Errors
    /// Returns an error if `master` is not a URL, if a source occurs twice, or if there are two API servers.
    pub fn sources(&self, config: &Config, master: Option<&str>) -> anyhow::Result<Vec<Source>> {
        let server = master.map(server).transpose()?;
        if self.source.is_empty() {
            return Ok(vec![Source::Kube { kubeconfig: config.client_connection.kubeconfig.clone(), server }]);
        }
        source::check(&self.source)?;
        let at = |source| match source {
            Source::Kube { kubeconfig, .. } => Source::Kube { kubeconfig, server: server.clone() },
            file @ Source::File(_) => file,
        };
        Ok(self.source.iter().cloned().map(at).collect())
    }

    /// The options of the cluster, with the name of this node.
    ///
    /// # Errors
    /// Returns an error if the configured name of the node is invalid, or if no name is configured and the host has none.
    pub fn cluster(&self, config: &Config) -> anyhow::Result<cluster::Options> {
        let name = match self.node_name.as_ref().or(config.hostname_override.as_ref()) {
            Some(name) => {
                node_name(name).map_err(|problem| anyhow::anyhow!("hostnameOverride: {name:?} is {problem}"))?
            }
            None => node_name(&platform::host_name())
                .map_err(|_| anyhow::anyhow!("this host has no name; pass --node-name"))?,
        };
        let service_proxy_name = self.service_proxy_name.clone();
        let external_ips = config.feature_gates.enabled("AllowServiceExternalIPs");
        let shrink_hold = self.shrink_hold;
        Ok(cluster::Options { service_proxy_name, external_ips, shrink_hold, ..cluster::Options::of_node(name) })
    }
}

/// Parses a non-negative duration in the format of Go.
fn duration(text: &str) -> Result<Duration, String> {
    let duration: GoDuration = text.parse().map_err(|error: BadDuration| error.to_string())?;
    duration.positive().ok_or_else(|| "is negative; write it like 5m, or 0s".to_owned())
}

/// Parses the URL of an API server.
fn server(text: &str) -> anyhow::Result<http::Uri> {
    let url: Option<http::Uri> = text.parse().ok();
    let url = url.filter(|url| url.host().is_some() && matches!(url.scheme_str(), Some("http" | "https")));
    url.ok_or_else(|| anyhow::anyhow!("--master: {text:?} is not a URL; write it like https://10.0.0.1:6443"))
}

/// The addresses to serve on, and the peers that may connect.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    #[cfg_attr(unix, doc = "Address to serve on: unix:///path or tcp://host:port; may be given several times")]
    #[cfg_attr(
        windows,
        doc = "Address to serve on: tcp://host:port or npipe:////./pipe/name; may be given several times"
    )]
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_ADDRESS)]
    pub listen: Vec<Address>,
    /// The peers that may connect.
    #[command(flatten)]
    pub options: serve::Options,
    /// Other node whose state KPNG clients may request, or * for every node; may be given several times. Each requested
    /// node takes as much memory and CPU time as a separate brain
    #[arg(long, value_name = "NAME", value_parser = view_name)]
    pub serve_node: Vec<String>,
}

/// The draft of the next API.
#[derive(Args, Clone, Debug)]
pub struct DraftArgs {
    /// Also serve the draft of localnet.v1, the next version of the API, which may change in any release
    #[arg(long)]
    pub draft_v1: bool,
    /// Key of a label of Services that readers of localnet.v1 may select; may be given several times
    #[arg(long, value_name = "KEY", requires = "draft_v1", value_parser = metadata_key)]
    pub publish_label: Vec<String>,
    /// Key of an annotation of Services that readers of localnet.v1 may select; may be given several times
    #[arg(long, value_name = "KEY", requires = "draft_v1", value_parser = metadata_key)]
    pub publish_annotation: Vec<String>,
    /// Also serve the view for DNS, which includes the headless and ExternalName Services of the cluster: the brain then watches all
    /// Services and EndpointSlices
    #[arg(long, requires = "draft_v1", conflicts_with = "canary")]
    pub dns: bool,
}

impl DraftArgs {
    /// What readers of the draft may select; `None` if the brain does not serve the draft.
    pub(crate) fn publish(&self) -> Option<Arc<Publish>> {
        let publish = || Publish { labels: self.publish_label.clone(), annotations: self.publish_annotation.clone() };
        self.draft_v1.then(|| publish().into())
    }
}

/// Where the history is kept.
#[derive(Args, Clone, Debug)]
pub struct HistoryArgs {
    /// Also keep the history in this file and in FILE.old, so that it survives restarts
    #[arg(long, value_name = "FILE")]
    pub history_file: Option<PathBuf>,
    /// Maximum size of the two files of --history-file together, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, requires = "history_file", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub history_size: u64,
}

impl HistoryArgs {
    /// Starts to record the history of this node into the file, if there is one.
    pub fn start(self, feed: &Feed) {
        if let Some(file) = self.history_file {
            feed.record_into(file, self.history_size << 20);
        }
    }
}

/// The logging flags of a program.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// Format of log lines [default: text, or as configured]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// Log level: off, error, warn, info, debug or trace, or a comma-separated list of levels and MODULE=LEVEL [default: info, or as
    /// configured]
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG")]
    pub log_level: Option<String>,
    /// Append the log to this file; a Windows service cannot log elsewhere
    #[cfg(windows)]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
}

impl LogArgs {
    /// Starts logging. If a flag for the format or the level is absent, the value in the configuration applies.
    ///
    /// # Errors
    /// Returns an error if the level is invalid, or if the log cannot be opened.
    pub fn start(&self, config: &Config) -> anyhow::Result<()> {
        // An empty environment variable counts as unset.
        let level = self.log_level.as_deref().filter(|level| !level.is_empty()).unwrap_or(config.logging.level());
        let (format, colours) = (self.log_format.unwrap_or(config.logging.format), io::stderr().is_terminal());
        let wrong = "invalid log level (--log-level or RUST_LOG)";
        #[cfg(windows)]
        if let Some(path) = &self.log_file {
            let file = File::options().append(true).create(true).open(path);
            let file = file.with_context(|| format!("failed to open --log-file {}", path.display()))?;
            return start_log(format, level, file, false).context(wrong);
        }
        start_log(format, level, io::stderr, colours).context(wrong)
    }
}

/// Parses the name of a Node, or `*`.
fn view_name(text: &str) -> Result<String, &'static str> {
    if text == "*" { Ok(text.to_owned()) } else { node_name(text) }
}

/// Parses a value of a label.
fn label_value(text: &str) -> Result<String, &'static str> {
    let good = !text.is_empty() && is_label_value(text);
    if good { Ok(text.to_owned()) } else { Err("not a label value: at most 63 letters, digits, '-', '_', '.'") }
}

/// Parses the key of a label or an annotation. Kubernetes ignores the case of annotations' keys when it checks them.
fn metadata_key(text: &str) -> Result<String, &'static str> {
    let good = is_label_key(&text.to_ascii_lowercase());
    if good {
        Ok(text.to_owned())
    } else {
        Err("not a key; write it like app or example.com/app, and repeat the flag for each key")
    }
}

/// Parses a mode of kube-proxy on Linux.
fn mode(text: &str) -> Result<Mode, String> {
    let modes = Platform::Linux.modes();
    modes.iter().copied().find(|mode| mode.as_str() == text).ok_or_else(|| {
        let names: Vec<_> = modes.iter().map(|mode| mode.as_str()).collect();
        format!("expected one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["localnet-brain"].into_iter().chain(line.split_whitespace()))
    }

    fn kube(kubeconfig: Option<&str>, server: Option<&'static str>) -> Source {
        Source::Kube { kubeconfig: kubeconfig.map(Into::into), server: server.map(http::Uri::from_static) }
    }

    /// The configuration that results from kube-proxy's flags.
    fn config(arguments: &Arguments) -> Config {
        let reader = localnet_config::Reader::kube_proxy(localnet_config::Platform::Linux);
        arguments.kube_proxy.read(reader, None).unwrap().config
    }

    #[test]
    fn the_source_defaults_to_the_api_server_of_kube_proxys_flags() {
        let rows = [
            ("--kubeconfig /k", kube(Some("/k"), None)),
            ("--master https://m:6443", kube(None, Some("https://m:6443/"))),
            ("--kubeconfig /k --master http://m", kube(Some("/k"), Some("http://m/"))),
            ("--source kube --kubeconfig /k", kube(None, None)),
            ("--source kube:/a --kubeconfig /k", kube(Some("/a"), None)),
            ("--source file:/a --kubeconfig /k", Source::File("/a".into())),
        ];
        let sources = |line: &str| {
            let arguments = parse(line).unwrap();
            let master = arguments.kube_proxy.to_do().unwrap().master;
            arguments.source.sources(&config(&arguments), master).unwrap()
        };
        for (line, expected) in rows {
            assert_eq!(sources(line), [expected], "{line}");
        }
        let two = sources("--source file:/a --source kube --master http://m");
        assert_eq!(two, [Source::File("/a".into()), kube(None, Some("http://m/"))]);
        let invalid = parse("--master m:6443").unwrap();
        let error = invalid.source.sources(&config(&invalid), Some("m:6443")).unwrap_err();
        assert_eq!(error.to_string(), "--master: \"m:6443\" is not a URL; write it like https://10.0.0.1:6443");
    }

    #[test]
    fn gates_and_names_come_from_the_configuration() {
        let cluster = |line: &str| {
            let arguments = parse(line).unwrap();
            arguments.source.cluster(&config(&arguments)).map_err(|error| error.to_string())
        };
        let named = |line: &str| cluster(line).map(|options| options.node_name);
        assert_eq!(named("--source kube --hostname-override Node-B").as_deref(), Ok("node-b"));
        assert_eq!(named("--source kube --hostname-override b --node-name a").as_deref(), Ok("a"));
        let odd = named("--source kube --hostname-override a/b").unwrap_err();
        assert!(odd.starts_with("hostnameOverride: \"a/b\" is not a valid Node name"), "{odd}");
        assert!(cluster("--source kube").unwrap().external_ips);
        assert!(!cluster("--source kube --feature-gates AllowServiceExternalIPs=false").unwrap().external_ips);
    }

    #[test]
    fn defaults_serve_the_default_socket() {
        let arguments = parse("--source kube --node-name Node-A").unwrap();
        assert_eq!(arguments.serve.listen, [DEFAULT_ADDRESS.parse().unwrap()]);
        assert_eq!(arguments.source.cluster(&config(&arguments)).unwrap().node_name, "node-a");
        assert_eq!(arguments.serve.options.tls, None);
    }

    #[test]
    fn the_node_name_defaults_to_the_host_name() {
        let arguments = parse("--source kube").unwrap();
        let name = arguments.source.cluster(&config(&arguments)).unwrap().node_name;
        assert!(!name.is_empty() && name == name.to_lowercase());
    }

    #[test]
    fn addresses_can_be_repeated_and_three_files_make_tls() {
        let arguments = parse(
            "--source file:x --listen unix:///a --listen tcp://[::1]:0 --tls-cert c --tls-key k --tls-client-ca a --socket-group 7",
        )
        .unwrap();
        assert_eq!(arguments.serve.listen.len(), 2);
        let options = arguments.serve.options;
        assert_eq!(options.socket_gid, Some(7));
        assert_eq!(
            options.tls,
            Some(serve::TlsFiles { certificate: "c".into(), key: "k".into(), client_ca: "a".into() })
        );
    }

    #[test]
    fn names_of_clients_and_nodes_are_parsed() {
        let arguments = parse(
            "--source kube --tls-cert c --tls-key k --tls-client-ca a --tls-allow-name Node-A --tls-allow-name spiffe://d/ns/* --serve-node Node-B --serve-node *",
        )
        .unwrap();
        let names = ["node-a", "spiffe://d/ns/*"].map(|name| name.parse().unwrap());
        assert_eq!(arguments.serve.options.allow_names, names);
        assert_eq!(arguments.serve.serve_node, ["node-b", "*"]);
    }

    #[test]
    fn keys_of_labels_and_annotations_are_parsed() {
        let line = "--source kube --draft-v1 --publish-label app.kubernetes.io/name --publish-label tier --publish-annotation Example.com/A_b";
        let Publish { labels, annotations } = Publish::clone(&parse(line).unwrap().draft.publish().unwrap());
        assert_eq!(
            (labels, annotations),
            (vec!["app.kubernetes.io/name".to_owned(), "tier".to_owned()], vec!["Example.com/A_b".to_owned()])
        );
        assert_eq!(parse("--source kube").unwrap().draft.publish(), None);
    }

    #[test]
    fn groups_are_resolved_by_name() {
        let group = |name| Arguments::try_parse_from(["localnet-brain", "--source=kube", "--socket-group", name]);
        assert_eq!(group("root").unwrap().serve.options.socket_gid, Some(0));
        assert!(group("no such group").is_err());
    }

    #[test]
    fn invalid_flags_are_usage_errors() {
        let lines = [
            "--source kube --unknown-flag",
            "",
            "--source nowhere",
            "--source kube --listen /run/brain.sock",
            "--source kube --tls-cert c",
            "--source kube --tls-cert c --tls-key k",
            "--source kube --tls-allow-name a",
            "--source kube --tls-cert c --tls-key k --tls-client-ca a --tls-allow-name *",
            "--source kube --serve-node a/b",
            "--source kube --history-size 8",
            "--source kube --history-file /f --history-size 0",
            "--source kube --node-name= ",
            "--source kube --service-proxy-name a,b",
            "--source kube --socket-group no-such-group-here",
            "--source kube --publish-label app",
            "--source kube --draft-v1 --publish-label app,tier",
            "--source kube --draft-v1 --publish-label=",
            "--source kube --draft-v1 --publish-annotation app=web",
            "--source kube --draft-v1 --publish-annotation a/b/c",
        ];
        for line in lines {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
