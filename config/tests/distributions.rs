//! Unmodified configurations of kube-proxy from distributions: localnet must give them the same meaning as kube-proxy.
//!
//! | file | origin |
//! |---|---|
//! | `kubeadm.yaml` | the ConfigMap `kube-proxy` of kubeadm: `mode: ""` |
//! | `eks.yaml` | the ConfigMap `kube-proxy-config` of EKS |
//! | `k3s.args` | the command line of the kube-proxy in k3s, which has no file |

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{collections::BTreeMap, fs, path::Path};

use clap::Parser as _;
use localnet_config::{
    Config, KubeProxyFlags, Mode, NodePortAddress, NodePortAddresses, Platform, Reader, Reading, flags::spelled,
};

#[derive(Debug, clap::Parser)]
struct Program {
    #[command(flatten)]
    flags: KubeProxyFlags,
}

/// The meaning of an empty mode: nftables in the nft backend and `localnet-node`, iptables in the iptables backend.
const READERS: [Mode; 2] = [Mode::Nftables, Mode::Iptables];

fn golden(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).unwrap()
}

/// A file of a ConfigMap.
fn file(name: &str, key: &str) -> String {
    #[derive(serde::Deserialize)]
    struct ConfigMap {
        data: BTreeMap<String, String>,
    }
    let map: ConfigMap = serde_saphyr::from_str(&golden(name)).unwrap();
    map.data[key].clone()
}

fn read(arguments: &[&str], text: Option<&str>, empty_mode: Mode) -> Reading {
    let words = ["program"].iter().chain(arguments).map(Into::into);
    let flags = Program::try_parse_from(spelled(words)).unwrap().flags;
    flags.read(Reader { platform: Platform::Linux, empty_mode }, text).unwrap()
}

/// How each distribution starts kube-proxy.
fn kubeadm(empty_mode: Mode) -> Reading {
    let arguments = ["--config=/var/lib/kube-proxy/config.conf", "--hostname-override=node-a"];
    read(&arguments, Some(&file("kubeadm.yaml", "config.conf")), empty_mode)
}

fn eks(empty_mode: Mode) -> Reading {
    let arguments = ["--v=2", "--config=/var/lib/kube-proxy-config/config", "--hostname-override=node-a"];
    read(&arguments, Some(&file("eks.yaml", "config")), empty_mode)
}

fn k3s(empty_mode: Mode) -> Reading {
    let arguments = golden("k3s.args");
    read(&arguments.lines().collect::<Vec<_>>(), None, empty_mode)
}

/// The configuration of a file without any field, with a name of the node.
fn defaults(empty_mode: Mode) -> Config {
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    read(&["--config=x", "--hostname-override=node-a"], Some(text), empty_mode).config
}

/// kube-proxy answers NodePorts on all addresses, unless the mode is explicitly nftables. With an empty mode, it uses iptables.
/// The backend that replaces kube-proxy answers on the same addresses, including loopback (`localhostNodePorts`).
#[test]
fn node_ports_answer_on_the_addresses_on_which_kube_proxy_answered() {
    for empty_mode in READERS {
        for (distribution, reading) in
            [("kubeadm", kubeadm(empty_mode)), ("eks", eks(empty_mode)), ("k3s", k3s(empty_mode))]
        {
            let config = reading.config;
            assert_eq!(config.node_port_addresses, NodePortAddresses::default(), "{distribution} {empty_mode}");
            assert!(config.iptables.localhost_node_ports, "{distribution} {empty_mode}");
            // Another program reads what --write-config-to has written.
            for other in READERS {
                let again = Reader { platform: Platform::Linux, empty_mode: other }.read(&config.to_yaml()).unwrap();
                assert_eq!(
                    again.config.node_port_addresses,
                    NodePortAddresses::default(),
                    "{distribution} {empty_mode} {other}"
                );
            }
            // The configuration at /configz, where the mode is never empty.
            let shown = config.to_v1alpha1();
            let expected: &[&str] = if config.mode == Mode::Nftables { &["0.0.0.0/0", "::/0"] } else { &[] };
            assert_eq!(shown.get("nodePortAddresses"), &serde_json::json!(expected), "{distribution} {empty_mode}");
        }
    }
}

#[test]
fn an_explicit_mode_nftables_uses_primary_addresses() {
    for empty_mode in READERS {
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n";
        for reading in
            [read(&["--config=x"], Some(text), empty_mode), read(&["--proxy-mode=nftables"], None, empty_mode)]
        {
            assert_eq!(reading.config.node_port_addresses, NodePortAddresses(vec![NodePortAddress::Primary]));
        }
        // Without `--proxy-mode`, a command line means kube-proxy's mode iptables.
        let flags = read(&["--cluster-cidr=10.0.0.0/8"], None, empty_mode).config;
        assert_eq!(flags.node_port_addresses, NodePortAddresses::default());
        assert!(!flags.iptables.localhost_node_ports, "no flag requests the loopback address");
    }
}

/// No distribution sets `minSyncPeriod` explicitly: to kube-proxy, zero means that the field is not set.
#[test]
fn no_sync_waits() {
    for reading in [kubeadm(Mode::Nftables), eks(Mode::Nftables), k3s(Mode::Nftables)] {
        assert!(reading.config.min_interval().is_zero());
    }
}

#[test]
fn only_their_own_settings_differ_from_the_defaults() {
    for empty_mode in READERS {
        let reading = kubeadm(empty_mode);
        let mut expected = defaults(empty_mode);
        expected.client_connection.kubeconfig = Some("/var/lib/kube-proxy/kubeconfig.conf".into());
        expected.detect_local.cluster_cidrs = vec!["10.244.0.0/16".parse().unwrap()];
        assert_eq!((reading.config, reading.warnings), (expected, Vec::new()));

        let reading = eks(empty_mode);
        let mut expected = defaults(Mode::Iptables);
        expected.explicit.mode = true;
        expected.client_connection.kubeconfig = Some("/var/lib/kube-proxy/kubeconfig".into());
        expected.linux.oom_score_adj = -998;
        expected.logging.verbosity = 2;
        assert_eq!(reading.config, expected);
        // kube-proxy no longer has this field either, and ignores it.
        let fields: Vec<_> = reading.warnings.iter().map(|warning| warning.field.as_str()).collect();
        assert_eq!(fields, ["udpIdleTimeout"]);

        let reading = k3s(empty_mode);
        let mut expected = defaults(Mode::Iptables);
        expected.explicit.mode = true;
        expected.client_connection.kubeconfig = Some("/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig".into());
        expected.detect_local.cluster_cidrs = vec!["10.42.0.0/16".parse().unwrap()];
        expected.healthz_bind_address = Some("127.0.0.1:10256".parse().unwrap());
        let conntrack = &mut expected.linux.conntrack;
        (conntrack.max_per_core, conntrack.tcp_established_timeout, conntrack.tcp_close_wait_timeout) =
            (None, None, None);
        assert_eq!((reading.config, reading.warnings), (expected, Vec::new()));
    }
}
