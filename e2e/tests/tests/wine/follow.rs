//! The program with a brain on Linux: changes, restarts, changes by other programs, and the exit.

use std::{fs, path::Path};

use localnet_e2e::{Programs, await_condition};
use localnet_lab::{Namespace, Network, Running, Topology};
use rustix::process::{Pid, Signal, kill_process};

use crate::windows::{Windows, is_possible};

/// A cluster: a Node, and a Service with a pod on this node and pods on another one.
pub(super) fn cluster(remote_pods: &[u8]) -> String {
    let endpoint = |address: String, node: &str| {
        format!("- {{addresses: [{address}], nodeName: {node}, conditions: {{ready: true}}}}\n")
    };
    let remote: Vec<String> = remote_pods.iter().map(|pod| endpoint(format!("10.180.1.{pod}"), "node-b")).collect();
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node-a}}\nstatus: {{addresses: [{{type: InternalIP, address: 192.168.0.2}}]}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: demo}}\nspec:\n  type: NodePort\n  clusterIP: 172.30.0.41\n  \
         clusterIPs: [172.30.0.41]\n  ipFamilies: [IPv4]\n  ports: [{{name: http, port: 80, nodePort: 30080}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-1\n  namespace: demo\n  \
         labels: {{kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{{name: http, port: 8080}}]\nendpoints:\n{}{}",
        endpoint("10.180.0.1".to_owned(), "node-a"),
        remote.concat()
    )
}

pub(super) fn write(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, file).unwrap();
}

pub(super) const API: &str = "tcp://127.0.0.1:12090";
/// The last digits of the identifier of the pod's endpoint.
pub(super) const POD: &str = "00000000";

pub(super) fn brain(programs: &Programs, node: &Namespace, file: &Path) -> Running {
    let source = format!("file:{}", file.display());
    programs.start(node, "localnet-brain", &["--source", &source, "--node-name", "node-a", "--listen", API]).unwrap()
}

/// Sends the signal that stands for Ctrl-C.
fn interrupt(running: &Running) {
    kill_process(Pid::from_child(running), Signal::INT).unwrap();
}

#[test]
fn the_program_follows_a_brain_through_changes_and_restarts() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let windows = Windows::new("15.5", "L2Bridge", &["10.180.0.1"]).unwrap();
    let empty = windows.objects();
    let file = programs.path().join("cluster.yaml");
    write(&file, &cluster(&[1]));
    let first_brain = brain(&programs, node, &file);
    let arguments = ["--api", API, "--network-name", "pods"];
    let mut program = windows.start(node, &arguments).unwrap();

    let both = |endpoints: &[&str]| {
        windows.await_balancers(&[("172.30.0.41:80", endpoints), ("node:30080", endpoints)]).unwrap();
    };
    both(&[POD, "0ab40101"]);
    // With address randomization, a few of ten thousand starts failed: "failed to map the shared user data".
    let personality = fs::read_to_string(format!("/proc/{}/personality", program.id())).unwrap();
    assert_eq!(personality.trim(), "00040000", "not ADDR_NO_RANDOMIZE");
    write(&file, &cluster(&[1, 2]));
    both(&[POD, "0ab40101", "0ab40102"]);
    assert!(windows.log().contains("HcnModifyLoadBalancer"), "{}", windows.log());
    write(&file, &cluster(&[2]));
    both(&[POD, "0ab40102"]);
    await_condition("the unused endpoint is deleted", || windows.objects().len() == empty.len() + 3).unwrap();

    // Another program removes a load balancer, the brain exits, and a change comes with the next brain. Nothing is removed in
    // between.
    let mut objects = windows.objects();
    objects.retain(|(kind, _), json| kind != "balancer" || !json.contains("172.30.0.41"));
    windows.set_objects(&objects).unwrap();
    both(&[POD, "0ab40102"]);
    drop(first_brain);
    await_condition("the program logs it", || windows.output().contains("cannot get the state from the brain"))
        .unwrap();
    both(&[POD, "0ab40102"]);
    write(&file, &cluster(&[3]));
    let _second_brain = brain(&programs, node, &file);
    both(&[POD, "0ab40103"]);
    await_condition("the unused endpoint is deleted", || windows.objects().len() == empty.len() + 3).unwrap();

    // If the CNI plugin recreates a pod's endpoint, it gets another identifier.
    let mut objects = windows.objects();
    let pod = ("endpoint".to_owned(), "00000000-0000-0000-0000-000000000000".to_owned());
    let document = objects.remove(&pod).unwrap().replace(&pod.1, "00000000-0000-0000-0000-000000000077");
    objects.insert((pod.0, "00000000-0000-0000-0000-000000000077".to_owned()), document);
    windows.set_objects(&objects).unwrap();
    both(&["00000077", "0ab40103"]);

    interrupt(&program);
    assert!(windows.ended(&mut program).unwrap().success(), "{}", windows.output());
    both(&["00000077", "0ab40103"]);
    // The next run finds nothing to change.
    let before = windows.log();
    windows.run(node, &["--once", "--api", API, "--network-name", "pods"]).unwrap();
    let written = windows.log()[before.len()..].lines().filter(|line| line.starts_with("Hcn")).count();
    assert_eq!(written, 0, "{}", windows.log());
    windows.run(node, &["cleanup", "--network-name", "pods"]).unwrap();
    assert_eq!(windows.objects().len(), empty.len());
    windows.leaks_nothing().unwrap();
}

#[test]
fn in_an_overlay_network_the_nodes_interface_is_found() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let windows = Windows::new("13.3", "Overlay", &["10.180.0.1"]).unwrap();
    let file = programs.path().join("cluster.yaml");
    write(&file, &cluster(&[1]));
    let _brain = brain(&programs, node, &file);
    let flags = ["--once", "--api", API, "--network-name", "pods", "--source-vip", "10.180.0.250", "--enable-dsr"];
    windows.run(node, &flags).unwrap();
    let endpoints: &[&str] = &[POD, "0ab40101"];
    windows.await_balancers(&[("172.30.0.41:80", endpoints), ("node:30080", endpoints)]).unwrap();
    let link = node.output(std::process::Command::new("ip").args(["-o", "link"])).unwrap();
    let objects = windows.objects();
    let source = objects.values().find(|json| json.contains("10.180.0.250") && json.contains("MacAddress")).unwrap();
    let mac =
        source.split("\"MacAddress\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap().replace('-', ":");
    assert!(link.contains(&mac), "{mac} is none of {link}");
    windows.leaks_nothing().unwrap();
}
