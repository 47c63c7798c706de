//! The Windows backend, on the fake HNS of its unit tests.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use localnet_client::{
    Changes,
    served::{Lack, Served},
    vips::Config,
};
use localnet_proto::{Family, Snapshot};
use localnet_win::{
    Kernel as Host, Options, WinBackend,
    hcn::{
        Failure as HcnFailure, Guid, Hcn, Kind,
        schema::{self, Endpoint},
    },
    served,
    testing::FakeHcn,
};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::json;

use super::Program;
use crate::{
    flows::Node,
    kernel::{Failure, Kernel},
    subsystem::{Edit, Subsystem},
};

/// HNS.
#[derive(Clone, Debug)]
pub struct Hns(FakeHcn);

/// The network of the pods.
const NETWORK: &str = "pods";
/// The addresses of the node's pods (see `World`).
const PODS: [&str; 10] = [
    "10.1.0.3",
    "10.1.0.6",
    "10.1.0.9",
    "10.1.0.12",
    "10.1.0.15",
    "fd00:1::3",
    "fd00:1::6",
    "fd00:1::9",
    "fd00:1::c",
    "fd00:1::f",
];

impl Program for Hns {
    type Backend = WinBackend<Kernel<Self>>;

    async fn open(kernel: Kernel<Self>, _: Node) -> anyhow::Result<Self::Backend> {
        Ok(WinBackend::new(Config::default(), Options::default(), kernel))
    }
}

impl Subsystem for Hns {
    const NAME: &'static str = "win";
    const LACKS: &'static [Lack] =
        &[Lack::Verdicts, Lack::Scopes, Lack::Seconds, Lack::Ports, Lack::HostNetwork, Lack::Sources];
    const IS_ATOMIC: bool = false;
    const HAS_FLOWS: bool = false;
    const SKIPS: &'static [&'static str] = &["hns-unsupported"];
    const HAS_GAPS: bool = true;
    const REFUSES_PARTS: bool = true;
    type Notice = ();

    fn new(rng: &mut StdRng) -> Self {
        let mut fake = FakeHcn::with_network(NETWORK, "L2Bridge", &[], &PODS);
        fake.modify_is_not_implemented = rng.random_bool(0.2);
        fake.modify_does_nothing = rng.random_bool(0.2);
        // An HNS that also chooses identifiers is left out: after a crash, nothing shows who made a load balancer of an external IP.
        fake.deletes_what_is_named = rng.random();
        Self(fake)
    }

    fn after(self, state: &Snapshot) -> Self {
        let mut backend = WinBackend::new(Config::default(), Options::default(), self.0);
        _ = backend.apply(state, &Changes::everything());
        Self(backend.kernel().clone())
    }

    fn served(&self) -> Served {
        served::of(&self.0.load_balancers(), &self.endpoints())
    }

    /// The objects without their identifiers.
    fn objects(&self, _: &Snapshot) -> Vec<String> {
        let endpoints = self.endpoints();
        let addresses = |ids: &[Guid]| {
            let all = ids.iter().filter_map(|id| endpoints.get(id)).flat_map(Endpoint::addresses);
            all.collect::<BTreeSet<_>>()
        };
        let balancers = self.0.load_balancers();
        let balancers = balancers.iter().map(|one| {
            let ids = addresses(&one.host_compute_endpoints);
            format!("{:?} {:?} {:?} -> {ids:?}", one.frontend_vips, one.port_mappings, one.flags)
        });
        let endpoints =
            endpoints.values().map(|one| format!("endpoint {:?} {:?}", one.addresses().collect::<Vec<_>>(), one.flags));
        let mut all: Vec<_> = balancers.chain(endpoints).collect();
        all.sort_unstable();
        all
    }

    fn hate(&mut self, rng: &mut StdRng) {
        // E_INVALIDARG, HCN_E_PORT_ALREADY_EXISTS, ERROR_NOT_FOUND
        let code = *[0x8007_0057, 0x803b_0013, 0x8007_0490].choose(rng).unwrap_or(&0x8007_0057);
        let calls = ["HcnCreateEndpoint", "HcnCreateLoadBalancer", "HcnModifyLoadBalancer"];
        let call = *calls.choose(rng).unwrap_or(&calls[0]);
        self.0.fail(call, rng.random_range(1..10), HcnFailure::new(call, code, ""));
    }

    fn heal(&mut self) {
        self.0.mend();
    }

    fn edit(&mut self, rng: &mut StdRng, elsewhere: bool, _: bool) -> Edit<()> {
        let ours = |kind: Kind| self.0.documents(kind).map(move |(id, _)| (kind, id)).filter(|(_, id)| id.is_ours());
        let all: Vec<_> = ours(Kind::LoadBalancer).chain(ours(Kind::Endpoint)).collect();
        let Some((kind, id)) = all.choose(rng).copied().filter(|_| !elsewhere) else {
            return Edit { what: "changes nothing of ours".to_owned(), damages: BTreeSet::new(), notice: None };
        };
        // An address that the next Service may have, if no load balancer has it yet.
        let vip = format!("10.96.0.{}", 10 + rng.random_range(0..8) + 100 * rng.random_range(0..2));
        let is_free =
            !self.0.load_balancers().iter().any(|one| one.frontend_vips.iter().any(|of| of.to_string() == vip));
        let document = self.0.objects.get_mut(&(kind, id));
        if let Some(document) = document
            .filter(|document| is_free && document["FrontendVIPs"][0].is_string())
            .filter(|_| rng.random_bool(0.5))
        {
            document["FrontendVIPs"] = json!([vip]);
            let what = format!("moves load balancer {id} to {vip}");
            return Edit { what, damages: Family::BOTH.into(), notice: None };
        }
        let document = self.0.objects.get_mut(&(kind, id));
        let endpoints = document.and_then(|document| document["HostComputeEndpoints"].as_array_mut());
        let what = match endpoints {
            Some(endpoints) if rng.random() => {
                endpoints.pop();
                format!("takes an endpoint from load balancer {id}")
            }
            _ => {
                self.0.objects.remove(&(kind, id));
                format!("deletes {kind:?} {id}")
            }
        };
        Edit { what, damages: Family::BOTH.into(), notice: None }
    }
}

