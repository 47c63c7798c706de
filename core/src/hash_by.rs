//! [`HashBy`]: by which properties of a connection its endpoint is chosen.

use serde::{Deserialize, Serialize};

crate::names! {
    /// What is hashed to choose the endpoint of a connection. The names are the values of the annotation `localnet.dev/hash`.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    HashBy {
        /// The client's address: all connections of a client to a Service port reach the same endpoint.
        Source = "source",
        /// The client's address and port. The Service port has the other three of a connection's five values, so all packets of a
        /// connection reach the same endpoint, also on another node.
        Connection = "connection",
    }
}

impl HashBy {
    /// The seed of the hash, which is the same on all nodes: the letters `lnet`.
    pub const SEED: u32 = 0x6c6e_6574;
}
