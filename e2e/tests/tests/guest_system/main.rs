//! The ipvs backend as shipped, and kube-proxy's ipvs mode, on a kernel that has IPVS: this machine's, or a guest's.
//!
//! | file | what it shows |
//! |---|---|
//! | `api` | an API server for a guest, and the objects of Cases in it |
//! | `conformance` | the kit for all backends |
//! | `kube_proxy` | where kube-proxy's ipvs mode differs from what a Case says, by entries of `docs/differences.md` |
//! | `privileges` | one capability is enough, and no program is started |
//! | `restarts` | programs that are killed, endpoints that go, and `ipvsadm -C`, with connections all the time |

mod api;
mod conformance;
mod kube_proxy;
mod privileges;
mod restarts;
