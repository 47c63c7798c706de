//! The programs as shipped, in networks of their own: one binary, so that tests that wait run beside tests that work.
//!
//! | file | what it shows |
//! |---|---|
//! | `api_server` | an API server that is away for a minute changes nothing. It comes first by name: it is the longest |
//! | `bad_input` | wrong files and full disks |
//! | `cluster` | from a live API server to a packet |
//! | `differential` | the oracle, the backends and kube-proxy agree |
//! | `drop_in` | in place of kube-proxy: its configuration, its pages, its connections |
//! | `grpcurl` | the state of a node is readable by anyone |
//! | `load` | the load of other tests keeps its rate |
//! | `privileges` | what each program needs is all that it has |
//! | `rbac` | what the brain may ask of the API server is what it asks |
//! | `repair` | what others do to the tables is put right |
//! | `restarts` | restarts interrupt no packet |
//! | `takeover` | from kube-proxy to localnet and back, no connection fails |

mod api_server;
mod bad_input;
mod cluster;
mod differential;
mod drop_in;
mod grpcurl;
mod load;
mod privileges;
mod rbac;
mod repair;
mod restarts;
mod restored;
mod takeover;

use localnet_e2e::kube_proxy;
