//! A table of every field of v1alpha2: its meaning, its default, its place in v1alpha1 and its effect in localnet. It contains
//! the tables of KEP-784 as data.

use crate::v1alpha2;

/// A field of v1alpha2 that contains a value and not further fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its path, such as `linux.conntrack.min`.
    pub path: &'static str,
    /// Its place in v1alpha1.
    pub formerly: Formerly,
    /// Its default value, as JSON.
    pub default: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// Its effect in localnet.
    pub effect: Effect,
}

/// The effect of a field in localnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A change of the file takes effect at once.
    Live,
    /// The value takes effect when a program starts.
    AtStart,
    /// The value affects the backend of its mode.
    OfMode,
    /// The field has no effect, with the reason.
    No(&'static str),
}

/// The place of a field in v1alpha1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formerly {
    /// The same place.
    Same,
    /// Another place.
    At(&'static str),
    /// This name, in a section of each of these modes. The configured mode selects the section: `ipvs`, `nftables`, and
    /// `iptables` for all other modes.
    InModes(&'static [&'static str], &'static str),
    /// v1alpha1 has no such field.
    New,
}

/// The fields of v1alpha1 that v1alpha2 does not have, each with the remedy.
pub const DROPPED: &[(&str, &str)] = &[
    ("bindAddress", "use nodeIPOverride"),
    ("portRange", "remove it: no mode uses it since the userspace mode was removed"),
];

use Effect::{AtStart, Live, No, OfMode};
use Formerly::{At, InModes, New, Same};

const READS_JSON: Effect = No("the brain requests JSON from the API server");
const NO_LIMIT: Effect = No("a brain makes few requests");
const AT_ONCE: Effect = No("log lines are written at once to standard error");
const NOTHING_HIDDEN: Effect = No("no metric is hidden");

const ALL_MODES: &[&str] = &["iptables", "ipvs", "nftables"];

