//! Refused changes are reported one by one and do not stop the others.

use localnet_core::Protocol;
use localnet_linux::ipvs::{Change, Destination, Error, Socket};
use localnet_vm::on_ipvs;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::namespace::run;
use crate::servers::{apply, destination, frontend, ipvsadm, isolated, server};

#[test]
fn refusals_name_object_and_remedy_and_do_not_stop_other_changes() {
    let http = frontend(Protocol::Tcp, "10.96.0.1:80");
    let absent = frontend(Protocol::Udp, "10.96.0.9:53");
    let v6 = frontend(Protocol::Tcp, "[fd00:96::1]:80");
    let add = Change::AddDestination;
    let rows = vec![
        (Change::AddServer(server(Protocol::Tcp, "10.96.0.1:80", "rr")), ""),
        (
            Change::AddServer(server(Protocol::Tcp, "10.96.0.1:80", "wrr")),
            "failed to add virtual server tcp 10.96.0.1:80: it exists already",
        ),
        (
            Change::AddServer(server(Protocol::Tcp, "10.96.0.2:80", "nosuch")),
            "failed to add virtual server tcp 10.96.0.2:80: this kernel has no IPVS scheduler nosuch: load its module with modprobe \
             ip_vs_nosuch, or choose another scheduler",
        ),
        (
            Change::UpdateServer(server(Protocol::Tcp, "10.96.0.1:80", "nosuch")),
            "failed to change virtual server tcp 10.96.0.1:80: this kernel has no IPVS scheduler nosuch: load its module with modprobe \
             ip_vs_nosuch, or choose another scheduler",
        ),
        (
            Change::UpdateServer(server(Protocol::Udp, "10.96.0.9:53", "rr")),
            "failed to change virtual server udp 10.96.0.9:53: it does not exist",
        ),
        (Change::DeleteServer(absent), "failed to delete virtual server udp 10.96.0.9:53: it does not exist"),
        (add(http, destination("10.244.0.1:80", 1)), ""),
        (
            add(http, destination("10.244.0.1:80", 2)),
            "failed to add destination 10.244.0.1:80 to virtual server tcp 10.96.0.1:80: it exists already",
        ),
        (
            add(absent, destination("10.244.0.1:80", 1)),
            "failed to add destination 10.244.0.1:80 to virtual server udp 10.96.0.9:53: the virtual server does not exist",
        ),
        (
            add(http, destination("192.0.2.255:80", 1)),
            "failed to add destination 192.0.2.255:80 to virtual server tcp 10.96.0.1:80: its address must have the family of \
             the virtual server, and must not be a broadcast, multicast or link-local address",
        ),
        (
            add(http, destination("[fd00:10::1]:80", 1)),
            "failed to add destination [fd00:10::1]:80 to virtual server tcp 10.96.0.1:80: its address must have the family of \
             the virtual server, and must not be a broadcast, multicast or link-local address",
        ),
        (
            add(http, destination("10.244.0.2:80", u32::MAX)),
            "failed to add destination 10.244.0.2:80 to virtual server tcp 10.96.0.1:80: its weight is above 2147483647, or its \
             lower threshold is above its upper threshold",
        ),
        (
            Change::UpdateDestination(
                http,
                Destination { upper_threshold: 1, lower_threshold: 2, ..destination("10.244.0.1:80", 1) },
            ),
            "failed to change destination 10.244.0.1:80 of virtual server tcp 10.96.0.1:80: its weight is above 2147483647, or \
             its lower threshold is above its upper threshold",
        ),
        (
            Change::UpdateDestination(http, destination("10.244.0.3:80", 1)),
            "failed to change destination 10.244.0.3:80 of virtual server tcp 10.96.0.1:80: it does not exist",
        ),
        (
            Change::DeleteDestination(http, "10.244.0.3:80".parse().unwrap()),
            "failed to delete destination 10.244.0.3:80 of virtual server tcp 10.96.0.1:80: it does not exist",
        ),
        (Change::AddServer(server(Protocol::Tcp, "[fd00:96::1]:80", "rr")), ""),
        (
            add(v6, destination("[fe80::1]:80", 1)),
            "failed to add destination [fe80::1]:80 to virtual server tcp [fd00:96::1]:80: its address must have the family of \
             the virtual server, and must not be a broadcast, multicast or link-local address",
        ),
        (add(v6, destination("[fd00:10::1]:80", 1)), ""),
    ];
    on_ipvs(move || {
        isolated(move || {
            run("ip", &["-batch", "-"], "link add d0 type dummy\naddr add 192.0.2.1/24 brd + dev d0\nlink set d0 up");
            let changes: Vec<_> = rows.iter().map(|(change, _)| change.clone()).collect();
            let applied = Socket::open().unwrap().apply(&changes).unwrap();
            let refused: Vec<_> = applied.refused.iter().map(|refused| (refused.change, refused.to_string())).collect();
            let wrong = rows.iter().enumerate().filter(|(_, (_, expected))| !expected.is_empty());
            assert_eq!(refused, wrong.map(|(at, (_, text))| (at, (*text).to_owned())).collect::<Vec<_>>());
            assert_eq!(applied.changes, rows.len());
            assert_eq!(
                ipvsadm(),
                [
                    "-A -t 10.96.0.1:80 -s rr",
                    "-A -t [fd00:96::1]:80 -s rr",
                    "-a -t 10.96.0.1:80 -r 10.244.0.1:80 -m -w 1",
                    "-a -t [fd00:96::1]:80 -r [fd00:10::1]:80 -m -w 1",
                ]
            );
        });
    });
}

#[test]
fn without_the_capability_every_call_reports_it() {
    on_ipvs(|| {
        isolated(|| {
            apply(&mut Socket::open().unwrap(), &[Change::AddServer(server(Protocol::Tcp, "10.96.0.1:80", "rr"))]);
            // Drops the capability of this thread alone.
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            rustix::thread::set_capabilities(None, sets).unwrap();
            let mut socket = Socket::open().unwrap();
            let many: Vec<_> = (1..2000)
                .map(|port| Change::DeleteServer(frontend(Protocol::Tcp, &format!("10.96.0.1:{port}"))))
                .collect();
            for result in [
                socket.apply(&many).map(drop),
                socket.list().map(drop),
                socket.timeouts().map(drop),
                socket.set_timeouts(&Default::default()),
            ] {
                assert!(matches!(result, Err(Error::NotPermitted)), "{result:?}");
            }
            assert_eq!(socket.apply(&[]).unwrap().batches, 0);
        });
    });
}
