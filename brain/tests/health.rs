//! Tests of the health servers over real connections: `/healthz`, `/livez` and the health check ports of Services.
//!
//! No test in this file may start a process: between fork and exec, the child would keep ports open that a test has closed.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant, UNIX_EPOCH},
};

use localnet_brain::{
    feed::Feed,
    health::{
        self, Inputs, Options,
        port::{Listening, Port, Servers, Status},
        progress::Moment,
    },
    reports::Reports,
};
use localnet_cluster::{
    Cluster, Options as ClusterOptions,
    localize::{HealthCheck, Localized},
    objects::{Event, Kind, Object},
};
use localnet_config::{NodePortAddress, NodePortAddresses};
use localnet_proto::{
    ByFamily, Revision, ServiceKey,
    v1::{
        report::{BackendStatus, Known},
        wire as v1,
    },
    wire::{BackendReport, FamilyReport, IpFamily},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

/// 2026-11-21T17:02:42Z
const THEN: Duration = Duration::from_secs(1_795_280_562);
/// The instance ID of every feed in these tests.
const INSTANCE: u64 = 7;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A node with health servers.
struct Node {
    feed: Feed,
    reports: Reports,
    clock: Arc<Mutex<Moment>>,
    inputs: Arc<Inputs>,
    servers: Servers,
    /// Whether backends report to `localnet.v1` instead of `localnetv1`.
    draft: bool,
}

impl Node {
    fn start(options: &Options) -> Self {
        let (feed, reports) = (Feed::new(INSTANCE), Reports::default());
        let clock = Arc::new(Mutex::new(Moment { at: Instant::now(), wall: UNIX_EPOCH + THEN }));
        let now = Arc::clone(&clock);
        let inputs = Inputs::new(options, &feed, &reports, Arc::new(move || *now.lock().unwrap()));
        let servers = health::start(options, &inputs);
        Self { feed, reports, clock, inputs, servers, draft: false }
    }

    /// Publishes exactly these Services with health checks, all for IPv4 only: name, port, ready endpoints.
    fn checks(&self, checks: &[(&str, u16, usize)]) {
        self.publish(checks.iter().map(|(name, port, ready)| {
            let check = HealthCheck { port: *port, ready: ByFamily::new(Some(*ready), None) };
            (*name, check)
        }));
    }

    fn publish<'a>(&self, checks: impl IntoIterator<Item = (&'a str, HealthCheck)>) {
        let checks: Vec<_> = checks.into_iter().map(|(name, check)| (ServiceKey::new("ns", name), check)).collect();
        // A Service that is not in `checks` loses its health check.
        let services = ["a", "b", "c", "d"].map(|name| (ServiceKey::new("ns", name), None));
        self.feed.publish(Localized { services: services.into(), health_checks: checks, ..Localized::default() });
    }

    fn report(&self, applied: &[(IpFamily, u64)]) {
        if self.draft {
            self.report_status(applied);
        } else {
            self.report_older(applied);
        }
        // Process the report now, so that it gets the current time of the clock.
        self.inputs.health();
    }

    fn report_status(&self, applied: &[(IpFamily, u64)]) {
        let of = |rev| Some(Revision { instance: INSTANCE, rev }.into());
        let families = applied.iter().map(|(family, rev)| v1::FamilyStatus {
            family: (*family).into(),
            applied: of(*rev),
            ..v1::FamilyStatus::default()
        });
        let state = self.feed.state();
        let request = v1::ReportStatusRequest {
            reader_name: "nft".to_owned(),
            received: of(state.revision().rev),
            families: families.collect(),
            ..v1::ReportStatusRequest::default()
        };
        let status = BackendStatus::checked(request, state.revision()).unwrap();
        let known = Known { newest: state.revision(), node: state.node(), digests: &|_| None };
        self.reports.record_status(status, &known);
    }

    fn report_older(&self, applied: &[(IpFamily, u64)]) {
        let families = applied.iter().map(|(family, rev)| FamilyReport {
            family: (*family).into(),
            applied_rev: *rev,
            ..FamilyReport::default()
        });
        let families = families.collect();
        let report = BackendReport {
            backend: "nft".to_owned(),
            instance_id: INSTANCE,
            rev: 9,
            families,
            ..BackendReport::default()
        };
        self.reports.record(report).unwrap();
    }

    /// Advances the clock, which otherwise stands still.
    fn advance(&self, time: Duration) {
        let mut now = self.clock.lock().unwrap();
        now.at += time;
        now.wall += time;
    }

    fn node_eligible(&self, eligible: bool) {
        self.feed.publish(Localized { node_eligible: Some(eligible), ..Localized::default() });
    }

    /// Publishes a new revision.
    fn revision(&self) -> u64 {
        let rev = self.feed.state().revision().rev;
        let zone = format!("zone-{rev}");
        let node = localnet_proto::Node { zone, ..localnet_proto::Node::default() };
        let revision = self.feed.publish(Localized { node: Some(node), ..Localized::default() }).unwrap();
        self.inputs.health();
        revision.rev
    }

    /// Waits until the status of the ports fulfils a condition.
    async fn until(&self, reached: impl FnMut(&Status) -> bool) -> Status {
        soon(self.servers.status().wait_for(reached)).await.unwrap().clone()
    }

    /// Waits until exactly these ports are open.
    async fn open(&self, ports: &[Port]) {
        let is_open =
            |(port, listening): (&Port, &Listening)| ports.contains(port) && matches!(listening, Listening::At(_));
        self.until(|status| status.len() == ports.len() && status.iter().all(is_open)).await;
    }
}