/// All fields, in the order in which documents are written.
pub const FIELDS: &[Field] = &[
    field("apiVersion", Same, r#""kubeproxy.config.k8s.io/v1alpha2""#, "the version of the document", Live),
    field("kind", Same, r#""KubeProxyConfiguration""#, "the kind of the document", Live),
    field("featureGates", Same, "{}", "feature gates: name and true or false", AtStart),
    field(
        "clientConnection.kubeconfig",
        Same,
        r#""""#,
        "kubeconfig file; empty: the service account of the pod",
        AtStart,
    ),
    field(
        "clientConnection.acceptContentTypes",
        Same,
        r#""""#,
        "content types accepted from the API server",
        READS_JSON,
    ),
    field(
        "clientConnection.contentType",
        Same,
        r#""application/vnd.kubernetes.protobuf""#,
        "content type of requests to the API server",
        READS_JSON,
    ),
    field("clientConnection.qps", Same, "5.0", "requests per second to the API server", NO_LIMIT),
    field("clientConnection.burst", Same, "10", "burst of requests beyond that", NO_LIMIT),
    field("logging.format", Same, r#""text""#, "`text` or `json`", AtStart),
    field("logging.flushFrequency", Same, r#""5s""#, "maximum delay of log lines", AT_ONCE),
    field("logging.verbosity", Same, "0", "log verbosity", AtStart),
    field(
        "logging.vmodule",
        Same,
        "[]",
        "verbosity of source files: `filePattern`, `verbosity`",
        No("localnet does not have kube-proxy's source files"),
    ),
    field(
        "logging.options.text.splitStream",
        Same,
        "false",
        "text: errors to standard error, the rest to standard output",
        AT_ONCE,
    ),
    field(
        "logging.options.text.infoBufferSize",
        Same,
        r#""0""#,
        "text: size of the buffer for standard output",
        AT_ONCE,
    ),
    field(
        "logging.options.json.splitStream",
        Same,
        "false",
        "json: errors to standard error, the rest to standard output",
        AT_ONCE,
    ),
    field(
        "logging.options.json.infoBufferSize",
        Same,
        r#""0""#,
        "json: size of the buffer for standard output",
        AT_ONCE,
    ),
    field("hostnameOverride", Same, r#""""#, "name of the Node; empty: the host's name in lower case", AtStart),
    field(
        "nodeIPOverride",
        At("bindAddress"),
        "[]",
        "primary addresses of the node, one of each family; empty: the Node object's",
        Live,
    ),
    field(
        "ipFamilyPolicy",
        New,
        r#""""#,
        "families of the node's primary addresses: `SingleStack`, `PreferDualStack`, `RequireDualStack`; empty: all families that the node has",
        Live,
    ),
    field("configHardFail", New, "true", "exit on errors of the configuration that are otherwise only warnings", Live),
    field("healthzBindAddress", Same, r#""0.0.0.0:10256""#, "where `/healthz` and `/livez` are answered", Live),
    field("metricsBindAddress", Same, r#""127.0.0.1:10249""#, "where `/metrics` is answered", Live),
    field("bindAddressHardFail", Same, "true", "exit if these addresses cannot be bound", AtStart),
    field("enableProfiling", Same, "false", "serve profiles at the address of metrics", Live),
    field(
        "showHiddenMetricsForVersion",
        Same,
        r#""""#,
        "previous minor version, to show the metrics hidden since then",
        NOTHING_HIDDEN,
    ),
    field("mode", Same, r#""""#, "`iptables`, `ipvs`, `nftables`; on Windows `kernelspace`", AtStart),
    field(
        "linux.conntrack.maxPerCore",
        At("conntrack.maxPerCore"),
        "32768",
        "maximum of tracked connections per core; 0: keep the kernel's limit",
        Live,
    ),
    field("linux.conntrack.min", At("conntrack.min"), "131072", "minimum of the maximum of tracked connections", Live),
    field(
        "linux.conntrack.tcpEstablishedTimeout",
        At("conntrack.tcpEstablishedTimeout"),
        r#""24h0m0s""#,
        "tracking timeout of idle TCP connections; 0: keep the kernel's timeout",
        Live,
    ),
    field(
        "linux.conntrack.tcpCloseWaitTimeout",
        At("conntrack.tcpCloseWaitTimeout"),
        r#""1h0m0s""#,
        "tracking timeout of half-closed TCP connections; 0: keep the kernel's timeout",
        Live,
    ),
    field(
        "linux.conntrack.tcpBeLiberal",
        At("conntrack.tcpBeLiberal"),
        "false",
        "accept TCP packets outside of the window",
        Live,
    ),
    field(
        "linux.conntrack.udpTimeout",
        At("conntrack.udpTimeout"),
        r#""0s""#,
        "tracking timeout of UDP flows without an answer; 0: keep the kernel's timeout",
        Live,
    ),
    field(
        "linux.conntrack.udpStreamTimeout",
        At("conntrack.udpStreamTimeout"),
        r#""0s""#,
        "tracking timeout of UDP flows with an answer; 0: keep the kernel's timeout",
        Live,
    ),
    field(
        "linux.masqueradeAll",
        InModes(&["iptables", "nftables"], "masqueradeAll"),
        "false",
        "masquerade all traffic to ClusterIPs",
        Live,
    ),
    field("linux.oomScoreAdj", At("oomScoreAdj"), "-999", "OOM score adjustment of the process", Live),
    field("windows.runAsService", At("windowsRunAsService"), "false", "run as a Windows service", OfMode),
    field("iptables.masqueradeBit", Same, "14", "iptables: bit of the packet mark that requests masquerading", Live),
    field("iptables.localhostNodePorts", Same, "false", "iptables: NodePorts answer on 127.0.0.1", OfMode),
    field(
        "ipvs.masqueradeBit",
        At("iptables.masqueradeBit"),
        "14",
        "ipvs: bit of the packet mark that requests masquerading",
        Live,
    ),
    field("ipvs.scheduler", Same, r#""""#, "ipvs: scheduler; empty: `rr`", OfMode),
    field("ipvs.excludeCIDRs", Same, "[]", "ipvs: CIDRs distribution virtual servers belong to other programs", OfMode),
    field("ipvs.strictARP", Same, "false", "ipvs: `arp_ignore` 1 and `arp_announce` 2", OfMode),
    field(
        "ipvs.tcpTimeout",
        Same,
        r#""0s""#,
        "ipvs: timeout of idle TCP connections; 0: keep the kernel's timeout",
        OfMode,
    ),
    field(
        "ipvs.tcpFinTimeout",
        Same,
        r#""0s""#,
        "ipvs: timeout of TCP connections after a FIN; 0: keep the kernel's timeout",
        OfMode,
    ),
    field("ipvs.udpTimeout", Same, r#""0s""#, "ipvs: timeout of UDP; 0: left alone", OfMode),
    field("nftables.masqueradeBit", Same, "14", "nftables: bit of the packet mark that requests masquerading", Live),
    field("winkernel.networkName", Same, r#""""#, "kernelspace: name of the HNS network", OfMode),
    field("winkernel.sourceVip", Same, r#""""#, "kernelspace: source address of balanced traffic", OfMode),
    field("winkernel.enableDSR", Same, "false", "kernelspace: direct server return", OfMode),
    field(
        "winkernel.rootHnsEndpointName",
        Same,
        r#""""#,
        "kernelspace: HNS endpoint of the root namespace; empty: `cbr0`",
        OfMode,
    ),
    field(
        "winkernel.forwardHealthCheckVip",
        Same,
        "false",
        "kernelspace: forward the health check port on VIPs",
        OfMode,
    ),
    field(
        "detectLocalMode",
        Same,
        r#""""#,
        "how this node's pods are recognized: `ClusterCIDR` (default), `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`",
        Live,
    ),
    field("detectLocal.bridgeInterface", Same, r#""""#, "for `BridgeInterface`: the bridge of the node's pods", Live),
    field(
        "detectLocal.clusterCIDRs",
        At("clusterCIDR"),
        "[]",
        "for `ClusterCIDR`: CIDRs of all pods, at most one of each family",
        Live,
    ),
    field(
        "detectLocal.interfaceNamePrefix",
        Same,
        r#""""#,
        "for `InterfaceNamePrefix`: prefix of the interface names of this node's pods",
        Live,
    ),
    field(
        "nodePortAddresses",
        Same,
        "[]",
        "CIDRs of addresses that answer NodePorts, or `primary`; empty: all, in mode nftables `primary`",
        Live,
    ),
    field("syncPeriod", InModes(ALL_MODES, "syncPeriod"), r#""30s""#, "period of resyncs", Live),
    field("minSyncPeriod", InModes(ALL_MODES, "minSyncPeriod"), r#""1s""#, "minimum time between two syncs", Live),
    field(
        "configSyncPeriod",
        Same,
        r#""15m0s""#,
        "how often all objects are compared with the API server",
        No("the brain watches objects, and lists them again whenever a watch restarts"),
    ),
];

const fn field(
    path: &'static str,
    formerly: Formerly,
    default: &'static str,
    meaning: &'static str,
    effect: Effect,
) -> Field {
    Field { path, formerly, default, meaning, effect }
}

/// Returns the fields in which two documents of v1alpha2 differ and that take effect only when a program starts.
pub(crate) fn at_start(before: &v1alpha2::Document, after: &v1alpha2::Document) -> Vec<&'static str> {
    let [before, after] = [before, after].map(|document| serde_json::to_value(document).unwrap_or_default());
    let at = |document: &serde_json::Value, path: &str| {
        path.split('.').try_fold(document, |value, step| value.get(step)).cloned()
    };
    let differs = |field: &&Field| field.effect == Effect::AtStart && at(&before, field.path) != at(&after, field.path);
    FIELDS.iter().filter(differs).map(|field| field.path).collect()
}

/// Returns the section whose options apply in a mode of v1alpha1.
pub(crate) fn section_of_mode(mode: &str) -> &'static str {
    match mode {
        "ipvs" => "ipvs",
        "nftables" => "nftables",
        _ => "iptables",
    }
}

impl Formerly {
    /// The path in a v1alpha1 document of the given mode, for a field with this path in v1alpha2.
    fn path(self, path: &str, mode: &str) -> Option<String> {
        match self {
            Same => Some(path.to_owned()),
            At(formerly) => Some(formerly.to_owned()),
            InModes(sections, name) => {
                let section = section_of_mode(mode);
                let section = if sections.contains(&section) { section } else { "iptables" };
                Some(format!("{section}.{name}"))
            }
            New => None,
        }
    }
}

/// Converts the path of a v1alpha2 field, with or without an index, to the path in a v1alpha1 document of a mode.
pub(crate) fn v1alpha1_path(path: &str, mode: &str) -> String {
    let (name, index) = path.split_at(path.find('[').unwrap_or(path.len()));
    let Some(field) = FIELDS.iter().find(|field| field.path == name) else { return path.to_owned() };
    match (field.formerly, field.formerly.path(name, mode)) {
        // These fields are single texts in v1alpha1 and lists in v1alpha2.
        (At("bindAddress" | "clusterCIDR"), Some(formerly)) => formerly,
        (_, Some(formerly)) => formerly + index,
        (_, None) => path.to_owned(),
    }
}

/// Returns the remedy for a field or section of v1alpha1 in a v1alpha2 document.
pub(crate) fn remedy_in_v1alpha2(path: &str) -> Option<String> {
    if let Some((_, remedy)) = DROPPED.iter().find(|(dropped, _)| *dropped == path) {
        return Some((*remedy).to_owned());
    }
    FIELDS.iter().find_map(|field| {
        let formerly = match field.formerly {
            At(formerly) => vec![formerly.to_owned()],
            InModes(sections, name) => sections.iter().map(|section| format!("{section}.{name}")).collect(),
            Same | New => Vec::new(),
        };
        let tail = formerly.iter().find_map(|formerly| formerly.strip_prefix(path))?;
        let inside = tail.is_empty() || tail.starts_with('.');
        let now = field.path.strip_suffix(tail).filter(|_| inside)?;
        Some(format!("in v1alpha2 it is {now}"))
    })
}

/// Whether v1alpha2 has a field or section with this path.
pub(crate) fn is_in_v1alpha2(path: &str) -> bool {
    FIELDS
        .iter()
        .any(|field| field.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{v1alpha1, v1alpha2};

    /// Collects the fields of a document that contain values, with their paths.
    fn flattened(value: &Value, path: &str, into: &mut Vec<(String, String)>) {
        match value {
            Value::Object(fields) if path.is_empty() || !fields.is_empty() => {
                for (name, value) in fields {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    flattened(value, &path, into);
                }
            }
            value => into.push((path.to_owned(), value.to_string())),
        }
    }

    #[test]
    fn the_table_matches_the_default_document() {
        let mut document = Vec::new();
        flattened(&serde_json::to_value(v1alpha2::Document::default().complete()).unwrap(), "", &mut document);
        let mut table: Vec<_> = FIELDS.iter().map(|field| (field.path.to_owned(), field.default.to_owned())).collect();
        document.sort();
        table.sort();
        assert_eq!(table, document);
    }

    #[test]
    fn every_field_of_v1alpha1_is_carried_over_or_dropped() {
        let mut document = Vec::new();
        flattened(&serde_json::to_value(v1alpha1::Document::default().complete()).unwrap(), "", &mut document);
        let mut known: Vec<String> = DROPPED.iter().map(|(path, _)| (*path).to_owned()).collect();
        for field in FIELDS {
            for mode in ["", "ipvs", "nftables"] {
                known.extend(field.formerly.path(field.path, mode));
            }
        }
        known.sort();
        known.dedup();
        let mut paths: Vec<_> = document.into_iter().map(|(path, _)| path).collect();
        paths.sort();
        assert_eq!(known, paths);
    }

    #[test]
    fn fields_are_called_as_their_document_calls_them() {
        for (path, mode, expected) in [
            ("linux.conntrack.min", "", "conntrack.min"),
            ("syncPeriod", "", "iptables.syncPeriod"),
            ("syncPeriod", "ipvs", "ipvs.syncPeriod"),
            ("minSyncPeriod", "nftables", "nftables.minSyncPeriod"),
            ("linux.masqueradeAll", "ipvs", "iptables.masqueradeAll"),
            ("linux.masqueradeAll", "nftables", "nftables.masqueradeAll"),
            ("nodeIPOverride[0]", "", "bindAddress"),
            ("detectLocal.clusterCIDRs[1]", "", "clusterCIDR"),
            ("nodePortAddresses[1]", "", "nodePortAddresses[1]"),
            ("ipvs.masqueradeBit", "", "iptables.masqueradeBit"),
            ("ipFamilyPolicy", "", "ipFamilyPolicy"),
            ("featureGates.X", "", "featureGates.X"),
        ] {
            assert_eq!(v1alpha1_path(path, mode), expected, "{path} in mode {mode:?}");
        }
    }

    #[test]
    fn fields_that_wait_for_a_start_are_named() {
        let before = v1alpha2::Document::default();
        let mut after = before.clone();
        after.sync_period = crate::GoDuration::from_secs(7);
        after.linux.conntrack.min = 7;
        assert_eq!(at_start(&before, &after), [""; 0]);
        after.hostname_override = "a".to_owned();
        after.logging.verbosity = 7;
        after.client_connection.qps = 7.0;
        after.feature_gates.insert("AllAlpha".to_owned(), true);
        assert_eq!(at_start(&before, &after), ["featureGates", "logging.verbosity", "hostnameOverride"]);
    }

    #[test]
    fn moved_fields_have_their_new_name() {
        for (path, expected) in [
            ("conntrack", Some("in v1alpha2 it is linux.conntrack")),
            ("conntrack.min", Some("in v1alpha2 it is linux.conntrack.min")),
            ("oomScoreAdj", Some("in v1alpha2 it is linux.oomScoreAdj")),
            ("clusterCIDR", Some("in v1alpha2 it is detectLocal.clusterCIDRs")),
            ("windowsRunAsService", Some("in v1alpha2 it is windows.runAsService")),
            ("nftables.masqueradeAll", Some("in v1alpha2 it is linux.masqueradeAll")),
            ("ipvs.syncPeriod", Some("in v1alpha2 it is syncPeriod")),
            ("bindAddress", Some("use nodeIPOverride")),
            ("portRange", Some("remove it: no mode uses it since the userspace mode was removed")),
            ("con", None),
            ("mode", None),
        ] {
            assert_eq!(remedy_in_v1alpha2(path).as_deref(), expected, "{path}");
        }
    }
}
