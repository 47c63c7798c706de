//! Verifies that folding a listener's calls gives the state, whatever the history and whichever commits fail.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use localnet_client::{
    Backend as _, Changes, Snapshot, Synced,
    incremental::{Adapter, Listener, PortEndpoint},
};
use localnet_proto::{Endpoint, EndpointPort, Node, Port, Revision, Scopes, Service, ServiceKey, Update};
use proptest::{collection::vec, prelude::*};

/// Folds the calls, and checks their documented order.
#[derive(Default)]
struct Fold {
    node: Option<Node>,
    services: BTreeMap<ServiceKey, Service>,
    endpoints: BTreeMap<(ServiceKey, Arc<str>, SocketAddr), PortEndpoint>,
    calls: usize,
    refuse: bool,
    committed: BTreeSet<String>,
}

impl Listener for &mut Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn set_node(&mut self, node: &Node) {
        self.node = Some(node.clone());
    }

    fn set_service(&mut self, service: &Service) {
        assert!(self.node.is_some(), "the node is set first");
        assert!(service.endpoints.is_empty());
        let before = self.services.insert(service.key.clone(), service.clone());
        assert_ne!(before.as_ref(), Some(service), "an unchanged service is not set again");
        self.calls += 1;
    }

    fn delete_service(&mut self, key: &ServiceKey) {
        assert!(self.services.remove(key).is_some());
        assert!(
            !self.endpoints.keys().any(|(service, ..)| service == key),
            "endpoints are deleted before their service"
        );
        self.calls += 1;
    }

    fn set_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint) {
        assert!(self.services.contains_key(service), "a service is set before its endpoints");
        let id = (service.clone(), Arc::clone(&endpoint.port_name), endpoint.address);
        let before = self.endpoints.insert(id, endpoint.clone());
        assert_ne!(before.as_ref(), Some(endpoint), "an unchanged endpoint is not set again");
        self.calls += 1;
    }

    fn delete_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint) {
        let id = (service.clone(), Arc::clone(&endpoint.port_name), endpoint.address);
        assert_eq!(self.endpoints.remove(&id).as_ref(), Some(endpoint));
        self.calls += 1;
    }

    fn reset(&mut self) {
        (self.node, self.services, self.endpoints) = Default::default();
    }

    async fn disturbed(&mut self) {}

    async fn commit(&mut self, _: Revision) -> anyhow::Result<Synced> {
        anyhow::ensure!(!self.refuse, "no");
        let services = self.services.keys().map(ToString::to_string);
        self.committed = services.chain(self.endpoints.values().map(|endpoint| format!("{endpoint:?}"))).collect();
        Ok(Synced::default())
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    (1..5_u8, 80..83_u16, any::<bool>(), any::<bool>()).prop_map(|(host, port, local, internal)| Endpoint {
        address: IpAddr::from([10, 1, 0, host]),
        ports: vec![EndpointPort { name: "http".into(), port }],
        local,
        hostname: None,
        scopes: Scopes { internal, ..Scopes::default() },
        weight: None,
    })
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    let service = (0..4_u8, 1..3_u8, vec(endpoint(), 0..4)).prop_map(|(name, ip, mut endpoints)| {
        endpoints.sort();
        endpoints.dedup_by_key(|endpoint| (endpoint.address, endpoint.ports[0].port));
        let port = Port { name: "http".into(), port: 80, ..Port::default() };
        let key = ServiceKey::new("default", format!("s{name}"));
        Service { ports: vec![port], endpoints, ..Service::new(key, vec![IpAddr::from([10, 0, 0, ip])]) }
    });
    (vec(service, 0..5), "[ab]").prop_map(|(services, name)| Snapshot {
        node: Node { name, ..Node::default() },
        services: services.into_iter().map(|service| (service.key.clone(), Arc::new(service))).collect(),
        ..Snapshot::default()
    })
}

proptest! {
    #[test]
    fn the_calls_of_a_listener_fold_to_the_state(history in vec((snapshot(), any::<bool>(), any::<bool>()), 1..8)) {
        let mut fold = Fold::default();
        let mut adapter = Adapter::new(&mut fold);
        let mut state = Snapshot::default();
        let mut changes = Changes::everything();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let last = history.last().unwrap().0.clone();
        for (next, refuse, disturbed) in history {
            if disturbed {
                runtime.block_on(adapter.disturbed());
            }
            changes.merge(state.apply(Update::Full(next)));
            adapter.listener_mut().refuse = refuse;
            if runtime.block_on(adapter.sync(&state, &changes)).is_ok() {
                changes = Changes::default();
            }
        }
        adapter.listener_mut().refuse = false;
        runtime.block_on(adapter.sync(&state, &changes)).unwrap().whole().unwrap();
        let calls = adapter.listener_mut().calls;
        runtime.block_on(adapter.sync(&state, &Changes::everything())).unwrap().whole().unwrap();
        prop_assert_eq!(adapter.listener_mut().calls, calls, "an equal state causes no call");

        prop_assert_eq!(fold.node.as_ref(), Some(&last.node));
        prop_assert!(fold.services.keys().eq(last.services.keys()));
        for (key, service) in &last.services {
            let head = Service { endpoints: Vec::new(), ..(**service).clone() };
            prop_assert_eq!(&fold.services[key], &head);
            let heard: Vec<_> = fold.endpoints.iter().filter(|((of, ..), _)| of == key).collect();
            prop_assert_eq!(heard.len(), service.endpoints.len());
            for endpoint in &service.endpoints {
                let address = SocketAddr::new(endpoint.address, endpoint.ports[0].port);
                let heard = &fold.endpoints[&(key.clone(), "http".into(), address)];
                prop_assert_eq!((heard.local, heard.scopes), (endpoint.local, endpoint.scopes));
            }
        }
        prop_assert_eq!(fold.committed.len(), fold.services.len() + fold.endpoints.values().map(|e| format!("{e:?}")).collect::<BTreeSet<_>>().len());
    }
}
