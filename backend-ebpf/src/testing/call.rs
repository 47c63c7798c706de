//! A call of a process, on maps in memory.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use crate::{
    decide::Maps,
    kernel::Content,
    layout::{Client, ClientKey, EndpointKey, Endpoints, MemberKey, OriginKey, Socket, Vip, VipKey},
};

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
