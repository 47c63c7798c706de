//! The kernel of the tests: maps in memory, which a test can also use as the programs in the kernel do.

#[cfg(test)]
mod call;
#[cfg(test)]
mod config;
#[cfg(test)]
mod decisions;

use anyhow::{bail, ensure};

use crate::{
    kernel::{Change, Content, Kernel},
    layout::Socket,
};

/// Maps in memory.
#[derive(Clone, Debug, Default)]
pub struct FakeKernel {
    /// The content of the maps.
    pub content: Content,
    /// The number of changes that the kernel applied.
    pub applied: usize,
    /// The number of changes after which the kernel refuses all others.
    pub limit: Option<usize>,
    /// Whether the programs are attached.
    pub attached: bool,
    /// The sockets, each with its VIP and endpoint.
    pub sockets: Vec<[Socket; 2]>,
    /// Whether sockets cannot be ended.
    pub keeps_sockets: bool,
}

impl FakeKernel {
    /// Applies a change, whatever the limit is.
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
}

impl Kernel for FakeKernel {
    fn attach(&mut self) -> anyhow::Result<()> {
        self.attached = true;
        Ok(())
    }

    fn is_attached(&mut self) -> bool {
        self.attached
    }

    fn read(&mut self) -> anyhow::Result<Content> {
        Ok(self.content.clone())
    }

    fn apply(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        for change in changes {
            if self.limit.is_some_and(|limit| self.applied >= limit) {
                bail!("the map is full");
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
        *self = Self::default();
        Ok(())
    }
}
