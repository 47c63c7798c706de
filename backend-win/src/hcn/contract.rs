//! The contract of every [`Hcn`]: one test suite for the fake, for `computenetwork.dll` and for the HNS of a real node
//! (`localnet-win check`).
//!
//! The suite creates its own objects on an existing network, with addresses that are reserved for documentation (RFC 5737), and
//! removes them. Where HNS may behave in more than one way, the suite returns an [`Observation`]. The test of each implementation
//! compares the observation with the expected one.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use anyhow::{Context as _, anyhow, ensure};

use super::{
    Failure, Features, Guid, Hcn, Kind, Reason,
    schema::{self, Distribution, Endpoint, LoadBalancer, Network, NetworkType, PortMapping, Query},
};

/// An observed behaviour of an implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The behaviour, in a short sentence.
    pub what: &'static str,
    /// Whether the implementation behaves like this.
    pub is_so: bool,
}

/// New objects keep the requested identifier. This lets us recognize our own load balancers after a restart.
pub const KEEPS_IDS: &str = "a new object has the requested identifier";
/// HNS returns a load balancer as it was written. This lets us keep correct load balancers unchanged after a restart.
pub const SHOWS_WHAT_WAS_WRITTEN: &str = "HNS returns a load balancer as it was written";
/// Two endpoints may share an address.
pub const TAKES_DUPLICATES: &str = "two endpoints may have the same address";
/// Load balancers can be changed in place.
pub const MODIFIES: &str = "a load balancer can be changed in place";

/// The implementation under test, and the network.
struct Suite<'a> {
    hcn: &'a mut dyn Hcn,
    network: Network,
    id: Guid,
    features: Features,
    /// The identifiers of the created objects, which may differ from the requested ones.
    made: BTreeMap<(Kind, u8), Guid>,
    seen: Vec<Observation>,
}

/// Runs the suite on the network with this name. It removes its objects even if it fails.
///
/// # Errors
/// Returns an error if the implementation violates the contract.
pub fn check(hcn: &mut dyn Hcn, network: &str) -> anyhow::Result<Vec<Observation>> {
    let version = schema::read_version(&hcn.version()?)?;
    let ids = schema::read_ids(&hcn.enumerate(Kind::Network, &schema::write(&Query::named(network)))?)?;
    ensure!(ids.len() == 1, "{} networks are called {network}", ids.len());
    let id = ids[0];
    let found: Network = schema::read("network", &hcn.properties(Kind::Network, id)?)?;
    ensure!((found.id, &*found.name) == (Some(id), network), "the query for network {id} returned {found:?}");
    let features = Features::of(version);
    let mut suite = Suite { hcn, network: found, id, features, made: BTreeMap::new(), seen: Vec::new() };
    suite.remove_all();
    let result = suite.run();
    suite.remove_all();
    result?;
    Ok(suite.seen)
}

/// Returns an address of TEST-NET-2.
fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(198, 51, 100, last).into()
}

/// Returns an identifier for an object of the suite. No backend takes it for one of its own.
fn guid(last: u8) -> Guid {
    Guid::new(0x7465_7374_6c6f_8000_8000_6361_6c6e_0000 | u128::from(last))
}

const ENDPOINTS: [u8; 3] = [1, 2, 3];
const BALANCERS: [u8; 3] = [17, 18, 19];
const NOBODY: u8 = 99;

