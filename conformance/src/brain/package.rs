//! What the services of both packages have in common: the request of a backend, and the parts of the answer to it. Pure.

use bytes::Bytes;
use localnet_brain::feed::State;
use localnet_proto::Revision;
use prost::Message;
use tonic::Status;

use super::log::{Edit, Package};

/// A request for a state. Its type determines the package of the answer.
pub(super) trait StateRequest: Message + Default + Clone + 'static {
    /// The package.
    const PACKAGE: Package;
    /// The full name of the service.
    const SERVICE: &'static str;
    /// The name of the method.
    const METHOD: &'static str;

    /// The state that the backend has. The default if the request has no token, `None` if the kit did not send the token.
    fn held(&self) -> Option<Revision>;

    /// The messages of the answer: the changes, or with `full` the whole state. The first message identifies the state, and each
    /// other one contains the node or one Service.
    ///
    /// # Errors
    /// Returns the status with which a brain refuses the request.
    fn parts(&self, state: &State, full: bool) -> Result<Vec<Bytes>, Status>;

    /// A modified answer. Edits of the other package change nothing.
    fn edited(edit: Edit, parts: Vec<Bytes>) -> Vec<Bytes>;
}

/// A number, a string and a message in fields that no version knows.
pub(super) fn unknown() -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::uint64::encode(1001, &7, &mut bytes);
    prost::encoding::string::encode(1002, &"from a newer brain".to_owned(), &mut bytes);
    prost::encoding::bytes::encode(1003, &vec![0x0a_u8, 0x01, 0x78], &mut bytes);
    bytes
}

/// A field that contains a message.
pub(super) fn field(number: u32, message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::bytes::encode(number, &message.to_vec(), &mut bytes);
    bytes
}
