//! Computes what HNS should hold. Pure: no I/O, no clock, no environment, no logging.
//!
//! ```text
//!  client::vips::Vip, Service ──► want      the purpose of a frontend, only from the state
//!  Want, Inventory, Options ────► balancer  the document of a load balancer, with HNS endpoints and flags
//!                           └───► remote    the remote endpoints that the load balancer needs
//! ```

pub mod balancer;
pub mod frontend;
pub mod remote;
pub mod want;

pub use balancer::{Plan, Planned, Surroundings, plan};
pub use frontend::{Address, Frontend};
pub use want::{Use, Want};
