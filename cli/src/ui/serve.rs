//! Serves the page of `localnet ui` with hyper, on one thread.

use std::{convert::Infallible, rc::Rc, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::{net::TcpListener, select, sync::Semaphore, task::spawn_local, time::sleep};

use super::{Ask, POLICY, Route, route};
use crate::failure::Failure;

/// The maximum number of connections at a time. A browser opens six.
const MOST: usize = 64;
/// How long a client may take to send a request, or may idle.
const IDLE: Duration = Duration::from_secs(60);
/// The pause after a failed accept, for instance because the process has no file descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// The answer to a question: JSON, or why there is none.
pub type Answer = Result<Vec<u8>, Failure>;

/// Why there is no answer, as JSON.
#[derive(Serialize)]
struct Problem<'a> {
    error: &'a str,
}

/// Serves the page until `ended` resolves. Must be called in a [`tokio::task::LocalSet`]. `secret` is the first part of the path.
pub async fn serve<A, F>(listener: TcpListener, secret: String, answer: A, ended: impl Future<Output = ()>)
where
    A: Fn(Ask) -> F + 'static,
    F: Future<Output = Answer> + 'static,
{
    let (secret, answer) = (Rc::new(secret), Rc::new(answer));
    let places = Arc::new(Semaphore::new(MOST));
    let accept = async {
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (secret, answer) = (Rc::clone(&secret), Rc::clone(&answer));
                    let respond = service_fn(move |request| respond(Rc::clone(&secret), Rc::clone(&answer), request));
                    spawn_local(async move {
                        let mut http = http1::Builder::new();
                        http.timer(TokioTimer::new()).header_read_timeout(IDLE);
                        // A client that disconnects is no error of the server.
                        _ = http.serve_connection(TokioIo::new(stream), respond).await;
                        drop(place);
                    });
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    };
    select! {
        () = accept => {}
        () = ended => {}
    }
}

async fn respond<A, F>(
    secret: Rc<String>,
    answer: Rc<A>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible>
where
    A: Fn(Ask) -> F,
    F: Future<Output = Answer>,
{
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    Ok(match route(&secret, request.method(), uri.path(), query, request.headers()) {
        Route::Asset(asset) => response(StatusCode::OK, asset.kind, Bytes::from_static(asset.text.as_bytes())),
        Route::Refused(code, why) => response(code, "text/plain; charset=utf-8", Bytes::from(format!("{why}\n"))),
        Route::Ask(ask) => match answer(ask).await {
            Ok(json) => response(StatusCode::OK, "application/json", Bytes::from(json)),
            Err(failure) => {
                let code = match failure {
                    Failure::Usage(_) => StatusCode::BAD_REQUEST,
                    Failure::Unreadable(_) => StatusCode::SERVICE_UNAVAILABLE,
                    Failure::Missing(_) => StatusCode::NOT_FOUND,
                };
                // A text can always be written as JSON.
                let json = serde_json::to_vec(&Problem { error: &failure.to_string() }).unwrap_or_default();
                response(code, "application/json", Bytes::from(json))
            }
        },
    })
}

fn response(code: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
