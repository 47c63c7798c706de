//! Replays documents and errors of real HNSs, whose facts come from public reports and tests (`backend-win/recorded`; addresses
//! and identifiers are ours). The schema reads every field of a document that the backend needs, and the backend treats the
//! objects of kube-proxy and of other programs as decision 15 says.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::*;
use crate::hcn::{
    Hcn as _,
    schema::{Endpoint, Network},
};

/// An entry of a file.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Recorded {
    what: String,
    source: String,
    /// The fields that the schema does not read, each without the fields within it.
    unread: BTreeSet<String>,
    /// What becomes of the object when the backend starts.
    fate: Option<Fate>,
    document: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Fate {
    /// The object is not changed.
    Kept,
    /// The object is deleted.
    Deleted,
    /// The object is deleted, and one of ours has its frontend.
    Replaced,
}

/// An entry of the file of errors.
#[derive(serde::Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Refusal {
    source: String,
    call: String,
    code: String,
    record: String,
    reason: String,
}

const NETWORKS: &str = include_str!("../../../recorded/networks.json");
const ENDPOINTS: &str = include_str!("../../../recorded/endpoints.json");
const BALANCERS: &str = include_str!("../../../recorded/load-balancers.json");
const ERRORS: &str = include_str!("../../../recorded/errors.json");

fn recorded(file: &str) -> Vec<Recorded> {
    serde_json::from_str(file).unwrap()
}

impl Recorded {
    fn id(&self) -> Guid {
        self.document["ID"].as_str().unwrap().parse().unwrap()
    }
}

/// Collects the paths at which `shown` has a value that `read` lacks. HNS may omit an empty value, or write it.
fn lost(shown: &Value, read: &Value, path: &str, lost_at: &mut BTreeSet<String>) {
    let is_empty = |value: &Value| [Value::Null, json!(0), json!(""), json!([]), json!({})].contains(value);
    match (shown, read) {
        (shown, _) if is_empty(shown) => {}
        (Value::Object(shown), Value::Object(read)) => {
            for (name, value) in shown {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                lost(value, read.get(name).unwrap_or(&Value::Null), &path, lost_at);
            }
        }
        (Value::Array(shown), Value::Array(read)) if shown.len() == read.len() => {
            shown.iter().zip(read).for_each(|(shown, read)| lost(shown, read, &format!("{path}[]"), lost_at));
        }
        (Value::String(shown), Value::String(read)) if shown.eq_ignore_ascii_case(read) => {}
        (shown, read) if shown == read => {}
        _ => _ = lost_at.insert(path.to_owned()),
    }
}

#[track_caller]
fn reads<T: Serialize + DeserializeOwned>(file: &str) {
    for one in recorded(file) {
        let read: T = schema::read("document", &one.document.to_string()).unwrap();
        let mut lost_at = BTreeSet::new();
        lost(&one.document, &serde_json::to_value(&read).unwrap(), "", &mut lost_at);
        assert_eq!(lost_at, one.unread, "{} ({})", one.what, one.source);
        assert!(!one.source.is_empty());
    }
}

#[test]
fn documents_of_hns_are_read_without_loss() {
    reads::<Network>(NETWORKS);
    reads::<Endpoint>(ENDPOINTS);
    reads::<LoadBalancer>(BALANCERS);
}

/// A real HNS has accepted the documents, so that the rules of the fake one must accept them.
#[test]
fn the_rules_accept_what_hns_has_accepted() {
    let hns = |files: &[(Kind, &str)]| {
        let objects = files
            .iter()
            .flat_map(|(kind, file)| recorded(file).into_iter().map(|one| ((*kind, one.id()), one.document)));
        with(FakeHcn::default(), |hns| (hns.version, hns.objects) = (Version::new(15, 5), objects.collect()))
    };
    let any = Guid::new(0);
    let mut accepted = 0;
    for one in recorded(ENDPOINTS) {
        let mut hns = hns(&[(Kind::Network, NETWORKS)]);
        let network: Guid = one.document["HostComputeNetwork"].as_str().unwrap().parse().unwrap();
        if hns.objects.contains_key(&(Kind::Network, network)) {
            hns.create_endpoint(network, any, &one.document.to_string())
                .unwrap_or_else(|failure| panic!("{}: {failure}", one.what));
            accepted += 1;
        }
    }
    // HNS has created the others in part only.
    for one in recorded(BALANCERS).into_iter().filter(|one| one.document["PortMappings"].is_array()) {
        let mut hns = hns(&[(Kind::Endpoint, ENDPOINTS)]);
        hns.create_load_balancer(any, &one.document.to_string())
            .unwrap_or_else(|failure| panic!("{}: {failure}", one.what));
        accepted += 1;
    }
    assert_eq!(accepted, 7 + 9);
}

