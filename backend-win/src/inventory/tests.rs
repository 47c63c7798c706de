//! The inventory with a fake HNS: what it reads, how often, and how it handles unexpected answers.

use serde_json::json;

use super::*;
use crate::testing::FakeHcn;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn fake() -> FakeHcn {
    FakeHcn::with_network("cbr0", "Overlay", &[("10.180.1.0/24", "192.168.0.3")], &["10.180.0.1", "10.180.0.2"])
}

fn refresh(inventory: &mut Inventory, fake: &mut FakeHcn) -> Changed {
    inventory.refresh(fake, Some("cbr0"), None).unwrap()
}

#[test]
fn a_second_refresh_queries_only_new_objects() {
    let (mut inventory, mut fake) = (Inventory::default(), fake());
    assert_eq!(refresh(&mut inventory, &mut fake), Changed { surroundings: true, balancers: false });
    assert_eq!(inventory.endpoints().count(), 2);
    fake.questions = 0;
    assert_eq!(refresh(&mut inventory, &mut fake), Changed::default());
    assert_eq!(fake.questions, 4, "the network by name, its properties, and two lists");
    fake.add_pod("cbr0", "10.180.0.3");
    fake.questions = 0;
    assert_eq!(refresh(&mut inventory, &mut fake), Changed { surroundings: true, balancers: false });
    assert_eq!((fake.questions, inventory.local(ip("10.180.0.3")).is_some()), (5, true));
    let gone = inventory.local(ip("10.180.0.1")).unwrap();
    fake.objects.remove(&(Kind::Endpoint, gone));
    refresh(&mut inventory, &mut fake);
    assert_eq!(inventory.local(ip("10.180.0.1")), None);
}

#[test]
fn a_pods_endpoint_has_precedence_over_a_remote_one_with_its_address() {
    let (mut inventory, mut fake) = (Inventory::default(), fake());
    let network = fake.documents(Kind::Network).next().unwrap().0;
    let remote = Endpoint::remote(network, ip("10.180.0.1"), "02-11-0a-b4-00-01".to_owned(), None);
    fake.objects.insert((Kind::Endpoint, Guid::new(0)), json!(remote));
    refresh(&mut inventory, &mut fake);
    let local = inventory.local(ip("10.180.0.1")).unwrap();
    assert!(local != Guid::new(0) && !inventory.endpoint(local).unwrap().is_remote());
    assert_eq!(inventory.remotes(ip("10.180.0.1")).map(|(id, _)| id).collect::<Vec<_>>(), [Guid::new(0)]);
}

#[test]
fn a_recreated_network_has_other_endpoints() {
    let (mut inventory, mut fake) = (Inventory::default(), fake());
    refresh(&mut inventory, &mut fake);
    let before = inventory.network();
    fake.objects.clear();
    fake.add_network("cbr0", "Overlay", &[]);
    assert!(refresh(&mut inventory, &mut fake).surroundings);
    assert!(
        inventory.network() != before && inventory.endpoints().count() == 0 && inventory.remote_subnets().is_empty()
    );
}

#[test]
fn an_error_about_a_missing_network_names_the_existing_ones() {
    let mut fake = fake();
    fake.add_network("nat", "NAT", &[]);
    let error = |fake: &mut FakeHcn, name: Option<&str>| {
        Inventory::default().refresh(fake, name, None).map(|_| ()).map_err(|error| error.to_string())
    };
    let wrong = error(&mut fake, Some("cbr1")).unwrap_err();
    assert!(wrong.contains("no network \"cbr1\"; it has cbr0, nat"), "{wrong}");
    assert_eq!(error(&mut fake, None), Ok(()), "the only network for pods is used");
    fake.add_network("other", "L2Bridge", &[]);
    let which = error(&mut fake, None).unwrap_err();
    assert!(which.contains("--network-name") && which.contains("cbr0, nat, other"), "{which}");
    fake.objects.clear();
    assert!(error(&mut fake, Some("cbr0")).unwrap_err().contains("it has none"));
}

#[test]
fn invalid_objects_and_objects_that_vanish_stop_nothing() {
    let (mut inventory, mut fake) = (Inventory::default(), fake());
    let (id, network) = (Guid::new(0xbad), fake.documents(Kind::Network).next().unwrap().0);
    for document in [json!({"IpConfigurations": 7}), json!({"Policies": "text"})] {
        let mut document = document;
        document["HostComputeNetwork"] = json!(network);
        fake.objects.insert((Kind::Endpoint, id), document.clone());
        fake.objects.insert((Kind::LoadBalancer, id), json!({"FrontendVIPs": ["no address"], "Odd": document}));
        inventory.forget();
        refresh(&mut inventory, &mut fake);
        assert_eq!(inventory.endpoints().count(), 2);
        assert!(inventory.has_endpoint(id) && inventory.endpoint(id).is_none());
        assert_eq!(inventory.balancers().get(&id), Some(&None));
    }
    inventory.forget();
    fake.fail("HcnOpenEndpoint", 1, Failure::new("HcnOpenEndpoint", 0x8007_0490, ""));
    refresh(&mut inventory, &mut fake);
    assert_eq!(inventory.endpoints().count(), 1, "the other one vanished between list and query");
    refresh(&mut inventory, &mut fake);
    assert_eq!(inventory.endpoints().count(), 2);
    fake.fail("HcnEnumerateEndpoints", 1, Failure::new("HcnEnumerateEndpoints", 0x8007_06ba, ""));
    let error = inventory.refresh(&mut fake, Some("cbr0"), None).unwrap_err().to_string();
    assert!(error.contains("check that the service hns is running"), "{error}");
}

#[test]
fn the_endpoint_to_the_node_is_found_by_name() {
    let (mut inventory, mut fake) = (Inventory::default(), fake());
    let id = fake.add_pod("cbr0", "10.180.0.254");
    fake.objects.get_mut(&(Kind::Endpoint, id)).unwrap()["Name"] = json!("cbr0_ep");
    inventory.refresh(&mut fake, Some("cbr0"), Some("cbr0_ep")).unwrap();
    assert_eq!(inventory.gateway(), Some((id, &[Family::V4][..])));
    let changed = inventory.refresh(&mut fake, Some("cbr0"), Some("other")).unwrap();
    assert_eq!((inventory.gateway(), changed.surroundings), (None, true));
}
