//! Access to the Linux kernel that the backends share.
//!
//! | module | gives a backend |
//! |---|---|
//! | [`nft`] | nf_tables over netlink: plan, apply, read back, follow changes |
//! | [`ipvs`] | IPVS over generic netlink |
//! | [`conntrack`] | connection tracking: deletes stale flows, sets limits |
//! | [`traffic`] | the connections, packets and bytes of each Service port and endpoint, counted by connection tracking |
//! | [`nfacct`] | named packet counters, in which rules of iptables count |
//! | [`addresses`], [`routes`], [`dummy`] | the node's addresses and routes, and a dummy interface for virtual addresses |
//! | [`sockets`] | sockets of processes: ends those whose destination no longer exists |
//! | [`sysctl`], [`setup`] | kernel settings |
//! | [`pace`], [`shortage`] | when to repair, and which refusals to retry |
//!
//! This crate knows neither the API between brain and backends nor the rules of Kubernetes, and its terms are mostly the kernel's. Of
//! Kubernetes, it knows the part of kube-proxy's configuration that sets kernel settings ([`setup`]), and the names of Service ports,
//! under which it counts traffic ([`traffic`]).

pub mod addresses;
mod connection;
pub mod conntrack;
pub mod dummy;
pub mod ipvs;
mod netlink;
pub mod nfacct;
pub mod nft;
pub mod pace;
pub mod routes;
pub mod setup;
pub mod shortage;
pub mod sockets;
pub mod sysctl;
pub mod traffic;