#[test]
fn errors_of_hns_have_their_meaning() {
    let refusals: Vec<Refusal> = serde_json::from_str(ERRORS).unwrap();
    for one in refusals {
        let code = u32::from_str_radix(one.code.trim_start_matches("0x"), 16).unwrap();
        let failure = Failure::new("Hcn", code, one.record.clone());
        assert_eq!(format!("{:?}", failure.reason()), one.reason, "{}: {} {}", one.source, one.call, one.code);
        let Ok(record) = serde_json::from_str::<Value>(&one.record) else { continue };
        assert_eq!(record["ErrorCode"], code, "{}", one.source);
        let text = record["Error"].as_str().unwrap().trim();
        assert_eq!(failure.to_string(), format!("Hcn: {text} ({})", one.code), "{}", one.source);
        // Some calls report success and write a record.
        let quiet = Failure { hresult: 0, ..failure.clone() };
        assert_eq!(quiet.reason(), failure.reason(), "{}", one.source);
    }
}

/// The node of the recorded documents, whose pods have the addresses of this network.
fn node(pods: u8, source_vip: Option<[u8; 4]>) -> (WinBackend<FakeHcn>, Snapshot) {
    let mut hns = FakeHcn::default();
    hns.interfaces = [([192, 168, 0, 2].into(), "00-15-5d-00-00-02".to_owned())].into();
    for (kind, file) in [(Kind::Network, NETWORKS), (Kind::Endpoint, ENDPOINTS), (Kind::LoadBalancer, BALANCERS)] {
        hns.objects.extend(recorded(file).into_iter().map(|one| ((kind, one.id()), one.document)));
    }
    let network = Some(if source_vip.is_some() { "flannel.4096" } else { "cbr0" }.to_owned());
    let options = Options { network, source_vip: source_vip.map(Into::into), ..Options::default() };
    let yaml = WEB.replace("10.180.", &format!("10.{pods}."));
    (WinBackend::new(Config::default(), options, hns), serde_saphyr::from_str(&yaml).unwrap())
}

/// kube-proxy's endpoints are named Ethernet, because HNS gives this name to an endpoint without one. The backend once expected
/// no name, and left these endpoints behind.
#[test]
fn foreign_objects_stay_and_those_of_kube_proxy_are_adopted() {
    for (network, pods, source_vip) in [
        ("a0000000-0000-4000-8000-000000000001", 180, None),
        ("a0000000-0000-4000-8000-000000000002", 181, Some([10, 181, 0, 250])),
    ] {
        let network: Guid = network.parse().unwrap();
        let (mut backend, state) = node(pods, source_vip);
        let before = backend.kernel.objects.clone();
        backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
        let of_other_network = |one: &Recorded| {
            let of = one.document["HostComputeNetwork"].as_str().map(|of| of.parse::<Guid>().unwrap());
            of.is_some_and(|of| of != network)
        };
        let endpoints = recorded(ENDPOINTS).into_iter().map(|one| (Kind::Endpoint, of_other_network(&one), one));
        let balancers = recorded(BALANCERS).into_iter().map(|one| (Kind::LoadBalancer, false, one));
        let held = backend.kernel.load_balancers();
        for (kind, elsewhere, one) in endpoints.chain(balancers) {
            let key = (kind, one.id());
            let fate = if elsewhere { Fate::Kept } else { one.fate.unwrap() };
            let expected = before.get(&key).filter(|_| fate == Fate::Kept);
            assert_eq!(backend.kernel.objects.get(&key), expected, "{}", one.what);
            if fate == Fate::Replaced {
                let replaced: LoadBalancer = schema::read("load balancer", &one.document.to_string()).unwrap();
                let frontends = Frontend::all_of(&replaced);
                let ours =
                    |held: &&LoadBalancer| held.id.is_some_and(Guid::is_ours) && Frontend::all_of(held) == frontends;
                assert_eq!(held.iter().filter(ours).count(), 1, "{}", one.what);
            }
        }
        // The backend uses kube-proxy's endpoint for the pod on another node, if there is one.
        let adopted: Guid = "b0000000-0000-4000-8000-000000000003".parse().unwrap();
        let uses_it = held.iter().any(|held| held.host_compute_endpoints.contains(&adopted));
        assert_eq!(uses_it, source_vip.is_none());
        backend.kernel.log.clear();
        backend.apply(&state, &Changes::everything()).unwrap().whole().unwrap();
        assert_eq!(backend.kernel.log, NOTHING);
    }
}
