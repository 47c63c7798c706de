//! The table of all fields. To add a field, add its row to a section here.
//!
//! A row has the doc comment of the field, its name and type in [`Config`], its path in v1alpha2, and columns for its
//! special properties. The rows generate the structs below, the readers and writers of both versions, the conversion between
//! them, kube-proxy's flags with their help, and `docs/operations/configuration.md`.
//!
//! | column | meaning |
//! |---|---|
//! | `as Rule` | the rules for the field's values, from [`types`](crate::types), unless the rules of the field's type apply |
//! | `default` | the default, unless it is false, zero or empty |
//! | `empty_is_default` | zero or an empty string counts as missing |
//! | `v1alpha1`, `v1alpha1_in_modes`, `v1alpha1_text`, `new_in_v1alpha2` | the field's place in v1alpha1, unless the place is the same |
//! | `v1alpha1_default` | the field's default in v1alpha1, unless the default is the same |
//! | `flag`, `ipvs_flag` | kube-proxy's flag |
//! | `overriding_flag` | kube-proxy's flag, if it overrides the file of `--config` |
//! | `brain`, `backend` | the part of localnet that uses the field, unless both do |
//! | `at_start`, `of_mode`, `no_effect` | how a change of the file takes effect, unless at once |

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::LazyLock,
    time::Duration,
};

use ipnet::IpNet;

use crate::{
    check::Check,
    document::{Document, KIND},
    field::{Field, field},
    gates::FeatureGates,
    kind::Kind,
    model::{DetectLocalMode, Explicit, IpFamilyPolicy, LogFormat, MinorVersion, Mode, NodePortAddresses, VModule},
    types::{
        BufferSize, Burst, Cidrs, ClusterCidrs, Count, FieldType, FlushFrequency, Interface, MinSyncPeriod, NodeName,
        Period, RootEndpoint, SplitStream, SyncPeriod, Verbosity,
    },
};

