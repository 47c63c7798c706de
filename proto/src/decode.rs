//! Decodes one answer of `Next`: wire → model. Any sequence of bytes yields either an [`Update`] or an error that
//! names the invalid field.
//!
//! The wire format only grows, so a newer brain may send values that this reader does not know. The reader skips a port with
//! an unknown protocol, and decodes an unknown verdict as reject, because that verdict informs the client.

use std::{collections::BTreeMap, fmt::Display, sync::Arc};

use prost::Message as _;

use crate::{
    convert::{Names, endpoint_of, service_error, service_of},
    model::{Node, Revision, Service, ServiceKey, Snapshot},
    update::{Change, Update},
    wire,
};

pub use crate::convert::DecodeError;

/// Collects the items of one answer. Once the stream has ended with OK, [`Assembler::finish`] returns the update.
#[derive(Debug, Default)]
pub struct Assembler {
    next: Option<wire::NextFilter>,
    node: Option<Node>,
    services: BTreeMap<ServiceKey, Arc<Service>>,
    removed: Vec<ServiceKey>,
    /// The Service in the previous item. A continuation must be for the same Service.
    last: Option<ServiceKey>,
    names: Names,
}

impl Assembler {
    /// Adds the next item of the stream, in its encoded form.
    ///
    /// # Errors
    /// Returns an error if the bytes do not encode an item, or for the reasons of [`push`](Self::push).
    pub fn push_bytes(&mut self, item: bytes::Bytes) -> Result<(), DecodeError> {
        self.push(wire::NextItem::decode(item).map_err(|error| answer_error("NextItem", error))?)
    }

    /// Adds the next item of the stream.
    ///
    /// # Errors
    /// Returns an error if a field has an invalid value, or if the item may not follow the previous items. For example,
    /// only the first item may contain the token, and a continuation may only follow an item of its Service.
    pub fn push(&mut self, item: wire::NextItem) -> Result<(), DecodeError> {
        if self.next.is_none() && item.next.is_none() {
            return Err(answer_error("Next", "is missing from the first item"));
        }
        if let Some(next) = item.next
            && self.next.replace(next).is_some()
        {
            return Err(answer_error("Next", "is allowed only in the first item"));
        }
        if let Some(node) = &item.node {
            self.node = Some(node.try_into()?);
        }
        if let Some(endpoints) = item.endpoints {
            self.push_service(endpoints)?;
        }
        if let Some(key) = item.removed {
            self.removed.push(service_key(&key.namespace, &key.name)?);
        }
        Ok(())
    }

    fn push_service(&mut self, item: wire::ServiceEndpoints) -> Result<(), DecodeError> {
        let head = item.service.ok_or_else(|| answer_error("Endpoints.Service", "is missing"))?;
        let mut key = service_key(&head.namespace, &head.name)?;
        key.namespace = self.names.shared(&key.namespace);
        let mut endpoints = Vec::with_capacity(item.endpoints.len());
        for endpoint in &item.endpoints {
            endpoints.push(endpoint_of(&key, endpoint, &mut self.names)?);
        }
        if item.continues {
            let service = self.services.get_mut(&key).and_then(Arc::get_mut);
            let service = service.filter(|_| self.last.as_ref() == Some(&key));
            let service =
                service.ok_or_else(|| service_error(&key, "Continues", "does not follow an item of the service"))?;
            service.endpoints.extend(endpoints);
            return Ok(());
        }
        let service = service_of(key.clone(), &head, endpoints, &mut self.names)?;
        if self.services.insert(key.clone(), Arc::new(service)).is_some() {
            return Err(service_error(&key, "Service", "is sent twice"));
        }
        self.last = Some(key);
        Ok(())
    }

    /// Returns the update. The stream must have ended with OK.
    ///
    /// # Errors
    /// Returns an error if the answer is empty, if a full state has no node or removes a Service, or if a delta both
    /// sends and removes a Service.
    pub fn finish(self) -> Result<Update, DecodeError> {
        let next = self.next.ok_or_else(|| answer_error("Next", "the answer is empty"))?;
        let revision = Revision { instance: next.instance_id, rev: next.rev };
        if next.delta {
            if let Some(both) = self.removed.iter().find(|key| self.services.contains_key(*key)) {
                return Err(service_error(both, "Removed", "the same answer also sends this service"));
            }
            let services = self.services.into_values().map(Change::Service);
            let changes = self.node.map(Change::Node).into_iter().chain(services);
            let changes = changes.chain(self.removed.into_iter().map(Change::Removed)).collect();
            return Ok(Update::Delta { revision, changes });
        }
        let node = self.node.ok_or_else(|| answer_error("Node", "is missing from a full state"))?;
        if !self.removed.is_empty() {
            return Err(answer_error("Removed", "is not allowed in a full state"));
        }
        Ok(Update::Full(Snapshot { revision, node, services: self.services }))
    }
}

fn answer_error(field: &'static str, problem: impl Display) -> DecodeError {
    DecodeError { object: "answer".to_owned(), field, problem: problem.to_string() }
}

fn service_key(namespace: &str, name: &str) -> Result<ServiceKey, DecodeError> {
    if namespace.is_empty() || name.is_empty() {
        return Err(answer_error("Service", format!("{namespace:?}/{name:?} lacks its namespace or name")));
    }
    Ok(ServiceKey::new(namespace, name))
}
