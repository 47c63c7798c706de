//! The lists for the command `localnet`: an HNS that holds the plan has the planned lines, and what differs has lines of its own.

use localnet_client::{
    inspect::{Inspect as _, Listing},
    program::Planner as _,
};
use serde_json::Value;

use super::*;
use crate::{
    dry_run::DryRun,
    hcn::Kind,
    inspect::{self, Inspector},
};

const V4: &str = "172.30.0.1:80/tcp: to 10.180.0.1:8080, remote 10.180.1.2:8080";

fn options(network: &str) -> Options {
    let source_vip = (network == "Overlay").then(|| [10, 180, 0, 250].into());
    Options { network: Some("cbr0".to_owned()), source_vip, ..Options::default() }
}

/// The HNS of a node that the backend has programmed.
fn programmed(network: &str) -> FakeHcn {
    let mut backend = WinBackend::new(Config::default(), options(network), fake(network));
    backend.apply(&state(), &Changes::everything()).unwrap().whole().unwrap();
    backend.kernel().clone()
}

async fn lists(network: &str, hns: FakeHcn) -> anyhow::Result<[Listing; 2]> {
    let mut inspector = Inspector::new(Config::default(), options(network), hns);
    let planned = inspector.planned(&state());
    Ok([planned, inspector.live().await?])
}

fn lines(listing: &Listing) -> BTreeSet<String> {
    listing.iter().flat_map(|(place, lines)| lines.iter().map(move |line| format!("{} {line}", place.name))).collect()
}

async fn differences(network: &str, hns: FakeHcn) -> Vec<String> {
    let [planned, live] = lists(network, hns).await.unwrap();
    inspect::differences(&planned, &live)
}

#[tokio::test]
async fn an_hns_that_holds_the_plan_has_its_lines() {
    for (network, expected) in [
        ("L2Bridge", vec![
            "endpoints 10.180.1.2: remote, 02-11-0a-b4-01-02".to_owned(),
            "load balancers 172.30.0.1:80/tcp: to 10.180.0.1:8080, remote 10.180.1.2:8080".to_owned(),
            "load balancers NodePort 30080/tcp of IPv4: to 10.180.0.1:8080, remote 10.180.1.2:8080; LocalRoutedVIP; VipExternalIP"
                .to_owned(),
            "networks cbr0".to_owned(),
        ]),
        ("Overlay", vec![
            "endpoints 10.180.0.250: local".to_owned(),
            "endpoints 10.180.1.2: remote, 02-11-0a-b4-01-02, through 192.168.0.3".to_owned(),
            "endpoints 172.30.0.1: remote, 00-15-5d-00-00-02, through 192.168.0.2".to_owned(),
            format!("load balancers {V4}; source VIP 10.180.0.250"),
            "load balancers NodePort 30080/tcp of IPv4: to 10.180.0.1:8080, remote 10.180.1.2:8080; source VIP 10.180.0.250; \
             LocalRoutedVIP; VipExternalIP"
                .to_owned(),
            "networks cbr0".to_owned(),
        ]),
    ] {
        let [planned, live] = lists(network, programmed(network)).await.unwrap();
        assert_eq!(lines(&planned).into_iter().collect::<Vec<_>>(), expected, "{network}");
        assert_eq!(planned, live, "{network}");
    }
}

/// The documents of a kind that contain a text.
fn with_text<'a>(hns: &'a mut FakeHcn, of: Kind, text: &str) -> Vec<&'a mut Value> {
    let found =
        hns.objects.iter_mut().filter(|((kind, _), document)| *kind == of && document.to_string().contains(text));
    found.map(|(_, document)| document).collect()
}

