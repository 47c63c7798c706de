//! Converts a [`Config`] to documents: v1alpha2 for `--write-config-to`, v1alpha1 for `/configz`.

use std::time::Duration;

use crate::{
    config::{Config, Mode, NodePortAddresses, OutputRouting, PRIMARY},
    duration::GoDuration,
    fields,
    quantity::Quantity,
    sections::{self, GROUP, KIND},
    v1alpha1,
    v1alpha2::{self, Document},
};

impl From<&Config> for Document {
    fn from(config: &Config) -> Self {
        Self {
            api_version: format!("{GROUP}/{}", v1alpha2::VERSION),
            kind: KIND.to_owned(),
            feature_gates: config.feature_gates.named.clone(),
            client_connection: client_connection(config),
            logging: logging(config),
            hostname_override: config.hostname_override.clone().unwrap_or_default(),
            node_ip_override: texts(&config.node_ip_override),
            ip_family_policy: config.ip_family_policy.map(|policy| policy.as_str().to_owned()).unwrap_or_default(),
            config_hard_fail: config.config_hard_fail,
            healthz_bind_address: config.healthz_bind_address.map(|at| at.to_string()).unwrap_or_default(),
            metrics_bind_address: config.metrics_bind_address.to_string(),
            bind_address_hard_fail: config.bind_address_hard_fail,
            enable_profiling: config.enable_profiling,
            show_hidden_metrics_for_version: config
                .show_hidden_metrics_for_version
                .map(|version| version.to_string())
                .unwrap_or_default(),
            // An empty mode stays empty, because the meaning of other missing values depends on it.
            mode: if config.explicit.mode { config.mode.as_str() } else { "" }.to_owned(),
            linux: linux(config),
            windows: v1alpha2::Windows { run_as_service: config.windows.run_as_service },
            iptables: v1alpha2::Iptables {
                masquerade_bit: config.iptables.masquerade_bit.into(),
                localhost_node_ports: config.iptables.localhost_node_ports,
            },
            ipvs: ipvs(config),
            nftables: v1alpha2::Nftables { masquerade_bit: config.nftables.masquerade_bit.into() },
            winkernel: winkernel(config),
            detect_local_mode: config.detect_local.mode.as_str().to_owned(),
            detect_local: v1alpha2::DetectLocal {
                bridge_interface: config.detect_local.bridge_interface.clone(),
                cluster_cidrs: texts(&config.detect_local.cluster_cidrs),
                interface_name_prefix: config.detect_local.interface_name_prefix.clone(),
            },
            node_port_addresses: match &config.node_port_addresses {
                NodePortAddresses::All => Vec::new(),
                NodePortAddresses::Primary => vec![PRIMARY.to_owned()],
                NodePortAddresses::Cidrs(cidrs) => texts(cidrs),
            },
            sync_period: config.sync_period.into(),
            min_sync_period: config.min_sync_period.into(),
            config_sync_period: config.config_sync_period.into(),
        }
    }
}

impl From<&Config> for v1alpha1::Document {
    /// Returns the document that kube-proxy would show. Sections of other modes have no periods, and values that v1alpha1
    /// cannot express are omitted.
    fn from(config: &Config) -> Self {
        let new = Document::from(config);
        let linux = new.linux;
        let mut old = Self {
            feature_gates: new.feature_gates,
            client_connection: new.client_connection,
            logging: new.logging,
            hostname_override: new.hostname_override,
            bind_address: match (new.node_ip_override.into_iter().next(), config.metrics_bind_address) {
                (Some(address), _) => address,
                (None, at) if at.is_ipv6() => "::".to_owned(),
                (None, _) => "0.0.0.0".to_owned(),
            },
            healthz_bind_address: new.healthz_bind_address,
            metrics_bind_address: new.metrics_bind_address,
            bind_address_hard_fail: new.bind_address_hard_fail,
            enable_profiling: new.enable_profiling,
            show_hidden_metrics_for_version: new.show_hidden_metrics_for_version,
            iptables: v1alpha1::Iptables {
                masquerade_bit: new.iptables.masquerade_bit,
                localhost_node_ports: new.iptables.localhost_node_ports,
                sync_period: GoDuration::ZERO,
                min_sync_period: GoDuration::ZERO,
                masquerade_all: false,
            },
            ipvs: v1alpha1::Ipvs {
                sync_period: GoDuration::ZERO,
                min_sync_period: GoDuration::ZERO,
                scheduler: new.ipvs.scheduler,
                exclude_cidrs: new.ipvs.exclude_cidrs,
                strict_arp: new.ipvs.strict_arp,
                tcp_timeout: new.ipvs.tcp_timeout,
                tcp_fin_timeout: new.ipvs.tcp_fin_timeout,
                udp_timeout: new.ipvs.udp_timeout,
            },
            nftables: v1alpha1::Nftables {
                masquerade_bit: new.nftables.masquerade_bit,
                masquerade_all: false,
                sync_period: GoDuration::ZERO,
                min_sync_period: GoDuration::ZERO,
            },
            winkernel: new.winkernel,
            detect_local_mode: new.detect_local_mode,
            detect_local: v1alpha1::DetectLocal {
                bridge_interface: new.detect_local.bridge_interface,
                interface_name_prefix: new.detect_local.interface_name_prefix,
            },
            cluster_cidr: new.detect_local.cluster_cidrs.join(","),
            node_port_addresses: match (&config.node_port_addresses, config.mode) {
                // In this mode an empty list means `primary`.
                (NodePortAddresses::All, Mode::Nftables) => vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
                _ => new.node_port_addresses,
            },
            oom_score_adj: linux.oom_score_adj,
            conntrack: linux.conntrack,
            config_sync_period: new.config_sync_period,
            windows_run_as_service: new.windows.run_as_service,
            mode: config.mode.as_str().to_owned(),
            ..Self::default()
        };
        let (all, period, least) = match config.mode {
            Mode::Nftables => {
                let section = &mut old.nftables;
                (&mut section.masquerade_all, &mut section.sync_period, &mut section.min_sync_period)
            }
            Mode::Ipvs => (&mut old.iptables.masquerade_all, &mut old.ipvs.sync_period, &mut old.ipvs.min_sync_period),
            Mode::Iptables | Mode::Kernelspace => {
                let section = &mut old.iptables;
                (&mut section.masquerade_all, &mut section.sync_period, &mut section.min_sync_period)
            }
        };
        (*all, *period, *least) = (linux.masquerade_all, new.sync_period, new.min_sync_period);
        old
    }
}

