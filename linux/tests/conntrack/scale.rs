//! The clean-up with 50,000 flows.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use localnet_core::{Family, Protocol};
use localnet_linux::conntrack::{Endpoints, Frontend, Kernel, Reconciler};

use crate::flows::{dump, isolated, udp};
use crate::namespace::run;

const FLOWS: u32 = 50_000;

/// The rules translate each address of the first network to the corresponding one of the second.
const RULES: &str = "
add table ip test
add chain ip test output { type nat hook output priority -100; }
add rule ip test output ip protocol udp dnat ip prefix to ip daddr map { 10.96.0.0/16 : 10.244.0.0/16 }
";

fn at(network: [u8; 2], index: u32) -> SocketAddr {
    let [_, _, high, low] = index.to_be_bytes();
    SocketAddr::new(Ipv4Addr::new(network[0], network[1], high, low).into(), 53)
}

#[test]
fn fifty_thousand_flows_are_read_and_the_stale_half_is_deleted() {
    isolated(|| {
        run("nft", &["-f", "-"], RULES);
        let client = udp("10.0.0.9:0");
        // Nothing reads the socket; its buffer may overflow.
        let server = udp("0.0.0.0:53");
        for index in 0..FLOWS {
            client.send_to(b"x", at([10, 96], index)).unwrap();
        }
        let mut kernel = Kernel::open().unwrap();
        let started = Instant::now();
        assert_eq!(dump(&mut kernel, Family::V4, Protocol::Udp).len(), FLOWS as usize);
        println!("dump of {FLOWS} flows: {:?}", started.elapsed());

        let mut reconciler = Reconciler::new();
        let frontend = |index| Frontend::new(Protocol::Udp, at([10, 96], index));
        let serving = |index| Endpoints::from_iter([at([10, 244], index)]);
        (0..FLOWS).for_each(|index| reconciler.set(frontend(index), serving(index)));
        let report = reconciler.run(&mut kernel).unwrap();
        assert_eq!((report.dumped, report.deleted), (FLOWS as usize, 0));
        println!("nothing stale: {:?}", report.took);

        for index in (0..FLOWS).step_by(2) {
            reconciler.set(frontend(index), serving(index + 1));
        }
        let report = reconciler.run(&mut kernel).unwrap();
        assert_eq!(report.deleted, FLOWS as usize / 2);
        println!("{} stale: {:?}, {} flows read", report.deleted, report.took, report.dumped);
        let mut left: Vec<_> = dump(&mut kernel, Family::V4, Protocol::Udp);
        left.retain(|flow| flow.original.destination.ip().is_ipv4());
        assert_eq!(left.len(), FLOWS as usize / 2);
        for flow in &left {
            let SocketAddr::V4(destination) = flow.original.destination else { panic!("{flow}") };
            assert_eq!(destination.ip().octets()[3] % 2, 1, "{flow}");
        }
        drop(server);
    });
}
