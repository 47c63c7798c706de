//! The types that every crate shares. They do no I/O, and depend neither on the wire format, nor on Kubernetes, nor on a
//! kernel.
//!
//! - [`diagnostic`]: a problem with its code, subject, field and remedy.
//! - [`ServiceKey`]: the name of a Service.
//! - [`Family`], [`ByFamily`] and [`Protocol`]: the family of an address, a value for each family, and the protocol of a
//!   port.
//! - [`HashBy`]: by which properties of a connection its endpoint is chosen.
//! - [`names!`]: declares an enum whose values have names.
//! - [`Mode`]: the kernel subsystem that a backend programs, as kube-proxy names it.
//! - `yaml`: the documents of a YAML text, the lines of their fields, and the errors of the parser. Only with the feature
//!   `yaml`.

pub mod diagnostic;
mod family;
mod hash_by;
mod mode;
mod names;
mod protocol;
mod service_key;
#[cfg(feature = "yaml")]
pub mod yaml;

pub use diagnostic::{Code, Diagnostic, Object, Severity, Subject};
pub use family::{ByFamily, Family};
pub use hash_by::HashBy;
pub use mode::Mode;
pub use protocol::Protocol;
pub use service_key::{InvalidServiceKey, ServiceKey};
