//! The programs as shipped, in networks of their own: one binary, so that tests that wait run beside tests that work.
//!
//! | file | what it shows |
//! |---|---|
//! | `api_server` | an API server that is away for a minute changes nothing. It comes first by name: it is the longest |
//! | `bad_input` | wrong files and full disks |
//! | `cluster` | from a live API server to a packet |
//! | `differential` | the oracle, the backends and kube-proxy agree |
//! | `grpcurl` | the state of a node is readable by anyone |
//! | `kube_proxy` | how kube-proxy is started |
//! | `load` | the load of other tests keeps its rate |
//! | `repair` | what others do to the tables is put right |
//! | `restarts` | restarts interrupt no packet |
//! | `takeover` | from kube-proxy to localnet and back, no connection fails |

mod api_server;
mod bad_input;
mod cluster;
mod differential;
mod grpcurl;
mod kube_proxy;
mod load;
mod repair;
mod restarts;
mod takeover;