/// Waits for `future`, and panics after 20 s.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future).await.expect("timed out")
}

fn options(healthz: Option<SocketAddr>) -> Options {
    Options {
        healthz,
        node_port_addresses: NodePortAddresses(vec![NodePortAddress::Cidr("127.0.0.1/32".parse().unwrap())]),
        timeout: Duration::from_secs(10),
    }
}

/// Ports that no process uses.
fn free_ports<const N: usize>() -> [u16; N] {
    let held = [(); N].map(|()| std::net::TcpListener::bind((LOCALHOST, 0)).unwrap());
    held.each_ref().map(|listener| listener.local_addr().unwrap().port())
}

fn of(name: &str, port: u16) -> Port {
    Port { service: Some(ServiceKey::new("ns", name)), address: (LOCALHOST, port).into() }
}

async fn healthz(options: &Options) -> (Node, SocketAddr) {
    let node = Node::start(options);
    let status = node.until(|status| status.values().any(|port| matches!(port, Listening::At(_)))).await;
    let Some(Listening::At(address)) = status.into_values().next() else { panic!("the port is not open") };
    (node, address)
}

/// Sends a request. Returns the whole answer, without the headers Date and Connection.
async fn get(address: SocketAddr, request: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = soon(exchange).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let own =
        |line: &&str| !line.to_lowercase().starts_with("date: ") && !line.to_lowercase().starts_with("connection: ");
    let head: Vec<&str> = head.split("\r\n").filter(own).collect();
    format!("{}\n\n{body}", head.join("\n"))
}

fn json_answer(status: &str, more: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\nContent-Type: application/json\nX-Content-Type-Options: nosniff{more}\nContent-Length: {length}\n\n{body}"
    )
}

fn service_answer(name: &str, ready: usize, healthy: bool) -> String {
    let status = if ready != 0 && healthy { "200 OK" } else { "503 Service Unavailable" };
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"{name}\"\n\t}},\n\t\"localEndpoints\": {ready},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    );
    json_answer(status, &format!("\nX-Load-Balancing-Endpoint-Weight: {ready}"), &body)
}

#[track_caller]
fn check(answer: &str, expected: &str) {
    assert_eq!(answer, expected);
}

/// Follows `TestHealthzServer` and `TestLivezServer` of kube-proxy. The tests of `progress` cover their rules about lateness.
#[tokio::test]
async fn healthz_and_livez_answer_as_kube_proxy_does() {
    for draft in [false, true] {
        let (node, address) = healthz(&options(Some((LOCALHOST, 0).into()))).await;
        answers(Node { draft, ..node }, address).await;
    }
}

