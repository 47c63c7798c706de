//! Limits of connection tracking, with the values that kube-proxy sets: sysctls under `net.netfilter`.

use std::time::Duration;

use tracing::warn;

use crate::sysctl::{Error, Set, Settings};

/// The limits to set. A limit of `None`, or a switch that is `false`, leaves the kernel's value unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of connections per processor core.
    pub max_per_core: Option<u32>,
    /// The lower bound for the product of `max_per_core` and the number of cores.
    pub min: u32,
    /// The timeout of an idle, established TCP connection.
    pub tcp_established_timeout: Option<Duration>,
    /// The timeout of a TCP connection in CLOSE_WAIT.
    pub tcp_close_wait_timeout: Option<Duration>,
    /// Whether TCP packets outside of the window are tracked instead of marked invalid.
    pub tcp_be_liberal: bool,
    /// The timeout of a UDP flow without an answer.
    pub udp_timeout: Option<Duration>,
    /// The timeout of an answered UDP flow.
    pub udp_stream_timeout: Option<Duration>,
}

/// The upper bound for the product of `max_per_core` and the number of cores, because each connection costs memory.
const MAX_CONNECTIONS: u64 = 1 << 20;

const MAX: &str = "proc/sys/net/netfilter/nf_conntrack_max";
const HASHSIZE: &str = "sys/module/nf_conntrack/parameters/hashsize";

/// The path of a setting and its value.
type Setting = (String, i64);

impl Limits {
    /// The maximum number of connections on a machine with `processors` cores.
    fn max(&self, processors: u32) -> Option<u64> {
        let scaled = u64::from(self.max_per_core.filter(|max| *max > 0)?) * u64::from(processors);
        // As in kube-proxy, the upper bound takes precedence over the minimum.
        Some(if scaled > MAX_CONNECTIONS { MAX_CONNECTIONS } else { scaled.max(self.min.into()) })
    }

