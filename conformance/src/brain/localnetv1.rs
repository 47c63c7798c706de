//! The answers of `localnetv1.Endpoints.Next`. Pure.

use bytes::Bytes;
use localnet_brain::feed::State;
use localnet_proto::{
    Revision,
    wire::{self, NextFilter, NextItem, endpoints_server},
};
use prost::Message as _;
use tonic::Status;

use super::{
    log::{Edit, Package},
    package::{StateRequest, field, unknown},
};

impl StateRequest for NextFilter {
    const PACKAGE: Package = Package::Localnetv1;
    const SERVICE: &'static str = endpoints_server::SERVICE_NAME;
    const METHOD: &'static str = "Next";

    fn held(&self) -> Option<Revision> {
        Some(Revision { instance: self.instance_id, rev: self.rev })
    }

    fn parts(&self, state: &State, full: bool) -> Result<Vec<Bytes>, Status> {
        Ok(state.answer(self.held().unwrap_or_default(), self.delta && !full).items.collect())
    }

    fn edited(edit: Edit, items: Vec<Bytes>) -> Vec<Bytes> {
        match edit {
            Edit::UnknownFields => with_unknown_fields(items),
            Edit::UnknownItems => with_unknown_items(items),
            Edit::UnknownProtocol => with_an_unknown_protocol(items),
            Edit::UnknownVerdict => with_an_unknown_verdict(items),
            Edit::WrongDigest | Edit::WrongBase | Edit::NoCommit => items,
        }
    }
}

fn with_unknown_fields(items: Vec<Bytes>) -> Vec<Bytes> {
    let edit = |item: Bytes| {
        let read = NextItem::decode(item.clone()).unwrap_or_default();
        let Some(endpoints) = read.endpoints else { return [&item[..], &unknown()].concat().into() };
        let mut inner = field(1, &[endpoints.service.unwrap_or_default().encode_to_vec(), unknown()].concat());
        for endpoint in endpoints.endpoints {
            inner.extend(field(2, &[endpoint.encode_to_vec(), unknown()].concat()));
        }
        inner.extend(unknown());
        [field(2, &inner), unknown()].concat().into()
    };
    items.into_iter().map(edit).collect()
}

fn with_unknown_items(mut items: Vec<Bytes>) -> Vec<Bytes> {
    // No unknown item comes before the token, which must be first.
    for at in [1, 2, items.len()] {
        items.insert(at.min(items.len()), unknown().into());
    }
    items
}

fn changed(items: Vec<Bytes>, change: fn(&mut wire::ServiceEndpoints)) -> Vec<Bytes> {
    let edit = |item: Bytes| {
        let mut read = NextItem::decode(item).unwrap_or_default();
        read.endpoints.as_mut().into_iter().for_each(change);
        read.encode_to_vec().into()
    };
    items.into_iter().map(edit).collect()
}

fn with_an_unknown_protocol(items: Vec<Bytes>) -> Vec<Bytes> {
    changed(items, |of| {
        let port = wire::PortMapping { name: "new".to_owned(), protocol: 99, port: 443, ..Default::default() };
        of.service.as_mut().into_iter().for_each(|service| service.ports.push(port.clone()));
        for endpoint in &mut of.endpoints {
            endpoint.port_overrides.push(wire::PortName { name: "new".to_owned(), port: 8443 });
        }
    })
}

fn with_an_unknown_verdict(items: Vec<Bytes>) -> Vec<Bytes> {
    changed(items, |of| {
        for port in of.service.iter_mut().flat_map(|service| &mut service.ports) {
            port.when_empty_v4 = Some(wire::WhenEmpty { internal: 99, external: 99 });
        }
    })
}

#[cfg(test)]
mod tests {
    use localnet_proto::{Update, decode::Assembler, encode};

    use super::*;
    use crate::levels::states::{service, state};

    /// Our own reader decodes the modified items to the same state.
    #[test]
    fn unknown_content_does_not_change_the_known_content() {
        let expected = state([service(1, 2)]);
        let mut items =
            vec![encode::next_item(Revision { instance: 1, rev: 1 }, false), encode::node_item(&expected.node)];
        items.extend(expected.services.values().flat_map(|service| encode::service_items(service)));
        let items: Vec<Bytes> = items.iter().map(|item| item.encode_to_vec().into()).collect();
        for edit in [Edit::UnknownFields, Edit::UnknownItems, Edit::UnknownProtocol] {
            let edited = NextFilter::edited(edit, items.clone());
            assert_ne!(edited, items);
            let mut assembler = Assembler::default();
            edited.into_iter().for_each(|item| assembler.push_bytes(item).expect("an item"));
            let Ok(Update::Full(mut read)) = assembler.finish() else { panic!("a full state") };
            for service in read.services.values_mut() {
                let service = std::sync::Arc::make_mut(service);
                service.endpoints.iter_mut().for_each(|endpoint| endpoint.ports.retain(|port| &*port.name != "new"));
            }
            assert_eq!((read.node, read.services), (expected.node.clone(), expected.services.clone()));
        }
    }
}
