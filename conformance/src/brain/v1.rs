//! The answers of `localnet.v1.StateService.NextState`. Pure.

use bytes::Bytes;
use localnet_brain::{
    feed::State,
    serve::{draft_selection, token},
};
use localnet_cluster::objects::Publish;
use localnet_proto::{
    Revision,
    v1::{
        raw,
        wire::{self, NextStateRequest, View, state_service_server},
    },
};
use prost::Message as _;
use tonic::Status;

use super::{
    log::{Edit, Package},
    package::{StateRequest, field, unknown},
};

impl StateRequest for NextStateRequest {
    const PACKAGE: Package = Package::V1;
    const SERVICE: &'static str = state_service_server::SERVICE_NAME;
    const METHOD: &'static str = "NextState";

    fn held(&self) -> Option<Revision> {
        if self.token.is_empty() {
            return Some(Revision::default());
        }
        let selection = draft_selection(self, &Publish::default()).ok()?;
        token::revision(&self.token, &selection)
    }

    fn parts(&self, state: &State, full: bool) -> Result<Vec<Bytes>, Status> {
        let selection = draft_selection(self, &Publish::default())?;
        if self.view() != View::Unspecified || ![state.node().name.as_str(), ""].contains(&self.node_name.as_str()) {
            return Err(Status::invalid_argument(
                "the kit serves only the state of its node, in the view for backends",
            ));
        }
        let held = token::revision(&self.token, &selection).filter(|_| !full && !self.full);
        let tokens = (self.token.clone(), token::token(state.revision(), &selection));
        let messages = state.messages(held, selection, tokens).into_iter().flatten();
        Ok(written(messages.flat_map(|message| split(read(&message)))))
    }

    fn edited(edit: Edit, messages: Vec<Bytes>) -> Vec<Bytes> {
        match edit {
            Edit::UnknownFields => messages.iter().map(|message| with_unknown_fields(&read(message))).collect(),
            Edit::UnknownItems => with_unknown_messages(messages),
            Edit::UnknownProtocol => changed(messages, with_an_unknown_protocol),
            Edit::UnknownVerdict => changed(messages, with_an_unknown_verdict),
            Edit::WrongDigest => changed(messages, |message| {
                message.commit.iter_mut().for_each(|commit| commit.digest = commit.digest.wrapping_add(1));
            }),
            Edit::WrongBase => changed(messages, |message| {
                message.begin.iter_mut().for_each(|begin| "another-token".clone_into(&mut begin.base));
            }),
            Edit::NoCommit => changed(messages, |message| message.commit = None),
        }
    }
}

fn read(message: &Bytes) -> raw::NextStateResponse {
    raw::NextStateResponse::decode(message.clone()).unwrap_or_default()
}

fn written(messages: impl Iterator<Item = raw::NextStateResponse>) -> Vec<Bytes> {
    messages.map(|message| message.encode_to_vec().into()).collect()
}

/// The same content in several messages: a brain may begin a new message anywhere. So an answer can be cut after each part.
fn split(message: raw::NextStateResponse) -> impl Iterator<Item = raw::NextStateResponse> {
    let raw::NextStateResponse { begin, node, services, commit } = message;
    let empty = raw::NextStateResponse::default;
    let begin = begin.map(|begin| raw::NextStateResponse { begin: Some(begin), ..empty() });
    let node = node.map(|node| raw::NextStateResponse { node: Some(node), ..empty() });
    let services =
        services.into_iter().map(move |service| raw::NextStateResponse { services: vec![service], ..empty() });
    let commit = commit.map(|commit| raw::NextStateResponse { commit: Some(commit), ..empty() });
    begin.into_iter().chain(node).chain(services).chain(commit)
}

/// Also in each message inside of a message.
fn with_unknown_fields(message: &raw::NextStateResponse) -> Bytes {
    let extended = |message: &[u8]| [message, &unknown()].concat();
    let mut bytes = Vec::new();
    if let Some(begin) = &message.begin {
        let revision =
            begin.revision.as_ref().map_or(Vec::new(), |revision| field(1, &extended(&revision.encode_to_vec())));
        bytes.extend(field(1, &extended(&[revision, field(2, begin.base.as_bytes())].concat())));
    }
    if let Some(node) = &message.node {
        bytes.extend(field(2, &extended(node)));
    }
    for update in &message.services {
        let key = field(1, &extended(&update.key.clone().unwrap_or_default().encode_to_vec()));
        let plain =
            raw::ServiceUpdate { removed: update.removed, replace: update.replace, ..raw::ServiceUpdate::default() };
        let mut inner = [key, plain.encode_to_vec()].concat();
        inner.extend(update.service.iter().flat_map(|service| field(4, &extended(service))));
        inner.extend(update.removed_endpoints.iter().flat_map(|key| field(5, &extended(&key.encode_to_vec()))));
        inner.extend(update.endpoints.iter().flat_map(|endpoint| field(6, &extended(endpoint))));
        bytes.extend(field(3, &extended(&inner)));
    }
    if let Some(commit) = &message.commit {
        bytes.extend(field(4, &extended(&commit.encode_to_vec())));
    }
    extended(&bytes).into()
}

