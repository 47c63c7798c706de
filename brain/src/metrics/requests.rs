//! [`Requests`]: the metrics of requests to the API server, with the names of client-go.

use std::time::Instant;

use http::{Method, StatusCode};
use prometheus::{HistogramVec, IntCounterVec};

use super::register::Register;

/// The upper limits of buckets in seconds, as in client-go.
const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The upper limits of buckets in bytes, from 64 B to 16 MiB.
const BYTES: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];
/// The value of the label `code` for a request without an answer, as in client-go.
const NO_ANSWER: &str = "<error>";

/// The metrics of requests to the API server. Clones share them.
#[derive(Clone, Debug)]
pub struct Requests {
    total: IntCounterVec,
    took: HistogramVec,
    sent: HistogramVec,
    received: HistogramVec,
}

/// The default metrics are not exported.
impl Default for Requests {
    fn default() -> Self {
        Self::register(&Register::default())
    }
}

impl Requests {
    pub(super) fn register(register: &Register) -> Self {
        let histograms =
            |name, help, limits: &[f64]| register.histograms(name, help, &["verb", "host"], limits.to_vec());
        Self {
            total: register.counters(
                "rest_client_requests_total",
                "Requests to the API server, by HTTP status, method and host; the status is <error> if there was no answer.",
                &["code", "method", "host"],
            ),
            took: histograms(
                "rest_client_request_duration_seconds",
                "Seconds from a request to the API server until its answer was read, excluding watches.",
                &SECONDS,
            ),
            sent: histograms(
                "rest_client_request_size_bytes",
                "Size of the bodies of requests to the API server, in bytes, excluding watches.",
                &BYTES,
            ),
            received: histograms(
                "rest_client_response_size_bytes",
                "Size of the bodies of answers of the API server, in bytes, excluding watches.",
                &BYTES,
            ),
        }
    }

    /// Starts to measure a request to `host`. `bytes` is the size of its body, if known. A watch is counted, but not
    /// measured.
    pub(crate) fn ask(&self, host: String, method: &Method, bytes: Option<u64>, watch: bool) -> Request {
        let request = Request {
            of: self.clone(),
            host,
            verb: method.to_string(),
            began: (!watch).then(Instant::now),
            received: None,
        };
        if let Some(bytes) = bytes.filter(|_| !watch) {
            self.sent.with_label_values(&request.labels()).observe(bytes as f64);
        }
        request
    }
}

/// A request in progress. Dropping it records the request.
#[derive(Debug)]
pub(crate) struct Request {
    of: Requests,
    host: String,
    verb: String,
    /// When the request started. `None` for a watch.
    began: Option<Instant>,
    /// The bytes of the answer so far. `None` if there is no answer.
    received: Option<u64>,
}

impl Request {
    fn labels(&self) -> [&str; 2] {
        [&self.verb, &self.host]
    }

    /// Records the status of the answer.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.received = Some(0);
        self.of.total.with_label_values(&[status.as_str(), &self.verb, &self.host]).inc();
    }

    /// Counts a part of the answer.
    pub(crate) fn received(&mut self, bytes: usize) {
        if let Some(received) = &mut self.received {
            *received += u64::try_from(bytes).unwrap_or(u64::MAX);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.received.is_none() {
            self.of.total.with_label_values(&[NO_ANSWER, &self.verb, &self.host]).inc();
        }
        let Some(began) = self.began else { return };
        self.of.took.with_label_values(&self.labels()).observe(began.elapsed().as_secs_f64());
        if let Some(received) = self.received {
            self.of.received.with_label_values(&self.labels()).observe(received as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder as _, TextEncoder};

    use super::*;

    #[test]
    fn requests_are_exported_as_in_client_go() {
        let register = Register::default();
        let requests = Requests::register(&register);
        let ask = |watch| requests.ask("10.96.0.1:443".to_owned(), &Method::GET, Some(0), watch);
        let mut list = ask(false);
        list.answered(StatusCode::OK);
        list.received(300);
        list.received(300);
        drop(list);
        ask(true).answered(StatusCode::OK);
        drop(ask(false));
        let mut text = Vec::new();
        TextEncoder::new().encode(&register.0.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"10.96.0.1:443\",method=\"GET\"} 2",
            "rest_client_requests_total{code=\"<error>\",host=\"10.96.0.1:443\",method=\"GET\"} 1",
            "rest_client_request_duration_seconds_count{host=\"10.96.0.1:443\",verb=\"GET\"} 2",
            "rest_client_request_size_bytes_count{host=\"10.96.0.1:443\",verb=\"GET\"} 2",
            "rest_client_response_size_bytes_count{host=\"10.96.0.1:443\",verb=\"GET\"} 1",
            "rest_client_response_size_bytes_sum{host=\"10.96.0.1:443\",verb=\"GET\"} 600",
        ] {
            assert!(text.lines().any(|is| is == line), "{line} is not in\n{text}");
        }
    }
}
