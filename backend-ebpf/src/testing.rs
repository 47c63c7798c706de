//! The kernel of the tests: maps in memory, which a test can also use as the programs in the kernel do.

mod config;
mod decisions;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use anyhow::bail;

use crate::{
    decide::Maps,
    kernel::{Change, Content, Kernel},
    layout::{Client, ClientKey, EndpointKey, Endpoints, MemberKey, OriginKey, Socket, Vip, VipKey},
};

/// Maps in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeKernel {
    pub(crate) content: Content,
    /// The number of changes that the kernel applied.
    pub(crate) applied: usize,
    /// The number of changes after which the kernel refuses all others.
    pub(crate) limit: Option<usize>,
    pub(crate) attached: bool,
    /// The sockets, each with its VIP and endpoint.
    pub(crate) sockets: Vec<[Socket; 2]>,
}

impl FakeKernel {
    pub(crate) fn change(&mut self, change: &Change) {
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
        self.sockets.retain(|[vip, endpoint]| !is_stale(vip, endpoint));
        Ok(())
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        *self = Self::default();
        Ok(())
    }
}

/// One call of a process, on maps in memory.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) content: &'a Content,
    pub(crate) clients: &'a RefCell<BTreeMap<ClientKey, Client>>,
    pub(crate) origins: &'a RefCell<BTreeMap<OriginKey, Socket>>,
    pub(crate) random: Cell<u32>,
    pub(crate) seconds: u64,
    pub(crate) socket: u64,
    pub(crate) namespace: u64,
}

impl Maps for Call<'_> {
    fn vip(&self, key: &VipKey) -> Option<&Vip> {
        self.content.vips.get(key)
    }

    fn endpoints(&self, key: &EndpointKey) -> Option<&Endpoints> {
        self.content.endpoints.get(key)
    }

    fn is_member(&self, key: &MemberKey) -> bool {
        self.content.members.contains(key)
    }

    fn client(&self, key: &ClientKey) -> Option<Client> {
        self.clients.borrow().get(key).copied()
    }

    fn keep_client(&self, key: &ClientKey, client: &Client) {
        self.clients.borrow_mut().insert(*key, *client);
    }

    fn origin(&self, key: &OriginKey) -> Option<Socket> {
        self.origins.borrow().get(key).copied()
    }

    fn keep_origin(&self, key: &OriginKey, vip: &Socket) {
        self.origins.borrow_mut().insert(*key, *vip);
    }

    fn random(&self) -> u32 {
        self.random.replace(self.random.get().wrapping_add(1))
    }

    fn now(&self) -> u64 {
        self.seconds * 1_000_000_000
    }

    fn socket_cookie(&self) -> u64 {
        self.socket
    }

    fn namespace_cookie(&self) -> u64 {
        self.namespace
    }
}
