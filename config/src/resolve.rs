//! Validates a complete document and converts it to [`Config`]. It applies all of kube-proxy's validation rules, in
//! kube-proxy's words.
//!
//! kube-proxy does not validate values that the mode does not use. Here an invalid one is a warning and is skipped; with
//! `configHardFail` it is an error.

mod detect_local;
mod linux;
mod logging;

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use localnet_core::Code;

use crate::{
    address,
    config::{
        ClientConnection, Config, Explicit, IpFamilyPolicy, Iptables, Ipvs, MinorVersion, Mode, Nftables,
        NodePortAddresses, PRIMARY, Platform, Windows, Winkernel,
    },
    duration::GoDuration,
    gates::FeatureGates,
    problem::Findings,
    v1alpha2::Document,
};

/// The minor version of Kubernetes whose kube-proxy the rules follow.
const KUBERNETES: MinorVersion = MinorVersion { major: 1, minor: 36 };

/// The context in which a document is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The operating system of the node.
    pub platform: Platform,
    /// The meaning of an empty `mode`. kube-proxy takes it as `iptables` on Linux and as `kernelspace` on Windows.
    pub empty_mode: Mode,
}

impl Reader {
    /// A reader with kube-proxy's meaning of an empty `mode`.
    pub const fn kube_proxy(platform: Platform) -> Self {
        let empty_mode = match platform {
            Platform::Linux => Mode::Iptables,
            Platform::Windows => Mode::Kernelspace,
        };
        Self { platform, empty_mode }
    }
}

/// Validates a complete document. The result is valid only if the findings contain no errors. A complete document does not show
/// whether `minSyncPeriod` is explicit; the caller sets that.
pub(crate) fn resolve(document: &Document, reader: Reader, findings: &mut Findings) -> Config {
    let mut check = Check { hard_fail: document.config_hard_fail, findings };
    let feature_gates = FeatureGates::new(document.feature_gates.clone(), check.findings);
    let logging = check.logging(&document.logging, &feature_gates);
    let mode = check.mode(&document.mode, reader);
    let (sync_period, min_sync_period) = check.sync_periods(document.sync_period, document.min_sync_period);
    Config {
        feature_gates,
        client_connection: check.client_connection(&document.client_connection),
        logging,
        hostname_override: check.hostname(&document.hostname_override),
        node_ip_override: check.node_ips(&document.node_ip_override),
        ip_family_policy: check.family_policy(document),
        config_hard_fail: document.config_hard_fail,
        healthz_bind_address: check.healthz(&document.healthz_bind_address),
        metrics_bind_address: check.socket("metricsBindAddress", &document.metrics_bind_address),
        bind_address_hard_fail: document.bind_address_hard_fail,
        enable_profiling: document.enable_profiling,
        show_hidden_metrics_for_version: check.hidden_metrics(&document.show_hidden_metrics_for_version),
        mode,
        explicit: Explicit { mode: !document.mode.is_empty(), min_sync_period: false },
        linux: check.linux(&document.linux),
        windows: Windows { run_as_service: document.windows.run_as_service },
        iptables: Iptables {
            masquerade_bit: check.bit("iptables.masqueradeBit", document.iptables.masquerade_bit, true),
            localhost_node_ports: document.iptables.localhost_node_ports,
        },
        ipvs: check.ipvs(&document.ipvs, mode == Mode::Ipvs),
        nftables: Nftables {
            masquerade_bit: check.bit(
                "nftables.masqueradeBit",
                document.nftables.masquerade_bit,
                mode == Mode::Nftables,
            ),
        },
        winkernel: check.winkernel(document, reader.platform),
        detect_local: check.detect_local(document),
        node_port_addresses: check.node_port_addresses(&document.node_port_addresses, &document.mode),
        sync_period,
        min_sync_period,
        config_sync_period: check.more_than_zero("configSyncPeriod", document.config_sync_period),
    }
}

const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

struct Check<'a> {
    hard_fail: bool,
    findings: &'a mut Findings,
}