#[tokio::test]
async fn each_difference_has_lines() {
    let delete = |hns: &mut FakeHcn, of: Kind, text: &str| {
        let is_it = |kind: Kind, document: &Value| kind == of && document.to_string().contains(text);
        hns.objects.retain(|(kind, _), document| !is_it(*kind, document));
    };
    let stray = Guid::of_load_balancer("172.30.0.9:80/tcp");
    type Row<'a> = (&'a str, &'a dyn Fn(&mut FakeHcn), Vec<String>);
    let other_endpoint = Guid::new(77);
    let rows: [Row<'_>; 11] = [
        ("L2Bridge", &|hns| delete(hns, Kind::LoadBalancer, "172.30.0.1"), vec![format!("+ load balancers {V4}")]),
        (
            "L2Bridge",
            &|hns| with_text(hns, Kind::LoadBalancer, "172.30.0.1")[0]["Flags"] = json!(1),
            vec![format!("+ load balancers {V4}"), format!("- load balancers {V4}; DSR")],
        ),
        (
            "L2Bridge",
            &|hns| {
                let balancer = with_text(hns, Kind::LoadBalancer, "172.30.0.1").remove(0);
                balancer["HostComputeEndpoints"].as_array_mut().unwrap().truncate(1);
                balancer["PortMappings"][0]["DistributionType"] = json!(2);
            },
            vec![
                format!("+ load balancers {V4}"),
                "- load balancers 172.30.0.1:80/tcp: to 10.180.0.1:8080; by source address".to_owned(),
            ],
        ),
        // A load balancer for an endpoint that was created again has an identifier that no longer exists.
        (
            "L2Bridge",
            &|hns| {
                with_text(hns, Kind::LoadBalancer, "172.30.0.1")[0]["HostComputeEndpoints"][0] = json!(other_endpoint);
            },
            vec![
                format!("+ load balancers {V4}"),
                format!(
                    "- load balancers 172.30.0.1:80/tcp: to remote 10.180.1.2:8080, the missing endpoint {other_endpoint}"
                ),
            ],
        ),
        (
            "L2Bridge",
            &|hns| delete(hns, Kind::Endpoint, "10.180.1.2"),
            vec!["+ endpoints 10.180.1.2: remote, 02-11-0a-b4-01-02".to_owned()],
        ),
        (
            "Overlay",
            &|hns| {
                with_text(hns, Kind::Endpoint, "10.180.1.2")[0]["Policies"][0]["Settings"]["ProviderAddress"] =
                    json!("192.168.0.9");
            },
            vec![
                "+ endpoints 10.180.1.2: remote, 02-11-0a-b4-01-02, through 192.168.0.3".to_owned(),
                "- endpoints 10.180.1.2: remote, 02-11-0a-b4-01-02, through 192.168.0.9".to_owned(),
            ],
        ),
        (
            "L2Bridge",
            &|hns| {
                let stray_endpoint = Guid::of_remote_endpoint([10, 180, 1, 9].into());
                let document = json!({"HostComputeEndpoints": [stray_endpoint], "FrontendVIPs": ["172.30.0.9"],
                    "PortMappings": [{"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80}]});
                hns.objects.insert((Kind::LoadBalancer, stray), document);
                let network = hns.documents(Kind::Network).next().unwrap().0;
                let document = json!({"ID": stray_endpoint, "HostComputeNetwork": network, "Flags": 1,
                    "MacAddress": "02-11-0a-b4-01-09", "IpConfigurations": [{"IpAddress": "10.180.1.9"}]});
                hns.objects.insert((Kind::Endpoint, stray_endpoint), document);
            },
            vec![
                format!(
                    "- endpoints 10.180.1.9: remote, 02-11-0a-b4-01-09, endpoint {}",
                    Guid::of_remote_endpoint([10, 180, 1, 9].into())
                ),
                "- load balancers 172.30.0.9:80/tcp: to remote 10.180.1.9:8080".to_owned(),
            ],
        ),
        (
            "L2Bridge",
            &|hns| _ = hns.objects.insert((Kind::LoadBalancer, stray), json!({"FrontendVIPs": "?"})),
            vec![format!("- load balancers load balancer {stray}: its document cannot be parsed")],
        ),
        // Another program's load balancer is none of our business, unless it has a frontend of ours.
        (
            "L2Bridge",
            &|hns| {
                let document = json!({"FrontendVIPs": ["203.0.113.1"], "PortMappings": [{"Protocol": 6, "InternalPort": 1, "ExternalPort": 1}]});
                hns.objects.insert((Kind::LoadBalancer, Guid::new(99)), document);
            },
            vec![],
        ),
        (
            "L2Bridge",
            &|hns| {
                delete(hns, Kind::LoadBalancer, "172.30.0.1");
                let document = json!({"FrontendVIPs": ["172.30.0.1", "203.0.113.1"],
                    "PortMappings": [{"Protocol": 6, "InternalPort": 1, "ExternalPort": 80}]});
                hns.objects.insert((Kind::LoadBalancer, Guid::new(99)), document);
            },
            vec![
                format!("+ load balancers {V4}"),
                format!("- load balancers 172.30.0.1:80/tcp: to no endpoint; load balancer {}", Guid::new(99)),
            ],
        ),
        ("L2Bridge", &|hns| delete(hns, Kind::Network, "cbr0"), vec!["+ networks cbr0".to_owned()]),
    ];
    for (network, change, expected) in rows {
        assert_eq!(differences(network, with(programmed(network), change)).await, expected);
    }
}

#[tokio::test]
async fn a_dry_run_lists_what_a_sync_would_change() {
    let hns =
        with(programmed("L2Bridge"), |hns| with_text(hns, Kind::LoadBalancer, "172.30.0.1")[0]["Flags"] = json!(1));
    let changes = |hns: FakeHcn| {
        let mut planner = DryRun::new(WinBackend::new(Config::default(), options("L2Bridge"), hns));
        let (text, _) = planner.plan(&state(), &Changes::everything()).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["Changes"].clone()
    };
    let wrong = changes(hns);
    assert_eq!(wrong, json!([format!("+ load balancers {V4}"), format!("- load balancers {V4}; DSR")]));
    assert_eq!(changes(programmed("L2Bridge")), json!([]));
    assert_eq!(changes(fake("L2Bridge")).as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn an_hns_that_cannot_be_planned_for_is_an_error() {
    let old = with(fake("L2Bridge"), |hns| hns.version = Version::new(9, 1));
    let error = lists("L2Bridge", old).await.unwrap_err();
    assert!(format!("{error:#}").contains("needs 9.2 or later"), "{error:#}");
}
