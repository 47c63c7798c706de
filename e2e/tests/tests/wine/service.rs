//! The program as a Windows service, and a brain on a named pipe.

use std::fs;

use localnet_e2e::{Programs, await_condition};
use localnet_lab::{Network, Topology};

use crate::{
    follow::{API, POD, brain, cluster, write},
    windows::{BACKEND, Windows, is_possible, windows_path},
};

const CONFIGURATION: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n\
     winkernel: {networkName: pods}\nwindows: {runAsService: true}\n";

#[test]
fn the_service_control_manager_starts_and_ends_it() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let windows = Windows::new("15.5", "L2Bridge", &["10.180.0.1"]).unwrap();
    let (file, configuration, log) =
        (programs.path().join("cluster.yaml"), programs.path().join("config.yaml"), programs.path().join("win.log"));
    write(&file, &cluster(&[1]));
    write(&configuration, CONFIGURATION);
    let _brain = brain(&programs, node, &file);
    // Wine shuts Windows down when the last program that is not a service exits.
    let _session = windows.start_pipe(node, "session", 12_090).unwrap();
    let (config, log_file) = (windows_path(&configuration), windows_path(&log));
    windows.install(node, BACKEND, &["--config", &config, "--api", API, "--log-file", &log_file]).unwrap();

    windows.tool(node, "sc", &["start", BACKEND]).unwrap();
    let endpoints: &[&str] = &[POD, "0ab40101"];
    windows.await_balancers(&[("172.30.0.41:80", endpoints), ("node:30080", endpoints)]).unwrap();
    windows.tool(node, "sc", &["query", BACKEND]).unwrap();
    assert!(windows.output().contains("RUNNING"), "{}", windows.output());
    write(&file, &cluster(&[2]));
    let endpoints: &[&str] = &[POD, "0ab40102"];
    windows.await_balancers(&[("172.30.0.41:80", endpoints), ("node:30080", endpoints)]).unwrap();

    windows.stop(node, BACKEND).unwrap();
    await_condition("the end of the process", || windows.log().contains("unloaded")).unwrap();
    // The programmed load balancers remain until they are removed explicitly.
    windows.await_balancers(&[("172.30.0.41:80", endpoints), ("node:30080", endpoints)]).unwrap();
    windows.leaks_nothing().unwrap();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("HNS found"), "{log}");
}

#[test]
fn a_brain_on_a_named_pipe_is_followed() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let windows = Windows::new("15.5", "L2Bridge", &["10.180.0.1"]).unwrap();
    let file = programs.path().join("cluster.yaml");
    write(&file, &cluster(&[1]));
    let first_brain = brain(&programs, node, &file);
    let _pipe = windows.start_pipe(node, "localnet", 12_090).unwrap();
    let _program = windows.start(node, &["--api", "npipe:////./pipe/localnet", "--network-name", "pods"]).unwrap();
    let both = |endpoints: &[&str]| {
        windows.await_balancers(&[("172.30.0.41:80", endpoints), ("node:30080", endpoints)]).unwrap();
    };
    both(&[POD, "0ab40101"]);
    write(&file, &cluster(&[1, 2]));
    both(&[POD, "0ab40101", "0ab40102"]);
    // The connection breaks, and the program connects again.
    drop(first_brain);
    await_condition("the program logs it", || windows.output().contains("cannot get the state from the brain"))
        .unwrap();
    write(&file, &cluster(&[3]));
    let _second_brain = brain(&programs, node, &file);
    both(&[POD, "0ab40103"]);
}

#[test]
fn the_go_library_follows_a_brain_on_a_named_pipe() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let (node, programs) = (network.node(), Programs::new().unwrap());
    let windows = Windows::new("15.5", "L2Bridge", &[]).unwrap();
    let (file, dump) = (programs.path().join("cluster.yaml"), programs.path().join("dump"));
    write(&file, &cluster(&[1]));
    let first_brain = brain(&programs, node, &file);
    let _pipe = windows.start_pipe(node, "localnet", 12_090).unwrap();
    let arguments = ["--api", "npipe:////./pipe/localnet", "--dump", &windows_path(&dump)];
    let _program = windows.start_go(node, &arguments).unwrap();
    let await_endpoint = |address: &str| {
        let line = format!("endpoint demo/web http {address} 8080 ");
        await_condition("the endpoint", || fs::read_to_string(&dump).is_ok_and(|text| text.contains(&line)))
            .unwrap_or_else(|error| panic!("{error}: {line}: {}", windows.output()));
    };
    await_endpoint("10.180.1.1");
    write(&file, &cluster(&[2]));
    await_endpoint("10.180.1.2");
    drop(first_brain);
    write(&file, &cluster(&[3]));
    let _second_brain = brain(&programs, node, &file);
    await_endpoint("10.180.1.3");
}
