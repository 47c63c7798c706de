//! What HNS should hold. Pure: no I/O, no clock, no environment, no logging.
//!
//! ```text
//!  client::vips::Vip, Service ──► want      what a frontend is to do, from the state alone
//!  Want, Inventory, Options ────► balancer  that as a document: which HNS endpoints, which flags
//!                           └───► remote    the remote endpoints that it takes
//! ```

pub mod balancer;
pub mod frontend;
pub mod remote;
pub mod want;

pub use balancer::{Plan, Planned, Surroundings, plan};
pub use frontend::{Address, Frontend};
pub use want::{Use, Want};
