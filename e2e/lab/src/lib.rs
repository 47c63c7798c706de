//! Small networks of namespaces, probes, and the Cases that every test layer reads.
//!
//! ```text
//!   client 203.0.113.2 ── router ── node 192.168.0.2 ──┬── pod 10.180.0.1
//!                           │                          └── pod 10.180.0.2
//!                           └── (other node 192.168.0.3) ── remote pod 10.180.1.1
//! ```
//!
//! | file | content |
//! |---|---|
//! | [`topology`] | the addresses of such a network; pure |
//! | [`namespace`] | a network namespace: create, enter, remove |
//! | [`network`] | builds a topology |
//! | `lines` | the `ip` lines of its namespaces; pure |
//! | [`serve`] | servers at endpoints, which answer with their name and the client's address |
//! | [`probe`] | sends a single request and reports the outcome |
//! | [`segment`] | hand-made TCP segments |
//! | [`sctp`] | the few SCTP packets that servers and probes need, as bytes; pure |
//! | [`flow`] | the format of `flows.yaml`; pure |
//! | [`journey`](mod@journey) | the path of a packet through both nodes; pure |
//! | [`case`](mod@case) | the folders of `e2e/cases` |
//! | [`check`] | checks flows with real packets |
//! | [`open`] | flows that stay open for several requests |
//! | [`expect`] | compares with expected files, or rewrites them |
//! | [`plan`] | compares plans: the changes of a Case to the plan of a node without Services |
//! | [`foreign`] | tables of other programs on the node |
//! | [`sandbox`] | a cgroup and a BPF file system for one test |
//!
//! The lab knows no backend: [`check_flows`] takes a closure that programs the node's namespace. The lab needs root, `ip`
//! (iproute2) and, for [`foreign`], `nft`. It changes nothing outside of the namespaces and cgroups that it creates.

pub mod case;
pub mod check;
pub mod expect;
pub mod flow;
pub mod foreign;
pub mod journey;
mod lines;
pub mod namespace;
pub mod network;
pub mod open;
pub mod plan;
pub mod probe;
pub mod sandbox;
pub mod sctp;
pub mod segment;
pub mod serve;
pub mod topology;

pub use case::{Case, cases};
pub use check::{check_between_nodes, check_case, check_cases, check_flows, probe_flows};
pub use expect::expect_file;
pub use flow::{DetectLocal, Flow, Flows, NodeOptions, Sender};
pub use journey::journey;
pub use localnet_core::Protocol;
pub use namespace::{Namespace, Running};
pub use network::Network;
pub use open::OpenFlow;
pub use plan::{check_that_mistakes_show, expect_plan};
pub use probe::{Outcome, Probe};
pub use sandbox::Sandbox;
pub use serve::{Endpoint, Servers};
pub use topology::{Pod, Topology};