impl Suite<'_> {
    fn run(&mut self) -> anyhow::Result<()> {
        self.an_unknown_name_finds_no_network().context("failure while searching for a network that does not exist")?;
        self.endpoints_come_and_go().context("failure while creating and deleting endpoints")?;
        self.one_address_twice().context("failure while creating two endpoints with one address")?;
        self.load_balancers_are_created_and_deleted().context("failure while creating and deleting load balancers")?;
        self.a_port_is_used_once().context("failure while creating two load balancers for one port")?;
        self.a_load_balancer_changes().context("failure while changing a load balancer in place")?;
        self.invalid_documents_change_nothing().context("failure while sending invalid documents")
    }

    fn remove_all(&mut self) {
        // Errors are ignored: some objects do not exist, and the caller's comparison finds objects that remain.
        for id in BALANCERS.map(|last| self.balancer(last)) {
            _ = self.hcn.delete_load_balancer(id);
        }
        for id in ENDPOINTS.map(|last| self.endpoint(last)) {
            _ = self.hcn.delete_endpoint(id);
        }
    }

    /// The identifier of an endpoint of [`ENDPOINTS`].
    fn endpoint(&self, last: u8) -> Guid {
        self.made.get(&(Kind::Endpoint, last)).copied().unwrap_or_else(|| guid(last))
    }

    /// The identifier of a load balancer of [`BALANCERS`].
    fn balancer(&self, last: u8) -> Guid {
        self.made.get(&(Kind::LoadBalancer, last)).copied().unwrap_or_else(|| guid(last))
    }

    fn observe(&mut self, what: &'static str, is_so: bool) {
        self.seen.push(Observation { what, is_so });
    }

    fn ids(&mut self, kind: Kind, query: &Query) -> anyhow::Result<Vec<Guid>> {
        Ok(schema::read_ids(&self.hcn.enumerate(kind, &schema::write(query))?)?)
    }

    fn endpoints(&mut self) -> anyhow::Result<Vec<Guid>> {
        self.ids(Kind::Endpoint, &Query::of_network(self.id))
    }

    fn create_endpoint(&mut self, id: u8, last: u8) -> anyhow::Result<Result<Endpoint, Failure>> {
        let provider = (self.network.kind() == NetworkType::Overlay).then(|| address(250));
        let mac = format!("02-11-c6-33-64-{last:02x}");
        let settings = schema::write(&Endpoint::remote(self.id, address(last), mac, provider));
        Ok(match self.hcn.create_endpoint(self.id, guid(id), &settings) {
            Ok(made) => {
                let made: Endpoint = schema::read("endpoint", &made)?;
                self.made.insert((Kind::Endpoint, id), made.id.context("the created endpoint has no identifier")?);
                Ok(made)
            }
            Err(failure) => Err(failure),
        })
    }

    fn load_balancer(&self, endpoints: &[u8], last: u8, protocol: u32) -> LoadBalancer {
        let mapping = PortMapping { protocol, internal_port: 8080, external_port: 80, ..PortMapping::default() };
        LoadBalancer {
            host_compute_endpoints: endpoints.iter().map(|id| self.endpoint(*id)).collect(),
            frontend_vips: vec![address(last)],
            port_mappings: vec![mapping],
            ..LoadBalancer::default()
        }
    }

    fn create_load_balancer(&mut self, id: u8, wanted: &LoadBalancer) -> anyhow::Result<Result<LoadBalancer, Failure>> {
        Ok(match self.hcn.create_load_balancer(guid(id), &schema::write(wanted)) {
            Ok(made) => {
                let made: LoadBalancer = schema::read("load balancer", &made)?;
                let given = made.id.context("the created load balancer has no identifier")?;
                self.made.insert((Kind::LoadBalancer, id), given);
                Ok(made)
            }
            Err(failure) => Err(failure),
        })
    }

    fn an_unknown_name_finds_no_network(&mut self) -> anyhow::Result<()> {
        let ids = self.ids(Kind::Network, &Query::named("localnet has never given this name"))?;
        ensure!(ids.is_empty(), "{ids:?} are listed");
        ensure!(
            self.ids(Kind::Network, &Query::all())?.contains(&self.id),
            "the list of all networks lacks the network"
        );
        let absent = self.hcn.properties(Kind::Network, guid(NOBODY));
        is(absent, Reason::NotFound)
    }

    fn endpoints_come_and_go(&mut self) -> anyhow::Result<()> {
        let before = self.endpoints()?;
        let made = self.create_endpoint(1, 1)??;
        let (id, keeps_ids) = (self.endpoint(1), self.endpoint(1) == guid(1));
        self.observe(KEEPS_IDS, keeps_ids);
        let shown: Endpoint = schema::read("endpoint", &self.hcn.properties(Kind::Endpoint, id)?)?;
        ensure!(shown == made, "created {made:?}, returned {shown:?}");
        let addresses: Vec<IpAddr> = shown.addresses().collect();
        ensure!(addresses == [address(1)] && shown.is_remote(), "the new endpoint is wrong: {shown:?}");
        ensure!(shown.host_compute_network == Some(self.id), "the new endpoint is wrong: {shown:?}");
        ensure!(self.endpoints()?.contains(&id), "the new object is not listed");
        if keeps_ids {
            is(self.create_endpoint(1, 2)?.map(|_| String::new()), Reason::Exists)?;
        }
        self.hcn.delete_endpoint(id)?;
        ensure!(
            sorted(self.endpoints()?) == sorted(before),
            "the deleted endpoint is still listed, or another one is missing"
        );
        is(self.hcn.delete_endpoint(id).map(|()| String::new()), Reason::NotFound)?;
        is(self.hcn.properties(Kind::Endpoint, id), Reason::NotFound)
    }

    fn one_address_twice(&mut self) -> anyhow::Result<()> {
        self.create_endpoint(1, 1)??;
        let again = self.create_endpoint(2, 1)?;
        self.observe(TAKES_DUPLICATES, again.is_ok());
        let listed = self.endpoints()?;
        let has = |id| listed.contains(&self.endpoint(id));
        ensure!(has(1) && has(2) == again.is_ok(), "{listed:?} are listed");
        Ok(())
    }

    fn load_balancers_are_created_and_deleted(&mut self) -> anyhow::Result<()> {
        self.new_endpoint(2)?;
        let wanted = self.load_balancer(&[1, 2], 200, 6);
        let made = self.create_load_balancer(17, &wanted)??;
        let id = self.balancer(17);
        self.observe(SHOWS_WHAT_WAS_WRITTEN, made == LoadBalancer { id: Some(id), ..wanted });
        let shown: LoadBalancer = schema::read("load balancer", &self.hcn.properties(Kind::LoadBalancer, id)?)?;
        ensure!(shown == made, "created {made:?}, returned {shown:?}");
        ensure!(self.ids(Kind::LoadBalancer, &Query::all())?.contains(&id), "the new object is not listed");
        self.hcn.delete_load_balancer(id)?;
        ensure!(
            !self.ids(Kind::LoadBalancer, &Query::all())?.contains(&id),
            "the deleted load balancer is still listed"
        );
        is(self.hcn.delete_load_balancer(id).map(|()| String::new()), Reason::NotFound)?;
        is(self.hcn.properties(Kind::LoadBalancer, id), Reason::NotFound)
    }

    fn a_port_is_used_once(&mut self) -> anyhow::Result<()> {
        self.create_load_balancer(17, &self.load_balancer(&[1], 201, 6))??;
        let same = self.create_load_balancer(18, &self.load_balancer(&[2], 201, 6))?;
        is(same.map(|_| String::new()), Reason::Exists)?;
        self.create_load_balancer(18, &self.load_balancer(&[1], 201, 17))?.context("failed with another protocol")?;
        self.create_load_balancer(19, &self.load_balancer(&[1], 202, 6))?.context("failed with another address")?;
        for last in BALANCERS {
            let id = self.balancer(last);
            self.hcn.delete_load_balancer(id)?;
        }
        Ok(())
    }

    fn a_load_balancer_changes(&mut self) -> anyhow::Result<()> {
        self.create_load_balancer(17, &self.load_balancer(&[1], 203, 6))??;
        let id = self.balancer(17);
        let mut other = self.load_balancer(&[1, 2], 203, 6);
        other.port_mappings[0].distribution_type = Distribution::SOURCE_IP;
        let changed = self.hcn.modify_load_balancer(id, &schema::write(&other));
        let shown: LoadBalancer = schema::read("load balancer", &self.hcn.properties(Kind::LoadBalancer, id)?)?;
        match changed {
            Ok(changed) => {
                let changed: LoadBalancer = schema::read("load balancer", &changed)?;
                ensure!(changed == shown, "changed {changed:?}, returned {shown:?}");
                // One version of HNS reports success and changes nothing.
                let modifies = shown.host_compute_endpoints.len() == 2;
                self.observe(MODIFIES, modifies);
                let supported = self.features.modify_load_balancer;
                ensure!(supported || !modifies, "this version should not support changes of load balancers");
            }
            Err(failure) => {
                self.observe(MODIFIES, false);
                is(Err(failure), Reason::Unsupported)?;
                let before = [self.endpoint(1)];
                ensure!(
                    shown.host_compute_endpoints == before,
                    "the load balancer should be unchanged, but is {shown:?}"
                );
            }
        }
        self.hcn.delete_load_balancer(id)?;
        is(self.hcn.modify_load_balancer(id, &schema::write(&other)), Reason::NotFound)
    }

    fn invalid_documents_change_nothing(&mut self) -> anyhow::Result<()> {
        let before = sorted(self.ids(Kind::LoadBalancer, &Query::all())?);
        let endpoints = self.endpoints()?;
        let nobody = self.load_balancer(&[NOBODY], 204, 6);
        ensure!(
            self.create_load_balancer(17, &nobody)?.is_err(),
            "HNS accepts a load balancer with an endpoint that does not exist"
        );
        for settings in ["", "{", "[]", "\u{e9}"] {
            ensure!(
                self.hcn.create_load_balancer(guid(17), settings).is_err(),
                "HNS accepts {settings:?} as a load balancer"
            );
            ensure!(
                self.hcn.create_endpoint(self.id, guid(3), settings).is_err(),
                "HNS accepts {settings:?} as an endpoint"
            );
        }
        ensure!(
            self.hcn.create_endpoint(guid(NOBODY), guid(3), "{}").is_err(),
            "HNS accepts an endpoint without a network"
        );
        ensure!(
            sorted(self.ids(Kind::LoadBalancer, &Query::all())?) == before,
            "an invalid document created a load balancer"
        );
        ensure!(sorted(self.endpoints()?) == sorted(endpoints), "an invalid document created an endpoint");
        Ok(())
    }

    /// Creates an endpoint of [`ENDPOINTS`]. If it exists already, deletes it first.
    fn new_endpoint(&mut self, last: u8) -> anyhow::Result<()> {
        let id = self.endpoint(last);
        _ = self.hcn.delete_endpoint(id);
        self.create_endpoint(last, last)??;
        Ok(())
    }
}

