//! Tests of the events that warnings of backends become.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use localnet_brain::{events::Events, reports::Reports, watch::kube::ApiServer};
use localnet_proto::wire::{BackendReport, BackendWarning};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};
use tower::service_fn;

use crate::fake::soon;

/// An API server that records all requests. It answers with these codes in turn, and with 201 from then on.
fn api(mut codes: Vec<u16>) -> (ApiServer, mpsc::UnboundedReceiver<(String, Value)>) {
    let (sent, received) = mpsc::unbounded_channel();
    codes.reverse();
    let codes = std::sync::Arc::new(std::sync::Mutex::new(codes));
    let service = service_fn(move |request: http::Request<Body>| {
        let (sent, codes) = (sent.clone(), codes.clone());
        async move {
            let request_line = format!("{} {}", request.method(), request.uri().path());
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let event: Value = serde_json::from_slice(&body).unwrap();
            let code = codes.lock().unwrap().pop().unwrap_or(201);
            let answer = match code {
                201 => event.clone(),
                code => {
                    json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": code})
                }
            };
            sent.send((request_line, event)).unwrap();
            let answer = http::Response::builder().status(code).body(Full::new(Bytes::from(answer.to_string())));
            Ok::<_, std::io::Error>(answer.unwrap())
        }
    });
    (ApiServer::new("http://api.test", service), received)
}

fn report(backend: &str, warnings: &[(&str, &str)]) -> BackendReport {
    let warnings = warnings.iter().map(|(reason, note)| BackendWarning {
        reason: (*reason).to_owned(),
        note: (*note).to_owned(),
        ..BackendWarning::default()
    });
    BackendReport { backend: backend.to_owned(), warnings: warnings.collect(), ..BackendReport::default() }
}

#[tokio::test(start_paused = true)]
async fn each_warning_is_posted_once() {
    let (api, mut received) = api(vec![500, 201, 403]);
    let (reports, mut work) = (Reports::default(), JoinSet::new());
    let events = Events::start(&api, "node-a", &mut work);
    events.post_warnings(&reports, &mut work);
    reports.record(report("nft", &[])).unwrap();
    reports.record(report("ipvs", &[("IPVSDeprecation", "take another one")])).unwrap();
    // The first attempt failed, so the event is posted again.
    for _ in 0..2 {
        let (request_line, event) = soon(received.recv()).await.unwrap();
        assert_eq!(request_line, "POST /apis/events.k8s.io/v1/namespaces/default/events");
        let field = |path: &str| event.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        assert_eq!(
            ["/type", "/reason", "/note", "/action", "/reportingController", "/reportingInstance"].map(field),
            ["Warning", "IPVSDeprecation", "take another one", "StartKubeProxy", "localnet", "localnet-node-a"]
        );
        assert_eq!(event["regarding"], json!({"kind": "Node", "name": "node-a", "uid": "node-a"}));
    }
    // A repeated warning is not posted again, a new one is.
    reports.record(report("ipvs", &[("IPVSDeprecation", "take another one")])).unwrap();
    let both = [("IPVSDeprecation", "take another one"), ("Other", "a second one")];
    reports.record(report("ipvs", &both)).unwrap();
    let (_, event) = soon(received.recv()).await.unwrap();
    assert_eq!((&event["reason"], &event["note"]), (&json!("Other"), &json!("a second one")));
    // That event was refused, which does not affect later ones. A warning that disappears and returns is posted again.
    reports.record(report("ipvs", &[("IPVSDeprecation", "take another one")])).unwrap();
    tokio::task::yield_now().await;
    reports.record(report("ipvs", &both)).unwrap();
    let (_, event) = soon(received.recv()).await.unwrap();
    assert_eq!(event["reason"], json!("Other"));
    assert!(received.try_recv().is_err());
}
