//! Windows' Host Compute Network (HCN): what its service, HNS, is asked and answers. No I/O here but behind [`Hcn`].
//!
//! | module | what |
//! |---|---|
//! | [`schema`] | the documents, as JSON of schema version 2.0 |
//! | [`guid`] | what objects are called |
//! | [`failure`] | what HNS says when it does not do something |
//! | [`version`] | which HNS can do what |
//! | [`contract`] | what every implementor of [`Hcn`] has to do: one suite of tests for all |
//! | [`fake`] | HNS for tests |
//!
//! The real one is the crate `localnet-hcn`, which calls `computenetwork.dll`.

pub mod contract;
pub mod failure;
pub mod fake;
pub mod guid;
pub mod schema;
pub mod version;

pub use failure::{Failure, Reason};
pub use guid::Guid;
pub use version::{Features, Version};

/// What there is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Networks, which the CNI plugin makes.
    Network,
    /// Endpoints: of pods on this node, made by the CNI plugin, and remote ones.
    Endpoint,
    /// Load balancers.
    LoadBalancer,
}

/// HNS, as a backend calls it. Documents go in and come out as JSON: to read them is the caller's part, so that one reader meets all
/// that any HNS says.
///
/// The second implementor is [`fake::FakeHcn`]. Calls block, each for a millisecond or so, and some for seconds.
pub trait Hcn: Send {
    /// The version: `{"Major":15,"Minor":3}`.
    fn version(&mut self) -> Result<String, Failure>;
    /// The identifiers of all objects that a [`schema::Query`] asks for, as a JSON array of texts.
    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, Failure>;
    /// The properties of an object.
    fn properties(&mut self, kind: Kind, id: Guid) -> Result<String, Failure>;
    /// Makes an endpoint; its properties, as HNS has them then: its identifier may be another one.
    fn create_endpoint(&mut self, network: Guid, id: Guid, settings: &str) -> Result<String, Failure>;
    /// Makes a load balancer; its properties, as HNS has them then: its identifier may be another one.
    fn create_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure>;
    /// Gives a load balancer other settings; its properties, as HNS has them then.
    fn modify_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure>;
    /// Deletes an endpoint.
    fn delete_endpoint(&mut self, id: Guid) -> Result<(), Failure>;
    /// Deletes a load balancer.
    fn delete_load_balancer(&mut self, id: Guid) -> Result<(), Failure>;
}
