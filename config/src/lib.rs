//! kube-proxy's configuration: `KubeProxyConfiguration` v1alpha1 as in kube-proxy v1.37, v1alpha2 as in KEP-784, the
//! conversion between the two versions, and kube-proxy's flags. This crate reads neither files nor the clock.
//!
//! ```text
//!  text  ──► Reader::read ──────┐
//!                               ├─► Reading { config: Config, warnings, … }      Config ──► to_yaml
//!  flags ──► KubeProxyFlags ────┘
//! ```
//!
//! The module `table` has a row for each field, and a new field needs only a new row. [`Reader::read`] parses every
//! value, so [`Config`] contains addresses, durations and enums. [`Config`] has the shape of v1alpha2. The error for an
//! invalid field has kube-proxy's wording, with the line, the field and the remedy.

mod address;
mod check;
mod complaints;
mod config;
mod convert;
mod document;
mod duration;
mod field;
pub mod flags;
mod gates;
mod kind;
pub mod log;
mod model;
mod paths;
mod problem;
mod quantity;
mod read;
mod shape;
mod table;
mod types;
mod versions;

pub use check::Reader;
pub use complaints::Node;
pub use convert::convert;
pub use document::{Document, Version};
pub use duration::{BadDuration, GoDuration};
pub use field::{Effect, Field, Formerly};
pub use flags::KubeProxyFlags;
pub use gates::{FeatureGates, GATES, Gate, Stage};
pub use kind::Kind;
pub use model::{
    DetectLocalMode, Explicit, IpFamilyPolicy, LogFormat, MinorVersion, Mode, NodePortAddress, NodePortAddresses,
    Platform, VModule,
};
pub use problem::Invalid;
pub use read::Reading;
pub use table::{
    ClientConnection, Config, Conntrack, DROPPED, DetectLocal, FIELDS, Iptables, Ipvs, Linux, Logging, Nftables,
    Windows, Winkernel,
};
