//! Every field of v1alpha2: what it is, its default, and where v1alpha1 had it. KEP-784's tables as data.

/// A field of v1alpha2 that has a value of its own, no section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its path: `linux.conntrack.min`.
    pub path: &'static str,
    /// Where v1alpha1 has it.
    pub formerly: Formerly,
    /// Its default, as JSON.
    pub default: &'static str,
    /// What it is.
    pub meaning: &'static str,
}

/// Where v1alpha1 has a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formerly {
    /// In the same place.
    Same,
    /// Elsewhere.
    At(&'static str),
    /// Under this name in a section of each mode; that of the mode counts: `ipvs`, `nftables`, and `iptables` for all others.
    InModes(&'static [&'static str], &'static str),
    /// Nowhere.
    New,
}

/// A field that v1alpha1 has and v1alpha2 has not, and what to do.
pub const DROPPED: &[(&str, &str)] = &[
    ("bindAddress", "use nodeIPOverride"),
    ("portRange", "remove it: nothing has used it since the userspace mode went"),
];

use Formerly::{At, InModes, New, Same};

const ALL_MODES: &[&str] = &["iptables", "ipvs", "nftables"];

/// All fields, in the order in which they are written.
pub const FIELDS: &[Field] = &[
    field("apiVersion", Same, r#""kubeproxy.config.k8s.io/v1alpha2""#, "the version of the document"),
    field("kind", Same, r#""KubeProxyConfiguration""#, "the kind of the document"),
    field("featureGates", Same, "{}", "names of feature gates, and whether they are on"),
    field("clientConnection.kubeconfig", Same, r#""""#, "kubeconfig file; empty: the service account of the pod"),
    field("clientConnection.acceptContentTypes", Same, r#""""#, "content types that are accepted of the API server"),
    field(
        "clientConnection.contentType",
        Same,
        r#""application/vnd.kubernetes.protobuf""#,
        "content type of requests to the API server",
    ),
    field("clientConnection.qps", Same, "5.0", "requests to the API server a second"),
    field("clientConnection.burst", Same, "10", "requests that may be made at once beyond that"),
    field("logging.format", Same, r#""text""#, "`text` or `json`"),
    field("logging.flushFrequency", Same, r#""5s""#, "how long log lines may wait before they are written"),
    field("logging.verbosity", Same, "0", "how much is logged"),
    field("logging.vmodule", Same, "[]", "verbosity of source files: `filePattern`, `verbosity`"),
    field(
        "logging.options.text.splitStream",
        Same,
        "false",
        "text: errors to standard error, the rest to standard output",
    ),
    field("logging.options.text.infoBufferSize", Same, r#""0""#, "text: bytes that may be held back then"),
    field(
        "logging.options.json.splitStream",
        Same,
        "false",
        "json: errors to standard error, the rest to standard output",
    ),
    field("logging.options.json.infoBufferSize", Same, r#""0""#, "json: bytes that may be held back then"),
    field("hostnameOverride", Same, r#""""#, "name of the Node; empty: the host's name in lower case"),
    field(
        "nodeIPOverride",
        At("bindAddress"),
        "[]",
        "primary addresses of the node, one of each family; empty: the Node object's",
    ),
    field(
        "ipFamilyPolicy",
        New,
        r#""""#,
        "families of the node's primary addresses: `SingleStack`, `PreferDualStack`, `RequireDualStack`; empty: as many as it has",
    ),
    field(
        "configHardFail",
        New,
        "true",
        "errors of the configuration end the program, where otherwise they are only said",
    ),
    field("healthzBindAddress", Same, r#""0.0.0.0:10256""#, "where `/healthz` and `/livez` are answered"),
    field("metricsBindAddress", Same, r#""127.0.0.1:10249""#, "where `/metrics` is answered"),
    field("bindAddressHardFail", Same, "true", "the program ends when it cannot bind to those"),
    field("enableProfiling", Same, "false", "profiles can be had where metrics are"),
    field("showHiddenMetricsForVersion", Same, r#""""#, "the minor version before this one: show metrics hidden since"),
    field("mode", Same, r#""""#, "`iptables`, `ipvs`, `nftables`; on Windows `kernelspace`"),
    field(
        "linux.conntrack.maxPerCore",
        At("conntrack.maxPerCore"),
        "32768",
        "tracked connections for each core; 0: left alone",
    ),
    field("linux.conntrack.min", At("conntrack.min"), "131072", "but at least so many"),
    field(
        "linux.conntrack.tcpEstablishedTimeout",
        At("conntrack.tcpEstablishedTimeout"),
        r#""24h0m0s""#,
        "how long an idle connection is tracked; 0: left alone",
    ),
    field(
        "linux.conntrack.tcpCloseWaitTimeout",
        At("conntrack.tcpCloseWaitTimeout"),
        r#""1h0m0s""#,
        "how long a half closed connection is tracked; 0: left alone",
    ),
    field(
        "linux.conntrack.tcpBeLiberal",
        At("conntrack.tcpBeLiberal"),
        "false",
        "packets outside of the window are not invalid",
    ),
    field(
        "linux.conntrack.udpTimeout",
        At("conntrack.udpTimeout"),
        r#""0s""#,
        "how long UDP without an answer is tracked; 0: left alone",
    ),
    field(
        "linux.conntrack.udpStreamTimeout",
        At("conntrack.udpStreamTimeout"),
        r#""0s""#,
        "how long UDP with an answer is tracked; 0: left alone",
    ),
    field(
        "linux.masqueradeAll",
        InModes(&["iptables", "nftables"], "masqueradeAll"),
        "false",
        "masquerade everything that is sent to a ClusterIP",
    ),
    field("linux.oomScoreAdj", At("oomScoreAdj"), "-999", "how readily the kernel ends it when memory is short"),
    field("windows.runAsService", At("windowsRunAsService"), "false", "runs as a Windows service"),
    field("iptables.masqueradeBit", Same, "14", "iptables: bit of the packet mark that asks for masquerading"),
    field("iptables.localhostNodePorts", Same, "false", "iptables: NodePorts answer on 127.0.0.1"),
    field(
        "ipvs.masqueradeBit",
        At("iptables.masqueradeBit"),
        "14",
        "ipvs: bit of the packet mark that asks for masquerading",
    ),
    field("ipvs.scheduler", Same, r#""""#, "ipvs: scheduler; empty: `rr`"),
    field("ipvs.excludeCIDRs", Same, "[]", "ipvs: virtual servers in these are left alone"),
    field("ipvs.strictARP", Same, "false", "ipvs: `arp_ignore` 1 and `arp_announce` 2"),
    field("ipvs.tcpTimeout", Same, r#""0s""#, "ipvs: timeout of idle TCP sessions; 0: left alone"),
    field("ipvs.tcpFinTimeout", Same, r#""0s""#, "ipvs: timeout of TCP sessions after a FIN; 0: left alone"),
    field("ipvs.udpTimeout", Same, r#""0s""#, "ipvs: timeout of UDP; 0: left alone"),
    field("nftables.masqueradeBit", Same, "14", "nftables: bit of the packet mark that asks for masquerading"),
    field("winkernel.networkName", Same, r#""""#, "kernelspace: name of the HNS network"),
    field("winkernel.sourceVip", Same, r#""""#, "kernelspace: address that balanced traffic is sent from"),
    field("winkernel.enableDSR", Same, "false", "kernelspace: direct server return"),
    field(
        "winkernel.rootHnsEndpointName",
        Same,
        r#""""#,
        "kernelspace: HNS endpoint of the root namespace; empty: `cbr0`",
    ),
    field("winkernel.forwardHealthCheckVip", Same, "false", "kernelspace: the health check port is forwarded on VIPs"),
    field(
        "detectLocalMode",
        Same,
        r#""""#,
        "how the node's own pods are told: `ClusterCIDR` (default), `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`",
    ),
    field("detectLocal.bridgeInterface", Same, r#""""#, "for `BridgeInterface`: the bridge of the node's pods"),
    field(
        "detectLocal.clusterCIDRs",
        At("clusterCIDR"),
        "[]",
        "for `ClusterCIDR`: CIDRs of all pods, at most one of each family",
    ),
    field(
        "detectLocal.interfaceNamePrefix",
        Same,
        r#""""#,
        "for `InterfaceNamePrefix`: how the names of the pods' interfaces begin",
    ),
    field(
        "nodePortAddresses",
        Same,
        "[]",
        "CIDRs of addresses that answer NodePorts, or `primary`; empty: all, in mode nftables `primary`",
    ),
    field("syncPeriod", InModes(ALL_MODES, "syncPeriod"), r#""30s""#, "how often everything is looked at again"),
    field(
        "minSyncPeriod",
        InModes(ALL_MODES, "minSyncPeriod"),
        r#""1s""#,
        "how long there is at least between two syncs",
    ),
    field("configSyncPeriod", Same, r#""15m0s""#, "how often everything is compared with the API server"),
];

const fn field(path: &'static str, formerly: Formerly, default: &'static str, meaning: &'static str) -> Field {
    Field { path, formerly, default, meaning }
}

/// The section whose options count in a mode that v1alpha1 names.
pub(crate) fn section_of_mode(mode: &str) -> &'static str {
    match mode {
        "ipvs" => "ipvs",
        "nftables" => "nftables",
        _ => "iptables",
    }
}

impl Formerly {
    /// The path in a v1alpha1 document of some mode, for a field of this path in v1alpha2.
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

/// What a field of v1alpha2, perhaps with an index behind it, is called in a v1alpha1 document of a mode.
pub(crate) fn v1alpha1_path(path: &str, mode: &str) -> String {
    let (name, index) = path.split_at(path.find('[').unwrap_or(path.len()));
    let Some(field) = FIELDS.iter().find(|field| field.path == name) else { return path.to_owned() };
    match (field.formerly, field.formerly.path(name, mode)) {
        // What was a text there is a list here.
        (At("bindAddress" | "clusterCIDR"), Some(formerly)) => formerly,
        (_, Some(formerly)) => formerly + index,
        (_, None) => path.to_owned(),
    }
}

/// What to do with a field or section of v1alpha1 in a v1alpha2 document.
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

/// Whether v1alpha2 has a field or section of this path.
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

    /// The fields of a document that are no sections, with their values.
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
    fn the_table_is_what_the_default_document_says() {
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
    fn what_moved_is_found_again() {
        for (path, expected) in [
            ("conntrack", Some("in v1alpha2 it is linux.conntrack")),
            ("conntrack.min", Some("in v1alpha2 it is linux.conntrack.min")),
            ("oomScoreAdj", Some("in v1alpha2 it is linux.oomScoreAdj")),
            ("clusterCIDR", Some("in v1alpha2 it is detectLocal.clusterCIDRs")),
            ("windowsRunAsService", Some("in v1alpha2 it is windows.runAsService")),
            ("nftables.masqueradeAll", Some("in v1alpha2 it is linux.masqueradeAll")),
            ("ipvs.syncPeriod", Some("in v1alpha2 it is syncPeriod")),
            ("bindAddress", Some("use nodeIPOverride")),
            ("portRange", Some("remove it: nothing has used it since the userspace mode went")),
            ("con", None),
            ("mode", None),
        ] {
            assert_eq!(remedy_in_v1alpha2(path).as_deref(), expected, "{path}");
        }
    }
}
