//! Computes what HNS should hold. Pure: no I/O, no clock, no environment, no logging.
//!
//! ```text
//!  client::vips::Vip, Service ──► want      the purpose of a frontend, from the state alone
//!  Want, Inventory, Options ────► balancer  the document of a load balancer, with HNS endpoints and flags
//!                           └───► remote    the remote endpoints that it needs
//! ```

pub mod balancer;
pub mod frontend;
pub mod remote;
pub mod want;

pub use balancer::{Plan, Planned, Surroundings, plan};
pub use frontend::{Address, Frontend};
pub use want::{Use, Want};
