//! `localnet-win`, `localnet-brain` and `localnet-node` as Windows programs, run by Wine, with an HNS that stores its objects in a file
//! (`e2e/wine/dll/computenetwork.c`).
//!
//! | file | what it verifies |
//! |---|---|
//! | `conformance` | the program passes the conformance kit |
//! | `contract` | the library is called as its header requires (the suite of every implementor), and nothing leaks |
//! | `follow` | the program follows a brain on Linux, and repairs changes that other programs make to HNS |
//! | `inspect` | what the program prints about HNS lets `localnet` answer on Linux |
//! | `node` | a node without a Linux machine: the brain and the program, or both in one |
//! | `pod` | the pod of the chart's DaemonSet |
//! | `service` | the program as a Windows service, and a brain on a named pipe |
//! | `windows` | the program, a Wine prefix, and the file of the HNS |

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod conformance;
mod contract;
mod follow;
mod inspect;
mod node;
mod pod;
mod service;
mod windows;
