//! kube-proxy's configuration: `KubeProxyConfiguration` of v1alpha1, as kube-proxy v1.36 reads it, and of v1alpha2, as KEP-784
//! describes it; the conversion of one into the other; and kube-proxy's flags. Nothing here reads a file or a clock.
//!
//! ```text
//!  text  ──► Reader::read ──────┐
//!                               ├─► Reading { config: Config, warnings, … }      Config ──► to_yaml
//!  flags ──► KubeProxyFlags ────┘
//! ```
//!
//! Past [`Reader::read`] there are no texts that mean something else: [`Config`] has addresses, durations and enums. Its shape is
//! v1alpha2's. Fields that do not make sense are errors, with the line, the field and the remedy, in the words of kube-proxy.

mod address;
mod complaints;
mod config;
mod convert;
mod document;
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
mod tree;
pub mod v1alpha1;
pub mod v1alpha2;
mod write;

pub use complaints::{Complaint, Family, Node};
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
pub use problem::{Problem, Problems};
pub use quantity::{BadQuantity, Quantity};
pub use read::{Reading, Version};
pub use resolve::Reader;
