//! `localnet-win` as a Windows program, run by Wine, on an HNS that lives in a file (`e2e/wine/dll/computenetwork.c`).
//!
//! | file | what it shows |
//! |---|---|
//! | `conformance` | the program passes the kit for all backends |
//! | `contract` | the library is called as its header says: the suite of every implementor, and nothing leaks |
//! | `follow` | the program follows a brain on Linux, and what others do to HNS is put right |
//! | `service` | the program as a Windows service, and a brain on a named pipe |
//! | `windows` | the program, a prefix of Wine's, and the file of the HNS |

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod conformance;
mod contract;
mod follow;
mod service;
mod windows;
