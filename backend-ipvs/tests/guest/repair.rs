//! Tests that the backend repairs what others delete, keeps what belongs to others, and leaves nothing behind after a cleanup.

use std::process::Command;
use std::time::Duration;

use localnet_client::{Backend as _, inspect::Inspect as _, vips::Config};
use localnet_ipvs::{Host, IpvsBackend, Options, live};
use localnet_lab::{Network, Topology};
use localnet_proto::Changes;
use localnet_vm::on_ipvs;
use tokio::time::timeout;

use crate::connections::state;

const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a program in the network namespace of this thread. Returns its output.
pub(crate) fn run(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const FOREIGN: &str = "-A -t 10.9.9.9:443 -s wlc";

fn servers() -> Vec<String> {
    let mut lines: Vec<_> = run("ipvsadm -S -n").lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

fn everything() -> (Vec<String>, String, String) {
    let interface = run("ip -o -4 address show dev kube-ipvs0");
    let addresses = interface.lines().filter_map(|line| line.split_whitespace().nth(3)).collect::<Vec<_>>().join(" ");
    (servers(), addresses, run("nft list table ip localnet-ipvs"))
}

#[test]
fn deleted_objects_are_restored_and_cleanup_keeps_foreign_ones() {
    on_ipvs(|| {
        let network = Network::build(Topology::default()).unwrap();
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            run(&format!("ipvsadm {FOREIGN}"));
            run("nft add table ip foreign");
            runtime.block_on(async {
                let mut backend = live::open(Config::default(), Options::default(), 0).await?;
                backend.sync(&state(), &Changes::everything()).await?.whole()?;
                let before = everything();
                assert_eq!(before.0.len(), 4, "{before:?}");
                assert_eq!(before.1, "172.30.0.1/32");
                let mut reader = IpvsBackend::open(Config::default()).await?;
                let planned = reader.planned(&state());
                assert_eq!(reader.live().await?, planned);
                let disturbances = [
                    "ipvsadm -D -t 172.30.0.1:80",
                    "ip link delete kube-ipvs0",
                    "nft delete table ip localnet-ipvs",
                    "nft flush chain ip localnet-ipvs nat-postrouting",
                    "ipvsadm -E -t 172.30.0.1:80 -s sh",
                    "ipvsadm -d -t 172.30.0.1:80 -r 10.180.0.1:8080",
                    "ipvsadm -e -t 172.30.0.1:80 -r 10.180.0.2:8080 -m -w 0",
                ];
                for disturbance in disturbances {
                    run(disturbance);
                    assert_ne!(reader.live().await?, planned, "after {disturbance}");
                    timeout(PATIENCE, backend.disturbed()).await.expect(disturbance);
                    backend.sync(&state(), &Changes::default()).await?.whole()?;
                    assert_eq!(everything(), before, "after {disturbance}");
                    assert_eq!(reader.live().await?, planned, "after {disturbance}");
                }
                // This deletes every virtual server, including the foreign one.
                run("ipvsadm -C");
                timeout(PATIENCE, backend.disturbed()).await.expect("ipvsadm -C");
                backend.sync(&state(), &Changes::default()).await?.whole()?;
                run(&format!("ipvsadm {FOREIGN}"));
                assert_eq!(everything(), before);
                let mut other = IpvsBackend::new(Config::default(), Options::default(), Host::open()?);
                other.remove_all().await
            })?;
            assert_eq!(servers(), [FOREIGN]);
            assert_eq!(run("nft list tables"), "table ip foreign\n");
            assert!(!run("ip -o link").contains("kube-ipvs0"));
            Ok(())
        };
        network.node().run(work).unwrap();
    });
}
