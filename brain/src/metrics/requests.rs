//! [`Requests`]: what is asked of the API server, by the metrics that Kubernetes' own client has for it.

use std::time::Instant;

use http::{Method, StatusCode};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use super::with;

/// Upper limits in seconds, as Kubernetes' client has them.
const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// Upper limits in bytes: 64 B to 16 MiB.
const BYTES: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];
/// The code of a request that nobody answered.
const NO_ANSWER: &str = "<error>";

/// Counts requests to the API server. Clones share it.
#[derive(Clone, Debug)]
pub struct Requests {
    total: IntCounterVec,
    took: HistogramVec,
    sent: HistogramVec,
    received: HistogramVec,
}

/// Told to nobody.
impl Default for Requests {
    fn default() -> Self {
        Self::told_to(&Registry::new())
    }
}

impl Requests {
    pub(super) fn told_to(registry: &Registry) -> Self {
        let histogram = |name: &str, help: &str, limits: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(limits.to_vec());
            with(registry, HistogramVec::new(options, &["verb", "host"]))
        };
        let total = Opts::new("rest_client_requests_total", "Requests to the API server by status");
        Self {
            total: with(registry, IntCounterVec::new(total, &["code", "method", "host"])),
            took: histogram(
                "rest_client_request_duration_seconds",
                "How long requests to the API server took, but for watches",
                &SECONDS,
            ),
            sent: histogram(
                "rest_client_request_size_bytes",
                "Bytes that were sent with requests to the API server, but for watches",
                &BYTES,
            ),
            received: histogram(
                "rest_client_response_size_bytes",
                "Bytes of the API server's answers, but for watches",
                &BYTES,
            ),
        }
    }

    /// `host` is being asked; `bytes` are sent, if that is known. A watch has no end to measure.
    pub(crate) fn ask(&self, host: String, method: &Method, bytes: Option<u64>, watch: bool) -> Asked {
        let asked = Asked {
            of: self.clone(),
            host,
            verb: method.to_string(),
            began: (!watch).then(Instant::now),
            received: None,
        };
        if let Some(bytes) = bytes.filter(|_| !watch) {
            self.sent.with_label_values(&asked.labels()).observe(bytes as f64);
        }
        asked
    }
}

/// A request, until its answer has been read or thrown away.
#[derive(Debug)]
pub(crate) struct Asked {
    of: Requests,
    host: String,
    verb: String,
    /// When; none for a watch.
    began: Option<Instant>,
    /// Bytes of the answer, if there is one.
    received: Option<u64>,
}

impl Asked {
    fn labels(&self) -> [&str; 2] {
        [&self.verb, &self.host]
    }

    /// The head of the answer has come.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.received = Some(0);
        self.of.total.with_label_values(&[status.as_str(), &self.verb, &self.host]).inc();
    }

    /// A part of the answer has come.
    pub(crate) fn received(&mut self, bytes: usize) {
        if let Some(received) = &mut self.received {
            *received += u64::try_from(bytes).unwrap_or(u64::MAX);
        }
    }
}

impl Drop for Asked {
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
    fn requests_are_told_as_kubernetes_own_client_does() {
        let registry = Registry::new();
        let requests = Requests::told_to(&registry);
        let ask = |watch| requests.ask("10.96.0.1:443".to_owned(), &Method::GET, Some(0), watch);
        let mut list = ask(false);
        list.answered(StatusCode::OK);
        list.received(300);
        list.received(300);
        drop(list);
        ask(true).answered(StatusCode::OK);
        drop(ask(false));
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
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
