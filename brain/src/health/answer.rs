//! The HTTP answers to health checks. They equal the answers of kube-proxy v1.37 byte for byte, because load balancers of
//! cloud providers parse them. Pure.

use std::{collections::BTreeMap, time::SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use k8s_openapi::jiff::Timestamp;
use localnet_proto::ServiceKey;
use serde::Serialize;

use super::progress::Health;

/// Go's zero time, which kube-proxy sends for "never".
const NEVER: &str = "0001-01-01T00:00:00Z";

/// An HTTP response with a complete body.
pub type Answer = Response<Full<Bytes>>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyHealth {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, ProxierHealth>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxierHealth {
    last_updated: String,
    healthy: bool,
}

/// The answer to `/healthz`: whether load balancers may send traffic to this node. It concerns only Services with
/// `externalTrafficPolicy: Cluster`.
pub fn healthz(health: &Health, node_eligible: bool, now: SystemTime) -> Answer {
    proxy(health, Some(node_eligible), now)
}

/// The answer to `/livez`: whether the proxy works. Unlike `/healthz`, it does not change if the node is about to be
/// deleted (KEP-3836).
pub fn livez(health: &Health, now: SystemTime) -> Answer {
    proxy(health, None, now)
}

/// The answer to any other path.
pub fn not_found() -> Answer {
    let mut answer = Response::new(Full::from("404 page not found\n"));
    *answer.status_mut() = StatusCode::NOT_FOUND;
    typed(answer, "text/plain; charset=utf-8")
}

/// The answer on the health check port of a Service: whether load balancers may send traffic for the Service to this
/// node.
pub fn service(key: &ServiceKey, ready: usize, proxy_healthy: bool) -> Answer {
    let (namespace, name) = (json_text(&key.namespace), json_text(&key.name));
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\t\"localEndpoints\": {ready},\n\t\"serviceProxyHealthy\": {proxy_healthy}\n}}"
    );
    let mut answer = json(ready != 0 && proxy_healthy, body);
    answer.headers_mut().insert("x-load-balancing-endpoint-weight", HeaderValue::from(ready));
    answer
}

fn proxy(health: &Health, node_eligible: Option<bool>, now: SystemTime) -> Answer {
    let healthy = health.is_healthy();
    let good = healthy && node_eligible.unwrap_or(true);
    // As in kube-proxy: if the answer is healthy, `lastUpdated` is the current time. If it were an old time, some clients
    // would conclude that the proxy hangs.
    let last_updated = if good { Some(now) } else { health.last_updated() };
    let status = health.families.iter().map(|(family, health)| {
        (family.as_str(), ProxierHealth { last_updated: time(health.last_updated), healthy: health.is_healthy() })
    });
    let body = ProxyHealth {
        last_updated: last_updated.map_or_else(|| NEVER.to_owned(), time),
        current_time: time(now),
        node_eligible,
        healthy,
        status: status.collect(),
    };
    json(good, serde_json::to_string(&body).expect("strings and booleans can always be serialized"))
}

/// A response with status 200 and this content type.
pub fn of_type(content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// Like [`of_type`], but with the header `X-Content-Type-Options: nosniff`, so that browsers do not guess another type.
pub fn unsniffed(content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    typed(Response::new(Full::new(body.into())), content_type)
}

fn json(good: bool, body: String) -> Answer {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    typed(answer, "application/json")
}

fn typed(mut answer: Answer, content_type: &'static str) -> Answer {
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

fn json_text(text: &str) -> serde_json::Value {
    text.into()
}

/// The time in RFC 3339, with as many fractional digits as necessary.
fn time(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| NEVER.to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    use localnet_proto::Family;

    use super::*;
    use crate::health::progress::FamilyHealth;

    /// 2026-11-21T17:02:42Z
    const THEN: u64 = 1_795_280_562;

    fn at(nanos: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(THEN) + Duration::from_nanos(nanos)
    }

    fn health(families: &[(Family, u64, &[&str])]) -> Health {
        let families = families.iter().map(|(family, nanos, late)| {
            (*family, FamilyHealth { last_updated: at(*nanos), late: late.iter().map(ToString::to_string).collect() })
        });
        Health { families: families.collect() }
    }

    #[track_caller]
    fn check(answer: Answer, status: u16, headers: &[(&str, &str)], body: &str) {
        let (head, got) = answer.into_parts();
        let got = got.collect().now_or_never().unwrap().unwrap().to_bytes();
        assert_eq!(std::str::from_utf8(&got).unwrap(), body);
        assert_eq!(head.status, status);
        let got: Vec<_> = head.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(got, headers);
    }

    const JSON: [(&str, &str); 2] = [("content-type", "application/json"), ("x-content-type-options", "nosniff")];

    #[test]
    fn a_proxy_without_reports_is_healthy() {
        let now = "2026-11-21T17:02:42.10565701Z";
        let body = format!(r#"{{"lastUpdated":"{now}","currentTime":"{now}","nodeEligible":true,"healthy":true}}"#);
        check(healthz(&Health::default(), true, at(105_657_010)), 200, &JSON, &body);
        let body = format!(r#"{{"lastUpdated":"{now}","currentTime":"{now}","healthy":true}}"#);
        check(livez(&Health::default(), at(105_657_010)), 200, &JSON, &body);
        let body = r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-11-21T17:02:42Z","nodeEligible":false,"healthy":true}"#;
        check(healthz(&Health::default(), false, at(0)), 503, &JSON, body);
    }

    #[test]
    fn an_unhealthy_answer_has_the_last_update_of_each_family() {
        let health = health(&[(Family::V4, 58_289_394, &[]), (Family::V6, 58_293_303, &["nft"])]);
        let status = r#""status":{"IPv4":{"lastUpdated":"2026-11-21T17:02:42.058289394Z","healthy":true},"IPv6":{"lastUpdated":"2026-11-21T17:02:42.058293303Z","healthy":false}}"#;
        let times = r#""lastUpdated":"2026-11-21T17:02:42.058293303Z","currentTime":"2026-11-21T17:02:46.159121722Z""#;
        let now = at(4_159_121_722);
        let body = format!(r#"{{{times},"nodeEligible":true,"healthy":false,{status}}}"#);
        check(healthz(&health, true, now), 503, &JSON, &body);
        let body = format!(r#"{{{times},"healthy":false,{status}}}"#);
        check(livez(&health, now), 503, &JSON, &body);
    }

    #[test]
    fn a_healthy_proxy_on_an_ineligible_node_is_live() {
        let health = health(&[(Family::V4, 0, &[])]);
        let status = r#""healthy":true,"status":{"IPv4":{"lastUpdated":"2026-11-21T17:02:42Z","healthy":true}}"#;
        let body = format!(
            r#"{{"lastUpdated":"2026-11-21T17:02:42Z","currentTime":"2026-11-21T17:02:43Z","nodeEligible":false,{status}}}"#
        );
        check(healthz(&health, false, at(1_000_000_000)), 503, &JSON, &body);
        let body = format!(r#"{{"lastUpdated":"2026-11-21T17:02:43Z","currentTime":"2026-11-21T17:02:43Z",{status}}}"#);
        check(livez(&health, at(1_000_000_000)), 200, &JSON, &body);
    }

    #[test]
    fn a_service_is_healthy_if_it_has_ready_endpoints_and_the_proxy_is() {
        let body = |ready: &str, healthy: &str| {
            [
                "{",
                "\t\"service\": {",
                "\t\t\"namespace\": \"default\",",
                "\t\t\"name\": \"web\"",
                "\t},",
                &format!("\t\"localEndpoints\": {ready},"),
                &format!("\t\"serviceProxyHealthy\": {healthy}"),
                "}",
            ]
            .join("\n")
        };
        let rows = [(18, true, 200), (0, true, 503), (7, false, 503), (0, false, 503)];
        for (ready, healthy, status) in rows {
            let text = ready.to_string();
            let headers = [JSON[0], JSON[1], ("x-load-balancing-endpoint-weight", &text)];
            let answer = service(&ServiceKey::new("default", "web"), ready, healthy);
            check(answer, status, &headers, &body(&text, &healthy.to_string()));
        }
    }

    #[test]
    fn other_paths_are_not_found() {
        let headers = [("content-type", "text/plain; charset=utf-8"), JSON[1]];
        check(not_found(), 404, &headers, "404 page not found\n");
    }
}