async fn answers(node: Node, address: SocketAddr) {
    let start = "2026-11-21T17:02:42Z";
    let both = |v4: &str, v6: &str, healthy: [bool; 2]| {
        format!(
            r#","status":{{"IPv4":{{"lastUpdated":"{v4}","healthy":{}}},"IPv6":{{"lastUpdated":"{v6}","healthy":{}}}}}"#,
            healthy[0], healthy[1]
        )
    };
    let body = |updated: &str, now: &str, eligible: &str, rest: &str| {
        format!(r#"{{"lastUpdated":"{updated}","currentTime":"{now}"{eligible},"healthy":{rest}}}"#)
    };
    let (yes, no) = (r#","nodeEligible":true"#, r#","nodeEligible":false"#);

    // Without any report, the proxy is healthy and has no status.
    let answer = get(address, "GET /healthz").await;
    check(&answer, &json_answer("200 OK", "", &body(start, start, yes, "true")));
    check(&get(address, "GET /livez").await, &json_answer("200 OK", "", &body(start, start, "", "true")));

    let rev = node.revision();
    node.report(&[(IpFamily::IPv4, rev), (IpFamily::IPv6, rev)]);
    node.advance(Duration::from_millis(25_500));
    let now = "2026-11-21T17:03:07.5Z";
    let rest = format!("true{}", both(start, start, [true, true]));
    check(&get(address, "GET /healthz").await, &json_answer("200 OK", "", &body(now, now, yes, &rest)));

    // A node that is about to be deleted is not eligible, but live.
    node.node_eligible(false);
    let answer = get(address, "GET /healthz").await;
    check(&answer, &json_answer("503 Service Unavailable", "", &body(start, now, no, &rest)));
    check(&get(address, "GET /livez").await, &json_answer("200 OK", "", &body(now, now, "", &rest)));
    node.node_eligible(true);
    check(&get(address, "GET /healthz").await, &json_answer("200 OK", "", &body(now, now, yes, &rest)));

    // IPv6 is late. A success of IPv4 does not change that.
    let rev = node.revision();
    node.report(&[(IpFamily::IPv4, rev), (IpFamily::IPv6, rev - 1)]);
    node.advance(Duration::from_millis(9_500));
    assert!(get(address, "GET /healthz").await.starts_with("HTTP/1.1 200 OK\n"));
    node.advance(Duration::from_millis(500));
    let (updated, now) = (now, "2026-11-21T17:03:17.5Z");
    let rest = format!("false{}", both(updated, updated, [true, false]));
    let answer = get(address, "GET /healthz").await;
    check(&answer, &json_answer("503 Service Unavailable", "", &body(updated, now, yes, &rest)));
    let answer = get(address, "GET /livez").await;
    check(&answer, &json_answer("503 Service Unavailable", "", &body(updated, now, "", &rest)));
    node.report(&[(IpFamily::IPv4, rev), (IpFamily::IPv6, rev)]);
    let rest = format!("true{}", both(now, now, [true, true]));
    check(&get(address, "GET /healthz").await, &json_answer("200 OK", "", &body(now, now, yes, &rest)));
}

#[tokio::test]
async fn other_paths_are_404_and_methods_do_not_matter() {
    let (_node, address) = healthz(&options(Some((LOCALHOST, 0).into()))).await;
    let expected = "HTTP/1.1 404 Not Found\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\nContent-Length: 19\n\n404 page not found\n";
    check(&get(address, "GET /").await, expected);
    assert!(get(address, "POST /healthz").await.starts_with("HTTP/1.1 200 OK\n"));
    assert!(get(address, "GET /healthz?verbose").await.starts_with("HTTP/1.1 200 OK\n"));
    assert!(get(address, "HEAD /livez").await.ends_with("\n\n"));
}

#[tokio::test]
async fn an_unspecified_address_means_both_families() {
    for any in ["0.0.0.0:0", "[::]:0"] {
        let (_node, address) = healthz(&options(Some(any.parse().unwrap()))).await;
        for localhost in [LOCALHOST, Ipv6Addr::LOCALHOST.into()] {
            let answer = get((localhost, address.port()).into(), "GET /livez").await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\n"), "{any} {localhost}");
        }
    }
}

#[tokio::test]
async fn a_connection_may_send_several_requests() {
    let (_node, address) = healthz(&options(Some((LOCALHOST, 0).into()))).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\"healthy\":true}") {
            assert_ne!(soon(stream.read_buf(&mut answer)).await.unwrap(), 0, "closed");
        }
    }
}

