//! Validates `linux`: connection tracking and memory.

use super::{Check, NOT_NEGATIVE};
use crate::{
    config::{Conntrack, Linux},
    sections, v1alpha2,
};

impl Check<'_> {
    pub(super) fn linux(&mut self, given: &v1alpha2::Linux) -> Linux {
        let oom_score_adj = i16::try_from(given.oom_score_adj).ok().filter(|score| (-1000..=1000).contains(score));
        Linux {
            conntrack: self.conntrack(&given.conntrack),
            masquerade_all: given.masquerade_all,
            oom_score_adj: oom_score_adj.unwrap_or_else(|| {
                let why = "must be within the range [-1000, 1000]";
                self.findings.invalid("linux.oomScoreAdj", given.oom_score_adj, why, "-999 is the default");
                0
            }),
        }
    }

    fn conntrack(&mut self, given: &sections::Conntrack) -> Conntrack {
        let field = |name: &str| format!("linux.conntrack.{name}");
        let max_per_core = self.count(&field("maxPerCore"), given.max_per_core, "use 0 to keep the kernel's limit");
        let mut timeout = |name: &str, given| self.timeout(&field(name), given, true);
        Conntrack {
            tcp_established_timeout: timeout("tcpEstablishedTimeout", given.tcp_established_timeout),
            tcp_close_wait_timeout: timeout("tcpCloseWaitTimeout", given.tcp_close_wait_timeout),
            udp_timeout: timeout("udpTimeout", given.udp_timeout),
            udp_stream_timeout: timeout("udpStreamTimeout", given.udp_stream_timeout),
            tcp_be_liberal: given.tcp_be_liberal,
            max_per_core: Some(max_per_core).filter(|max| *max > 0),
            min: self.count(&field("min"), given.min, "use 0 for no minimum"),
        }
    }

    fn count(&mut self, field: &str, given: i32, remedy: &str) -> u32 {
        u32::try_from(given).unwrap_or_else(|_| {
            self.findings.invalid(field, given, NOT_NEGATIVE, remedy);
            0
        })
    }
}
