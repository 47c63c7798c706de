//! The sections that v1alpha1 and v1alpha2 have alike, as a document says them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{duration::GoDuration, quantity::Quantity};

/// The group of the API.
pub(crate) const GROUP: &str = "kubeproxy.config.k8s.io";
/// The kind of a document.
pub(crate) const KIND: &str = "KubeProxyConfiguration";

/// Names of feature gates, and whether they are on.
pub type Gates = BTreeMap<String, bool>;

/// `clientConnection`: how the API server is spoken to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    /// A kubeconfig file; empty: the service account of the pod.
    pub kubeconfig: String,
    /// Content types that are accepted, as in the HTTP header.
    pub accept_content_types: String,
    /// Content type of requests.
    pub content_type: String,
    /// Requests a second.
    pub qps: f32,
    /// Requests that may be made at once beyond that.
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
    /// Zero and nothing mean the default.
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

/// `logging`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Logging {
    /// `text` or `json`.
    pub format: String,
    /// How long lines may wait before they are written.
    pub flush_frequency: GoDuration,
    /// How much is said: more with higher numbers.
    pub verbosity: u32,
    /// Verbosity of single source files.
    pub vmodule: Vec<VModule>,
    /// Options of the formats.
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
    /// Zero and nothing mean the default.
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
    /// Name of a source file without its ending, or a pattern of such names.
    pub file_pattern: String,
    /// Verbosity in it.
    pub verbosity: u32,
}

/// `logging.options`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogOptions {
    /// Options of `text`.
    pub text: OutputRouting,
    /// Options of `json`.
    pub json: OutputRouting,
}

/// Where lines of a format go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutputRouting {
    /// Errors to standard error, the rest to standard output.
    pub split_stream: bool,
    /// Buffer for the rest.
    pub info_buffer_size: Quantity,
}

/// `conntrack`, in v1alpha2 `linux.conntrack`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conntrack {
    /// Tracked connections for each core; 0: the limit is left alone.
    pub max_per_core: i32,
    /// But at least so many.
    pub min: i32,
    /// How long an idle established connection is tracked; 0: left alone.
    pub tcp_established_timeout: GoDuration,
    /// How long a half closed connection is tracked; 0: left alone.
    pub tcp_close_wait_timeout: GoDuration,
    /// Packets outside of the window are not invalid.
    pub tcp_be_liberal: bool,
    /// How long UDP without an answer is tracked; 0: left alone.
    pub udp_timeout: GoDuration,
    /// How long UDP with an answer is tracked; 0: left alone.
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

/// `winkernel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Winkernel {
    /// Name of the HNS network.
    #[serde(rename = "networkName")]
    pub network_name: String,
    /// Address that balanced traffic is sent from.
    #[serde(rename = "sourceVip")]
    pub source_vip: String,
    /// Whether policies are made with direct server return.
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    /// HNS endpoint of the root network namespace on an l2bridge.
    #[serde(rename = "rootHnsEndpointName")]
    pub root_hns_endpoint_name: String,
    /// Whether the health check port is forwarded on VIPs.
    #[serde(rename = "forwardHealthCheckVip")]
    pub forward_health_check_vip: bool,
}
