//! The dummy interface and its addresses, on a kernel that has such interfaces.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

mod namespace;

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::time::Instant;

use localnet_linux::dummy::{Dummy, Error};
use localnet_vm::on_ipvs;

const NAME: &str = "kube-ipvs0";

/// Runs a test in a new network namespace, which ends with the thread.
fn isolated<Test: Future<Output = ()>>(test: impl FnOnce() -> Test + Send + 'static) {
    namespace::isolated(move || {
        ip("link set lo up");
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    });
}

/// Runs `ip` with these arguments, separated by spaces, and returns its output.
#[track_caller]
fn ip(words: &str) -> String {
    namespace::run("ip", &words.split(' ').collect::<Vec<_>>(), "")
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn the_interface_is_created_once_and_stays_down_without_arp() {
    on_ipvs(|| {
        isolated(|| async {
            assert!(Dummy::find(NAME).await.unwrap().is_none());
            let made = Dummy::ensure(NAME).await.unwrap();
            let shown = ip(&format!("-details link show {NAME}"));
            assert!(shown.contains("<BROADCAST,NOARP>") && shown.contains("state DOWN"), "{shown}");
            assert!(shown.contains("dummy"), "{shown}");
            assert_eq!(made.change(addresses(&["10.96.0.1"]), []).await.unwrap().added, 1);
            // The existing interface is adopted unchanged.
            let existing = Dummy::ensure(NAME).await.unwrap();
            assert_eq!(existing.index(), made.index());
            assert_eq!(existing.addresses().await.unwrap(), addresses(&["10.96.0.1"]).into_iter().collect());
            existing.delete().await.unwrap();
            assert!(Dummy::find(NAME).await.unwrap().is_none());
            // Deleting it again is not an error.
            assert!(made.addresses().await.unwrap().is_empty());
            made.delete().await.unwrap();
        });
    });
}

#[test]
fn only_single_addresses_are_managed() {
    on_ipvs(|| {
        isolated(|| async {
            let dummy = Dummy::ensure(NAME).await.unwrap();
            ip(&format!("addr add 192.0.2.1/24 dev {NAME}"));
            ip("addr add 10.96.0.9/32 dev lo");
            let both = addresses(&["10.96.0.1", "10.96.0.2", "fd00:96::1", "fd00:96::2"]);
            let changed = dummy.change(both.clone(), []).await.unwrap();
            assert_eq!((changed.added, changed.removed, changed.refused.len()), (4, 0, 0));
            assert_eq!(dummy.addresses().await.unwrap(), both.iter().copied().collect());

            // Repeated additions and removals of missing addresses change nothing and are not an error.
            let changed = dummy.change(both.clone(), addresses(&["10.96.0.9", "fd00:96::9"])).await.unwrap();
            assert_eq!((changed.added, changed.removed, changed.refused.len()), (0, 0, 0));

            let changed = dummy
                .change(addresses(&["10.96.0.3", "fd00:96::3"]), addresses(&["10.96.0.1", "fd00:96::1"]))
                .await
                .unwrap();
            assert_eq!((changed.added, changed.removed, changed.refused.len()), (2, 2, 0));
            let expected = addresses(&["10.96.0.2", "10.96.0.3", "fd00:96::2", "fd00:96::3"]);
            assert_eq!(dummy.addresses().await.unwrap(), expected.into_iter().collect());
            assert!(
                ip(&format!("addr show dev {NAME}")).contains("192.0.2.1/24"),
                "a network's address is not managed"
            );
        });
    });
}

#[test]
fn packets_to_its_addresses_are_delivered_locally_at_once() {
    on_ipvs(|| {
        isolated(|| async {
            let dummy = Dummy::ensure(NAME).await.unwrap();
            let vips = addresses(&["10.96.0.1", "fd00:96::1"]);
            assert_eq!(dummy.change(vips.clone(), []).await.unwrap().added, 2);
            for vip in vips {
                let listener = TcpListener::bind((vip, 80)).unwrap();
                let client = TcpStream::connect((vip, 80)).unwrap();
                assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
            }
            // No route leads through the interface.
            assert_eq!(ip("route show") + &ip("-6 route show dev kube-ipvs0"), "");
        });
    });
}

#[test]
fn refused_addresses_are_reported_and_do_not_stop_the_others() {
    on_ipvs(|| {
        isolated(|| async {
            let dummy = Dummy::ensure(NAME).await.unwrap();
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{NAME}/disable_ipv6"), "1").unwrap();
            let changed = dummy.change(addresses(&["fd00:96::1", "10.96.0.1"]), []).await.unwrap();
            assert_eq!(changed.added, 1);
            let refused: Vec<_> = changed.refused.iter().map(ToString::to_string).collect();
            assert_eq!(
                refused,
                [
                    "failed to add the address fd00:96::1 to the interface kube-ipvs0: IPv6 is disabled on it: enable it (sysctl -w \
                  net/ipv6/conf/kube-ipvs0/disable_ipv6=0), or start the kernel without ipv6.disable=1"
                ]
            );

            let other = Dummy::ensure(NAME).await.unwrap();
            other.delete().await.unwrap();
            let error = dummy.change(addresses(&["10.96.0.2"]), []).await.unwrap_err();
            assert!(matches!(error, Error::Deleted { .. }), "{error}");

            ip("link add kube-ipvs0 type bridge");
            let error = Dummy::ensure(NAME).await.unwrap_err().to_string();
            assert_eq!(
                error,
                "the interface kube-ipvs0 is not a dummy interface (bridge): delete or rename it (ip link delete kube-ipvs0)"
            );
            let error = Dummy::ensure("lo").await.unwrap_err().to_string();
            assert!(error.contains("the interface lo is not a dummy interface (a device)"), "{error}");
        });
    });
}

#[test]
fn hundreds_of_addresses_are_added_and_removed_in_one_call() {
    const EACH: u32 = 250;
    on_ipvs(|| {
        isolated(|| async {
            let dummy = Dummy::ensure(NAME).await.unwrap();
            let v4 = (1..=EACH).map(|index| IpAddr::from(Ipv4Addr::from((10 << 24) + index)));
            let v6 = (1..=EACH).map(|index| IpAddr::from(Ipv6Addr::from((0xfd00_u128 << 112) + u128::from(index))));
            let all: BTreeSet<IpAddr> = v4.chain(v6).collect();
            let started = Instant::now();
            let changed = dummy.change(all.iter().copied(), []).await.unwrap();
            println!("{} added: {:?}", changed.added, started.elapsed());
            assert_eq!(changed.added, all.len());
            let started = Instant::now();
            assert_eq!(dummy.addresses().await.unwrap(), all);
            println!("listed: {:?}", started.elapsed());
            let started = Instant::now();
            let changed = dummy.change([], all.iter().copied()).await.unwrap();
            println!("{} removed: {:?}", changed.removed, started.elapsed());
            assert_eq!((changed.removed, changed.refused.len()), (all.len(), 0));
            assert!(dummy.addresses().await.unwrap().is_empty());
        });
    });
}
