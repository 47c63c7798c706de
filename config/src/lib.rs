//! kube-proxy's configuration and flags: `KubeProxyConfiguration` v1alpha1 as in kube-proxy v1.36, v1alpha2 as in KEP-784, the
//! conversion between them, and kube-proxy's flags. This crate reads neither files nor the clock.
//!
//! ```text
//!  text  ──► Reader::read ──────┐
//!                               ├─► Reading { config: Config, warnings, … }      Config ──► to_yaml
//!  flags ──► KubeProxyFlags ────┘
//! ```
//!
//! [`Reader::read`] parses every text, so [`Config`] contains addresses, durations and enums. It has the shape of v1alpha2. An
//! invalid field is an error in kube-proxy's words, with the line, the field and the remedy.

mod address;
mod complaints;
mod config;
mod convert;
mod duration;
mod fields;
pub mod flags;
mod gates;
pub mod log;
mod problem;
mod quantity;
mod read;
mod resolve;
pub mod sections;
mod shape;
pub mod v1alpha1;
pub mod v1alpha2;
mod write;

pub use complaints::Node;
pub use config::{
    ClientConnection, Config, Conntrack, DetectLocal, DetectLocalMode, Explicit, IpFamilyPolicy, Iptables, Ipvs, Linux,
    LogFormat, Logging, MinorVersion, Mode, Nftables, NodePortAddresses, OutputRouting, Platform, VModule, Windows,
    Winkernel,
};
pub use convert::convert;
pub use duration::{BadDuration, GoDuration};
pub use fields::{DROPPED, Effect, FIELDS, Field, Formerly};
pub use flags::KubeProxyFlags;
pub use gates::{FeatureGates, GATES, Gate, Stage};
pub use problem::Invalid;
pub use quantity::{BadQuantity, Quantity};
pub use read::{Reading, Version};
pub use resolve::Reader;
