//! Changes over netlink equal those that `ipvsadm` makes from our text.

use localnet_core::{Family, Protocol};
use localnet_linux::ipvs::{
    Change, Destination, Flags, Forwarding, Persistence, Socket, Timeouts, VirtualServer, listing, script,
};
use localnet_vm::on_ipvs;

use crate::namespace::run;
use crate::servers::{apply, destination, frontend, ipvsadm, isolated, server, sorted};

/// Virtual servers and destinations of all kinds.
fn additions() -> Vec<Change> {
    let persistent = |server: VirtualServer, timeout, prefix_len| VirtualServer {
        persistence: Some(Persistence { timeout, prefix_len }),
        ..server
    };
    let flags = |server: VirtualServer, flags| VirtualServer { flags, ..server };
    let scheduler_flags = Flags::SCHEDULER_1.with(Flags::SCHEDULER_2);
    let servers = [
        server(Protocol::Tcp, "10.96.0.1:80", "rr"),
        persistent(server(Protocol::Tcp, "10.96.0.2:80", "wrr"), 10800, 32),
        persistent(server(Protocol::Udp, "10.96.0.2:80", "lc"), 1, 24),
        flags(server(Protocol::Udp, "10.96.0.3:53", "rr"), Flags::ONE_PACKET),
        flags(server(Protocol::Tcp, "10.96.0.4:80", "mh"), Flags::SCHEDULER_2),
        flags(server(Protocol::Tcp, "10.96.0.5:80", "sh"), scheduler_flags),
        flags(server(Protocol::Sctp, "10.96.0.6:3868", "wlc"), scheduler_flags.with(Flags::SCHEDULER_3)),
        server(Protocol::Tcp, "[fd00:96::1]:80", "sed"),
        persistent(server(Protocol::Tcp, "[fd00:96::2]:80", "nq"), 300, 128),
        persistent(server(Protocol::Udp, "[fd00:96::3]:53", "dh"), 86400, 64),
        server(Protocol::Sctp, "[fd00:96::4]:3868", "fo"),
    ];
    let mut changes: Vec<_> = servers.iter().cloned().map(Change::AddServer).collect();
    for server in &servers {
        let of = |address: &str, weight| Change::AddDestination(server.frontend, destination(address, weight));
        match Family::of(server.frontend.address.ip()) {
            Family::V4 => {
                changes.extend([of("10.244.0.1:8080", 1), of("10.244.0.2:8080", 0), of("10.244.0.1:9090", 7)]);
            }
            Family::V6 => changes.extend([of("[fd00:10::1]:8080", 1), of("[fd00:10::2]:8080", 65535)]),
        }
    }
    let thresholds =
        Destination { upper_threshold: 100, lower_threshold: 50, ..destination("10.244.0.3:8080", 2_147_483_647) };
    let route = Destination { forwarding: Forwarding::ROUTE, ..destination("10.244.0.4:80", 1) };
    changes.extend([thresholds, route].map(|it| Change::AddDestination(frontend(Protocol::Tcp, "10.96.0.1:80"), it)));
    changes
}

#[test]
fn ipvsadm_lists_our_additions_and_adds_the_same_from_our_text() {
    on_ipvs(|| {
        let ours = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = ours.clone();
        isolated(move || {
            let mut socket = Socket::open().unwrap();
            apply(&mut socket, &additions());
            *seen.lock().unwrap() = ipvsadm();
            // Our listing equals that of ipvsadm, except for thresholds, which ipvsadm does not print.
            let listed = listing(&socket.list().unwrap());
            assert_eq!(sorted(&listed.replace(" -x 100 -y 50", "")), ipvsadm());
            assert!(listed.contains("-r 10.244.0.3:8080 -m -w 2147483647 -x 100 -y 50"), "{listed}");
        });
        isolated(move || {
            run("ipvsadm", &["-R"], &script(&additions()));
            assert_eq!(*ours.lock().unwrap(), ipvsadm());
        });
    });
}

#[test]
fn each_change_equals_ipvsadm_s_change_from_our_text() {
    let http = || server(Protocol::Tcp, "10.96.0.1:80", "rr");
    let dns = frontend(Protocol::Udp, "10.96.0.3:53");
    let changed_server = VirtualServer {
        flags: Flags::SCHEDULER_1,
        persistence: Some(Persistence { timeout: 60, prefix_len: 32 }),
        ..server(Protocol::Tcp, "10.96.0.1:80", "mh")
    };
    let steps = vec![
        vec![Change::UpdateServer(changed_server)],
        // Flags, scheduler and persistence return to their former values.
        vec![Change::UpdateServer(http())],
        vec![
            Change::UpdateDestination(http().frontend, destination("10.244.0.1:8080", 0)),
            Change::DeleteDestination(http().frontend, "10.244.0.2:8080".parse().unwrap()),
        ],
        vec![Change::DeleteServer(dns), Change::DeleteServer(frontend(Protocol::Tcp, "[fd00:96::1]:80"))],
        vec![Change::AddServer(server(Protocol::Udp, "10.96.0.3:53", "wrr"))],
    ];
    on_ipvs(move || {
        let ours = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let (seen, same_steps) = (ours.clone(), steps.clone());
        isolated(move || {
            let mut socket = Socket::open().unwrap();
            apply(&mut socket, &additions());
            for step in steps {
                apply(&mut socket, &step);
                assert_eq!(sorted(&listing(&socket.list().unwrap()).replace(" -x 100 -y 50", "")), ipvsadm());
                seen.lock().unwrap().push(ipvsadm());
            }
        });
        isolated(move || {
            run("ipvsadm", &["-R"], &script(&additions()));
            for (step, expected) in same_steps.iter().zip(&*ours.lock().unwrap()) {
                run("ipvsadm", &["-R"], &script(step));
                assert_eq!(*expected, ipvsadm(), "{step:?}");
            }
        });
    });
}

#[test]
fn timeouts_are_set_per_namespace_and_zero_keeps_one() {
    on_ipvs(|| {
        isolated(|| {
            let mut socket = Socket::open().unwrap();
            let of_the_kernel = Timeouts { tcp: 900, tcp_fin: 120, udp: 300 };
            assert_eq!(socket.timeouts().unwrap(), of_the_kernel);
            socket.set_timeouts(&Timeouts { tcp: 7200, tcp_fin: 0, udp: 30 }).unwrap();
            assert_eq!(socket.timeouts().unwrap(), Timeouts { tcp: 7200, tcp_fin: 120, udp: 30 });
            let listed = run("ipvsadm", &["-L", "--timeout"], "");
            assert_eq!(listed.trim(), "Timeout (tcp tcpfin udp): 7200 120 30");
            socket.set_timeouts(&Timeouts::default()).unwrap();
            assert_eq!(socket.timeouts().unwrap(), Timeouts { tcp: 7200, tcp_fin: 120, udp: 30 });
            let error = socket.set_timeouts(&Timeouts { tcp: u32::MAX, ..Timeouts::default() }).unwrap_err();
            assert_eq!(
                error.to_string(),
                "the kernel refused to set the timeouts of IPVS: Invalid argument (os error 22)"
            );
        });
    });
}

#[test]
fn a_socket_belongs_to_the_namespace_where_it_was_opened() {
    on_ipvs(|| {
        isolated(|| {
            let mut outside = Socket::open().unwrap();
            apply(&mut outside, &[Change::AddServer(server(Protocol::Tcp, "10.96.0.1:80", "rr"))]);
            isolated(|| assert_eq!(Socket::open().unwrap().list().unwrap(), []));
            assert_eq!(outside.list().unwrap().len(), 1);
        });
    });
}
