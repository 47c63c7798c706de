//! Dumping and deleting flows in the kernel's table.

use std::net::{TcpListener, TcpStream};

use localnet_core::{Family, Protocol};
use localnet_linux::conntrack::{Conntrack, Error, Kernel, Selection, Zone};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::flows::{address, dump, exchange, isolated, lines, listed, redirect, udp};
use crate::namespace::run;

const SELECTIONS: [(Family, Protocol); 6] = [
    (Family::V4, Protocol::Tcp),
    (Family::V4, Protocol::Udp),
    (Family::V4, Protocol::Sctp),
    (Family::V6, Protocol::Tcp),
    (Family::V6, Protocol::Udp),
    (Family::V6, Protocol::Sctp),
];

#[test]
fn a_dump_equals_the_listing_of_conntrack() {
    isolated(|| {
        redirect(&[
            (Protocol::Udp, "10.96.0.10:53", "10.244.0.2:5353"),
            (Protocol::Udp, "[fd00:96::10]:53", "[fd00:10::2]:5353"),
            (Protocol::Tcp, "10.96.0.10:80", "10.244.0.2:8080"),
            (Protocol::Tcp, "[fd00:96::10]:80", "[fd00:10::2]:8080"),
            (Protocol::Tcp, "10.96.0.11:80", "10.99.0.1:8080"),
        ]);
        let (v4, v6) = (udp("10.244.0.2:5353"), udp("[fd00:10::2]:5353"));
        let (client_v4, client_v6) = (udp("10.0.0.9:0"), udp("[fd00::9]:0"));
        exchange(&client_v4, "10.96.0.10:53", &v4);
        exchange(&client_v6, "[fd00:96::10]:53", &v6);
        client_v4.send_to(b"lost", "10.96.0.77:53").unwrap();
        let connected = ["10.244.0.2:8080", "[fd00:10::2]:8080"].map(|at| TcpListener::bind(at).unwrap());
        let clients = ["10.96.0.10:80", "[fd00:96::10]:80"].map(|to| TcpStream::connect(to).unwrap());
        let asking = connect_unanswered("10.96.0.11:80");
        insert(&["-p", "sctp", "--state", "ESTABLISHED", "-s", "10.0.0.9", "-d", "10.96.0.10"], "10.244.0.2");
        insert(&["-p", "sctp", "--state", "ESTABLISHED", "-s", "fd00::9", "-d", "fd00:96::10"], "fd00:10::2");
        insert(&["-p", "udp", "-w", "7", "-s", "10.0.0.9", "-d", "10.96.0.12"], "10.244.0.2");
        insert(&["-p", "udp", "--orig-zone", "8", "-s", "10.0.0.9", "-d", "10.96.0.12"], "10.244.0.2");
        insert(&["-p", "udp", "--reply-zone", "9", "-s", "10.0.0.9", "-d", "10.96.0.13"], "10.244.0.2");

        let mut kernel = Kernel::open().unwrap();
        for (family, protocol) in SELECTIONS {
            let flows = dump(&mut kernel, family, protocol);
            let mut expected = listed(family, protocol);
            if protocol == Protocol::Tcp {
                expected.retain(|line| line.contains("[UNREPLIED]"));
            }
            assert_eq!(lines(&flows), expected, "{family:?} {protocol:?}");
            assert_eq!(flows.len(), expected.len(), "{family:?} {protocol:?}");
        }
        let counts = SELECTIONS.map(|(family, protocol)| dump(&mut kernel, family, protocol).len());
        assert_eq!(counts, [1, 5, 1, 0, 1, 1]);
        drop((connected, clients, asking));
    });
}

