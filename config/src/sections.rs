//! The sections that are equal in v1alpha1 and v1alpha2, as documents contain them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{duration::GoDuration, quantity::Quantity};

/// The API group of the documents.
pub(crate) const GROUP: &str = "kubeproxy.config.k8s.io";
/// The kind of the documents.
pub(crate) const KIND: &str = "KubeProxyConfiguration";

/// Feature gates by name, each with whether it is enabled.
pub type Gates = BTreeMap<String, bool>;

/// The section `clientConnection`: how to connect to the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    /// The path of a kubeconfig file. If empty, the pod's service account.
    pub kubeconfig: String,
    /// The accepted content types, as in the HTTP header.
    pub accept_content_types: String,
    /// The content type of requests.
    pub content_type: String,
    /// Requests per second.
    pub qps: f32,
    /// How many requests may exceed `qps` at once.
    pub burst: i32,
}

impl Default for ClientConnection {
    fn default() -> Self {
        Self {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
            qps: 5.0,
            burst: 10,
        }
    }
}

impl ClientConnection {
    /// Replaces zero and empty values by the defaults.
    pub(crate) fn complete(&mut self) {
        let default = Self::default();
        if self.content_type.is_empty() {
            self.content_type = default.content_type;
        }
        if self.qps == 0.0 {
            self.qps = default.qps;
        }
        if self.burst == 0 {
            self.burst = default.burst;
        }
    }
}

/// The section `logging`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Logging {
    /// The format: `text` or `json`.
    pub format: String,
    /// How long log lines may be buffered.
    pub flush_frequency: GoDuration,
    /// The log verbosity; higher numbers log more.
    pub verbosity: u32,
    /// The verbosity of individual source files.
    pub vmodule: Vec<VModule>,
    /// The options of the formats.
    pub options: LogOptions,
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            format: "text".to_owned(),
            flush_frequency: GoDuration::from_secs(5),
            verbosity: 0,
            vmodule: Vec::new(),
            options: LogOptions::default(),
        }
    }
}

impl Logging {
    /// Replaces zero and empty values by the defaults.
    pub(crate) fn complete(&mut self) {
        let default = Self::default();
        if self.format.is_empty() {
            self.format = default.format;
        }
        if self.flush_frequency.is_zero() {
            self.flush_frequency = default.flush_frequency;
        }
    }
}

/// The verbosity of source files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VModule {
    /// The name of a source file without its extension, or a pattern of such names.
    pub file_pattern: String,
    /// The verbosity in these files.
    pub verbosity: u32,
}

/// The section `logging.options`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogOptions {
    /// Options of `text`.
    pub text: OutputRouting,
    /// Options of `json`.
    pub json: OutputRouting,
}

/// The output of a log format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutputRouting {
    /// Whether errors are written to standard error and other lines to standard output.
    pub split_stream: bool,
    /// The size of the buffer for the other lines.
    pub info_buffer_size: Quantity,
}

/// The section `conntrack`, in v1alpha2 `linux.conntrack`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conntrack {
    /// The limit of tracked connections per processor core; 0 means unchanged.
    pub max_per_core: i32,
    /// The lower limit of that limit.
    pub min: i32,
    /// The timeout of idle established connections; 0 means unchanged.
    pub tcp_established_timeout: GoDuration,
    /// The timeout of half-closed connections; 0 means unchanged.
    pub tcp_close_wait_timeout: GoDuration,
    /// Whether packets outside of the TCP window are valid.
    pub tcp_be_liberal: bool,
    /// The timeout of UDP flows without an answer; 0 means unchanged.
    pub udp_timeout: GoDuration,
    /// The timeout of UDP flows with an answer; 0 means unchanged.
    pub udp_stream_timeout: GoDuration,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_established_timeout: GoDuration::from_secs(24 * 60 * 60),
            tcp_close_wait_timeout: GoDuration::from_secs(60 * 60),
            tcp_be_liberal: false,
            udp_timeout: GoDuration::ZERO,
            udp_stream_timeout: GoDuration::ZERO,
        }
    }
}

/// The section `winkernel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Winkernel {
    /// The name of the HNS network.
    #[serde(rename = "networkName")]
    pub network_name: String,
    /// The source address of load-balanced traffic.
    #[serde(rename = "sourceVip")]
    pub source_vip: String,
    /// Whether policies use direct server return.
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    /// The HNS endpoint of the root network namespace on an l2bridge.
    #[serde(rename = "rootHnsEndpointName")]
    pub root_hns_endpoint_name: String,
    /// Whether VIPs forward the health check port.
    #[serde(rename = "forwardHealthCheckVip")]
    pub forward_health_check_vip: bool,
}
