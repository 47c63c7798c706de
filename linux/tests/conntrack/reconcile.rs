//! The clean-up with real packets: flows move, connections stay.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use localnet_core::{Family, Protocol};
use localnet_linux::conntrack::{Due, Endpoints, Frontend, Kernel, Reconciler};

use crate::flows::{address, exchange, isolated, listed, redirect, udp};
use crate::namespace::run;

use Protocol::{Sctp, Tcp, Udp};

fn frontend(protocol: Protocol, at: &str) -> Frontend {
    Frontend::new(protocol, address(at))
}

fn endpoints(all: &[&str]) -> Endpoints {
    all.iter().map(|at| address(at)).collect()
}

fn all_listed() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for family in Family::BOTH {
        for protocol in [Tcp, Udp, Sctp] {
            all.append(&mut listed(family, protocol));
        }
    }
    all
}

#[test]
fn a_client_that_keeps_its_port_reaches_the_next_endpoint() {
    for (vip, a, b, client) in [
        ("10.96.0.10:53", "10.244.0.2:5353", "10.244.0.3:5353", "10.0.0.9:0"),
        ("[fd00:96::10]:53", "[fd00:10::2]:5353", "[fd00:10::3]:5353", "[fd00::9]:0"),
        ("192.168.0.2:30053", "10.244.0.2:5353", "10.244.0.3:5353", "10.0.0.9:0"),
    ] {
        isolated(move || {
            let (at_a, at_b, client) = (udp(a), udp(b), udp(client));
            let mut kernel = Kernel::open().unwrap();
            let mut reconciler = Reconciler::new();
            redirect(&[(Udp, vip, a)]);
            exchange(&client, vip, &at_a);
            reconciler.set(frontend(Udp, vip), endpoints(&[a]));
            assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 0);

            redirect(&[(Udp, vip, b)]);
            // The rules alone do not move the flow.
            exchange(&client, vip, &at_a);
            reconciler.set(frontend(Udp, vip), endpoints(&[b]));
            assert_eq!(reconciler.due(), Due::Now);
            let report = reconciler.run(&mut kernel).unwrap();
            assert_eq!((report.dumped, report.deleted), (1, 1));
            exchange(&client, vip, &at_b);
            assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 0);
            assert_eq!(reconciler.due(), Due::Nothing);
        });
    }
}

#[test]
fn a_flow_that_began_before_the_service_existed_reaches_it() {
    isolated(|| {
        let (server, client) = (udp("10.244.0.2:5353"), udp("10.0.0.9:0"));
        redirect(&[]);
        client.send_to(b"too early", "10.96.0.10:53").unwrap();
        let mut reconciler = Reconciler::new();
        let mut kernel = Kernel::open().unwrap();
        redirect(&[(Udp, "10.96.0.10:53", "10.244.0.2:5353")]);
        reconciler.set(frontend(Udp, "10.96.0.10:53"), endpoints(&["10.244.0.2:5353"]));
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
        exchange(&client, "10.96.0.10:53", &server);
    });
}

/// A host with the frontend's address answers clients while no rule leads to the Service. When the entry of such a flow is
/// deleted, a reply in flight enters the flow backwards, and the client's packets count as replies. kube-proxy does not
/// recover that client while it keeps sending.
#[test]
fn a_client_with_a_reversed_flow_reaches_the_service() {
    isolated(|| {
        let vip = "10.244.7.7:53";
        let (astray, server, client) = (udp(vip), udp("10.244.0.2:5353"), udp("10.0.0.9:0"));
        redirect(&[]);
        client.send_to(b"too early", vip).unwrap();
        let (_, from) = astray.recv_from(&mut [0; 16]).unwrap();
        let mut kernel = Kernel::open().unwrap();
        let mut reconciler = Reconciler::new();
        redirect(&[(Udp, vip, "10.244.0.2:5353")]);
        reconciler.set(frontend(Udp, vip), endpoints(&["10.244.0.2:5353"]));
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);

        astray.send_to(b"answer", from).unwrap();
        assert_eq!(client.recv_from(&mut [0; 16]).unwrap().1, address(vip));
        // Without the follow-up the client's packets would keep arriving here.
        client.send_to(b"astray", vip).unwrap();
        astray.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(reconciler.due(), Due::Later);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 1);
        exchange(&client, vip, &server);
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 0);
    });
}

