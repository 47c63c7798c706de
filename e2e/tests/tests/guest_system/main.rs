//! The ipvs backend as shipped, and kube-proxy's ipvs mode, on a kernel that has IPVS: this machine's, or a guest's.
//!
//! | file | what it verifies |
//! |---|---|
//! | `conformance` | the backend passes the conformance kit |
//! | `differential` | the oracle and the backend agree about random clusters and packets |
//! | `faults` | `--why-not` names the cause of a fault first |
//! | `kube_proxy` | where kube-proxy's ipvs mode differs from the Cases, by entry of `docs/differences.md` |
//! | `privileges` | one capability is enough, and the backend starts no program |
//! | `restarts` | connections survive killed programs, terminating endpoints, and `ipvsadm -C` |
//! | `takeover` | localnet takes over from kube-proxy's ipvs mode, and no connection fails |
//! | `traffic` | the exported traffic is the traffic of clients, also while no backend runs |

mod conformance;
mod differential;
mod faults;
mod kube_proxy;
mod privileges;
mod restarts;
mod takeover;
mod traffic;
