//! Tests of invalid configurations: each is one line of error.

use std::fs;

use localnet_brain::watch::kube::{ApiServer, KeepAlive};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The error of a kubeconfig with this content, or of a missing one.
async fn error_of(content: Option<&str>) -> String {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    if let Some(content) = content {
        fs::write(&path, content).unwrap();
    }
    let error = ApiServer::from_kubeconfig(Some(&path), None, KeepAlive::default()).await.unwrap_err();
    let text = format!("{error:#}");
    assert!(!text.contains('\n'), "{text}");
    text
}

fn kubeconfig(cluster: &Value, user: &Value) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "c", "cluster": cluster }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    })
    .to_string()
}

#[tokio::test]
async fn an_invalid_configuration_is_an_error_that_names_the_problem() {
    let server = json!({ "server": "https://127.0.0.1:1" });
    let rows = [
        (None, "No such file or directory"),
        (Some("clusters: [".to_owned()), "YAML"),
        (
            Some(kubeconfig(&server, &json!({})).replace(r#""current-context":"x""#, r#""current-context":"y""#)),
            "context",
        ),
        (Some(kubeconfig(&json!({}), &json!({}))), "cluster url is missing"),
        (
            Some(kubeconfig(
                &json!({ "server": "https://127.0.0.1:1", "certificate-authority": "/none.crt" }),
                &json!({}),
            )),
            "/none.crt",
        ),
        (Some(kubeconfig(&server, &json!({ "client-certificate": "/none.crt", "client-key": "/none.key" }))), "/none."),
        (
            Some(kubeconfig(&json!({ "server": "https://127.0.0.1:1", "proxy-url": "http://p:1" }), &json!({}))),
            "proxy-url http://p:1/ is not supported; remove it",
        ),
    ];
    for (content, problem) in rows {
        let text = error_of(content.as_deref()).await;
        assert!(text.starts_with("failed to use") && text.contains(problem), "{problem:?} is missing in {text:?}");
    }
}

#[tokio::test]
async fn an_unavailable_api_server_is_no_error_of_the_configuration() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kubeconfig");
    fs::write(&path, kubeconfig(&json!({ "server": "http://127.0.0.1:1" }), &json!({}))).unwrap();
    ApiServer::from_kubeconfig(Some(&path), None, KeepAlive::default()).await.unwrap();
}
