//! Which endpoints each IPVS scheduler of the kernel chooses. The endpoints have the weights 3 and 1.

use std::fmt::Write as _;

use localnet_ipvs::Options;
use localnet_proto::Snapshot;
use localnet_vm::on_ipvs;

use crate::connections::{connect_to, in_network, with_backend};

/// The number of connections to each Service, from one client.
const CONNECTIONS: usize = 16;

/// How many connections the endpoints get.
enum Shares {
    /// The endpoint of weight 3, then that of weight 1.
    Are([usize; 2]),
    /// One endpoint gets all.
    One,
    /// The scheduler chooses at random.
    Any,
}
use Shares::{Any, Are, One};

/// Scheduler, whether all connections stay open, and what the endpoints get. Other fields of the Service follow the scheduler's name.
const SCHEDULERS: [(&str, bool, Shares); 16] = [
    ("rr", true, Are([8, 8])),
    ("wrr", true, Are([12, 4])),
    ("lc", true, Are([8, 8])),
    ("wlc", true, Are([12, 4])),
    ("sed", true, Are([12, 4])),
    ("nq", true, Are([12, 4])),
    // The destination's address decides, and all connections have the same.
    ("dh", true, One),
    ("lblc", false, One),
    ("lblcr", false, One),
    // The client's address decides.
    ("sh", true, One),
    ("mh, hash: source", true, One),
    ("maglev, hash: source", true, One),
    // The client's address and port decide.
    ("mh", true, Any),
    ("fo", true, Are([16, 0])),
    // An endpoint is full when it has as many open connections as its weight.
    ("ovf", false, Are([16, 0])),
    // The random choice between two endpoints.
    ("twos", true, Any),
];

/// A Service for each scheduler.
fn state() -> Snapshot {
    let mut yaml = "{node: {name: n, addresses: [192.168.0.2]}, services: [".to_owned();
    for (index, (scheduler, ..)) in SCHEDULERS.iter().enumerate() {
        _ = write!(
            yaml,
            "{{service: default/s{index}, type: ClusterIP, clusterIPs: [172.30.0.{}], ipvsScheduler: {scheduler},
              ports: [{{name: http, protocol: TCP, port: 80}}], endpoints: [
              {{address: 10.180.0.1, ports: [{{name: http, port: 8080}}], local: true, scopes: {{internal: true}}, weight: 3}},
              {{address: 10.180.0.2, ports: [{{name: http, port: 8080}}], local: true, scopes: {{internal: true}}}}]}},",
            index + 1
        );
    }
    serde_saphyr::from_str(&(yaml + "]}")).unwrap()
}

#[test]
fn each_scheduler_chooses_the_endpoints_as_it_should() {
    on_ipvs(|| {
        in_network(|network| {
            with_backend(network, Options::default(), &state(), async |backend| {
                assert!(backend.is_undisturbed().await.unwrap(), "the kernel lacks a scheduler");
            });
            for (index, (scheduler, held, shares)) in SCHEDULERS.iter().enumerate() {
                let (mut open, mut counts) = (Vec::new(), [0; 2]);
                for _ in 0..CONNECTIONS {
                    let (stream, endpoint) = connect_to(network, &format!("172.30.0.{}:80", index + 1));
                    counts[endpoint] += 1;
                    open.extend(held.then_some(stream));
                }
                println!("{scheduler}: {counts:?}");
                match shares {
                    Are(shares) => assert_eq!(counts, *shares, "{scheduler}"),
                    One => assert!(counts.contains(&CONNECTIONS), "{scheduler}: {counts:?}"),
                    Any => {}
                }
            }
        });
    });
}