impl Hns {
    fn endpoints(&self) -> BTreeMap<Guid, Endpoint> {
        let read = |document: &serde_json::Value| schema::read("endpoint", &document.to_string()).ok();
        self.0.documents(Kind::Endpoint).filter_map(|(id, document)| Some((id, read(document)?))).collect()
    }
}

fn error(call: &'static str) -> impl Fn(Failure) -> HcnFailure {
    move |failure| {
        let code = match failure {
            // E_ACCESSDENIED, E_OUTOFMEMORY, RPC_S_CALL_FAILED, RPC_S_SERVER_UNAVAILABLE
            Failure::Denied => 0x8007_0005,
            Failure::Short => 0x8007_000e,
            Failure::Unanswered => 0x8007_06be,
            Failure::Unreadable => 0x8007_06ba,
        };
        HcnFailure::new(call, code, "")
    }
}

impl Kernel<Hns> {
    /// A call that changes something.
    fn call<T>(
        &self,
        name: &'static str,
        what: String,
        change: impl FnOnce(&mut FakeHcn) -> Result<T, HcnFailure>,
    ) -> Result<T, HcnFailure> {
        self.commit(what, error(name), |hns| {
            let result = change(&mut hns.0);
            hns.0.log.clear();
            result
        })
    }
}

impl Hcn for Kernel<Hns> {
    fn version(&mut self) -> Result<String, HcnFailure> {
        self.read(&[], error("HNSCall"), |hns| hns.0.version())
    }

    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, HcnFailure> {
        self.read(&[], error("HcnEnumerate"), |hns| hns.0.enumerate(kind, query))
    }

    fn properties(&mut self, kind: Kind, id: Guid) -> Result<String, HcnFailure> {
        self.read(&[], error("HcnOpen"), |hns| hns.0.properties(kind, id))
    }

    fn create_endpoint(&mut self, network: Guid, id: Guid, settings: &str) -> Result<String, HcnFailure> {
        let what = format!("endpoint {id}");
        self.call("HcnCreateEndpoint", what, |hns| hns.create_endpoint(network, id, settings))
    }

    fn create_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, HcnFailure> {
        let what = format!("load balancer {id}");
        self.call("HcnCreateLoadBalancer", what, |hns| hns.create_load_balancer(id, settings))
    }

    fn modify_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, HcnFailure> {
        let what = format!("modified load balancer {id}");
        self.call("HcnModifyLoadBalancer", what, |hns| hns.modify_load_balancer(id, settings))
    }

    fn delete_endpoint(&mut self, id: Guid) -> Result<(), HcnFailure> {
        self.call("HcnDeleteEndpoint", format!("deleted endpoint {id}"), |hns| hns.delete_endpoint(id))
    }

    fn delete_load_balancer(&mut self, id: Guid) -> Result<(), HcnFailure> {
        let what = format!("deleted load balancer {id}");
        self.call("HcnDeleteLoadBalancer", what, |hns| hns.delete_load_balancer(id))
    }
}

impl Host for Kernel<Hns> {
    fn interfaces(&mut self) -> anyhow::Result<BTreeMap<IpAddr, String>> {
        self.ask(|hns| hns.0.interfaces())
    }
}