/// Follows `TestServer` of kube-proxy.
#[tokio::test]
async fn health_check_ports_follow_their_services() {
    let [p1, p2, p3, p4, p5] = free_ports();
    let node = Node::start(&options(None));
    let get_port = |port| get((LOCALHOST, port).into(), "GET /any/path");
    node.checks(&[("a", p1, 0)]);
    node.open(&[of("a", p1)]).await;
    for ready in [0, 18, 0, 11, 0, 18] {
        node.checks(&[("a", p1, ready)]);
        check(&get_port(p1).await, &service_answer("a", ready, true));
    }
    node.checks(&[]);
    node.open(&[]).await;
    assert!(TcpStream::connect((LOCALHOST, p1)).await.is_err(), "the port of a deleted Service is open");

    node.checks(&[("a", p1, 9), ("b", p2, 3), ("c", p3, 7)]);
    node.open(&[of("a", p1), of("b", p2), of("c", p3)]).await;
    for (name, port, ready) in [("a", p1, 9), ("b", p2, 3), ("c", p3, 7)] {
        check(&get_port(port).await, &service_answer(name, ready, true));
    }

    // One Service is deleted, one stays, one gets another port, and one is added.
    let services = [("b", p2, 0), ("c", p4, 7), ("d", p5, 6)];
    node.checks(&services);
    node.open(&[of("b", p2), of("c", p4), of("d", p5)]).await;
    for closed in [p1, p3] {
        assert!(TcpStream::connect((LOCALHOST, closed)).await.is_err(), "{closed} is open");
    }
    for (name, port, ready) in services {
        check(&get_port(port).await, &service_answer(name, ready, true));
    }

    // While the proxy is unhealthy, the status is 503 with the real weight.
    let rev = node.revision();
    node.report(&[(IpFamily::IPv4, rev - 1)]);
    node.advance(Duration::from_secs(10));
    for (name, port, ready) in services {
        check(&get_port(port).await, &service_answer(name, ready, false));
    }
    node.report(&[(IpFamily::IPv4, rev)]);
    for (name, port, ready) in services {
        check(&get_port(port).await, &service_answer(name, ready, true));
    }

    // The eligibility of the node does not matter here.
    node.node_eligible(false);
    check(&get_port(p4).await, &service_answer("c", 7, true));
}

/// A port that moves from one Service to another in one change must be closed before it is opened.
#[tokio::test]
async fn a_port_can_move_to_another_service() {
    let [port] = free_ports();
    let node = Node::start(&options(None));
    for name in ["b", "a", "b"] {
        node.checks(&[(name, port, 1)]);
        node.open(&[of(name, port)]).await;
        check(&get((LOCALHOST, port).into(), "GET /").await, &service_answer(name, 1, true));
    }
}

#[tokio::test]
async fn each_family_has_its_own_socket_and_count() {
    let [port] = free_ports();
    let node = Node::start(&Options { node_port_addresses: NodePortAddresses::default(), ..options(None) });
    node.publish([("a", HealthCheck { port, ready: ByFamily::new(Some(2), Some(0)) })]);
    let any = |ip: IpAddr| Port { service: Some(ServiceKey::new("ns", "a")), address: (ip, port).into() };
    let (v4, v6) = (any(Ipv4Addr::UNSPECIFIED.into()), any(Ipv6Addr::UNSPECIFIED.into()));
    node.open(&[v4, v6.clone()]).await;
    check(&get((LOCALHOST, port).into(), "GET /").await, &service_answer("a", 2, true));
    check(&get((Ipv6Addr::LOCALHOST, port).into(), "GET /").await, &service_answer("a", 0, true));

    node.publish([("a", HealthCheck { port, ready: ByFamily::new(None, Some(1)) })]);
    node.open(&[v6]).await;
    check(&get((Ipv6Addr::LOCALHOST, port).into(), "GET /").await, &service_answer("a", 1, true));
    assert!(TcpStream::connect((LOCALHOST, port)).await.is_err(), "open in a family that the Service does not have");
}

