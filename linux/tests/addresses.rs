//! The node's addresses, in a temporary network namespace.

mod namespace;

use localnet_linux::addresses::Addresses;

use namespace::{isolated, run};

/// Runs `ip` with these arguments, separated by spaces.
fn ip(words: &str) {
    run("ip", &words.split(' ').collect::<Vec<_>>(), "");
}

#[test]
fn addresses_are_listed_and_changes_are_reported() {
    isolated(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut addresses = Addresses::watch().unwrap();
            assert!(addresses.list().await.unwrap().is_empty());

            ip("link add d0 type veth peer name d1");
            ip("addr add 192.0.2.7/24 dev d0");
            ip("addr add 2001:db8::7/64 dev d0 nodad");
            ip("addr add 192.0.2.8 peer 192.0.2.9 dev d0");
            addresses.changed().await.unwrap();
            let listed = || async {
                let listed = addresses.list().await.unwrap();
                listed.iter().map(|address| format!("{}/{}", address.ip, address.prefix_len)).collect::<Vec<_>>()
            };
            assert_eq!(listed().await, ["192.0.2.7/24", "192.0.2.8/32", "2001:db8::7/64"]);

            ip("addr del 192.0.2.7/24 dev d0");
            loop {
                addresses.changed().await.unwrap();
                let now = addresses.list().await.unwrap();
                if now.iter().all(|address| address.ip.to_string() != "192.0.2.7") {
                    assert_eq!(now.len(), 2);
                    break;
                }
            }
        });
    });
}
