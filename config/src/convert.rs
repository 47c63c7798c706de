//! Converts v1alpha1 to v1alpha2 as KEP-784 specifies. The document must be complete, and its meaning does not change.

use localnet_core::{Code, Diagnostic};

use crate::{
    address, fields,
    problem::Findings,
    sections::GROUP,
    v1alpha1,
    v1alpha2::{self, Linux},
};

/// Converts a [complete](v1alpha1::Document::complete) document. It also returns a diagnostic for each value that v1alpha2
/// cannot express.
pub fn convert(old: &v1alpha1::Document) -> (v1alpha2::Document, Vec<Diagnostic>) {
    let (sync_period, min_sync_period) = match fields::section_of_mode(&old.mode) {
        "ipvs" => (old.ipvs.sync_period, old.ipvs.min_sync_period),
        "nftables" => (old.nftables.sync_period, old.nftables.min_sync_period),
        _ => (old.iptables.sync_period, old.iptables.min_sync_period),
    };
    let masquerade_all = match old.mode.as_str() {
        "nftables" => old.nftables.masquerade_all,
        _ => old.iptables.masquerade_all,
    };
    let new = v1alpha2::Document {
        api_version: format!("{GROUP}/{}", v1alpha2::VERSION),
        kind: old.kind.clone(),
        feature_gates: old.feature_gates.clone(),
        client_connection: old.client_connection.clone(),
        logging: old.logging.clone(),
        hostname_override: old.hostname_override.clone(),
        node_ip_override: node_ip_override(&old.bind_address),
        ip_family_policy: String::new(),
        // v1alpha1 has no such field and only warns.
        config_hard_fail: false,
        healthz_bind_address: old.healthz_bind_address.clone(),
        metrics_bind_address: old.metrics_bind_address.clone(),
        bind_address_hard_fail: old.bind_address_hard_fail,
        enable_profiling: old.enable_profiling,
        show_hidden_metrics_for_version: old.show_hidden_metrics_for_version.clone(),
        mode: old.mode.clone(),
        linux: Linux { conntrack: old.conntrack.clone(), masquerade_all, oom_score_adj: old.oom_score_adj },
        windows: v1alpha2::Windows { run_as_service: old.windows_run_as_service },
        iptables: v1alpha2::Iptables {
            masquerade_bit: old.iptables.masquerade_bit,
            localhost_node_ports: old.iptables.localhost_node_ports,
        },
        ipvs: ipvs(old),
        nftables: v1alpha2::Nftables { masquerade_bit: old.nftables.masquerade_bit },
        winkernel: old.winkernel.clone(),
        detect_local_mode: old.detect_local_mode.clone(),
        detect_local: v1alpha2::DetectLocal {
            bridge_interface: old.detect_local.bridge_interface.clone(),
            cluster_cidrs: cluster_cidrs(&old.cluster_cidr),
            interface_name_prefix: old.detect_local.interface_name_prefix.clone(),
        },
        node_port_addresses: old.node_port_addresses.clone(),
        sync_period,
        min_sync_period,
        config_sync_period: old.config_sync_period,
    };
    let lost = lost(old, &new);
    (new, lost)
}

/// An unspecified address sets no address of the node.
fn node_ip_override(bind_address: &str) -> Vec<String> {
    let unspecified = bind_address.is_empty() || address::ip(bind_address).is_some_and(|ip| ip.is_unspecified());
    if unspecified { Vec::new() } else { vec![bind_address.to_owned()] }
}

fn cluster_cidrs(text: &str) -> Vec<String> {
    if text.is_empty() { Vec::new() } else { text.split(',').map(str::to_owned).collect() }
}

fn ipvs(old: &v1alpha1::Document) -> v1alpha2::Ipvs {
    v1alpha2::Ipvs {
        // The mode ipvs uses this bit in v1alpha1.
        masquerade_bit: old.iptables.masquerade_bit,
        scheduler: old.ipvs.scheduler.clone(),
        exclude_cidrs: old.ipvs.exclude_cidrs.clone(),
        strict_arp: old.ipvs.strict_arp,
        tcp_timeout: old.ipvs.tcp_timeout,
        tcp_fin_timeout: old.ipvs.tcp_fin_timeout,
        udp_timeout: old.ipvs.udp_timeout,
    }
}

/// Returns a diagnostic for each lost value that differs from its default and from the field that replaces it.
fn lost(old: &v1alpha1::Document, new: &v1alpha2::Document) -> Vec<Diagnostic> {
    let mut findings = Findings::default();
    let default = v1alpha1::Document::default();
    let mode = if old.mode.is_empty() { "\"\"" } else { &old.mode };
    let periods = [
        ("iptables.syncPeriod", old.iptables.sync_period, default.iptables.sync_period, new.sync_period),
        ("iptables.minSyncPeriod", old.iptables.min_sync_period, default.iptables.min_sync_period, new.min_sync_period),
        ("ipvs.syncPeriod", old.ipvs.sync_period, default.ipvs.sync_period, new.sync_period),
        ("ipvs.minSyncPeriod", old.ipvs.min_sync_period, default.ipvs.min_sync_period, new.min_sync_period),
        ("nftables.syncPeriod", old.nftables.sync_period, default.nftables.sync_period, new.sync_period),
        ("nftables.minSyncPeriod", old.nftables.min_sync_period, default.nftables.min_sync_period, new.min_sync_period),
    ];
    for (field, given, default, carried) in periods {
        if given != default && given != carried {
            let name = field.rsplit('.').next().unwrap_or(field);
            let problem = format!(
                "\"{given}\" is not carried over: v1alpha2 has one {name}, and mode {mode} sets it to \"{carried}\""
            );
            findings.add(Code::FieldLost, field, problem, &format!("set {name} if you want the value in your mode"));
        }
    }
    let masquerade = [
        ("iptables.masqueradeAll", old.iptables.masquerade_all),
        ("nftables.masqueradeAll", old.nftables.masquerade_all),
    ];
    for (field, given) in masquerade {
        if given && !new.linux.masquerade_all {
            let problem =
                format!("true is not carried over: v1alpha2 has one masqueradeAll, and mode {mode} sets it to false");
            findings.add(Code::FieldLost, field, problem, "set linux.masqueradeAll if you want the value in your mode");
        }
    }
    if !old.port_range.is_empty() {
        let problem = format!("{:?} is not carried over", old.port_range);
        findings.add(Code::FieldLost, "portRange", problem, "no mode uses it since the userspace mode was removed");
    }
    findings.into_unique()
}
