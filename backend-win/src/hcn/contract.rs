//! The contract of every [`Hcn`]: one test suite for the fake, for `computenetwork.dll` and for the HNS of a real node
//! (`localnet-win check`).
//!
//! The suite creates its own objects on an existing network, with addresses that are reserved for documentation (RFC 5737), and
//! removes them. Where HNS may behave in more than one way, the suite returns an [`Observation`]. The test of each implementation
//! compares the observation with the expected one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
};

use anyhow::{Context as _, anyhow, ensure};

use super::{
    Failure, Features, Guid, Hcn, Kind, Reason,
    schema::{self, Distribution, Endpoint, LoadBalancer, Network, NetworkType, PortMapping, Query},
};

/// An open question about HNS, which the suite answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The name of the question in `docs/backends/windows.md` and `windows.ps1`.
    pub name: &'static str,
    /// The behaviour that HNS may or may not have, in a short sentence.
    pub behaviour: &'static str,
}

/// The answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The question.
    pub question: Question,
    /// Whether the implementation has the behaviour.
    pub is_so: bool,
    /// What HNS answered, if that explains the observation; may be empty.
    pub evidence: String,
}

/// New objects keep the requested identifier. This lets us recognize our own load balancers after a restart.
pub const KEEPS_IDS: Question =
    Question { name: "identifiers", behaviour: "a new object has the requested identifier" };
/// Two endpoints may share an address.
pub const TAKES_DUPLICATES: Question =
    Question { name: "duplicates", behaviour: "two endpoints may have the same address" };
/// HNS returns a load balancer as it was written. This lets us keep correct load balancers unchanged after a restart.
pub const SHOWS_WHAT_WAS_WRITTEN: Question =
    Question { name: "unchanged", behaviour: "HNS returns a load balancer as it was written" };
/// HNS shows a source address that was not written. On an L2Bridge network, neither kube-proxy nor the plan names one.
pub const CHOOSES_A_SOURCE: Question =
    Question { name: "source", behaviour: "HNS chooses a source address for a load balancer without one" };
/// An endpoint is protected from deletion while a load balancer uses it.
pub const PROTECTS_USED_ENDPOINTS: Question =
    Question { name: "used-endpoint", behaviour: "an endpoint that a load balancer uses cannot be deleted" };
/// Load balancers can be changed in place.
pub const MODIFIES: Question = Question { name: "in-place", behaviour: "a load balancer can be changed in place" };
/// Microsoft's schema lists no SCTP, and Kubernetes does not support it on Windows. kube-proxy sends it nevertheless.
pub const TAKES_SCTP: Question = Question { name: "sctp", behaviour: "a load balancer may have the protocol SCTP" };
/// Windows Server 2019 once took 64 endpoints at most.
pub const TAKES_MANY: Question =
    Question { name: "many-endpoints", behaviour: "a load balancer may have 65 endpoints" };
/// The plan has no load balancer without endpoints, because HNS is reported to refuse one.
pub const NEEDS_ENDPOINTS: Question =
    Question { name: "no-endpoints", behaviour: "a load balancer without endpoints is refused" };
/// HNS refuses an internal port that is zero.
pub const NEEDS_A_PORT: Question =
    Question { name: "port-zero", behaviour: "a load balancer with the internal port 0 is refused" };
/// The refusals have codes whose meaning we know. After any other code, the backend retries.
pub const EXPECTED_CODES: Question =
    Question { name: "codes", behaviour: "HNS refuses documents with codes that localnet-win knows" };

/// The questions, in the order in which the suite answers them.
pub const QUESTIONS: [Question; 11] = [
    KEEPS_IDS,
    TAKES_DUPLICATES,
    SHOWS_WHAT_WAS_WRITTEN,
    CHOOSES_A_SOURCE,
    PROTECTS_USED_ENDPOINTS,
    MODIFIES,
    TAKES_SCTP,
    TAKES_MANY,
    NEEDS_ENDPOINTS,
    NEEDS_A_PORT,
    EXPECTED_CODES,
];

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

