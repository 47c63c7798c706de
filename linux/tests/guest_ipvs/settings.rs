//! Settings of IPVS, in a temporary network namespace.

use std::fs;

use localnet_linux::ipvs::{Socket, apply_settings};
use localnet_linux::sysctl::{Set, Settings};
use localnet_vm::on_ipvs;

use crate::servers::isolated;

#[test]
fn all_settings_can_be_applied() {
    on_ipvs(|| {
        isolated(|| {
            // Loads the module, which adds the settings.
            Socket::open().unwrap();
            // A new namespace inherits this setting.
            let forward_nothing = || fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
            forward_nothing();
            let read = |name: &str| fs::read_to_string(format!("/{name}")).unwrap().trim().to_owned();
            let first = apply_settings(&Settings::default(), true);
            let made: Vec<_> = first.into_iter().map(Result::unwrap).collect();
            // Some kernels get one more setting; the unit test checks which.
            let of_all = made.iter().filter(|(name, _)| !name.ends_with("/conn_reuse_mode"));
            let shown: Vec<_> = of_all.map(|(name, set)| (*name, *set, read(name))).collect();
            let expected = [
                ("proc/sys/net/ipv4/vs/conntrack", "1"),
                ("proc/sys/net/ipv4/vs/expire_nodest_conn", "1"),
                ("proc/sys/net/ipv4/vs/sloppy_sctp", "1"),
                ("proc/sys/net/ipv4/vs/expire_quiescent_template", "1"),
                ("proc/sys/net/ipv4/ip_forward", "1"),
                ("proc/sys/net/ipv4/conf/all/arp_ignore", "1"),
                ("proc/sys/net/ipv4/conf/all/arp_announce", "2"),
            ];
            assert_eq!(shown, expected.map(|(name, value)| (name, Set::From(0), value.to_owned())));
            let again = apply_settings(&Settings::default(), true);
            assert!(again.into_iter().all(|result| result.unwrap().1 == Set::Already));
            // Another namespace has settings of its own.
            isolated(move || {
                forward_nothing();
                let there = apply_settings(&Settings::default(), false);
                assert!(there.into_iter().all(|result| result.unwrap().1 == Set::From(0)));
            });
        });
    });
}