#[test]
fn one_entry_is_deleted_in_each_kind_of_zone() {
    isolated(|| {
        insert(&["-p", "udp", "-s", "10.0.0.9", "-d", "10.96.0.12"], "10.244.0.2");
        insert(&["-p", "udp", "-w", "7", "-s", "10.0.0.9", "-d", "10.96.0.12"], "10.244.0.2");
        insert(&["-p", "udp", "--orig-zone", "8", "-s", "10.0.0.9", "-d", "10.96.0.12"], "10.244.0.3");
        insert(&["-p", "udp", "--reply-zone", "9", "-s", "10.0.0.9", "-d", "10.96.0.13"], "10.244.0.2");
        insert(&["-p", "sctp", "--state", "ESTABLISHED", "-s", "fd00::9", "-d", "fd00:96::10"], "fd00:10::2");
        let mut kernel = Kernel::open().unwrap();
        let mut flows = dump(&mut kernel, Family::V4, Protocol::Udp);
        flows.extend(dump(&mut kernel, Family::V6, Protocol::Sctp));
        let zones: Vec<_> = flows.iter().map(|flow| flow.zone).collect();
        assert_eq!(flows.len(), 5, "{zones:?}");
        for zone in [Zone::Both(0), Zone::Both(7), Zone::Original(8), Zone::Reply(9)] {
            assert!(zones.contains(&zone), "{zone:?} in {zones:?}");
        }
        while let Some(flow) = flows.pop() {
            assert_eq!(kernel.delete(&[flow]).unwrap(), 1, "{flow:?}");
            let mut left = dump(&mut kernel, Family::V4, Protocol::Udp);
            left.extend(dump(&mut kernel, Family::V6, Protocol::Sctp));
            assert_eq!(lines(&left), lines(&flows));
            assert_eq!(kernel.delete(&[flow]).unwrap(), 0);
        }
    });
}

#[test]
fn an_entry_that_replaced_the_dumped_one_is_not_deleted() {
    isolated(|| {
        let (a, b, client) = (udp("10.244.0.2:5353"), udp("10.244.0.3:5353"), udp("10.0.0.9:0"));
        let mut kernel = Kernel::open().unwrap();
        redirect(&[(Protocol::Udp, "10.96.0.10:53", "10.244.0.2:5353")]);
        exchange(&client, "10.96.0.10:53", &a);
        let seen = dump(&mut kernel, Family::V4, Protocol::Udp);
        run("conntrack", &["-D", "-p", "udp"], "");
        redirect(&[(Protocol::Udp, "10.96.0.10:53", "10.244.0.3:5353")]);
        exchange(&client, "10.96.0.10:53", &b);
        let replaced = dump(&mut kernel, Family::V4, Protocol::Udp);
        assert_eq!((seen.len(), replaced.len()), (1, 1));
        assert_eq!(seen[0].original, replaced[0].original);

        assert_eq!(kernel.delete(&seen).unwrap(), 0);
        assert_eq!(dump(&mut kernel, Family::V4, Protocol::Udp).len(), 1);
        assert_eq!(kernel.delete(&replaced).unwrap(), 1);
        assert_eq!(dump(&mut kernel, Family::V4, Protocol::Udp), []);
    });
}

#[test]
fn without_the_capability_the_error_names_it() {
    isolated(|| {
        let none = CapabilitySet::empty();
        let mut kernel = Kernel::open().unwrap();
        insert(&["-p", "udp", "-s", "10.0.0.9", "-d", "10.96.0.12"], "10.244.0.2");
        let flows = dump(&mut kernel, Family::V4, Protocol::Udp);
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
        let dumped =
            kernel.dump(Selection { family: Family::V4, protocol: Protocol::Udp, established: false }, &mut |_| ());
        let deleted = kernel.delete(&flows);
        assert!(matches!(dumped, Err(Error::NotPermitted(_))), "{dumped:?}");
        assert!(matches!(deleted, Err(Error::NotPermitted(_))), "{deleted:?}");
        let message = deleted.unwrap_err().to_string();
        assert_eq!(
            message,
            "not permitted to delete tracked flows: CAP_NET_ADMIN is needed; run as root or grant the capability"
        );
    });
}

/// Attempts a connection that gets no answer, until the process is killed.
fn connect_unanswered(to: &str) -> impl Sized {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    let requested = rustix::net::connect(&socket, &address(to));
    assert_eq!(requested, Err(rustix::io::Errno::INPROGRESS));
    socket
}

/// Inserts an entry that is translated to `endpoint`. `flow` starts with the protocol.
fn insert(flow: &[&str], endpoint: &str) {
    let source = flow[flow.iter().position(|word| *word == "-s").unwrap() + 1];
    let tags: &[&str] = if flow.contains(&"sctp") { &["--orig-vtag", "1", "--reply-vtag", "2"] } else { &[] };
    let ports = ["--sport", "4000", "--dport", "53", "--reply-port-src", "53", "--reply-port-dst", "4000"];
    run("conntrack", &[&["-I"], flow, &ports, tags, &["-r", endpoint, "-q", source, "-t", "60"]].concat(), "");
}
