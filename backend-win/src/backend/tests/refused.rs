//! Documents of ours that HNS refuses: each refusal is reported with HNS's own words, and stops nothing else.

use super::*;

const DIAMETER: &str = "{service: default/diameter, type: ClusterIP, clusterIPs: [172.30.0.3],
    ports: [{name: d, protocol: SCTP, port: 3868}], endpoints: [
    {address: 10.180.0.1, ports: [{name: d, port: 3868}], local: true, scopes: {internal: true}}]}";

/// Returns the problems that are reported after a sync, and the number of load balancers in HNS.
fn refused(hns: FakeHcn, state: &Snapshot) -> (Vec<String>, usize) {
    let mut backend = backend(hns);
    let synced = backend.apply(state, &Changes::everything()).unwrap();
    let failed = synced.failed.iter().map(|(_, error)| format!("{error:#}"));
    let skipped = synced.skipped.iter().map(|skipped| skipped.problem.clone());
    (failed.chain(skipped).collect(), backend.kernel.load_balancers().len())
}

#[test]
fn refusals_are_reported_and_stop_nothing_else() {
    let mut two = state();
    let other: Service = serde_saphyr::from_str(DIAMETER).unwrap();
    two.services.insert(other.key.clone(), Arc::new(other));
    assert_eq!(refused(fake("L2Bridge"), &two), (vec![], 3));

    let (problems, there) = refused(with(fake("L2Bridge"), |hns| hns.refuses_sctp = true), &two);
    assert_eq!(
        (problems.as_slice(), there),
        (&["172.30.0.3:3868/sctp: HcnCreateLoadBalancer: The parameter is incorrect. (0x80070057)".to_owned()][..], 2)
    );

    let (problems, there) = refused(with(fake("L2Bridge"), |hns| hns.most_endpoints = 1), &two);
    assert!(problems.len() == 2 && there == 1, "{problems:?}");
    let expected = "172.30.0.1:80/tcp: HcnCreateLoadBalancer: The parameter is incorrect. Unable to initialize VFP LB rule: \
                    invalid number of destinations. (0x80070057)";
    assert!(problems.iter().any(|problem| problem == expected), "{problems:?}");
}

#[test]
fn a_source_vip_that_hns_refuses_is_reported() {
    for (source_vip, expected) in [
        ("10.181.0.250", "IP address is either invalid or not part of any configured subnet(s). (0x803b001e)"),
        ("10.180.0.254", "An address provided is invalid or reserved. (0x803b002f)"),
    ] {
        let options = Options { source_vip: Some(source_vip.parse().unwrap()), ..Options::default() };
        let mut backend = WinBackend::new(Config::default(), options, fake("Overlay"));
        let synced = backend.apply(&state(), &Changes::everything()).unwrap();
        let [(_, error)] = synced.failed.as_slice() else { panic!("{synced:?}") };
        let expected = format!("failed to create an endpoint for {source_vip}: HcnCreateEndpoint: {expected}");
        assert_eq!(format!("{error:#}"), expected);
    }
}