#[test]
fn the_first_run_deletes_exactly_the_stale_flows() {
    isolated(|| {
        let vips = ["10.96.0.10:53", "10.96.0.11:53", "10.96.0.12:53", "10.96.0.13:53", "192.168.0.2:30053"];
        let ends = ["10.244.0.2:53", "10.244.0.3:53", "10.244.0.4:53", "10.244.0.5:53", "10.244.0.6:53"];
        let mut rules: Vec<_> = vips.into_iter().zip(ends).map(|(vip, end)| (Udp, vip, end)).collect();
        rules.push((Tcp, "10.96.0.10:80", "10.244.0.2:80"));
        redirect(&rules);
        let client = udp("10.0.0.9:40000");
        for (vip, end) in vips.into_iter().zip(ends) {
            exchange(&client, vip, &udp(end));
        }
        let foreign = udp("10.244.9.9:30053");
        exchange(&client, "10.244.9.9:30053", &foreign);
        let listener = TcpListener::bind("10.244.0.2:80").unwrap();
        let mut connection = TcpStream::connect("10.96.0.10:80").unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        for end in ["10.244.0.2", "10.244.0.3"] {
            let port = if end == "10.244.0.2" { "4001" } else { "4002" };
            let ports = ["--sport", port, "--reply-port-dst", port, "--dport", "53", "--reply-port-src", "53"];
            let tuple = ["-s", "10.0.0.9", "-d", "10.96.0.10", "-r", end, "-q", "10.0.0.9"];
            let head =
                ["-I", "-p", "sctp", "--state", "ESTABLISHED", "--orig-vtag", "1", "--reply-vtag", "2", "-t", "60"];
            run("conntrack", &[&head[..], &ports, &tuple].concat(), "");
        }

        let before = all_listed();
        let mut reconciler = Reconciler::new();
        // The earlier process had served this frontend.
        reconciler.remember(frontend(Udp, "10.96.0.12:53"));
        let served = [
            // An eligible endpoint.
            (frontend(Udp, "10.96.0.10:53"), endpoints(&["10.244.0.2:53"])),
            // An endpoint that is not eligible, and no endpoint.
            (frontend(Udp, "10.96.0.11:53"), endpoints(&["10.244.0.2:53"])),
            (frontend(Udp, "10.96.0.13:53"), endpoints(&[])),
            // A NodePort that moved to another Service.
            (frontend(Udp, "192.168.0.2:30053"), endpoints(&["10.244.0.7:53"])),
            // An established connection to an endpoint that was deleted.
            (frontend(Tcp, "10.96.0.10:80"), endpoints(&["10.244.0.3:80"])),
            (frontend(Sctp, "10.96.0.10:53"), endpoints(&["10.244.0.2:53"])),
        ];
        served.into_iter().for_each(|(frontend, endpoints)| reconciler.set(frontend, endpoints));
        let mut kernel = Kernel::open().unwrap();
        let report = reconciler.run(&mut kernel).unwrap();
        let after = all_listed();
        let deleted: BTreeSet<_> =
            before.difference(&after).map(|line| line.split(" id=").next().unwrap().to_owned()).collect();
        let back = |protocol: &str, vip: &str, end: &str, port: u16| {
            let (vip, end) = (address(vip), address(end));
            let (to, at, dport, sport) = (vip.ip(), end.ip(), vip.port(), end.port());
            let unreplied = if protocol == "sctp" { "[UNREPLIED] " } else { "" };
            format!(
                "{protocol} src=10.0.0.9 dst={to} sport={port} dport={dport} \
                 {unreplied}src={at} dst=10.0.0.9 sport={sport} dport={port}"
            )
        };
        let mut expected: BTreeSet<_> = (1..5).map(|at: usize| back("udp", vips[at], ends[at], 40000)).collect();
        expected.insert(back("sctp", "10.96.0.10:53", "10.244.0.3:53", 4002));
        assert_eq!(deleted, expected);
        assert_eq!(report.deleted, expected.len());
        assert!(after.is_subset(&before), "{after:?}");

        connection.write_all(b"still here").unwrap();
        let mut heard = [0; 10];
        accepted.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"still here");
        assert_eq!(reconciler.run(&mut kernel).unwrap().deleted, 0);
    });
}

/// kubernetes/kubernetes#101607: a client that repeats its SYN from the same port stays pinned to a deleted endpoint.
#[test]
fn an_unanswered_connection_attempt_reaches_the_next_endpoint() {
    isolated(|| {
        let vip = "10.96.0.10:80";
        // The first endpoint does not answer.
        redirect(&[(Tcp, vip, "10.99.0.1:80")]);
        let mut reconciler = Reconciler::new();
        let mut kernel = Kernel::open().unwrap();
        reconciler.set(frontend(Tcp, vip), endpoints(&["10.99.0.1:80"]));
        reconciler.run(&mut kernel).unwrap();
        let listener = TcpListener::bind("10.244.0.2:80").unwrap();
        let asking = std::thread::spawn(move || TcpStream::connect(vip).unwrap());
        while listed(Family::V4, Tcp).is_empty() {
            std::thread::yield_now();
        }
        redirect(&[(Tcp, vip, "10.244.0.2:80")]);
        reconciler.set(frontend(Tcp, vip), endpoints(&["10.244.0.2:80"]));
        let report = reconciler.run(&mut kernel).unwrap();
        assert_eq!((report.dumped, report.deleted), (1, 1));
        let (_, from) = listener.accept().unwrap();
        assert_eq!(asking.join().unwrap().local_addr().unwrap(), from);
    });
}
