//! The kernel settings that IPVS needs for virtual servers of a node, each with its reason.

use crate::sysctl::{Error, Set, Settings};

/// Applies the settings, and returns the outcome of each with its path. If one fails, the others still apply. Settings
/// under `net` belong to the network namespace of the calling thread; the settings of IPVS also apply to IPv6. With
/// `strict_arp`, the node answers ARP for an address only on the interface that has the address. Networks where an external load
/// balancer announces the virtual addresses need this.
pub fn apply_settings(settings: &Settings, strict_arp: bool) -> Vec<Result<(&'static str, Set), Error>> {
    // An unreadable release counts as a new kernel.
    let release = settings.release().unwrap_or_default();
    let pairs = settings_for(&release, strict_arp);
    pairs.into_iter().map(|(name, value)| settings.ensure(name, value).map(|set| (name, set))).collect()
}

fn settings_for(release: &str, strict_arp: bool) -> Vec<(&'static str, i64)> {
    // Makes connection tracking see IPVS connections, so that nf_tables can masquerade and filter them.
    let mut pairs = vec![("proc/sys/net/ipv4/vs/conntrack", 1)];
    // With the value 1, older kernels wait a second before they accept a connection that reuses the port of an earlier connection
    // (kubernetes/kubernetes#81775, fixed in Linux 5.9). Before 4.1 the setting did not exist.
    if ((4, 1)..(5, 9)).contains(&version(release)) {
        pairs.push(("proc/sys/net/ipv4/vs/conn_reuse_mode", 0));
    }
    // A packet of a connection whose destination was deleted ends the connection instead of being dropped silently.
    pairs.push(("proc/sys/net/ipv4/vs/expire_nodest_conn", 1));
    // If the destination of an SCTP association was deleted, the next packet goes to another destination, which ends the
    // association. The client then opens a new one. Otherwise the client gets no answer until its retransmissions end. Before 3.11
    // the setting did not exist.
    if version(release) >= (3, 11) {
        pairs.push(("proc/sys/net/ipv4/vs/sloppy_sctp", 1));
    }
    // A persistent client whose destination drains gets another destination.
    pairs.push(("proc/sys/net/ipv4/vs/expire_quiescent_template", 1));
    // IPVS forwards packets from other hosts only with this setting. kube-proxy sets it in this mode, too.
    pairs.push(("proc/sys/net/ipv4/ip_forward", 1));
    if strict_arp {
        pairs.push(("proc/sys/net/ipv4/conf/all/arp_ignore", 1));
        pairs.push(("proc/sys/net/ipv4/conf/all/arp_announce", 2));
    }
    pairs
}

/// The first two numbers of a release. A string that is not a release counts as a new kernel.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (u32::MAX, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_from_4_1_to_5_8_get_conn_reuse_mode() {
        for (release, expected) in [
            ("3.10.0-1160.el7.x86_64", false),
            ("4.0.9", false),
            ("4.1.0", true),
            ("5.4.0-150-generic", true),
            ("5.8.18", true),
            ("5.9.0-rc1", false),
            ("5.10.0-32-amd64", false),
            ("6.1.0-56-amd64", false),
            ("", false),
            ("new", false),
        ] {
            let reuse = settings_for(release, false).iter().any(|(name, _)| name.ends_with("/conn_reuse_mode"));
            assert_eq!(reuse, expected, "{release}");
        }
    }

    /// Regression: an SCTP association was not answered after its endpoint had been deleted.
    #[test]
    fn kernels_from_3_11_route_associations_anew() {
        for (release, expected) in [("3.10.0-1160.el7.x86_64", false), ("3.11.0", true), ("6.1.0-56-amd64", true)] {
            let sloppy = settings_for(release, false).iter().any(|(name, _)| name.ends_with("/sloppy_sctp"));
            assert_eq!(sloppy, expected, "{release}");
        }
    }

    #[test]
    fn the_node_forwards_packets() {
        assert!(settings_for("6.1.0", false).contains(&("proc/sys/net/ipv4/ip_forward", 1)));
    }

    #[test]
    fn arp_settings_are_applied_only_with_strict_arp() {
        let arp = |strict| settings_for("6.1.0", strict).iter().filter(|(name, _)| name.contains("/arp_")).count();
        assert_eq!((arp(false), arp(true)), (0, 2));
    }
}
