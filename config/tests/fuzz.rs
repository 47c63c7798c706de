//! Fuzzes the readers of files and of command lines: each text gives a configuration or a list of problems.

use clap::Parser;
use localnet_config::{Platform, Reader, flags::KubeProxyFlags};

const V1ALPHA1: &[u8] = b"apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
clusterCIDR: 10.244.0.0/16,fd00::/48
conntrack: {maxPerCore: 32768, min: 131072, tcpEstablishedTimeout: 24h0m0s}
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: cni0}
featureGates: {AllAlpha: true}
hostnameOverride: node-a
iptables: {masqueradeAll: true, masqueradeBit: 14, minSyncPeriod: 1s, syncPeriod: 30s}
ipvs: {excludeCIDRs: [10.0.0.0/8], scheduler: rr}
logging: {format: json, verbosity: 4, flushFrequency: 5000000000}
mode: nftables
nodePortAddresses: [primary]
";

const V1ALPHA2: &[u8] = b"apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
nodePortAddresses: [192.168.0.0/16]
minSyncPeriod: 1.5s
linux: {conntrack: {maxPerCore: 0}}
---
kind: Other
";

#[test]
fn fuzz_a_configuration() {
    localnet_fuzz::target("configuration", &[V1ALPHA1, V1ALPHA2], |bytes| {
        let text = String::from_utf8_lossy(bytes);
        match Reader::kube_proxy(Platform::Linux).read(&text) {
            Ok(reading) => {
                // An accepted configuration can be written, and keeps its meaning.
                let again = Reader::kube_proxy(Platform::Linux).read(&reading.config.to_yaml());
                let again = again.unwrap_or_else(|problems| panic!("{problems:?}"));
                assert_eq!(again.config, reading.config);
                format!("{:?}", reading.warnings)
            }
            Err(problems) => format!("{problems:?}"),
        }
    });
}

#[derive(Debug, Parser)]
struct Program {
    #[command(flatten)]
    flags: KubeProxyFlags,
}

#[test]
fn fuzz_flags() {
    let seeds = [
        "--bind-address=:: --cluster-cidr=10.0.0.0/8,fd00::/48 --conntrack-min=7 -v=4 --vmodule=a=1,b=2",
        "--feature-gates AllAlpha=true,AllBeta=false --proxy-mode ipvs --ipvs-scheduler rr --nodeport-addresses primary",
        "--iptables-sync-period 1h2m3s --metrics-bind-address [::1]:10249 --healthz-port 0 --masquerade-all",
    ];
    localnet_fuzz::target("flags", &seeds.map(str::as_bytes), |bytes| {
        let line = String::from_utf8_lossy(bytes);
        let words = std::iter::once("program").chain(line.split_ascii_whitespace());
        match Program::try_parse_from(words) {
            Ok(program) => match program.flags.read(Reader::kube_proxy(Platform::Linux), None) {
                Ok(reading) => format!("{:?}", reading.warnings),
                Err(problems) => format!("{problems:?}"),
            },
            Err(error) => error.to_string(),
        }
    });
}
