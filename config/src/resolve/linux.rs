//! Validates `linux`: connection tracking and memory.

use super::{Check, NOT_NEGATIVE};
use crate::{
    config::{Conntrack, Linux},
    sections, v1alpha2,
};

impl Check<'_> {
    pub(super) fn linux(&mut self, said: &v1alpha2::Linux) -> Linux {
        let oom_score_adj = i16::try_from(said.oom_score_adj).ok().filter(|score| (-1000..=1000).contains(score));
        Linux {
            conntrack: self.conntrack(&said.conntrack),
            masquerade_all: said.masquerade_all,
            oom_score_adj: oom_score_adj.unwrap_or_else(|| {
                let why = "must be within the range [-1000, 1000]";
                self.findings.invalid("linux.oomScoreAdj", said.oom_score_adj, why, "-999 is the default");
                0
            }),
        }
    }

    fn conntrack(&mut self, said: &sections::Conntrack) -> Conntrack {
        let field = |name: &str| format!("linux.conntrack.{name}");
        let max_per_core = self.count(&field("maxPerCore"), said.max_per_core, "use 0 to leave the limit as it is");
        let mut timeout = |name: &str, said| self.timeout(&field(name), said, true);
        Conntrack {
            tcp_established_timeout: timeout("tcpEstablishedTimeout", said.tcp_established_timeout),
            tcp_close_wait_timeout: timeout("tcpCloseWaitTimeout", said.tcp_close_wait_timeout),
            udp_timeout: timeout("udpTimeout", said.udp_timeout),
            udp_stream_timeout: timeout("udpStreamTimeout", said.udp_stream_timeout),
            tcp_be_liberal: said.tcp_be_liberal,
            max_per_core: Some(max_per_core).filter(|max| *max > 0),
            min: self.count(&field("min"), said.min, "use 0 for no minimum"),
        }
    }

    fn count(&mut self, field: &str, said: i32, remedy: &str) -> u32 {
        u32::try_from(said).unwrap_or_else(|_| {
            self.findings.invalid(field, said, NOT_NEGATIVE, remedy);
            0
        })
    }
}
