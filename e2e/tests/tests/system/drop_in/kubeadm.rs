//! Runs with the unmodified ConfigMap and command line that kubeadm creates for kube-proxy, mounted as the kubelet does it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use localnet_e2e::{await_condition, program};
use localnet_lab::{Probe, Protocol, topology::NODE};

use super::{HTTP, NODE_PORT, PODS, WEB, World, ip};

const CONFIG_MAP: &str = include_str!("../../../../../config/tests/golden/kubeadm.yaml");

/// A volume of a ConfigMap: `config.conf` → `..data/config.conf`, and `..data` → a folder with a new name after each change.
struct Volume {
    folder: PathBuf,
    written: u32,
}

impl Volume {
    fn write(&mut self, files: &[(&str, &str)]) -> anyhow::Result<()> {
        self.written += 1;
        let version = format!("..version-{}", self.written);
        let folder = self.folder.join(&version);
        fs::create_dir_all(&folder)?;
        for (name, text) in files {
            fs::write(folder.join(name), text)?;
            let link = self.folder.join(name);
            if !link.is_symlink() {
                symlink(Path::new("..data").join(name), link)?;
            }
        }
        let new = self.folder.join("..data_tmp");
        symlink(&version, &new)?;
        fs::rename(new, self.folder.join("..data"))?;
        if self.written > 1 {
            fs::remove_dir_all(self.folder.join(format!("..version-{}", self.written - 1)))?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn localnet_starts_with_a_config_map_of_kubeadm_and_follows_it() -> anyhow::Result<()> {
    let world = World::build().await?;
    let config_map: serde_json::Value = serde_saphyr::from_str(CONFIG_MAP)?;
    let config = config_map["data"]["config.conf"].as_str().context("the ConfigMap has a configuration")?;
    // Each cluster has its own API server address.
    let kubeconfig = fs::read_to_string(world.plane.kube_proxy_kubeconfig())?;
    let mut volume = Volume { folder: world.programs.path().join("volume"), written: 0 };
    let mut write = |config: &str| volume.write(&[("config.conf", config), ("kubeconfig.conf", &kubeconfig)]);
    write(config)?;
    let folder = world.programs.path().join("volume").display().to_string();
    let node = program("localnet-node")?.display().to_string();
    // Use a separate mount namespace, with the folder at the mount point of the ConfigMap.
    let script = format!(
        "mount -t tmpfs none /var/lib && mkdir /var/lib/kube-proxy && mount --bind {folder} /var/lib/kube-proxy && \
         exec {node} --config=/var/lib/kube-proxy/config.conf --hostname-override=node-a"
    );
    let arguments = ["--mount", "--propagation", "private", "sh", "-c", &script];
    let running = world.start(Path::new("/usr/bin/unshare"), &arguments)?;

    let endpoints = PODS.map(|pod| (ip(pod), HTTP).into());
    let client = world.network.client();
    let node_port = |address: usize| Probe::new(Protocol::Tcp, (NODE[address], NODE_PORT).into());
    let answers = |probe| {
        let answered = world.programs.await_answers(client, probe, &endpoints);
        answered.with_context(|| world.logs())
    };
    answers(Probe::new(Protocol::Tcp, (ip(WEB), 80).into()))?;
    answers(node_port(0))?;
    let sysctl = |name: &str| {
        let path = format!("/proc/sys/net/netfilter/{name}");
        world.network.node().run(|| Ok(fs::read_to_string(path)?.trim().to_owned()))
    };
    // The defaults concern the node and the process.
    assert_eq!(sysctl("nf_conntrack_tcp_timeout_established")?, "86400");
    assert_eq!(sysctl("nf_conntrack_tcp_timeout_close_wait")?, "3600");
    let oom_score =
        || anyhow::Ok(fs::read_to_string(format!("/proc/{}/oom_score_adj", running.id()))?.trim().to_owned());
    // This needs CAP_SYS_RESOURCE, which a container may lack.
    let lowered = Command::new("sh").args(["-c", "echo -999 > /proc/self/oom_score_adj"]).output()?.status.success();
    if lowered {
        assert_eq!(oom_score()?, "-999");
    } else {
        assert!(world.programs.log("unshare").contains("oom_score_adj"), "{}", world.logs());
    }
    assert_eq!(world.get("127.0.0.1:10256", "/healthz")?.status, 200);
    assert_eq!(world.get("127.0.0.1:10249", "/proxyMode")?.body, "nftables");

    // An invalid configuration is reported and changes nothing.
    let invalid = config.replace("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.244.0.0/33");
    anyhow::ensure!(invalid != config, "the ConfigMap has a clusterCIDR");
    write(&invalid)?;
    await_condition("the invalid file is reported", || {
        let log = world.programs.log("unshare");
        log.contains("10.244.0.0/33") && log.contains("keeping the previous configuration")
    })
    .with_context(|| world.logs())?;
    assert_eq!(sysctl("nf_conntrack_tcp_timeout_close_wait")?, "3600");
    answers(node_port(0))?;

    // A valid configuration is applied.
    let changed = config
        .replace("tcpCloseWaitTimeout: null", "tcpCloseWaitTimeout: 30m")
        .replace("oomScoreAdj: null", "oomScoreAdj: 500")
        .replace("nodePortAddresses: null", "nodePortAddresses: [203.0.113.0/24]")
        .replace("metricsBindAddress: \"\"", "metricsBindAddress: 127.0.0.1:10250")
        .replace("healthzBindAddress: \"\"", "healthzBindAddress: 127.0.0.1:10257");
    write(&changed)?;
    await_condition("the new file is applied", || {
        sysctl("nf_conntrack_tcp_timeout_close_wait").is_ok_and(|seconds| seconds == "1800")
    })
    .with_context(|| world.logs())?;
    await_condition("so is the OOM score", || oom_score().is_ok_and(|score| score == "500"))
        .with_context(|| world.logs())?;
    await_condition("metrics and health have moved", || {
        let moved = ["127.0.0.1:10250", "127.0.0.1:10257"].map(|at| world.get(at, "/healthz"));
        moved.iter().all(|page| page.as_ref().is_ok_and(|page| page.status == 200))
    })
    .with_context(|| world.logs())?;
    assert!(world.get("127.0.0.1:10249", "/healthz").is_err(), "the former address still answers");
    await_condition("NodePorts are only where they are configured", || {
        !matches!(client.probe(node_port(0)), Ok(localnet_lab::Outcome::Answer { .. }))
    })
    .with_context(|| world.logs())?;
    answers(Probe::new(Protocol::Tcp, (ip(WEB), 80).into()))
}