impl Check<'_> {
    /// Adds an error. If the value is not used, it is skipped, and the diagnostic is a warning.
    fn wrong(&mut self, used: bool, field: &str, value: &str, why: &str, remedy: &str) {
        if used || self.hard_fail {
            self.findings.invalid(field, value, why, remedy);
        } else {
            self.findings.unused(
                Code::ValueInvalid,
                field,
                format!("Invalid value: {value}: {why}; skipped, because the mode does not use it"),
                remedy,
            );
        }
    }

    fn client_connection(&mut self, given: &crate::sections::ClientConnection) -> ClientConnection {
        let burst = u32::try_from(given.burst).unwrap_or_else(|_| {
            self.findings.invalid("clientConnection.burst", given.burst, NOT_NEGATIVE, "use 0 for the default");
            0
        });
        ClientConnection {
            kubeconfig: Some(&given.kubeconfig).filter(|path| !path.is_empty()).map(Into::into),
            accept_content_types: given.accept_content_types.clone(),
            content_type: given.content_type.clone(),
            qps: given.qps,
            burst,
        }
    }

    /// Returns the name without surrounding spaces and in lower case, as Nodes are named.
    fn hostname(&mut self, given: &str) -> Option<String> {
        let name = given.trim().to_lowercase();
        if name.is_empty() && !given.is_empty() {
            self.findings.invalid(
                "hostnameOverride",
                format_args!("{given:?}"),
                "empty hostname-override is invalid",
                "name the Node, or remove the field",
            );
        }
        Some(name).filter(|name| !name.is_empty())
    }

    fn node_ips(&mut self, given: &[String]) -> Vec<IpAddr> {
        let mut ips: Vec<IpAddr> = Vec::new();
        for (position, text) in given.iter().enumerate() {
            let field = format!("nodeIPOverride[{position}]");
            let mut invalid = |why, remedy| self.findings.invalid(&field, format_args!("{text:?}"), why, remedy);
            match address::ip(text) {
                None => invalid(
                    "not a valid textual representation of an IP address",
                    "write it like 10.0.0.1 or 2001:db8::1",
                ),
                Some(ip) if ip.is_unspecified() => {
                    invalid("must not be unspecified", "leave the list empty to use the addresses of the Node");
                }
                Some(ip) if ips.iter().any(|other| other.is_ipv4() == ip.is_ipv4()) => {
                    invalid("must be a single IP or a dual-stack pair of IPs", "name one address of each family");
                }
                Some(ip) => ips.push(ip),
            }
        }
        ips
    }

    fn family_policy(&mut self, document: &Document) -> Option<IpFamilyPolicy> {
        let (field, given) = ("ipFamilyPolicy", document.ip_family_policy.as_str());
        if given.is_empty() {
            return None;
        }
        let policy = IpFamilyPolicy::ALL.into_iter().find(|policy| policy.as_str() == given);
        match policy {
            None => self.unsupported(field, given, IpFamilyPolicy::ALL.map(IpFamilyPolicy::as_str).as_slice()),
            Some(IpFamilyPolicy::SingleStack) if document.node_ip_override.len() > 1 => self.findings.invalid(
                field,
                format_args!("{given:?}"),
                "nodeIPOverride has addresses of two families",
                "remove one of them, or use PreferDualStack",
            ),
            Some(_) => {}
        }
        policy
    }

    fn unsupported(&mut self, field: &str, given: &str, supported: &[&str]) {
        let supported: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
        let problem = format!("Unsupported value: {given:?}: supported values: {}", supported.join(", "));
        self.findings.add(Code::ValueUnsupported, field, problem, "use one of them, or remove the field");
    }

    fn healthz(&mut self, given: &str) -> Option<SocketAddr> {
        if given.is_empty() { None } else { Some(self.socket("healthzBindAddress", given)) }
    }

    fn socket(&mut self, field: &str, given: &str) -> SocketAddr {
        address::socket(given).unwrap_or_else(|bad| {
            let remedy = "write it like 0.0.0.0:10256 or [::]:10256";
            self.findings.invalid(field, format_args!("{:?}", bad.value), bad.why, remedy);
            SocketAddr::from(([0, 0, 0, 0], 0))
        })
    }

    /// Only the previous minor version has hidden metrics that can be shown.
    fn hidden_metrics(&mut self, given: &str) -> Option<MinorVersion> {
        let previous = MinorVersion { minor: KUBERNETES.minor - 1, ..KUBERNETES };
        if given.is_empty() {
            return None;
        }
        if given == previous.to_string() {
            return Some(previous);
        }
        self.findings.invalid(
            "showHiddenMetricsForVersion",
            format_args!("{given:?}"),
            &format!("only the previous minor version is meaningful, {previous}"),
            "use that, or remove the field",
        );
        None
    }

    fn mode(&mut self, given: &str, reader: Reader) -> Mode {
        if given.is_empty() {
            return reader.empty_mode;
        }
        let modes = reader.platform.modes();
        modes.iter().copied().find(|mode| mode.as_str() == given).unwrap_or_else(|| {
            let names: Vec<_> = modes.iter().map(|mode| mode.as_str()).collect();
            let why = format!("must be {} or blank", names.join(", "));
            self.findings.invalid("mode", format_args!("{given:?}"), &why, "use one of them");
            reader.empty_mode
        })
    }

    fn bit(&mut self, field: &str, given: i32, used: bool) -> u8 {
        u8::try_from(given).ok().filter(|bit| *bit < 32).unwrap_or_else(|| {
            self.wrong(used, field, &given.to_string(), "must be within the range [0, 31]", "14 is the default");
            14
        })
    }

    fn ipvs(&mut self, given: &crate::v1alpha2::Ipvs, used: bool) -> Ipvs {
        Ipvs {
            masquerade_bit: self.bit("ipvs.masqueradeBit", given.masquerade_bit, used),
            scheduler: Some(given.scheduler.clone()).filter(|name| !name.is_empty()),
            exclude_cidrs: self.cidrs("ipvs.excludeCIDRs", &given.exclude_cidrs, used),
            strict_arp: given.strict_arp,
            tcp_timeout: self.timeout("ipvs.tcpTimeout", given.tcp_timeout, used),
            tcp_fin_timeout: self.timeout("ipvs.tcpFinTimeout", given.tcp_fin_timeout, used),
            udp_timeout: self.timeout("ipvs.udpTimeout", given.udp_timeout, used),
        }
    }

    fn cidrs(&mut self, field: &str, given: &[String], used: bool) -> Vec<IpNet> {
        let mut cidrs = Vec::new();
        for (position, text) in given.iter().enumerate() {
            match address::cidr(text) {
                Some(cidr) => cidrs.push(cidr),
                None => self.wrong(
                    used,
                    &format!("{field}[{position}]"),
                    &format!("{text:?}"),
                    "must be a valid CIDR",
                    "write it like 10.0.0.0/8 or 2001:db8::/32",
                ),
            }
        }
        cidrs
    }

    /// Returns `None` for zero, which means that the setting stays unchanged.
    fn timeout(&mut self, field: &str, given: GoDuration, used: bool) -> Option<std::time::Duration> {
        let Some(timeout) = given.positive() else {
            let remedy = "use 0s to keep the kernel's value";
            self.wrong(used, field, &format!("\"{given}\""), NOT_NEGATIVE, remedy);
            return None;
        };
        Some(timeout).filter(|timeout| !timeout.is_zero())
    }

    fn winkernel(&mut self, document: &Document, platform: Platform) -> Winkernel {
        let given = &document.winkernel;
        let name = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let source_vip = address::ip(&given.source_vip);
        if source_vip.is_none() && !given.source_vip.is_empty() {
            let value = format!("{:?}", given.source_vip);
            // kube-proxy parses it too late to refuse it, and then runs without it.
            self.wrong(false, "winkernel.sourceVip", &value, "must be a valid IP", "write it like 10.0.0.1");
        }
        let root = match (platform, given.root_hns_endpoint_name.as_str()) {
            (Platform::Windows, "") => Some("cbr0".to_owned()),
            (_, text) => name(text),
        };
        Winkernel {
            network_name: name(&given.network_name),
            source_vip,
            enable_dsr: given.enable_dsr,
            root_hns_endpoint_name: root,
            forward_health_check_vip: given.forward_health_check_vip,
        }
    }

    /// kube-proxy's default depends on the configured mode, even if another backend takes over under an empty mode: an address
    /// that answered NodePorts must still answer them.
    fn node_port_addresses(&mut self, given: &[String], mode: &str) -> NodePortAddresses {
        let field = "nodePortAddresses";
        match given {
            [] if mode == Mode::Nftables.as_str() => NodePortAddresses::Primary,
            [] => NodePortAddresses::All,
            [only] if only == PRIMARY => NodePortAddresses::Primary,
            _ => match given.iter().position(|text| text == PRIMARY) {
                Some(position) => {
                    self.findings.invalid(
                        &format!("{field}[{position}]"),
                        format_args!("{PRIMARY:?}"),
                        "can't use both 'primary' and CIDRs",
                        "use only primary, or only CIDRs",
                    );
                    NodePortAddresses::Primary
                }
                None => NodePortAddresses::Cidrs(self.cidrs(field, given, true)),
            },
        }
    }

    fn sync_periods(&mut self, period: GoDuration, min: GoDuration) -> (std::time::Duration, std::time::Duration) {
        let period = self.more_than_zero("syncPeriod", period);
        let Some(least) = min.positive() else {
            let remedy = "use 0s to sync at once";
            self.findings.invalid("minSyncPeriod", format_args!("\"{min}\""), NOT_NEGATIVE, remedy);
            return (period, std::time::Duration::ZERO);
        };
        if least > period && !period.is_zero() {
            let why = format!("must be greater than or equal to minSyncPeriod, \"{min}\"");
            let value = format_args!("\"{}\"", GoDuration::from(period)).to_string();
            self.findings.invalid("syncPeriod", value, &why, "make it longer, or minSyncPeriod shorter");
        }
        (period, least)
    }

    /// Returns zero if the period is not positive.
    fn more_than_zero(&mut self, field: &str, given: GoDuration) -> std::time::Duration {
        let period = given.positive().filter(|period| !period.is_zero());
        period.unwrap_or_else(|| {
            self.findings.invalid(field, format_args!("\"{given}\""), "must be greater than 0", "write it like 30s");
            std::time::Duration::ZERO
        })
    }
}
