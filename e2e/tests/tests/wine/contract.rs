//! Runs the suite that every HNS must pass, through `computenetwork.dll`.

use localnet_lab::{Network, Topology};

use crate::windows::{Windows, is_possible};

#[test]
fn calls_match_the_header_of_the_library_and_leak_nothing() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    for (version, kind, in_place) in [("13.3", "L2Bridge", "no "), ("15.5", "Overlay", "yes")] {
        let windows = Windows::new(version, kind, &["10.180.0.1"]).unwrap();
        let before = windows.objects();
        windows.run(network.node(), &["check", "--network-name", "pods"]).unwrap();
        let output = windows.output();
        for line in [
            "yes: a new object has the requested identifier",
            "yes: two endpoints may have the same address",
            "yes: HNS returns a load balancer as it was written",
            &format!("{in_place}: a load balancer can be changed in place"),
            "yes: a load balancer may have 65 endpoints",
            "yes: a load balancer without endpoints is refused (HcnCreateLoadBalancer: The reference is invalid",
            "yes: a load balancer with the internal port 0 is refused",
            "yes: HNS refuses documents with codes that localnet-win knows",
            "This HNS behaves as localnet-win requires.",
        ] {
            assert!(output.contains(line), "{line} is missing:\n{output}");
        }
        assert_eq!(windows.objects(), before);
        assert!(windows.log().contains("HcnCreateLoadBalancer") && windows.log().contains("refused 803b0013"));
        windows.leaks_nothing().unwrap();
    }
}

#[test]
fn errors_are_reported() {
    if !is_possible() {
        return;
    }
    let network = Network::build(Topology::default()).unwrap();
    let windows = Windows::new("13.3", "L2Bridge", &[]).unwrap();
    for (arguments, expected) in [
        (&["check", "--network-name", "other"][..], "0 networks are called other"),
        (&["check"], "--network-name"),
        (&["--once", "--api", "tcp://127.0.0.1:1", "--network-name", "pods"], "check that localnet-brain runs"),
        (&["--once", "--api", "unix:///run/localnet/brain.sock"], "is not supported on Windows; use tcp://host:port"),
    ] {
        let error = format!("{:#}", windows.run(network.node(), arguments).unwrap_err());
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    windows.leaks_nothing().unwrap();
}
