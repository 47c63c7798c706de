//! Validates `detectLocalMode` and `detectLocal`: the values that the mode needs must be present and valid.

use super::Check;
use crate::{
    address,
    config::{DetectLocal, DetectLocalMode},
    v1alpha2::Document,
};

/// The kernel's `IFNAMSIZ` without the byte that terminates a name.
const LONGEST_INTERFACE: usize = 15;

const PAIR: &str =
    "must be either a single CIDR or a dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48])";
const BLOCK: &str = "must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)";

impl Check<'_> {
    pub(super) fn detect_local(&mut self, document: &Document) -> DetectLocal {
        let (given, detect) = (document.detect_local_mode.as_str(), &document.detect_local);
        let mode = DetectLocalMode::ALL.into_iter().find(|mode| mode.as_str() == given);
        if mode.is_none() && !given.is_empty() {
            self.unsupported("detectLocalMode", given, DetectLocalMode::ALL.map(DetectLocalMode::as_str).as_slice());
        }
        let mode = mode.unwrap_or_default();
        let needed = match mode {
            DetectLocalMode::BridgeInterface => Some(("detectLocal.bridgeInterface", &detect.bridge_interface)),
            DetectLocalMode::InterfaceNamePrefix => {
                Some(("detectLocal.interfaceNamePrefix", &detect.interface_name_prefix))
            }
            DetectLocalMode::ClusterCidr | DetectLocalMode::NodeCidr => None,
        };
        if let Some((field, name)) = needed {
            self.interface(field, name, mode);
        }
        DetectLocal {
            mode,
            bridge_interface: detect.bridge_interface.clone(),
            interface_name_prefix: detect.interface_name_prefix.clone(),
            cluster_cidrs: self.cluster_cidrs(&detect.cluster_cidrs, mode == DetectLocalMode::ClusterCidr),
        }
    }

    fn interface(&mut self, field: &str, name: &str, mode: DetectLocalMode) {
        if name.is_empty() {
            let remedy = format!("detectLocalMode {} needs it", mode.as_str());
            self.findings.invalid(field, "\"\"", "must not be empty", &remedy);
        } else if name.len() > LONGEST_INTERFACE {
            // kube-proxy accepts such a name, but the kernel then refuses every rule with it.
            let why = format!("must be no longer than {LONGEST_INTERFACE} bytes");
            self.findings.invalid(field, format_args!("{name:?}"), &why, "no interface has a longer name");
        }
    }

    fn cluster_cidrs(&mut self, given: &[String], used: bool) -> Vec<ipnet::IpNet> {
        let field = "detectLocal.clusterCIDRs";
        let mut cidrs: Vec<ipnet::IpNet> = Vec::new();
        for (position, text) in given.iter().enumerate() {
            match address::cidr(text) {
                Some(cidr) => cidrs.push(cidr),
                None => {
                    let remedy = "write CIDRs without spaces around them";
                    self.wrong(used, &format!("{field}[{position}]"), &format!("{text:?}"), BLOCK, remedy);
                }
            }
        }
        let twice = matches!(cidrs.as_slice(), [a, b] if a.addr().is_ipv4() == b.addr().is_ipv4());
        if given.len() > 2 || twice {
            self.wrong(used, field, &format!("{given:?}"), PAIR, "name one CIDR of each family");
            // The whole value is skipped: the remaining half could be the wrong one.
            cidrs.clear();
        }
        cidrs
    }
}
