//! What the programs in the kernel decide. The programs and the tests compile this file: tests run these decisions on maps in
//! memory. No I/O, and no dependency on the standard library.

use crate::layout::{
    Client, ClientKey, DROP, EndpointKey, Endpoints, GROUP, MemberKey, OriginKey, Socket, Vip, VipKey,
};

/// The maps, and what the kernel knows besides them.
pub trait Maps {
    /// Looks up the map `vips`.
    fn vip(&self, key: &VipKey) -> Option<&Vip>;
    /// Looks up the map `endpoints`.
    fn endpoints(&self, key: &EndpointKey) -> Option<&Endpoints>;
    /// Whether the map `members` has the key.
    fn is_member(&self, key: &MemberKey) -> bool;
    /// Looks up the map `clients`.
    fn client(&self, key: &ClientKey) -> Option<Client>;
    /// Changes the map `clients`.
    fn keep_client(&self, key: &ClientKey, client: &Client);
    /// Looks up the map `origins`.
    fn origin(&self, key: &OriginKey) -> Option<Socket>;
    /// Changes the map `origins`.
    fn keep_origin(&self, key: &OriginKey, vip: &Socket);
    /// A random number.
    fn random(&self) -> u32;
    /// Nanoseconds since the boot of the host.
    fn now(&self) -> u64;
    /// The cookie of the socket.
    fn socket_cookie(&self) -> u64;
    /// The cookie of the socket's network namespace.
    fn namespace_cookie(&self) -> u64;
}

/// What happens to a call of `connect` or `sendmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call continues unchanged.
    Pass,
    /// The call continues, with this destination.
    To(Socket),
    /// The call fails with `ECONNREFUSED`.
    Reject,
    /// The call fails with `EPERM`.
    Drop,
}

/// `IPPROTO_TCP`
pub const TCP: u32 = 6;
/// `IPPROTO_UDP`
pub const UDP: u32 = 17;

/// Chooses the endpoint for a call of `connect`, or of `sendmsg` with a destination (`is_message`). A socket that sends several
/// messages to a VIP keeps its endpoint while the endpoint is eligible, like a flow of connection tracking.
#[inline(always)]
pub fn destination(maps: &impl Maps, protocol: u32, to: &Socket, is_message: bool) -> Verdict {
    if protocol != TCP && protocol != UDP {
        return Verdict::Pass;
    }
    let vip = match maps.vip(&VipKey { to: *to, protocol }) {
        Some(vip) => vip,
        // Unused ports of ClusterIPs.
        None => match maps.vip(&VipKey { to: Socket { port: 0, ..*to }, protocol: 0 }) {
            Some(vip) => vip,
            None => return Verdict::Pass,
        },
    };
    if vip.endpoints == 0 {
        return if vip.when_empty == DROP { Verdict::Drop } else { Verdict::Reject };
    }
    let Some(endpoint) = endpoint(maps, vip, is_message) else { return Verdict::Reject };
    maps.keep_origin(&OriginKey { cookie: maps.socket_cookie(), endpoint, protocol }, to);
    Verdict::To(endpoint)
}

/// The endpoint that the client keeps, or a random one.
#[inline(always)]
fn endpoint(maps: &impl Maps, vip: &Vip, is_message: bool) -> Option<Socket> {
    if vip.affinity == 0 && !is_message {
        return random(maps, vip);
    }
    let key = if vip.affinity == 0 {
        ClientKey { cookie: maps.socket_cookie(), is_socket: 1, port: vip.port }
    } else {
        ClientKey { cookie: maps.namespace_cookie(), is_socket: 0, port: vip.port }
    };
    let now = maps.now();
    let kept = match maps.client(&key) {
        Some(client) if vip.affinity == 0 || now - client.seen < u64::from(vip.affinity) * 1_000_000_000 => {
            let member = MemberKey { port: vip.port, scope: vip.scope, endpoint: client.endpoint };
            if maps.is_member(&member) { Some(client.endpoint) } else { None }
        }
        _ => None,
    };
    let endpoint = match kept {
        Some(endpoint) => endpoint,
        None => random(maps, vip)?,
    };
    maps.keep_client(&key, &Client { seen: now, endpoint, zero: 0 });
    Some(endpoint)
}

#[inline(always)]
fn random(maps: &impl Maps, vip: &Vip) -> Option<Socket> {
    match at(maps, vip, maps.random() % vip.endpoints) {
        Some(endpoint) => Some(endpoint),
        // The backend has just removed the last endpoints of the list.
        None => at(maps, vip, 0),
    }
}

/// The endpoint at a position of the list.
#[inline(always)]
fn at(maps: &impl Maps, vip: &Vip, index: u32) -> Option<Socket> {
    let group = maps.endpoints(&EndpointKey { port: vip.port, scope: vip.scope, group: index / GROUP as u32 })?;
    let endpoint = group[index as usize % GROUP];
    if endpoint.port == 0 { None } else { Some(endpoint) }
}

/// The VIP to which the socket sent what this endpoint answers; `None` if the socket did not use a VIP. `getpeername` and
/// `recvmsg` return this address to the program.
#[inline(always)]
pub fn origin(maps: &impl Maps, protocol: u32, from: &Socket) -> Option<Socket> {
    maps.origin(&OriginKey { cookie: maps.socket_cookie(), endpoint: *from, protocol })
}
