//! Tests of the programs as shipped, each in separate networks. They form one binary, so that waiting tests run next to busy
//! ones.
//!
//! | file | what it verifies |
//! |---|---|
//! | `api_server` | an unavailable API server changes nothing. It is first by name, because it takes the longest |
//! | `bad_input` | invalid files and full disks |
//! | `canary` | localnet serves a part of the Services, beside kube-proxy |
//! | `cluster` | from a real API server to a packet |
//! | `differential` | the oracle, the backends and kube-proxy agree |
//! | `drop_in` | in place of kube-proxy: its configuration, its pages, its connections |
//! | `grpcurl` | everyone can read the state of a node |
//! | `iptables_rules` | kube-proxy's iptables mode and localnet-iptables write the same rules |
//! | `load` | the load for other tests keeps its rate |
//! | `privileges` | each program has exactly the privileges that it needs |
//! | `rbac` | the brain's permissions are exactly those that it uses |
//! | `repair` | changes by other programs are repaired |
//! | `restarts` | restarts interrupt no packet |
//! | `shadow` | kube-proxy's rules are compared with what localnet would do |
//! | `sources` | an API server and a folder are merged |
//! | `takeover` | from kube-proxy to localnet and back, no connection fails |
//! | `two_nodes` | packets between two nodes, each with its own proxy |

mod api_server;
mod bad_input;
mod canary;
mod cluster;
mod differential;
mod drop_in;
mod grpcurl;
mod iptables_rules;
mod load;
mod privileges;
mod rbac;
mod repair;
mod restarts;
mod restored;
mod shadow;
mod sources;
mod takeover;
mod two_nodes;

use localnet_e2e::kube_proxy;