/// Follows `TestServerWithSelectiveListeningAddress` of kube-proxy.
#[tokio::test]
async fn ports_are_open_on_selected_addresses_only() {
    let [port] = free_ports();
    let within = NodePortAddresses(vec![NodePortAddress::Cidr("127.0.0.0/8".parse().unwrap())]);
    let node = Node::start(&Options { node_port_addresses: within, ..options(None) });
    node.checks(&[("a", port, 0)]);
    node.open(&[of("a", port)]).await;
    check(&get((LOCALHOST, port).into(), "GET /").await, &service_answer("a", 0, true));
    assert!(TcpStream::connect(("127.0.0.2", port)).await.is_err(), "open on an address that was not selected");
}

/// kube-proxy retries only when another Service changes.
#[tokio::test(start_paused = true)]
async fn a_port_in_use_is_retried_and_does_not_affect_others() {
    let holder = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let taken = holder.local_addr().unwrap().port();
    let [free] = free_ports();
    let node = Node::start(&options(None));
    node.checks(&[("a", taken, 1), ("b", free, 1)]);
    let tried = |times| {
        move |status: &Status| match status.get(&of("a", taken)) {
            Some(Listening::Failed { attempts, error }) => *attempts >= times && error.contains("in use"),
            _ => false,
        }
    };
    let status = node.until(tried(3)).await;
    assert_eq!(status.get(&of("b", free)), Some(&Listening::At((LOCALHOST, free).into())));
    drop(holder);
    node.open(&[of("a", taken), of("b", free)]).await;
}

#[tokio::test(start_paused = true)]
async fn healthz_is_retried_every_five_seconds() {
    let holder = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = holder.local_addr().unwrap();
    let start = tokio::time::Instant::now();
    let node = Node::start(&options(Some(address)));
    node.until(|status| status.values().any(|port| matches!(port, Listening::Failed { attempts: 3, .. }))).await;
    assert_eq!(start.elapsed().as_secs(), 10);
    drop(holder);
    node.open(&[Port { service: None, address }]).await;
    assert_eq!(start.elapsed().as_secs(), 15);
}

#[tokio::test]
async fn ports_close_with_the_servers() {
    let [port] = free_ports();
    let (node, address) = healthz(&options(Some((LOCALHOST, 0).into()))).await;
    node.checks(&[("a", port, 1)]);
    node.until(|status| matches!(status.get(&of("a", port)), Some(Listening::At(_)))).await;
    let mut status = node.servers.status();
    drop(node);
    // Each port holds a sender of the status for as long as it is open.
    while soon(status.changed()).await.is_ok() {}
    for address in [address, (LOCALHOST, port).into()] {
        assert!(TcpStream::connect(address).await.is_err(), "{address} is open");
    }
}

fn object<K, O>(object: serde_json::Value, variant: impl Fn(O) -> Object) -> Object
where
    K: serde::de::DeserializeOwned,
    O: From<K>,
{
    variant(serde_json::from_value::<K>(object).unwrap().into())
}

