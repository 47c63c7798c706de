//! Windows' Host Compute Network (HCN): the requests and answers of its service, HNS. All I/O is behind [`Hcn`].
//!
//! | module | contents |
//! |---|---|
//! | [`schema`] | the documents, as JSON of schema version 2.0 |
//! | [`guid`] | the identifiers of objects |
//! | [`failure`] | the errors of HNS |
//! | [`version`] | the features of each version of HNS |
//! | [`contract`] | the test suite for every implementation of [`Hcn`] |
//!
//! The crate `localnet-hcn` is the real implementation, which calls `computenetwork.dll`.

pub mod contract;
pub mod failure;
pub mod guid;
pub mod schema;
pub mod version;

pub use failure::{Failure, Reason};
pub use guid::Guid;
pub use version::{Features, Version};

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A network. The CNI plugin creates it.
    Network,
    /// An endpoint of a local pod, which the CNI plugin creates, or a remote endpoint.
    Endpoint,
    /// A load balancer, which a service proxy creates.
    LoadBalancer,
}

/// The interface to HNS. Documents are passed as JSON and the caller parses them, so that a single parser handles the answers
/// of all implementations.
///
/// The tests have a fake. Calls block, most for about a millisecond and some for seconds.
pub trait Hcn: Send {
    /// Returns the version, such as `{"Major":15,"Minor":3}`.
    fn version(&mut self) -> Result<String, Failure>;
    /// Returns the identifiers of the objects that match a [`schema::Query`], as a JSON array of strings.
    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, Failure>;
    /// Returns the properties of an object.
    fn properties(&mut self, kind: Kind, id: Guid) -> Result<String, Failure>;
    /// Creates an endpoint and returns its properties. HNS may choose an identifier other than `id`.
    fn create_endpoint(&mut self, network: Guid, id: Guid, settings: &str) -> Result<String, Failure>;
    /// Creates a load balancer and returns its properties. HNS may choose an identifier other than `id`.
    fn create_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure>;
    /// Changes the settings of a load balancer and returns its properties.
    fn modify_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure>;
    /// Deletes an endpoint.
    fn delete_endpoint(&mut self, id: Guid) -> Result<(), Failure>;
    /// Deletes a load balancer.
    fn delete_load_balancer(&mut self, id: Guid) -> Result<(), Failure>;
}
