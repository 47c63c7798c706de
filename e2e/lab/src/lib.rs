//! Small networks of namespaces, probes, and the Cases that every test layer reads.
//!
//! ```text
//!   client 203.0.113.2 ── router ── node 192.168.0.2 ──┬── pod 10.180.0.1
//!                           │                          └── pod 10.180.0.2
//!                           └── remote pod 10.180.1.1
//! ```
//!
//! | file | step |
//! |---|---|
//! | [`topology`] | which addresses such a network has; pure |
//! | [`namespace`] | one network namespace: create, enter, remove |
//! | [`network`] | a topology made real |
//! | [`serve`] | answers at endpoints, and says who asked |
//! | [`probe`] | asks, and says what came of it |
//! | [`segment`] | TCP segments made by hand |
//! | [`sctp`] | the few SCTP packets that both need, as bytes; pure |
//! | [`flow`] | what `flows.yaml` can say; pure |
//! | [`case`](mod@case) | the directories under `e2e/cases` |
//! | [`check`] | flows against real packets |
//! | [`open`] | flows that stay open, asked again and again |
//! | [`expect`] | expected files: compare, or rewrite |
//! | [`foreign`] | the node's other rule writers |
//!
//! The lab knows nothing about any backend: whatever programs the node's namespace is handed to [`check_flows`] as a
//! closure. It needs root, `ip` (iproute2) and, for [`foreign`], `nft`. It touches nothing outside of namespaces it made.

pub mod case;
pub mod check;
pub mod expect;
pub mod flow;
pub mod foreign;
pub mod namespace;
pub mod network;
pub mod open;
pub mod probe;
pub mod sctp;
pub mod segment;
pub mod serve;
pub mod topology;

pub use case::{Case, cases};
pub use check::{check_case, check_cases, check_flows, probe_flows};
pub use expect::expect_file;
pub use flow::{DetectLocal, Flow, Flows, NodeOptions, Sender};
pub use namespace::{Namespace, Running};
pub use network::Network;
pub use open::OpenFlow;
pub use probe::{Outcome, Probe, Protocol};
pub use serve::{Endpoint, Servers};
pub use topology::{Pod, Topology};
