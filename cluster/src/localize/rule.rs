//! The rules that exclude endpoints.

/// The reason why an endpoint is not eligible; see `Rule` in `localnetv1.proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The endpoint is not ready, and other endpoints are.
    NotReady,
    /// The endpoint is terminating, and other endpoints are ready.
    Terminating,
    /// No endpoint is ready, and this one is not serving, either.
    NotServing,
    /// Its hints name other nodes.
    OtherNode,
    /// Its hints name other zones.
    OtherZone,
    /// The internal traffic policy is Local, and the endpoint is remote.
    InternalLocal,
    /// The external traffic policy is Local, and the endpoint is remote.
    ExternalLocal,
    /// The Service does not have the endpoint's family.
    Family,
    /// The slice has no port of that name.
    PortName,
    /// The slice's port has another protocol.
    PortProtocol,
    /// The slice's port has no valid number.
    PortNumber,
    /// The slice's address type is neither IPv4 nor IPv6.
    AddressType,
    /// The endpoint has no valid address.
    Address,
    /// The address is reserved: no endpoint may have it.
    Reserved,
    /// Another slice contains the same endpoint.
    Duplicate,
    /// The slice belongs to a headless Service.
    HeadlessSlice,
}
