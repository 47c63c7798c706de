//! What people see of a node: `localnet top` and all tables in a pseudo-terminal, and the page of `localnet ui` in a browser. Each test
//! has a node with the programs as shipped, real traffic, and network namespaces of its own.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod browser;
mod node;
mod page;
mod terminal;
mod top;