fn with_unknown_messages(mut messages: Vec<Bytes>) -> Vec<Bytes> {
    // The first message has `begin`, and the last one has `commit`.
    for at in [1, 2] {
        messages.insert(at.min(messages.len().saturating_sub(1)), unknown().into());
    }
    messages
}

fn changed(messages: Vec<Bytes>, change: fn(&mut wire::NextStateResponse)) -> Vec<Bytes> {
    let edit = |message: Bytes| {
        let mut read = wire::NextStateResponse::decode(message).unwrap_or_default();
        change(&mut read);
        read.encode_to_vec().into()
    };
    messages.into_iter().map(edit).collect()
}

fn with_an_unknown_protocol(message: &mut wire::NextStateResponse) {
    for update in &mut message.services {
        let port = wire::ServicePort { name: "new".to_owned(), protocol: 99, number: 443, ..Default::default() };
        update.service.iter_mut().for_each(|service| service.ports.push(port.clone()));
        for endpoint in &mut update.endpoints {
            endpoint.ports.push(wire::EndpointPort { name: "new".to_owned(), number: 8443, ..Default::default() });
        }
    }
}

fn with_an_unknown_verdict(message: &mut wire::NextStateResponse) {
    for port in message.services.iter_mut().filter_map(|update| update.service.as_mut()).flat_map(|of| &mut of.ports) {
        port.when_empty_ipv4 = Some(wire::WhenEmpty { internal: 99, external: 99 });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use localnet_brain::feed::Feed;
    use localnet_cluster::localize::Localized;
    use localnet_proto::{
        Snapshot, Update,
        v1::{Answer, Reader, Rejected},
    };

    use super::*;
    use crate::levels::states::{service, state};

    /// A state of a feed, and the same state.
    fn published() -> (State, Snapshot) {
        let expected = state([service(1, 2)]);
        let feed = Feed::with_records(1, Arc::default());
        let services = expected.services.iter().map(|(key, service)| (key.clone(), Some(Arc::clone(service))));
        feed.publish(Localized {
            node: Some(expected.node.clone()),
            services: services.collect(),
            ..Default::default()
        });
        (feed.state(), expected)
    }

    /// What a new reader makes of an answer.
    fn accepted(messages: Vec<Bytes>) -> Result<Option<Update>, Rejected> {
        let mut answer = Answer::default();
        messages
            .into_iter()
            .for_each(|message| answer.push(wire::NextStateResponse::decode(message).expect("a message")));
        Reader::default().accept(answer)
    }

    #[test]
    fn an_answer_is_in_many_messages_and_unknown_content_does_not_change_it() {
        let (state, expected) = published();
        let messages = NextStateRequest::default().parts(&state, false).unwrap();
        assert_eq!(messages.len(), 4, "begin, node, Service, commit");
        for edit in [None, Some(Edit::UnknownFields), Some(Edit::UnknownItems), Some(Edit::UnknownProtocol)] {
            let edited = edit.map_or(messages.clone(), |edit| NextStateRequest::edited(edit, messages.clone()));
            assert_eq!(edited == messages, edit.is_none());
            let Ok(Some(Update::Full(mut read))) = accepted(edited) else { panic!("a full state") };
            for service in read.services.values_mut() {
                let service = Arc::make_mut(service);
                service.facts = None;
                service.endpoints.iter_mut().for_each(|endpoint| endpoint.ports.retain(|port| &*port.name != "new"));
            }
            assert_eq!((read.node, read.services), (expected.node.clone(), expected.services.clone()));
        }
    }

    #[test]
    fn our_own_reader_rejects_an_answer_that_does_not_fit() {
        let messages = NextStateRequest::default().parts(&published().0, false).unwrap();
        let edited = |edit| accepted(NextStateRequest::edited(edit, messages.clone()));
        assert!(matches!(edited(Edit::WrongDigest), Err(Rejected::Lost(_))));
        assert!(matches!(edited(Edit::WrongBase), Err(Rejected::Lost(_))));
        assert!(matches!(edited(Edit::NoCommit), Ok(None)));
    }
}