fn client_connection(config: &Config) -> sections::ClientConnection {
    let connection = &config.client_connection;
    let kubeconfig = connection.kubeconfig.as_ref().map(|path| path.to_string_lossy().into_owned());
    sections::ClientConnection {
        kubeconfig: kubeconfig.unwrap_or_default(),
        accept_content_types: connection.accept_content_types.clone(),
        content_type: connection.content_type.clone(),
        qps: connection.qps,
        burst: connection.burst.try_into().unwrap_or(i32::MAX),
    }
}

fn logging(config: &Config) -> sections::Logging {
    let logging = &config.logging;
    let routing = |routing: OutputRouting| sections::OutputRouting {
        split_stream: routing.split_stream,
        info_buffer_size: Quantity(routing.info_buffer_size.try_into().unwrap_or(i64::MAX)),
    };
    let vmodule = |item: &crate::config::VModule| sections::VModule {
        file_pattern: item.file_pattern.clone(),
        verbosity: item.verbosity,
    };
    sections::Logging {
        format: logging.format.as_str().to_owned(),
        flush_frequency: logging.flush_frequency.into(),
        verbosity: logging.verbosity,
        vmodule: logging.vmodule.iter().map(vmodule).collect(),
        options: sections::LogOptions { text: routing(logging.text), json: routing(logging.json) },
    }
}

fn linux(config: &Config) -> v1alpha2::Linux {
    let conntrack = &config.linux.conntrack;
    let number = |number: u32| number.try_into().unwrap_or(i32::MAX);
    v1alpha2::Linux {
        conntrack: sections::Conntrack {
            max_per_core: number(conntrack.max_per_core.unwrap_or_default()),
            min: number(conntrack.min),
            tcp_established_timeout: timeout(conntrack.tcp_established_timeout),
            tcp_close_wait_timeout: timeout(conntrack.tcp_close_wait_timeout),
            tcp_be_liberal: conntrack.tcp_be_liberal,
            udp_timeout: timeout(conntrack.udp_timeout),
            udp_stream_timeout: timeout(conntrack.udp_stream_timeout),
        },
        masquerade_all: config.linux.masquerade_all,
        oom_score_adj: config.linux.oom_score_adj.into(),
    }
}

fn ipvs(config: &Config) -> v1alpha2::Ipvs {
    let ipvs = &config.ipvs;
    v1alpha2::Ipvs {
        masquerade_bit: ipvs.masquerade_bit.into(),
        scheduler: ipvs.scheduler.clone().unwrap_or_default(),
        exclude_cidrs: texts(&ipvs.exclude_cidrs),
        strict_arp: ipvs.strict_arp,
        tcp_timeout: timeout(ipvs.tcp_timeout),
        tcp_fin_timeout: timeout(ipvs.tcp_fin_timeout),
        udp_timeout: timeout(ipvs.udp_timeout),
    }
}

fn winkernel(config: &Config) -> sections::Winkernel {
    let winkernel = &config.winkernel;
    sections::Winkernel {
        network_name: winkernel.network_name.clone().unwrap_or_default(),
        source_vip: winkernel.source_vip.map(|ip| ip.to_string()).unwrap_or_default(),
        enable_dsr: winkernel.enable_dsr,
        root_hns_endpoint_name: winkernel.root_hns_endpoint_name.clone().unwrap_or_default(),
        forward_health_check_vip: winkernel.forward_health_check_vip,
    }
}

fn timeout(timeout: Option<Duration>) -> GoDuration {
    timeout.unwrap_or_default().into()
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// Serializes a document as YAML.
fn yaml(document: &impl serde::Serialize) -> String {
    // A document contains only maps, lists, texts and numbers, and a string has no size limit.
    serde_saphyr::to_string(document).expect("YAML can express every document")
}

impl Config {
    /// Returns the fields of v1alpha2 that differ from another configuration and take effect only when a program starts.
    pub fn at_start(&self, other: &Self) -> Vec<&'static str> {
        fields::at_start(&Document::from(self), &Document::from(other))
    }

    /// Returns the configuration as a document of v1alpha2, the latest version. It contains every field, except a
    /// `minSyncPeriod` that is not set explicitly, so that it stays implicit when the document is read again.
    pub fn to_yaml(&self) -> String {
        let text = yaml(&Document::from(self));
        if self.explicit.min_sync_period {
            return text;
        }
        text.split_inclusive('\n').filter(|line| !line.starts_with("minSyncPeriod:")).collect()
    }
}

impl Document {
    /// Serializes the document as YAML.
    pub fn to_yaml(&self) -> String {
        yaml(self)
    }
}

impl v1alpha1::Document {
    /// Serializes the document as YAML.
    pub fn to_yaml(&self) -> String {
        yaml(self)
    }
}
