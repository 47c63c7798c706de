//! The kernel of the tests: maps in memory, which a test can also use as the programs in the kernel do. The contract in
//! `tests/kernel` checks that it behaves like the real one.

#[cfg(test)]
mod call;
#[cfg(test)]
mod config;
#[cfg(test)]
mod decisions;

use anyhow::{bail, ensure};

use crate::{
    kernel::{Change, Content, Full, Kernel},
    layout::Socket,
};

/// Maps in memory.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    /// The content of the maps.
    pub content: Content,
    /// The number of changes that the kernel applied.
    pub applied: usize,
    /// The number of changes after which the kernel has no memory for elements. It still deletes elements.
    pub limit: Option<usize>,
    /// How many elements each map can have.
    pub sizes: Sizes,
    /// Whether the programs are attached.
    pub attached: bool,
    /// Whether the maps have lost their names, so that the next programs get new ones.
    pub nameless: bool,
    /// The sockets, each with its VIP and endpoint.
    pub sockets: Vec<[Socket; 2]>,
    /// Whether sockets cannot be ended.
    pub keeps_sockets: bool,
}

/// How many elements each map can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The map `vips`.
    pub vips: usize,
    /// The map `endpoints`.
    pub endpoints: usize,
    /// The map `members`.
    pub members: usize,
}

impl Default for Sizes {
    /// Those of `programs/main.rs`.
    fn default() -> Self {
        Self { vips: 1 << 18, endpoints: 1 << 18, members: 1 << 19 }
    }
}

impl FakeKernel {
    /// Applies a change, whatever the limit and the sizes are.
    pub fn change(&mut self, change: &Change) {
        let Content { vips, endpoints, members } = &mut self.content;
        match *change {
            Change::Vip(key, Some(vip)) => _ = vips.insert(key, vip),
            Change::Vip(key, None) => _ = vips.remove(&key),
            Change::Endpoints(key, Some(group)) => _ = endpoints.insert(key, group),
            Change::Endpoints(key, None) => _ = endpoints.remove(&key),
            Change::Member(key, true) => _ = members.insert(key),
            Change::Member(key, false) => _ = members.remove(&key),
        }
    }

    /// Another program deletes the pins of the programs, of the maps, or of both. Without pins, the programs are detached. Maps
    /// without a name stay as long as a process or an attached program uses them.
    pub fn delete_pins(&mut self, programs: bool, maps: bool) {
        self.attached &= !programs;
        self.nameless |= maps;
    }

    /// A process connects a UDP socket to a VIP. Returns whether the programs have translated it.
    pub fn connect(&mut self, vip: Socket) -> bool {
        let found = self.content.vips.iter().find(|(key, _)| key.to == vip).map(|(_, vip)| vip);
        let endpoint = found.and_then(|vip| self.content.endpoints_of(vip).first().copied());
        let endpoint = endpoint.filter(|_| self.attached).map(crate::plan::socket);
        self.sockets.extend(endpoint.map(|endpoint| [vip, endpoint]));
        endpoint.is_some()
    }

    /// The map without room for the new element of a change, if there is one.
    fn full(&self, change: &Change) -> Option<&'static str> {
        let (Content { vips, endpoints, members }, sizes) = (&self.content, &self.sizes);
        let (map, is_new, len, size) = match change {
            Change::Vip(key, Some(_)) => ("vips", !vips.contains_key(key), vips.len(), sizes.vips),
            Change::Endpoints(key, Some(_)) => {
                ("endpoints", !endpoints.contains_key(key), endpoints.len(), sizes.endpoints)
            }
            Change::Member(key, true) => ("members", !members.contains(key), members.len(), sizes.members),
            _ => return None,
        };
        (is_new && len >= size).then_some(map)
    }
}

impl Kernel for FakeKernel {
    fn attach(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.nameless) {
            self.content = Content::default();
        }
        self.attached = true;
        Ok(())
    }

    fn is_attached(&mut self) -> bool {
        self.attached && !self.nameless
    }

    fn read(&mut self) -> anyhow::Result<Content> {
        Ok(self.content.clone())
    }

    fn apply(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        for change in changes {
            if !is_deletion(change) && self.limit.is_some_and(|limit| self.applied >= limit) {
                bail!("out of memory");
            }
            if let Some(map) = self.full(change) {
                return Err(Full(map).into());
            }
            self.change(change);
            self.applied += 1;
        }
        Ok(())
    }

    fn end_sockets(&mut self, is_stale: &dyn Fn(&Socket, &Socket) -> bool) -> anyhow::Result<()> {
        ensure!(!self.keeps_sockets, "not permitted");
        self.sockets.retain(|[vip, endpoint]| !is_stale(vip, endpoint));
        Ok(())
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        *self = Self { sockets: std::mem::take(&mut self.sockets), ..Self::default() };
        Ok(())
    }
}

fn is_deletion(change: &Change) -> bool {
    matches!(change, Change::Vip(_, None) | Change::Endpoints(_, None) | Change::Member(_, false))
}
