//! The kernel's settings that IPVS needs for a node's virtual servers, each with the reason.

use crate::sysctl::{Error, Set, Settings};

/// Makes these settings, as far as that is allowed; what became of each. Those of the network are those of the network namespace of
/// the calling thread. `strict_arp`: answer for an address only at the interface that has it, for networks in which a load
/// balancer elsewhere announces virtual addresses. Those of IPVS hold for IPv6 as well.
pub fn apply_settings(settings: &Settings, strict_arp: bool) -> Vec<Result<(&'static str, Set), Error>> {
    // A kernel that does not say its release is taken for a new one.
    let release = settings.release().unwrap_or_default();
    let wanted = wanted(&release, strict_arp);
    wanted.into_iter().map(|(name, value)| settings.ensure(name, value).map(|set| (name, set))).collect()
}

fn wanted(release: &str, strict_arp: bool) -> Vec<(&'static str, i64)> {
    // Connection tracking sees the connections, so that nf_tables can masquerade and filter them.
    let mut wanted = vec![("proc/sys/net/ipv4/vs/conntrack", 1)];
    // With 1, older kernels hold a connection that reuses a client's port back for a second: kube-proxy's issue 81775,
    // mended in Linux 5.9. Before 4.1 there was no such setting.
    if ((4, 1)..(5, 9)).contains(&version(release)) {
        wanted.push(("proc/sys/net/ipv4/vs/conn_reuse_mode", 0));
    }
    // Packets of a connection whose destination is gone end it, instead of being dropped in silence.
    wanted.push(("proc/sys/net/ipv4/vs/expire_nodest_conn", 1));
    // A persistent client whose destination drains gets another one.
    wanted.push(("proc/sys/net/ipv4/vs/expire_quiescent_template", 1));
    if strict_arp {
        wanted.push(("proc/sys/net/ipv4/conf/all/arp_ignore", 1));
        wanted.push(("proc/sys/net/ipv4/conf/all/arp_announce", 2));
    }
    wanted
}

/// The first two numbers of a release; what does not look like one counts as new.
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
    fn kernels_between_get_one_more() {
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
            let reuse = wanted(release, false).iter().any(|(name, _)| name.ends_with("/conn_reuse_mode"));
            assert_eq!(reuse, expected, "{release}");
        }
    }

    #[test]
    fn strict_arp_is_asked_for() {
        let arp = |strict| wanted("6.1.0", strict).iter().filter(|(name, _)| name.contains("/arp_")).count();
        assert_eq!((arp(false), arp(true)), (0, 2));
    }
}
