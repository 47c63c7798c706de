//! Whether a configuration fits a node, as kube-proxy checks at its start.

use ipnet::IpNet;
use localnet_config::{Config, Node, Platform, Reader};
use localnet_core::Family;
use localnet_core::Severity;

fn config(lines: &str) -> Config {
    let text = format!("apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n{lines}\n");
    Reader::kube_proxy(Platform::Linux).read(&text).unwrap_or_else(|problems| panic!("{problems}")).config
}

struct Row<'a> {
    /// The lines of the configuration in addition to `nodePortAddresses: [primary]`.
    lines: &'a str,
    pod_cidrs: &'a [&'a str],
    /// The problem on an IPv4 node that supports both families, and whether it is an error even without `configHardFail`.
    dual: Option<(&'a str, bool)>,
    /// The same on a node that supports only IPv4.
    single: Option<(&'a str, bool)>,
}

#[test]
fn families_must_match_those_of_the_node() {
    let cluster = "detectLocal: {clusterCIDRs: ['fd00::/48']}";
    let rows = [
        Row { lines: "", pod_cidrs: &["10.0.0.0/24"], dual: None, single: None },
        Row { lines: "detectLocal: {clusterCIDRs: [10.0.0.0/8]}", pod_cidrs: &[], dual: None, single: None },
        Row {
            lines: cluster,
            pod_cidrs: &[],
            dual: Some(("cluster is IPv4-primary but clusterCIDRs contains only addresses of IPv6", false)),
            single: Some(("cluster is IPv4-only but clusterCIDRs contains only addresses of IPv6", true)),
        },
        Row {
            lines: "detectLocalMode: NodeCIDR\ndetectLocal: {clusterCIDRs: ['fd00::/48']}",
            pod_cidrs: &[],
            dual: Some(("cluster is IPv4-primary but clusterCIDRs contains only addresses of IPv6", false)),
            single: Some(("cluster is IPv4-only but clusterCIDRs contains only addresses of IPv6", false)),
        },
        Row {
            lines: "",
            pod_cidrs: &["fd00::/64"],
            dual: Some(("cluster is IPv4-primary but node.spec.podCIDRs contains only addresses of IPv6", false)),
            single: Some(("cluster is IPv4-only but node.spec.podCIDRs contains only addresses of IPv6", false)),
        },
        Row {
            lines: "detectLocalMode: NodeCIDR",
            pod_cidrs: &["fd00::/64"],
            dual: Some(("cluster is IPv4-primary but node.spec.podCIDRs contains only addresses of IPv6", true)),
            single: Some(("cluster is IPv4-only but node.spec.podCIDRs contains only addresses of IPv6", true)),
        },
        Row {
            lines: "winkernel: {sourceVip: 'fd00::1'}",
            pod_cidrs: &[],
            dual: Some(("cluster is IPv4-primary but winkernel.sourceVip is IPv6", false)),
            single: Some(("cluster is IPv4-only but winkernel.sourceVip is IPv6", false)),
        },
        Row {
            lines: "ipvs: {excludeCIDRs: ['fd00::/64']}",
            pod_cidrs: &[],
            dual: None,
            single: Some(("cluster is IPv4-only but ipvs.excludeCIDRs contains only addresses of IPv6", false)),
        },
        Row {
            lines: "healthzBindAddress: 'fd00::1'",
            pod_cidrs: &[],
            dual: None,
            single: Some(("cluster is IPv4-only but healthzBindAddress is IPv6", false)),
        },
        Row { lines: "healthzBindAddress: '::'", pod_cidrs: &[], dual: None, single: None },
        Row {
            lines: "metricsBindAddress: '::1'",
            pod_cidrs: &[],
            dual: None,
            single: Some(("cluster is IPv4-only but metricsBindAddress is IPv6", false)),
        },
        Row { lines: "ipvs: {excludeCIDRs: ['fd00::/64', 10.0.0.0/8]}", pod_cidrs: &[], dual: None, single: None },
    ];
    for Row { lines, pod_cidrs, dual, single } in rows {
        let pod_cidrs: Vec<IpNet> = pod_cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect();
        for (dual_stack, expected) in [(true, dual), (false, single)] {
            let node = Node { primary: Family::V4, dual_stack, has_both: false, pod_cidrs: &pod_cidrs };
            for hard in [false, true] {
                let lines = format!("{lines}\nnodePortAddresses: [primary]\nconfigHardFail: {hard}");
                let message: Vec<_> = config(&lines)
                    .complaints(&node)
                    .into_iter()
                    .map(|complaint| (complaint.to_string(), complaint.severity == Severity::Error))
                    .collect();
                let expected: Vec<_> =
                    expected.iter().map(|(text, fatal)| ((*text).to_owned(), *fatal || hard)).collect();
                assert_eq!(message, expected, "{lines}, dual stack: {dual_stack}");
            }
        }
    }
}

#[test]
fn an_ipv6_node_is_checked_with_swapped_families() {
    let node = Node { primary: Family::V6, dual_stack: false, has_both: false, pod_cidrs: &[] };
    let lines = "nodePortAddresses: [primary]\ndetectLocal: {clusterCIDRs: [10.0.0.0/8]}";
    let message: Vec<_> = config(lines).complaints(&node).into_iter().map(|complaint| complaint.to_string()).collect();
    assert_eq!(
        message,
        [
            "cluster is IPv6-only but clusterCIDRs contains only addresses of IPv4",
            "cluster is IPv6-only but metricsBindAddress is IPv4"
        ]
    );
}

#[test]
fn node_ports_on_unintended_addresses_are_warned_of() {
    let only_v4 = "cluster appears to be dual-stack but nodePortAddresses contains only IPv4 addresses; NodePort connections will be accepted on all local IPv6 IPs";
    let only_v6 = "cluster appears to be IPv4-primary but nodePortAddresses contains only IPv6 addresses; NodePort connections will be accepted on all local IPv4 IPs";
    let unset = "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. Consider using `--nodeport-addresses primary`";
    let dual: &[IpNet] = &["10.0.0.0/24", "fd00::/64"].map(|cidr| cidr.parse().unwrap_or_default());
    for (lines, pod_cidrs, expected, fatal) in [
        ("", &[][..], Some(unset), false),
        ("nodePortAddresses: [primary]", dual, None, false),
        ("nodePortAddresses: [10.0.0.0/8]", &[], None, false),
        ("nodePortAddresses: [10.0.0.0/8]", dual, Some(only_v4), true),
        ("nodePortAddresses: [10.0.0.0/8]\nipvs: {excludeCIDRs: [10.0.0.0/8, 'fd00::/8']}", &[], Some(only_v4), true),
        (
            "nodePortAddresses: [10.0.0.0/8]\ndetectLocal: {clusterCIDRs: [10.0.0.0/8, 'fd00::/8']}",
            &[],
            Some(only_v4),
            true,
        ),
        ("nodePortAddresses: [10.0.0.0/8, 'fd00::/8']", dual, None, false),
        ("nodePortAddresses: ['fd00::/8']", &[], Some(only_v6), true),
        ("nodePortAddresses: ['fd00::/8']", dual, Some(only_v6), true),
    ] {
        let node = Node { primary: Family::V4, dual_stack: true, has_both: true, pod_cidrs };
        for hard in [false, true] {
            let lines = format!("{lines}\nconfigHardFail: {hard}");
            let message: Vec<_> = config(&lines)
                .complaints(&node)
                .into_iter()
                .map(|complaint| (complaint.to_string(), complaint.severity == Severity::Error))
                .collect();
            // Advice is never fatal: the default document must start.
            let expected: Vec<_> = expected.iter().map(|text| ((*text).to_owned(), fatal && hard)).collect();
            assert_eq!(message, expected, "{lines}");
        }
    }
}

#[test]
fn dual_stack_can_be_required() {
    for (policy, has_both, expected) in [
        ("RequireDualStack", false, 1),
        ("RequireDualStack", true, 0),
        ("PreferDualStack", false, 0),
        ("SingleStack", false, 0),
    ] {
        let lines = format!("ipFamilyPolicy: {policy}\nnodePortAddresses: [primary]\nconfigHardFail: false");
        let node = Node { primary: Family::V4, dual_stack: true, has_both, pod_cidrs: &[] };
        let complaints = config(&lines).complaints(&node);
        assert_eq!(
            complaints.iter().filter(|complaint| complaint.severity == Severity::Error).count(),
            expected,
            "{policy}, {has_both}"
        );
    }
}