/// The result of the suite.
#[derive(Debug)]
pub struct Report {
    /// The answers to [`QUESTIONS`], except those of parts that failed.
    pub observations: Vec<Observation>,
    /// How the implementation violates the contract; empty if it does not.
    pub violations: Vec<anyhow::Error>,
}

/// Runs the suite on the network with this name. It removes its objects even if a part fails, and then runs the other parts.
///
/// # Errors
/// Returns an error if the network cannot be found.
pub fn check(hcn: &mut dyn Hcn, network: &str) -> anyhow::Result<Report> {
    let version = schema::read_version(&hcn.version()?)?;
    let ids = schema::read_ids(&hcn.enumerate(Kind::Network, &schema::write(&Query::named(network)))?)?;
    ensure!(ids.len() == 1, "{} networks are called {network}", ids.len());
    let id = ids[0];
    let found: Network = schema::read("network", &hcn.properties(Kind::Network, id)?)?;
    ensure!((found.id, &*found.name) == (Some(id), network), "the query for network {id} returned {found:?}");
    let features = Features::of(version);
    let mut suite = Suite { hcn, network: found, id, features, made: BTreeMap::new(), seen: Vec::new() };
    suite.remove_all();
    let violations = suite.run();
    suite.remove_all();
    Ok(Report { observations: suite.seen, violations })
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
/// The endpoints of the load balancer that has one more than Windows Server 2019 once took.
const MANY: RangeInclusive<u8> = 100..=164;
const NOBODY: u8 = 99;

impl Suite<'_> {
    fn run(&mut self) -> Vec<anyhow::Error> {
        type Part<'a> = (&'static str, fn(&mut Suite<'a>) -> anyhow::Result<()>);
        let parts: [Part<'_>; 9] = [
            ("searching for a network that does not exist", Self::an_unknown_name_finds_no_network),
            ("creating and deleting endpoints", Self::endpoints_come_and_go),
            ("creating two endpoints with one address", Self::one_address_twice),
            ("creating and deleting load balancers", Self::load_balancers_are_created_and_deleted),
            ("creating two load balancers for one port", Self::a_port_is_used_once),
            ("deleting an endpoint in use", Self::a_used_endpoint_is_deleted),
            ("changing a load balancer in place", Self::a_load_balancer_changes),
            ("creating load balancers that HNS may refuse", Self::unusual_load_balancers),
            ("sending invalid documents", Self::invalid_documents_change_nothing),
        ];
        let mut violations = Vec::new();
        for (what, part) in parts {
            let failed = part(self).err();
            violations.extend(failed.map(|error| error.context(format!("failure while {what}"))));
            self.remove_made();
        }
        violations
    }

    /// Removes what the last run left, if it was killed.
    fn remove_all(&mut self) {
        self.made.extend(BALANCERS.map(|last| ((Kind::LoadBalancer, last), guid(last))));
        self.made.extend(ENDPOINTS.into_iter().chain(MANY).map(|last| ((Kind::Endpoint, last), guid(last))));
        self.remove_made();
    }

    /// Removes the objects of a part. Errors are ignored: some objects do not exist, and the comparison of lists finds objects that
    /// remain.
    fn remove_made(&mut self) {
        for ((kind, _), id) in std::mem::take(&mut self.made).into_iter().rev() {
            _ = match kind {
                Kind::LoadBalancer => self.hcn.delete_load_balancer(id),
                _ => self.hcn.delete_endpoint(id),
            };
        }
    }

    /// Creates the endpoints 1 and 2 of [`ENDPOINTS`].
    fn two_endpoints(&mut self) -> anyhow::Result<()> {
        for last in [1, 2] {
            self.create_endpoint(last, last)??;
        }
        Ok(())
    }

    /// The identifier of an endpoint of [`ENDPOINTS`] or [`MANY`].
    fn endpoint(&self, last: u8) -> Guid {
        self.made.get(&(Kind::Endpoint, last)).copied().unwrap_or_else(|| guid(last))
    }

    /// The identifier of a load balancer of [`BALANCERS`].
    fn balancer(&self, last: u8) -> Guid {
        self.made.get(&(Kind::LoadBalancer, last)).copied().unwrap_or_else(|| guid(last))
    }

    fn observe(&mut self, question: Question, is_so: bool, evidence: String) {
        self.seen.push(Observation { question, is_so, evidence });
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
        self.observe(KEEPS_IDS, keeps_ids, String::new());
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
        self.observe(TAKES_DUPLICATES, again.is_ok(), text(again.as_ref().err()));
        let listed = self.endpoints()?;
        let has = |id| listed.contains(&self.endpoint(id));
        ensure!(has(1) && has(2) == again.is_ok(), "{listed:?} are listed");
        Ok(())
    }

    fn load_balancers_are_created_and_deleted(&mut self) -> anyhow::Result<()> {
        self.two_endpoints()?;
        let wanted = self.load_balancer(&[1, 2], 200, 6);
        let made = self.create_load_balancer(17, &wanted)??;
        let id = self.balancer(17);
        let source = made.source_vip;
        let written = LoadBalancer { id: Some(id), source_vip: source, ..wanted };
        let evidence = if made == written { String::new() } else { schema::write(&made) };
        self.observe(SHOWS_WHAT_WAS_WRITTEN, made == written, evidence);
        self.observe(CHOOSES_A_SOURCE, source.is_some(), source.map(|ip| ip.to_string()).unwrap_or_default());
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
        self.two_endpoints()?;
        self.create_load_balancer(17, &self.load_balancer(&[1], 201, 6))??;
        let same = self.create_load_balancer(18, &self.load_balancer(&[2], 201, 6))?;
        is(same.map(|_| String::new()), Reason::Exists)?;
        self.create_load_balancer(18, &self.load_balancer(&[1], 201, 17))?.context("failed with another protocol")?;
        self.create_load_balancer(19, &self.load_balancer(&[1], 202, 6))?.context("failed with another address")?;
        Ok(())
    }

    fn a_used_endpoint_is_deleted(&mut self) -> anyhow::Result<()> {
        self.two_endpoints()?;
        self.create_load_balancer(17, &self.load_balancer(&[1], 205, 6))??;
        let deleted = self.hcn.delete_endpoint(self.endpoint(1));
        let refusal = deleted.err().map(|failure| failure.to_string());
        self.observe(PROTECTS_USED_ENDPOINTS, refusal.is_some(), refusal.unwrap_or_default());
        Ok(())
    }

    fn a_load_balancer_changes(&mut self) -> anyhow::Result<()> {
        self.two_endpoints()?;
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
                self.observe(MODIFIES, modifies, String::new());
                let supported = self.features.modify_load_balancer;
                ensure!(supported || !modifies, "this version should not support changes of load balancers");
            }
            Err(failure) => {
                self.observe(MODIFIES, false, failure.to_string());
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

    /// Creates a load balancer, and deletes it at once. Returns the failure if HNS refuses it.
    fn refusal(&mut self, wanted: &LoadBalancer) -> anyhow::Result<Option<Failure>> {
        let made = self.create_load_balancer(17, wanted)?;
        if made.is_ok() {
            let id = self.balancer(17);
            self.hcn.delete_load_balancer(id)?;
        }
        Ok(made.err())
    }

    fn unusual_load_balancers(&mut self) -> anyhow::Result<()> {
        self.two_endpoints()?;
        let sctp = self.refusal(&self.load_balancer(&[1], 206, 132))?;
        self.observe(TAKES_SCTP, sctp.is_none(), text(sctp.as_ref()));
        for last in MANY {
            self.create_endpoint(last, last)??;
        }
        let many = self.refusal(&self.load_balancer(&MANY.collect::<Vec<_>>(), 207, 6))?;
        self.observe(TAKES_MANY, many.is_none(), text(many.as_ref()));
        Ok(())
    }

    fn invalid_documents_change_nothing(&mut self) -> anyhow::Result<()> {
        self.two_endpoints()?;
        let before = sorted(self.ids(Kind::LoadBalancer, &Query::all())?);
        let endpoints = self.endpoints()?;
        let alone = self.refusal(&self.load_balancer(&[], 208, 6))?;
        self.observe(NEEDS_ENDPOINTS, alone.is_some(), text(alone.as_ref()));
        let mut portless = self.load_balancer(&[1], 209, 6);
        portless.port_mappings[0].internal_port = 0;
        let portless = self.refusal(&portless)?;
        self.observe(NEEDS_A_PORT, portless.is_some(), text(portless.as_ref()));
        let mut refusals = Vec::from_iter(alone.into_iter().chain(portless));
        let nobody = self.create_load_balancer(17, &self.load_balancer(&[NOBODY], 204, 6))?;
        refusals.push(refused(nobody, "a load balancer with an endpoint that does not exist")?);
        for settings in ["", "{", "[]", "\u{e9}"] {
            let balancer = self.hcn.create_load_balancer(guid(17), settings);
            refusals.push(refused(balancer, &format!("{settings:?} as a load balancer"))?);
            let endpoint = self.hcn.create_endpoint(self.id, guid(3), settings);
            refusals.push(refused(endpoint, &format!("{settings:?} as an endpoint"))?);
        }
        refusals.push(refused(self.hcn.create_endpoint(guid(NOBODY), guid(3), "{}"), "an endpoint without a network")?);
        ensure!(
            sorted(self.ids(Kind::LoadBalancer, &Query::all())?) == before,
            "an invalid document created a load balancer"
        );
        ensure!(sorted(self.endpoints()?) == sorted(endpoints), "an invalid document created an endpoint");
        let unknown = refusals.iter().filter(|failure| failure.reason() == Reason::Other);
        let unknown: BTreeSet<String> = unknown.map(ToString::to_string).collect();
        self.observe(EXPECTED_CODES, unknown.is_empty(), Vec::from_iter(unknown).join("; "));
        Ok(())
    }
}

/// Returns the failure of a request that HNS must refuse.
fn refused<T>(result: Result<T, Failure>, what: &str) -> anyhow::Result<Failure> {
    result.err().with_context(|| format!("HNS accepts {what}"))
}

fn text(failure: Option<&Failure>) -> String {
    failure.map(Failure::to_string).unwrap_or_default()
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

    /// The names of the behaviours that an HNS has.
    fn observed(fake: &mut FakeHcn) -> anyhow::Result<String> {
        let Report { observations, violations } = check(fake, "cbr0")?;
        if let Some(violation) = violations.into_iter().next() {
            return Err(violation);
        }
        assert_eq!(observations.iter().map(|one| one.question).collect::<Vec<_>>(), QUESTIONS);
        let names = observations.into_iter().filter(|one| one.is_so).map(|one| one.question.name);
        Ok(names.collect::<Vec<_>>().join(" "))
    }

    fn fake(kind: &str) -> FakeHcn {
        FakeHcn::with_network("cbr0", kind, &[], &["10.180.0.2"])
    }

    #[test]
    fn the_fake_keeps_it() {
        type Change = fn(&mut FakeHcn);
        const REST: &str = "sctp many-endpoints no-endpoints port-zero codes";
        let rows: [(Change, &str); 8] = [
            (|_| {}, "identifiers duplicates unchanged used-endpoint"),
            (|fake| fake.version = Version::new(15, 5), "identifiers duplicates unchanged used-endpoint in-place"),
            (|fake| fake.modify_does_nothing = true, "identifiers duplicates unchanged used-endpoint"),
            (|fake| fake.modify_is_not_implemented = true, "identifiers duplicates unchanged used-endpoint"),
            (|fake| fake.chooses_ids = true, "duplicates unchanged used-endpoint"),
            (|fake| fake.deletes_what_is_named = true, "duplicates unchanged"),
            (|fake| fake.rewrites = Some(|it| it["SourceVIP"] = "192.168.0.2".into()), "duplicates unchanged source"),
            (
                |fake| {
                    fake.rewrites = Some(|document| {
                        if document.get("PortMappings").is_some() {
                            document["Flags"] = 64.into();
                        }
                    });
                },
                "duplicates",
            ),
        ];
        for kind in ["L2Bridge", "Overlay"] {
            let mut fake = fake(kind);
            let before = fake.objects.clone();
            for (change, expected) in &rows {
                change(&mut fake);
                assert_eq!(observed(&mut fake).unwrap(), format!("{expected} {REST}"));
                assert_eq!(fake.objects, before, "no object is left");
            }
            (fake.refuses_sctp, fake.most_endpoints) = (true, 64);
            let seen = check(&mut fake, "cbr0").unwrap().observations;
            let evidence = |question| &seen.iter().find(|one| one.question == question && !one.is_so).unwrap().evidence;
            assert!(evidence(TAKES_SCTP).contains("The parameter is incorrect"));
            assert!(evidence(TAKES_MANY).contains("invalid number of destinations. (0x80070057)"));
            assert_eq!(fake.objects, before, "no object is left");
        }
    }

    #[test]
    fn a_violation_of_the_contract_is_an_error() {
        type Disturb = fn(&mut FakeHcn);
        const LIST: &str = "HcnEnumerateEndpoints";
        const DELETE: &str = "HcnDeleteEndpoint";
        let rows: [(Disturb, &str); 3] = [
            (|fake| fake.fail(DELETE, 999, Failure::new(DELETE, 0x8000_4005, "")), DELETE),
            (|fake| fake.objects.clear(), "0 networks are called cbr0"),
            (|fake| fake.fail(LIST, 1, Failure::new(LIST, 0, "{\"Error\":\"no\"}")), "no (0x00000000)"),
        ];
        for (disturb, expected) in rows {
            let mut fake = fake("L2Bridge");
            disturb(&mut fake);
            let error = format!("{:#}", observed(&mut fake).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_violation_leaves_the_other_questions_answered() {
        let mut fake = fake("L2Bridge");
        let before = fake.objects.clone();
        // The first list of endpoints is the one of `endpoints_come_and_go`.
        fake.fail("HcnEnumerateEndpoints", 1, Failure::new("HcnEnumerateEndpoints", 0x8000_4005, ""));
        let Report { observations, violations } = check(&mut fake, "cbr0").unwrap();
        let [violation] = violations.as_slice() else { panic!("{violations:?}") };
        assert!(
            format!("{violation:#}").starts_with("failure while creating and deleting endpoints: "),
            "{violation:#}"
        );
        let answered: Vec<_> = observations.into_iter().map(|one| one.question).collect();
        assert_eq!(answered, QUESTIONS[1..]);
        assert_eq!(fake.objects, before, "no object is left");
    }

    /// An HNS that refuses a document with a code of another meaning is reported with its answer.
    #[test]
    fn a_refusal_with_an_unknown_code_is_observed() {
        let mut fake = fake("L2Bridge");
        fake.fail("HcnCreateLoadBalancer", 1, Failure::new("HcnCreateLoadBalancer", 0x803b_0099, ""));
        let id = fake.documents(Kind::Network).next().unwrap().0;
        let features = Features::of(fake.version);
        let network = Network::default();
        let mut suite = Suite { hcn: &mut fake, network, id, features, made: BTreeMap::new(), seen: Vec::new() };
        suite.invalid_documents_change_nothing().unwrap();
        let last = suite.seen.last().unwrap();
        assert_eq!((last.question, last.is_so), (EXPECTED_CODES, false));
        assert_eq!(last.evidence, "HcnCreateLoadBalancer: error 0x803b0099");
    }
}