fn sorted(mut ids: Vec<Guid>) -> Vec<Guid> {
    ids.sort_unstable();
    ids
}

fn is(result: Result<String, Failure>, expected: Reason) -> anyhow::Result<()> {
    match result {
        Ok(_) => Err(anyhow!("the call succeeded, but should have failed with {expected:?}")),
        Err(failure) if failure.reason() == expected => Ok(()),
        Err(failure) => Err(anyhow!("{failure} (understood as {:?}, but should be {expected:?})", failure.reason())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hcn::Version, testing::FakeHcn};

    fn observed(fake: &mut FakeHcn) -> anyhow::Result<Vec<&'static str>> {
        let seen = check(fake, "cbr0")?;
        Ok(seen.into_iter().filter(|one| one.is_so).map(|one| one.what).collect())
    }

    fn fake(kind: &str) -> FakeHcn {
        FakeHcn::with_network("cbr0", kind, &[], &["10.180.0.2"])
    }

    #[test]
    fn the_fake_keeps_it() {
        for kind in ["L2Bridge", "Overlay"] {
            let mut fake = fake(kind);
            let before = fake.objects.clone();
            assert_eq!(observed(&mut fake).unwrap(), [KEEPS_IDS, TAKES_DUPLICATES, SHOWS_WHAT_WAS_WRITTEN]);
            assert_eq!(fake.objects, before, "no object is left");
            fake.version = Version::new(15, 5);
            assert_eq!(observed(&mut fake).unwrap(), [KEEPS_IDS, TAKES_DUPLICATES, SHOWS_WHAT_WAS_WRITTEN, MODIFIES]);
            fake.modify_does_nothing = true;
            assert!(!observed(&mut fake).unwrap().contains(&MODIFIES));
            fake.modify_is_not_implemented = true;
            assert!(!observed(&mut fake).unwrap().contains(&MODIFIES));
            fake.chooses_ids = true;
            assert_eq!(observed(&mut fake).unwrap(), [TAKES_DUPLICATES, SHOWS_WHAT_WAS_WRITTEN]);
            assert_eq!(fake.objects, before, "no object is left");
        }
    }

    #[test]
    fn a_violation_of_the_contract_is_an_error() {
        type Disturb = fn(&mut FakeHcn);
        const LIST: &str = "HcnEnumerateEndpoints";
        const DELETE: &str = "HcnDeleteEndpoint";
        let rows: [(Disturb, &str); 3] = [
            (|fake| fake.fail(DELETE, 99, Failure::new(DELETE, 0x8000_4005, "")), DELETE),
            (|fake| fake.objects.clear(), "0 networks are called cbr0"),
            (|fake| fake.fail(LIST, 1, Failure::new(LIST, 0, "{\"Error\":\"no\"}")), "no (0x00000000)"),
        ];
        for (disturb, expected) in rows {
            let mut fake = fake("L2Bridge");
            disturb(&mut fake);
            let error = format!("{:#}", check(&mut fake, "cbr0").unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn normalized_documents_are_observed() {
        let mut fake = fake("L2Bridge");
        fake.rewrites = Some(|document| {
            if document.get("PortMappings").is_some() {
                document["Flags"] = 64.into();
            }
        });
        assert_eq!(observed(&mut fake).unwrap(), [KEEPS_IDS, TAKES_DUPLICATES]);
    }
}
