//! Route lookups, in a temporary network namespace.

mod namespace;

use localnet_linux::routes::{Route, Routes};

use namespace::{isolated, run};

/// Runs `ip` with these arguments, separated by spaces.
fn ip(words: &str) {
    run("ip", &words.split(' ').collect::<Vec<_>>(), "");
}

#[test]
fn each_kind_of_route_is_found() {
    isolated(|| {
        ip("link set lo up");
        ip("link add d0 type veth peer name d1");
        ip("link set d0 up");
        ip("link set d1 up");
        ip("addr add 192.0.2.7/24 dev d0");
        ip("addr add 2001:db8::7/64 dev d0 nodad");
        ip("route add 198.51.100.0/24 via 192.0.2.1");
        ip("route add blackhole 203.0.113.0/25");
        ip("route add unreachable 203.0.113.128/25");
        ip("-6 route add unreachable 2001:db8:1::/64");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let routes = Routes::open().unwrap();
            let out = |gateway: Option<&str>| Route::Out {
                interface: "d0".to_owned(),
                gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            };
            for (to, expected) in [
                ("192.0.2.7", Route::Local),
                ("127.0.0.1", Route::Local),
                ("192.0.2.9", out(None)),
                ("198.51.100.1", out(Some("192.0.2.1"))),
                ("2001:db8::9", out(None)),
            ] {
                assert_eq!(routes.to(to.parse().unwrap()).await.unwrap(), expected, "{to}");
            }
            for (to, why) in [
                ("203.0.113.1", "blackhole"),
                ("203.0.113.200", "unreachable"),
                ("8.8.8.8", "network is unreachable"),
                ("2001:db8:1::1", "unreachable"),
            ] {
                let Route::None(reason) = routes.to(to.parse().unwrap()).await.unwrap() else {
                    panic!("{to} has a route")
                };
                assert!(reason.contains(why), "{to}: {reason}");
            }
        });
    });
}
