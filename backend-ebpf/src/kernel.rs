//! [`Kernel`]: the eBPF programs and maps, as the backend uses them. [`crate::host::Host`] is the real one.

use std::{
    collections::{BTreeMap, BTreeSet},
    error, fmt,
};

use crate::layout::{EndpointKey, Endpoints, MemberKey, Socket, Vip, VipKey};

/// The content of the maps that the backend writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The map `vips`.
    pub vips: BTreeMap<VipKey, Vip>,
    /// The map `endpoints`.
    pub endpoints: BTreeMap<EndpointKey, Endpoints>,
    /// The keys of the map `members`.
    pub members: BTreeSet<MemberKey>,
}

/// One change of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets a group of endpoints, or deletes it if there is none.
    Endpoints(EndpointKey, Option<Endpoints>),
    /// Adds or deletes a member.
    Member(MemberKey, bool),
    /// Sets a VIP, or deletes it if there is none.
    Vip(VipKey, Option<Vip>),
}

/// The map with this name has no room for another element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full(pub &'static str);

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the map {} is full: this node has more Services or endpoints than the eBPF backend can hold", self.0)
    }
}

impl error::Error for Full {}

/// Access to the programs and maps.
pub trait Kernel: Send {
    /// Attaches the programs that are not attached, and opens the maps.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a program or a map.
    fn attach(&mut self) -> anyhow::Result<()>;

    /// Whether all programs are attached, and all maps are pinned.
    fn is_attached(&mut self) -> bool;

    /// Reads the maps.
    ///
    /// # Errors
    /// Returns an error if a map cannot be read.
    fn read(&mut self) -> anyhow::Result<Content>;

    /// Applies the changes in their order. Deleting a missing element is no error.
    ///
    /// # Errors
    /// Returns an error at the first change that the kernel refuses: [`Full`] if a new element exceeds the size of its map. It has then
    /// applied only the changes before.
    fn apply(&mut self, changes: &[Change]) -> anyhow::Result<()>;

    /// Ends the connected UDP sockets that reached an endpoint through a VIP, if `is_stale` returns true for the VIP and the
    /// endpoint.
    ///
    /// # Errors
    /// Returns an error if the map of sockets cannot be read, or if some sockets cannot be ended.
    fn end_sockets(&mut self, is_stale: &dyn Fn(&Socket, &Socket) -> bool) -> anyhow::Result<()>;

    /// Detaches the programs, and deletes the maps.
    ///
    /// # Errors
    /// Returns an error if something cannot be deleted.
    fn remove(&mut self) -> anyhow::Result<()>;
}