    /// The settings except the maximum number of connections.
    fn settings(&self) -> Vec<Setting> {
        let seconds =
            |duration: Option<Duration>| duration.map(|duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX));
        let rows = [
            ("nf_conntrack_tcp_timeout_established", seconds(self.tcp_established_timeout)),
            ("nf_conntrack_tcp_timeout_close_wait", seconds(self.tcp_close_wait_timeout)),
            ("nf_conntrack_tcp_be_liberal", self.tcp_be_liberal.then_some(1)),
            ("nf_conntrack_udp_timeout", seconds(self.udp_timeout)),
            ("nf_conntrack_udp_timeout_stream", seconds(self.udp_stream_timeout)),
        ];
        rows.into_iter().filter_map(|(name, value)| Some((format!("proc/sys/net/netfilter/{name}"), value?))).collect()
    }

    /// The maximum number of connections and the number of hash buckets, if this node can set them.
    fn sizes(&self, settings: &Settings) -> Vec<(&'static str, i64)> {
        let Some(max) = self.max(settings.processors()).and_then(|max| i64::try_from(max).ok()) else {
            return Vec::new();
        };
        // The kernel lets only the machine's own network namespace change these two. In a node that is a container, the
        // maximum is read-only.
        if settings.is_read_only(MAX) {
            if settings.get(MAX).is_ok_and(|now| now < max) {
                warn!(
                    wanted = max,
                    "cannot raise net.netfilter.nf_conntrack_max in a container: raise it on the machine"
                );
            }
            return Vec::new();
        }
        // One bucket for four connections, as in kube-proxy.
        vec![(MAX, max), (HASHSIZE, max / 4)]
    }

    /// Applies the limits, and returns the outcome for each setting with its path. If one setting fails, the others
    /// still apply. The settings belong to the network namespace of the calling thread, except for the maximum
    /// and the number of buckets.
    pub fn apply(&self, settings: &Settings) -> Vec<Result<(String, Set), Error>> {
        // As in kube-proxy, a maximum that is already higher stays.
        let sizes = self.sizes(settings).into_iter();
        let sizes = sizes.map(|(name, size)| settings.ensure_at_least(name, size).map(|set| (name.to_owned(), set)));
        let others = self.settings().into_iter();
        sizes.chain(others.map(|(name, value)| settings.ensure(&name, value).map(|set| (name, set)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_maximum_is_calculated_as_in_kube_proxy() {
        for (max_per_core, min, processors, expected) in [
            (None, 131_072, 4, None),
            (Some(0), 7, 4, None),
            (Some(10), 50, 4, Some(50)),
            (Some(10), 50, 8, Some(80)),
            (Some(32_768), 131_072, 2, Some(131_072)),
            (Some(32_768), 131_072, 512, Some(1_048_576)),
            (Some(32_768), 2_000_000, 512, Some(1_048_576)),
            (Some(u32::MAX), 0, u32::MAX, Some(1_048_576)),
            (Some(1), 2_000_000, 1, Some(2_000_000)),
        ] {
            let limits = Limits { max_per_core, min, ..Limits::default() };
            assert_eq!(limits.max(processors), expected, "{max_per_core:?} {min} {processors}");
        }
    }

    #[test]
    fn only_requested_limits_are_set() {
        assert_eq!(Limits { min: 7, ..Limits::default() }.settings(), []);
        let all = Limits {
            max_per_core: Some(1_000),
            min: 7,
            tcp_established_timeout: Some(86_400 * SECOND),
            tcp_close_wait_timeout: Some(3_600 * SECOND),
            tcp_be_liberal: true,
            udp_timeout: Some(Duration::from_millis(10_900)),
            udp_stream_timeout: Some(300 * SECOND),
        };
        let expected = [
            ("nf_conntrack_tcp_timeout_established", 86_400),
            ("nf_conntrack_tcp_timeout_close_wait", 3_600),
            ("nf_conntrack_tcp_be_liberal", 1),
            ("nf_conntrack_udp_timeout", 10),
            ("nf_conntrack_udp_timeout_stream", 300),
        ];
        let expected = expected.map(|(name, value)| (format!("proc/sys/net/netfilter/{name}"), value));
        assert_eq!(all.settings(), expected);
    }

    #[test]
    fn a_failed_setting_does_not_stop_the_others() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/sys/net/netfilter");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(root.path().join("sys/module/nf_conntrack/parameters")).unwrap();
        fs::write(root.path().join(HASHSIZE), "100").unwrap();
        fs::write(folder.join("nf_conntrack_udp_timeout"), "30").unwrap();
        fs::write(folder.join("nf_conntrack_udp_timeout_stream"), "120").unwrap();
        let limits = Limits {
            max_per_core: Some(1_000_000_000),
            udp_timeout: Some(10 * SECOND),
            udp_stream_timeout: Some(120 * SECOND),
            ..Limits::default()
        };
        let done = limits.apply(&Settings::at(root.path()));
        let outcomes: Vec<_> = done.iter().map(|done| done.as_ref().map_err(ToString::to_string).cloned()).collect();
        let netfilter = |name: &str| format!("proc/sys/net/netfilter/{name}");
        assert_eq!(
            outcomes,
            [
                Err("failed to read net.netfilter.nf_conntrack_max: No such file or directory (os error 2): load the module \
                     nf_conntrack (modprobe nf_conntrack)"
                    .to_owned()),
                Ok((HASHSIZE.to_owned(), Set::From(100))),
                Ok((netfilter("nf_conntrack_udp_timeout"), Set::From(30))),
                Ok((netfilter("nf_conntrack_udp_timeout_stream"), Set::Already)),
            ]
        );
        assert_eq!(fs::read_to_string(folder.join("nf_conntrack_udp_timeout")).unwrap(), "10");
        assert_eq!(fs::read_to_string(root.path().join(HASHSIZE)).unwrap(), "262144");
        for (before, after) in [("2000000", "2000000"), ("65536", "1048576")] {
            fs::write(root.path().join(MAX), before).unwrap();
            limits.apply(&Settings::at(root.path()));
            assert_eq!(fs::read_to_string(root.path().join(MAX)).unwrap(), after, "a maximum is only raised");
        }
        let reserved = root.path().join(MAX);
        fs::write(&reserved, "65536").unwrap();
        fs::write(root.path().join(HASHSIZE), "100").unwrap();
        fs::set_permissions(&reserved, fs::Permissions::from_mode(0o444)).unwrap();
        assert!(
            limits.apply(&Settings::at(root.path())).iter().all(Result::is_ok),
            "a container keeps the machine's maximum"
        );
        let sizes = [MAX, HASHSIZE].map(|name| fs::read_to_string(root.path().join(name)).unwrap());
        assert_eq!(sizes, ["65536", "100"]);
    }
}
