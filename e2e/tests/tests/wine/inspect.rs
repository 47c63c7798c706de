//! What `localnet-win inspect` prints on Windows lets `localnet` answer on Linux.

use std::{fs, process::Command};

use localnet_e2e::{Programs, program};
use localnet_lab::{Network, Topology};

use crate::{
    follow::{API, POD, brain, cluster, write},
    windows::{Windows, is_possible},
};

#[test]
fn localnet_on_linux_compares_the_hns_of_a_windows_node() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let windows = Windows::new("15.5", "L2Bridge", &["10.180.0.1"]).unwrap();
    let source = programs.path().join("cluster.yaml");
    write(&source, &cluster(&[1]));
    let _brain = brain(&programs, node, &source);
    let once = ["--once", "--api", API, "--network-name", "pods"];
    windows.run(node, &once).unwrap();
    windows.await_balancers(&[("172.30.0.41:80", &[POD, "0ab40101"]), ("node:30080", &[POD, "0ab40101"])]).unwrap();

    let hns = programs.path().join("hns.json");
    let diff = || {
        let before = windows.output().len();
        windows.run(node, &["inspect", "--network-name", "pods"]).unwrap();
        let output = windows.output();
        // Wine may write its own messages before and after.
        let (start, end) = (output[before..].find('{').unwrap(), output.rfind('}').unwrap());
        fs::write(&hns, &output[before + start..=end]).unwrap();
        let mut command = Command::new(program("localnet").unwrap());
        command.args(["--api", API, "diff", "--hns"]).arg(&hns);
        let ended = node.run(|| Ok(command.output()?)).unwrap();
        (ended.status.code(), String::from_utf8(ended.stdout).unwrap())
    };
    let (code, out) = diff();
    assert_eq!(code, Some(0), "{out}");
    assert!(out.starts_with("the kernel matches the plan (4 elements or rules compared)\n"), "{out}");

    let mut objects = windows.objects();
    objects.retain(|(kind, _), json| kind != "balancer" || !json.contains("172.30.0.41"));
    windows.set_objects(&objects).unwrap();
    let (code, out) = diff();
    assert_eq!(code, Some(1), "{out}");
    let lacks = "HNS load balancers\n  + 172.30.0.41:80/tcp: to 10.180.0.1:8080, remote 10.180.1.1:8080\n";
    assert!(out.starts_with(lacks), "{out}");
    windows.leaks_nothing().unwrap();
}
