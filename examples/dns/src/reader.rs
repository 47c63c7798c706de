//! Follows the view for DNS. This is the loop of `docs/reading-v1.md`: an answer counts only if it is complete, follows the state that the
//! reader has, and has the right digest. Otherwise, the names stay as they are, and the reader gets the full state.
//! (`localnet_proto::v1::Reader` contains this loop for the view for backends.)

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, RwLock},
    time::Duration,
};

use anyhow::Context as _;
use localnet_proto::v1::wire::{
    NextStateRequest, NextStateResponse, Reader, ReaderRole, ServiceUpdate, View,
    state_service_client::StateServiceClient,
};
use tonic::transport::Channel;
use tracing::{info, warn};

use crate::names::{Key, Names, Records};

/// Time between attempts while the brain is unavailable.
const PAUSE: Duration = Duration::from_secs(1);

/// What a reader keeps.
#[derive(Default)]
pub(crate) struct State {
    token: String,
    records: BTreeMap<Key, Records>,
    digest: u64,
    node: u64,
}

/// Reads the states of the brain at `api` into `names`. Returns only if the address is invalid.
pub(crate) async fn follow(api: String, names: Arc<RwLock<Option<Names>>>) -> anyhow::Result<()> {
    let channel =
        tonic::transport::Endpoint::new(api.replacen("tcp://", "http://", 1)).context("--api")?.connect_lazy();
    let (mut client, mut state) = (StateServiceClient::new(channel), State::default());
    loop {
        let changed = match next(&mut client, &state.token).await {
            Ok(answer) => state.accept(answer),
            Err(status) => {
                warn!(error = status.message(), "cannot read the state of the brain; retrying");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some((is_full, changed)) = changed else {
            warn!("an answer of the brain is incomplete; reading the full state");
            state = State::default();
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // No question sees a part of a change: all of it happens under the lock.
        let mut names = names.write().expect("no code panics while it holds the lock");
        if names.is_none() {
            info!(services = state.records.len(), "first complete state");
        }
        let names = names.get_or_insert_default();
        if is_full {
            names.clear();
        }
        for key in changed {
            names.set(&key, state.records.get(&key));
        }
    }
}

async fn next(client: &mut StateServiceClient<Channel>, token: &str) -> Result<Vec<NextStateResponse>, tonic::Status> {
    let reader = Reader { name: "dns-example".to_owned(), role: ReaderRole::Observer.into(), ..Reader::default() };
    let request = NextStateRequest {
        reader: Some(reader),
        token: token.to_owned(),
        view: View::Dns.into(),
        ..NextStateRequest::default()
    };
    let mut stream = client.next_state(request).await?.into_inner();
    let mut answer = Vec::new();
    while let Some(message) = stream.message().await? {
        answer.push(message);
    }
    Ok(answer)
}

impl State {
    /// Applies an answer. Returns whether it is a full state, and the Services that it contains. `None` if something was lost: then the
    /// reader must discard this state.
    pub(crate) fn accept(&mut self, answer: Vec<NextStateResponse>) -> Option<(bool, BTreeSet<Key>)> {
        let commit = answer.last()?.commit.clone()?;
        let base = answer.first()?.begin.clone()?.base;
        let mut changed = BTreeSet::new();
        if base.is_empty() {
            *self = Self::default();
        } else if base != self.token {
            return None;
        }
        for message in answer {
            if let Some(node) = message.node {
                self.digest = self.digest.wrapping_sub(self.node).wrapping_add(node.digest);
                self.node = node.digest;
            }
            for update in message.services {
                changed.insert(self.apply(update)?);
            }
        }
        self.token = commit.token;
        (self.digest == commit.digest).then_some((base.is_empty(), changed))
    }

    /// Applies the fields in the order of their numbers.
    fn apply(&mut self, update: ServiceUpdate) -> Option<Key> {
        let key = update.key?;
        let key = (key.namespace, key.name);
        let mut digest = self.digest;
        let before = if update.removed || update.replace { self.records.remove(&key) } else { None };
        if let Some(Records { service, endpoints }) = before {
            let gone = endpoints.values().map(|endpoint| endpoint.digest);
            digest = gone.fold(digest.wrapping_sub(service.digest), u64::wrapping_sub);
        }
        if !update.removed {
            let records = self.records.entry(key.clone()).or_default();
            if let Some(service) = update.service {
                digest = digest.wrapping_sub(records.service.digest).wrapping_add(service.digest);
                records.service = service;
            }
            for gone in update.removed_endpoints {
                let gone = records.endpoints.remove(&(gone.address, gone.ordinal));
                digest = digest.wrapping_sub(gone.map_or(0, |gone| gone.digest));
            }
            for endpoint in update.endpoints {
                digest = digest.wrapping_add(endpoint.digest);
                let before = records.endpoints.insert((endpoint.address.clone(), endpoint.ordinal), endpoint);
                digest = digest.wrapping_sub(before.map_or(0, |before| before.digest));
            }
        }
        self.digest = digest;
        Some(key)
    }
}
