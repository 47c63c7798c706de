//! The keys and values of the eBPF maps. The programs in the kernel and the backend compile this file, so both agree on every
//! byte. No I/O, and no dependency on the standard library.
//!
//! All structs consist of 32-bit words without implicit padding, because the kernel compares and hashes all bytes of a key.

/// An address and a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Socket {
    /// The bytes of the IPv6 address, in memory order. An IPv4 address has its IPv4-mapped form, `::ffff:a.b.c.d`.
    pub address: [u32; 4],
    /// The port.
    pub port: u32,
}

/// The key of the map `vips`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipKey {
    /// The destination.
    pub to: Socket,
    /// `IPPROTO_TCP` or `IPPROTO_UDP`. Zero, together with port zero, stands for all unused ports of a ClusterIP.
    pub protocol: u32,
}

/// The ID of a Service port in one family. It depends only on the names, so a restarted backend computes the same one.
pub type PortId = [u32; 4];

/// The value of the map `vips`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vip {
    /// The Service port.
    pub port: PortId,
    /// [`INTERNAL`] or [`EXTERNAL`].
    pub scope: u32,
    /// How many endpoints are eligible. Their positions in the map `endpoints` are below this number.
    pub endpoints: u32,
    /// For how many seconds a client keeps its endpoint; 0 without session affinity.
    pub affinity: u32,
    /// [`REJECT`] or [`DROP`], for a VIP without endpoints.
    pub when_empty: u32,
}

/// The scope of ClusterIPs.
pub const INTERNAL: u32 = 0;
/// The scope of external IPs, load balancer IPs and NodePorts.
pub const EXTERNAL: u32 = 1;
/// The call fails with `ECONNREFUSED`.
pub const REJECT: u32 = 0;
/// The call fails with `EPERM`, as for a packet that a firewall of this host drops.
pub const DROP: u32 = 1;

/// The value of the map `endpoints`: the endpoints of a Service port, in groups of four. Unused places are zero. Most Services then
/// need one element, so that a first load writes a third of the elements.
pub type Endpoints = [Socket; GROUP];
/// How many endpoints an element of the map `endpoints` has.
pub const GROUP: usize = 4;

/// The key of the map `endpoints`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    /// The Service port.
    pub port: PortId,
    /// [`INTERNAL`] or [`EXTERNAL`].
    pub scope: u32,
    /// The position of the first endpoint in the sorted list, divided by [`GROUP`].
    pub group: u32,
}

/// The key of the map `members`, which has an entry for each endpoint that a client may keep. The value is 1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberKey {
    /// The Service port.
    pub port: PortId,
    /// [`INTERNAL`] or [`EXTERNAL`].
    pub scope: u32,
    /// The endpoint.
    pub endpoint: Socket,
}

/// The key of the map `clients`: a client that keeps its endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey {
    /// The cookie of the network namespace (session affinity) or of the socket (UDP without a connection).
    pub cookie: u64,
    /// 1 for the cookie of a socket, 0 for that of a network namespace.
    pub is_socket: u64,
    /// The Service port.
    pub port: PortId,
}

/// The value of the map `clients`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// When the client last used the Service port, in nanoseconds since the boot of the host.
    pub seen: u64,
    /// The endpoint of the client.
    pub endpoint: Socket,
    /// Zero.
    pub zero: u32,
}

/// The key of the map `origins`: a socket and the endpoint that it uses. The value is the VIP as a [`Socket`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginKey {
    /// The cookie of the socket.
    pub cookie: u64,
    /// The endpoint.
    pub endpoint: Socket,
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub protocol: u32,
}