/// Declares a section: a struct with a field for each row. A row without `=` is another section.
macro_rules! section {
    ($(#[$meta:meta])* $section:ident {
        $($(#[doc = $doc:literal])+ $name:ident: $type:ty $(as $rule:ty)? $(= $row:expr)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $section {
            $($(#[doc = $doc])+ pub $name: $type,)*
        }

        impl Section for $section {
            fn fields(into: &mut Vec<Field>) {
                $(cell!(fields into; $type $(as $rule)? $(= $row)?; $($doc),+);)*
            }

            fn read(check: &mut Check<'_>) -> Self {
                Self { $($name: cell!(read check; $type $(as $rule)? $(= $row)?),)* }
            }

            fn write(&self, document: &mut Document) {
                $(cell!(write self.$name, document; $type $(as $rule)? $(= $row)?);)*
            }
        }
    };
}

/// The code for one row in one function of a [`Section`].
macro_rules! cell {
    (fields $into:ident; $type:ty; $($doc:literal),+) => { <$type as Section>::fields($into) };
    (read $check:ident; $type:ty) => { <$type as Section>::read($check) };
    (write $value:expr, $document:ident; $type:ty) => { Section::write(&$value, $document) };
    // Without `as`, the rules are those of the type.
    ($do:ident $($into:expr),+; $type:ty = $row:expr $(; $($doc:literal),+)?) => {
        cell!($do $($into),+; $type as $type = $row $(; $($doc),+)?)
    };
    (fields $into:expr; $type:ty as $rule:ty = $row:expr; $($doc:literal),+) => {
        $into.push($row.of(<$rule as FieldType<$type>>::KIND, &[$($doc),+]))
    };
    (read $check:expr; $type:ty as $rule:ty = $row:expr) => { <$rule as FieldType<$type>>::read($check, &$row) };
    (write $value:expr, $document:expr; $type:ty as $rule:ty = $row:expr) => {
        $document.set($row.path, <$rule as FieldType<$type>>::KIND.or_zero(<$rule as FieldType<$type>>::write(&$value)))
    };
}

/// A part of the table.
trait Section {
    /// Appends the rows in the order in which documents are written.
    fn fields(into: &mut Vec<Field>);

    /// Reads a complete document of v1alpha2. The result is valid only if there are no errors among the findings.
    fn read(check: &mut Check<'_>) -> Self;

    /// Writes the values into a document of v1alpha2.
    fn write(&self, document: &mut Document);
}

/// All fields of v1alpha2, in the order in which documents are written.
pub static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
    let mut fields = vec![
        field("apiVersion")
            .default("kubeproxy.config.k8s.io/v1alpha2")
            .v1alpha1_default("kubeproxy.config.k8s.io/v1alpha1")
            .of(Kind::Text, &["The version of the document."]),
        field("kind").default(KIND).of(Kind::Text, &["The kind of the document."]),
    ];
    Config::fields(&mut fields);
    fields
});

/// The fields of v1alpha1 that v1alpha2 does not have, each with the remedy.
pub const DROPPED: &[(&str, &str)] =
    &[("portRange", "remove it: no mode has used it since the userspace mode was removed")];

const READS_JSON: &str = "the brain requests JSON from the API server";
const NO_LIMIT: &str = "a brain makes few requests, and delays none of them";
const AT_ONCE: &str = "localnet writes log lines immediately to standard error";

section! {
    /// A configuration in the shape of v1alpha2, validated and with all defaults filled in.
    Config {
        /// Feature gates, each set to true or false.
        feature_gates: FeatureGates = field("featureGates").flag("feature-gates").brain().at_start();
        /// `clientConnection`: how to connect to the API server.
        client_connection: ClientConnection;
        /// `logging`: the options of logging.
        logging: Logging;
        /// Name of the Node. By default, the host's name in lower case.
        hostname_override: Option<String> as NodeName = field("hostnameOverride")
            .overriding_flag("hostname-override").brain().at_start();
        /// Primary addresses of the node, at most one of each family. By default, those of the Node object. localnet
        /// does not listen on these addresses.
        node_ip_override: Vec<IpAddr> = field("nodeIPOverride")
            .v1alpha1_text("bindAddress", Kind::Ip).v1alpha1_default("0.0.0.0").flag("bind-address").brain();
        /// Families of the node's primary addresses: `SingleStack`, `PreferDualStack` or `RequireDualStack`. By default, all
        /// families that the node has.
        ip_family_policy: Option<IpFamilyPolicy> = field("ipFamilyPolicy").new_in_v1alpha2();
        /// Exit on certain errors in the configuration. If false, these errors cause only warnings.
        config_hard_fail: bool = field("configHardFail").default("true").new_in_v1alpha2().v1alpha1_default("false");
        /// Address that serves `/healthz` and `/livez`: IP or IP:port. By default, all addresses and port 10256.
        ///
        /// It is `None` only with the flag `--healthz-port=0`.
        healthz_bind_address: Option<SocketAddr> = field("healthzBindAddress").flag("healthz-bind-address").brain();
        /// Address that serves `/metrics`: IP or IP:port. By default, the loopback address and port 10249.
        metrics_bind_address: SocketAddr = field("metricsBindAddress").flag("metrics-bind-address").brain();
        /// Exit if `healthzBindAddress` or `metricsBindAddress` cannot be bound.
        bind_address_hard_fail: bool = field("bindAddressHardFail")
            .default("true").v1alpha1_default("false").flag("bind-address-hard-fail").brain().at_start();
        /// Serve profiles at `metricsBindAddress`.
        enable_profiling: bool = field("enableProfiling").flag("profiling").brain();
        /// Show the metrics that have been hidden since this version, which must be the previous minor version of
        /// Kubernetes.
        show_hidden_metrics_for_version: Option<MinorVersion> = field("showHiddenMetricsForVersion")
            .flag("show-hidden-metrics-for-version").brain().no_effect("no metric is hidden");
        /// The kernel subsystem that the backend programs: `iptables`, `ipvs` or `nftables`; on Windows `kernelspace`. By
        /// default, the program chooses.
        mode: Mode = field("mode").flag("proxy-mode").at_start();
        /// Which values the configuration sets explicitly.
        explicit: Explicit;
        /// `linux`: options for Linux in every mode.
        linux: Linux;
        /// `windows`: options for Windows.
        windows: Windows;
        /// `iptables`: options of the mode iptables.
        iptables: Iptables;
        /// `ipvs`: options of the mode ipvs.
        ipvs: Ipvs;
        /// `nftables`: options of the mode nftables.
        nftables: Nftables;
        /// `winkernel`: options of the mode kernelspace.
        winkernel: Winkernel;
        /// `detectLocalMode` and `detectLocal`: how to recognize traffic of the node's own pods.
        detect_local: DetectLocal;
        /// Addresses of the node that serve NodePorts: CIDRs, `primary`, `localhost` and `all`. The default is `primary` if
        /// `mode` is `nftables`, otherwise all addresses.
        node_port_addresses: NodePortAddresses = field("nodePortAddresses").flag("nodeport-addresses");
        /// Interval between full syncs.
        sync_period: Duration as SyncPeriod = field("syncPeriod")
            .default("30s").empty_is_default()
            .v1alpha1_in_modes(&[
                ("iptables.syncPeriod", "30s"), ("ipvs.syncPeriod", "30s"), ("nftables.syncPeriod", "30s"),
            ])
            .flag("iptables-sync-period").ipvs_flag("ipvs-sync-period");
        /// Minimum time between two syncs.
        min_sync_period: Duration as MinSyncPeriod = field("minSyncPeriod")
            .default("1s")
            .v1alpha1_in_modes(&[
                ("iptables.minSyncPeriod", "1s"), ("ipvs.minSyncPeriod", "0s"), ("nftables.minSyncPeriod", "1s"),
            ])
            .flag("iptables-min-sync-period").ipvs_flag("ipvs-min-sync-period").backend();
        /// Interval of full comparisons with the API server.
        config_sync_period: Duration as Period = field("configSyncPeriod")
            .default("15m0s").empty_is_default().flag("config-sync-period")
            .no_effect("the brain watches objects, and lists them again whenever a watch restarts");
    }
}

section! {
    /// `clientConnection`: how to connect to the API server.
    ClientConnection {
        /// Kubeconfig file. By default, the brain uses the pod's service account.
        kubeconfig: Option<PathBuf> = field("clientConnection.kubeconfig").flag("kubeconfig").brain().at_start();
        /// Content types that the API server may use in its answers.
        accept_content_types: String = field("clientConnection.acceptContentTypes").no_effect(READS_JSON);
        /// Content type of requests to the API server.
        content_type: String = field("clientConnection.contentType")
            .default("application/vnd.kubernetes.protobuf").empty_is_default().flag("kube-api-content-type")
            .no_effect(READS_JSON);
        /// Maximum number of requests per second to the API server. A negative value means no limit.
        qps: f32 = field("clientConnection.qps")
            .default("5.0").empty_is_default().flag("kube-api-qps").no_effect(NO_LIMIT);
        /// Number of requests that may exceed the rate of `clientConnection.qps` for a short time.
        burst: u32 as Burst = field("clientConnection.burst")
            .default("10").empty_is_default().flag("kube-api-burst").no_effect(NO_LIMIT);
    }
}

section! {
    /// `logging`: the options of logging.
    Logging {
        /// Maximum delay of log lines.
        flush_frequency: Duration as FlushFrequency = field("logging.flushFrequency")
            .default("5s").empty_is_default().overriding_flag("log-flush-frequency").no_effect(AT_ONCE);
        /// Format of log lines: `text` or `json`.
        format: LogFormat = field("logging.format")
            .default("text").empty_is_default().overriding_flag("logging-format").at_start();
        /// Log verbosity. 0 to 3 mean info, 4 and 5 mean debug, higher values mean trace.
        verbosity: u32 as Verbosity = field("logging.verbosity").overriding_flag("v").at_start();
        /// Verbosity of individual source files: a list of items with `filePattern` and `verbosity`.
        vmodule: Vec<VModule> = field("logging.vmodule")
            .overriding_flag("vmodule").no_effect("localnet does not have kube-proxy's source files");
        /// With format `text`: write errors to standard error, and all other log lines to standard output.
        text_split_stream: bool as SplitStream = field("logging.options.text.splitStream")
            .overriding_flag("log-text-split-stream").no_effect(AT_ONCE);
        /// With format `text`: size of the buffer for standard output.
        text_info_buffer_size: u64 as BufferSize = field("logging.options.text.infoBufferSize")
            .overriding_flag("log-text-info-buffer-size").no_effect(AT_ONCE);
        /// With format `json`: write errors to standard error, and all other log lines to standard output.
        json_split_stream: bool as SplitStream = field("logging.options.json.splitStream")
            .overriding_flag("log-json-split-stream").no_effect(AT_ONCE);
        /// With format `json`: size of the buffer for standard output.
        json_info_buffer_size: u64 as BufferSize = field("logging.options.json.infoBufferSize")
            .overriding_flag("log-json-info-buffer-size").no_effect(AT_ONCE);
    }
}

section! {
    /// `linux`: options for Linux in every mode.
    Linux {
        /// `linux.conntrack`: connection tracking.
        conntrack: Conntrack;
        /// Masquerade all traffic to ClusterIPs.
        masquerade_all: bool = field("linux.masqueradeAll")
            .v1alpha1_in_modes(&[("iptables.masqueradeAll", "false"), ("nftables.masqueradeAll", "false")])
            .flag("masquerade-all").backend();
        /// OOM score adjustment of the process, from -1000 (the kernel never kills the process to free memory) to 1000.
        oom_score_adj: i16 = field("linux.oomScoreAdj")
            .default("-999").v1alpha1("oomScoreAdj").flag("oom-score-adj").backend();
    }
}

section! {
    /// `linux.conntrack`: sysctls of connection tracking, under `net.netfilter`.
    Conntrack {
        /// Maximum number of tracked connections per processor core. 0 keeps the kernel's limit, and then
        /// `linux.conntrack.min` has no effect.
        max_per_core: Option<u32> = field("linux.conntrack.maxPerCore")
            .default("32768").v1alpha1("conntrack.maxPerCore").flag("conntrack-max-per-core").backend();
        /// Tracking timeout of idle TCP connections. 0 keeps the kernel's timeout.
        tcp_established_timeout: Option<Duration> = field("linux.conntrack.tcpEstablishedTimeout")
            .default("24h0m0s").v1alpha1("conntrack.tcpEstablishedTimeout").flag("conntrack-tcp-timeout-established")
            .backend();
        /// Tracking timeout of half-closed TCP connections. 0 keeps the kernel's timeout.
        tcp_close_wait_timeout: Option<Duration> = field("linux.conntrack.tcpCloseWaitTimeout")
            .default("1h0m0s").v1alpha1("conntrack.tcpCloseWaitTimeout").flag("conntrack-tcp-timeout-close-wait")
            .backend();
        /// Let connection tracking accept TCP packets outside of the window. If false, the kernel's setting stays
        /// unchanged.
        tcp_be_liberal: bool = field("linux.conntrack.tcpBeLiberal")
            .v1alpha1("conntrack.tcpBeLiberal").flag("conntrack-tcp-be-liberal").backend();
        /// Tracking timeout of UDP flows without an answer. 0 keeps the kernel's timeout.
        udp_timeout: Option<Duration> = field("linux.conntrack.udpTimeout")
            .v1alpha1("conntrack.udpTimeout").flag("conntrack-udp-timeout").backend();
        /// Tracking timeout of UDP flows with an answer. 0 keeps the kernel's timeout.
        udp_stream_timeout: Option<Duration> = field("linux.conntrack.udpStreamTimeout")
            .v1alpha1("conntrack.udpStreamTimeout").flag("conntrack-udp-timeout-stream").backend();
        /// Lowest limit of tracked connections on the node. It applies if `linux.conntrack.maxPerCore` times the number of
        /// cores is lower.
        min: u32 as Count = field("linux.conntrack.min")
            .default("131072").v1alpha1("conntrack.min").flag("conntrack-min").backend();
    }
}

section! {
    /// `windows`: options for Windows.
    #[derive(Copy)]
    Windows {
        /// Run as a Windows service.
        run_as_service: bool = field("windows.runAsService")
            .v1alpha1("windowsRunAsService").overriding_flag("windows-service").of_mode();
    }
}

section! {
    /// `iptables`: options of the mode iptables.
    #[derive(Copy)]
    Iptables {
        /// Mode iptables: bit of the packet mark that requests masquerading, 0 to 31. The flag also applies in mode ipvs.
        masquerade_bit: u8 = field("iptables.masqueradeBit").default("14").flag("iptables-masquerade-bit").backend();
        /// Mode iptables: NodePorts also answer on 127.0.0.1.
        localhost_node_ports: bool = field("iptables.localhostNodePorts")
            .v1alpha1_default("true").flag("iptables-localhost-nodeports").backend().of_mode();
    }
}

section! {
    /// `ipvs`: options of the mode ipvs.
    Ipvs {
        /// Mode ipvs: bit of the packet mark that requests masquerading, 0 to 31.
        masquerade_bit: u8 = field("ipvs.masqueradeBit")
            .default("14").v1alpha1("iptables.masqueradeBit").flag("iptables-masquerade-bit").backend();
        /// Mode ipvs: scheduler for Services that do not select one. By default `rr`.
        scheduler: Option<String> = field("ipvs.scheduler").flag("ipvs-scheduler").backend().of_mode();
        /// Mode ipvs: CIDRs whose virtual servers belong to other programs and stay unchanged.
        exclude_cidrs: Vec<IpNet> as Cidrs = field("ipvs.excludeCIDRs").flag("ipvs-exclude-cidrs").backend().of_mode();
        /// Mode ipvs: set `arp_ignore` to 1 and `arp_announce` to 2, so that the node does not answer ARP for VIPs.
        strict_arp: bool = field("ipvs.strictARP").flag("ipvs-strict-arp").backend().of_mode();
        /// Mode ipvs: timeout of idle TCP connections. 0 keeps the kernel's timeout.
        tcp_timeout: Option<Duration> = field("ipvs.tcpTimeout").flag("ipvs-tcp-timeout").backend().of_mode();
        /// Mode ipvs: timeout of TCP connections after a FIN. 0 keeps the kernel's timeout.
        tcp_fin_timeout: Option<Duration> = field("ipvs.tcpFinTimeout").flag("ipvs-tcpfin-timeout").backend().of_mode();
        /// Mode ipvs: timeout of UDP flows. 0 keeps the kernel's timeout.
        udp_timeout: Option<Duration> = field("ipvs.udpTimeout").flag("ipvs-udp-timeout").backend().of_mode();
    }
}

section! {
    /// `nftables`: options of the mode nftables.
    #[derive(Copy)]
    Nftables {
        /// Mode nftables: bit of the packet mark that requests masquerading, 0 to 31.
        masquerade_bit: u8 = field("nftables.masqueradeBit").default("14").backend();
    }
}

section! {
    /// `winkernel`: options of the mode kernelspace.
    Winkernel {
        /// Mode kernelspace: name of the HNS network. By default, the network in the environment variable
        /// `KUBE_NETWORK`; if that is not set, the only network of type Overlay, L2Bridge or L2Tunnel.
        network_name: Option<String> = field("winkernel.networkName").flag("network-name").of_mode();
        /// Mode kernelspace: source address of load-balanced traffic in an overlay network.
        source_vip: Option<IpAddr> = field("winkernel.sourceVip").flag("source-vip").of_mode();
        /// Mode kernelspace: use direct server return.
        enable_dsr: bool = field("winkernel.enableDSR").flag("enable-dsr").of_mode();
        /// Mode kernelspace: name of the HNS endpoint of the root network namespace on an l2bridge. By default `cbr0`.
        ///
        /// On Windows it is never `None`.
        root_hns_endpoint_name: Option<String> as RootEndpoint = field("winkernel.rootHnsEndpointName")
            .flag("root-hnsendpoint-name").of_mode();
        /// Mode kernelspace: let external load balancers check the node's health at the load balancer IP of a
        /// Service.
        forward_health_check_vip: bool = field("winkernel.forwardHealthCheckVip")
            .flag("forward-healthcheck-vip").of_mode();
    }
}

section! {
    /// `detectLocal`: how to recognize traffic of the node's own pods. Values that the current `detectLocalMode` does not use
    /// are kept, so that they can be written back.
    DetectLocal {
        /// How this node's pods are recognized: `ClusterCIDR`, `NodeCIDR`, `BridgeInterface` or `InterfaceNamePrefix`. By
        /// default `ClusterCIDR`.
        mode: DetectLocalMode = field("detectLocalMode").flag("detect-local-mode").backend();
        /// If `detectLocalMode` is `BridgeInterface`: bridge of this node's pods.
        bridge_interface: String as Interface = field("detectLocal.bridgeInterface")
            .flag("pod-bridge-interface").backend();
        /// If `detectLocalMode` is `ClusterCIDR`: CIDRs of all pods, at most one of each family. By default, no pod is
        /// recognized.
        cluster_cidrs: Vec<IpNet> as ClusterCidrs = field("detectLocal.clusterCIDRs")
            .v1alpha1_text("clusterCIDR", Kind::Text).flag("cluster-cidr").backend();
        /// If `detectLocalMode` is `InterfaceNamePrefix`: prefix of the interface names of this node's pods.
        interface_name_prefix: String as Interface = field("detectLocal.interfaceNamePrefix")
            .flag("pod-interface-name-prefix").backend();
    }
}

impl Config {
    /// Reads a complete document of v1alpha2. The result is valid only if there are no errors among the findings. The
    /// caller sets `explicit.min_sync_period`, which a complete document does not show.
    pub(crate) fn read(check: &mut Check<'_>) -> Self {
        Section::read(check)
    }

    /// Writes the values into a document of v1alpha2.
    pub(crate) fn write(&self, document: &mut Document) {
        Section::write(self, document);
    }
}

impl Section for Explicit {
    fn fields(_: &mut Vec<Field>) {}

    fn read(check: &mut Check<'_>) -> Self {
        Self { mode: !check.document.text("mode").is_empty(), min_sync_period: false }
    }

    fn write(&self, document: &mut Document) {
        // An empty mode stays empty, because the meaning of other missing values depends on it.
        if !self.mode {
            document.set("mode", Kind::Text.zero());
        }
    }
}