/// Follows a drain from objects to answers, as in the end-to-end tests of Kubernetes.
#[tokio::test]
async fn load_balancers_see_503_while_terminating_endpoints_still_serve() {
    use k8s_openapi::api::{core::v1, discovery::v1::EndpointSlice};
    let [port] = free_ports();
    let node = Node::start(&options(None));
    let mut cluster = Cluster::new(ClusterOptions::of_node("here"));
    let slice = |ready: bool, terminating: bool| {
        let endpoint = |ip: &str| json!({ "addresses": [ip], "nodeName": "here", "conditions": { "ready": ready, "serving": true, "terminating": terminating } });
        let slice = json!({
            "metadata": { "name": "a-1", "namespace": "ns", "labels": { "kubernetes.io/service-name": "a" } },
            "addressType": "IPv4",
            "ports": [{ "port": 8080, "protocol": "TCP", "name": "" }],
            "endpoints": [endpoint("10.1.0.1"), endpoint("10.1.0.2")],
        });
        object::<EndpointSlice, _>(slice, Object::Slice)
    };
    let service = json!({
        "metadata": { "name": "a", "namespace": "ns" },
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": port, "ports": [{ "port": 80, "nodePort": 30080 }],
        },
    });
    let this_node = |taint: &str| {
        let spec = json!({ "taints": [{ "key": taint, "effect": "NoSchedule" }] });
        object::<v1::Node, _>(json!({ "metadata": { "name": "here" }, "spec": spec }), Object::Node)
    };
    for (kind, objects) in [
        (Kind::Service, vec![object::<v1::Service, _>(service, Object::Service)]),
        (Kind::Slice, vec![slice(true, false)]),
        (Kind::Node, vec![this_node("other")]),
        (Kind::ServiceCidr, vec![]),
    ] {
        cluster.handle(Event::Replace { kind, objects });
    }
    let publish = |cluster: &mut Cluster| node.feed.publish(cluster.localize().unwrap());
    let eligible = || node.feed.health_facts().borrow().node_eligible;
    publish(&mut cluster);
    node.open(&[of("a", port)]).await;
    check(&get((LOCALHOST, port).into(), "GET /healthz").await, &service_answer("a", 2, true));
    assert!(eligible());

    cluster.handle(Event::Apply(slice(false, true)));
    assert_eq!(publish(&mut cluster), None, "the endpoints continue to serve, so the state is unchanged");
    check(&get((LOCALHOST, port).into(), "GET /healthz").await, &service_answer("a", 0, true));

    cluster.handle(Event::Apply(this_node("ToBeDeletedByClusterAutoscaler")));
    publish(&mut cluster);
    assert!(!eligible());
    cluster.handle(Event::Delete { kind: Kind::Node, namespace: "".into(), name: "here".into() });
    publish(&mut cluster);
    assert!(!eligible(), "the last eligibility stays after the Node was deleted");
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed() {
    let (_node, address) = healthz(&options(Some((LOCALHOST, 0).into()))).await;
    for sent in ["", "GET /healthz HTTP/1.1\r\nHost: no"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let start = tokio::time::Instant::now();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
        assert_eq!(start.elapsed().as_secs(), 1, "{sent:?}");
    }

    // After its first request, a connection may stay idle for longer.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
    let (mut answer, start) = (Vec::new(), tokio::time::Instant::now());
    _ = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
    assert_eq!(start.elapsed().as_secs(), 10);
}

/// Without answers, a load balancer would drain the node, and a liveness probe would restart the brain. Regression: with a limit of
/// 256 connections and no limit per peer, 1 of 6 probes was answered. kube-proxy, which has no limit, answered 38 of 38.
#[tokio::test]
async fn probes_are_answered_among_six_hundred_slow_clients() {
    let [port] = free_ports();
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let node =
        Node::start(&Options { node_port_addresses: NodePortAddresses::default(), ..options(Some((any, 0).into())) });
    node.checks(&[("a", port, 1)]);
    let status = node
        .until(|status| status.len() == 2 && status.values().all(|listening| matches!(listening, Listening::At(_))));
    let healthz = status.await.into_iter().find_map(|(port, listening)| match (port.service, listening) {
        (None, Listening::At(address)) => Some(address.port()),
        _ => None,
    });
    let mut slow = Vec::new();
    for port in [healthz.unwrap(), port] {
        for number in 0..600_u16 {
            // The clients have ten addresses. One of them is also that of the probes.
            let from = [127, 0, 0, 1 + (number % 10) as u8];
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((from, 0).into()).unwrap();
            let mut client = soon(socket.connect((LOCALHOST, port).into())).await.unwrap();
            let sent: &[u8] = match number % 3 {
                0 => b"",
                1 => b"GET /healthz HTTP/1.1\r\nHo",
                _ => b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\nGET /heal",
            };
            // This fails if the server has closed the connection.
            _ = client.write_all(sent).await;
            slow.push(client);
            if number % 15 == 14 {
                let answer = timeout(Duration::from_secs(5), get((LOCALHOST, port).into(), "GET /healthz"));
                let answer = answer.await.unwrap_or_else(|_| panic!("no answer beside {number} slow clients"));
                assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
            }
        }
    }
}
