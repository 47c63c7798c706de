//! `/debug/pprof`: CPU profiles on the paths and in the format of Go's `net/http/pprof`. `go tool pprof
//! http://NODE:10249/debug/pprof/profile` and other tools that profile kube-proxy work unchanged.

#[cfg(unix)]
mod format;
#[cfg(unix)]
mod stacks;

use std::time::Duration;

use http::{HeaderValue, StatusCode, header};

use super::TEXT;
use crate::health::answer::{self, Answer};

/// The default duration of a profile.
const DEFAULT_SECONDS: u64 = 30;
/// The maximum duration of a profile. All samples stay in memory until the end.
const MAX_SECONDS: u64 = 600;

const INDEX: &str = "\
<html>
<head><title>/debug/pprof/</title></head>
<body>
<h1>/debug/pprof/</h1>
<ul>
<li><a href=\"profile\">profile</a>: a CPU profile of <code>seconds</code> (default 30), for <code>go tool pprof</code></li>
</ul>
</body>
</html>
";

/// Answers a request. `path` is the part of the path after `/debug/pprof`.
pub(super) async fn answer(path: &str, query: Option<&str>) -> Answer {
    match path {
        "" => moved(),
        "/" => answer::unsniffed("text/html; charset=utf-8", INDEX),
        "/profile" => profile(seconds(query)).await,
        // Go's other profiles, such as `heap`, describe Go's runtime. kube-proxy does not serve `cmdline` either.
        _ => failed(StatusCode::NOT_FOUND, "Unknown profile\n".to_owned()),
    }
}

fn seconds(query: Option<&str>) -> Duration {
    let value = query.into_iter().flat_map(|query| query.split('&')).find_map(|part| part.strip_prefix("seconds="));
    let seconds = value.and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_SECONDS);
    Duration::from_secs(seconds.min(MAX_SECONDS))
}

async fn profile(duration: Duration) -> Answer {
    match stacks::profile(duration).await {
        Ok(bytes) => {
            let mut answer = answer::unsniffed("application/octet-stream", bytes);
            let named = HeaderValue::from_static("attachment; filename=\"profile\"");
            answer.headers_mut().insert(header::CONTENT_DISPOSITION, named);
            answer
        }
        Err(error) => failed(StatusCode::INTERNAL_SERVER_ERROR, format!("Could not enable CPU profiling: {error}\n")),
    }
}

/// Windows has no signals that interrupt threads.
#[cfg(windows)]
mod stacks {
    pub(super) async fn profile(_: super::Duration) -> Result<Vec<u8>, &'static str> {
        Err("localnet-brain records no profiles on Windows; use Windows Performance Recorder")
    }
}

fn moved() -> Answer {
    let mut answer = answer::of_type("text/html; charset=utf-8", "<a href=\"/debug/pprof/\">Found</a>.\n\n");
    *answer.status_mut() = StatusCode::FOUND;
    answer.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/debug/pprof/"));
    answer
}

fn failed(status: StatusCode, text: String) -> Answer {
    let mut answer = answer::unsniffed(TEXT, text);
    *answer.status_mut() = status;
    answer.headers_mut().insert("x-go-pprof", HeaderValue::from_static("1"));
    answer
}

#[cfg(test)]
mod tests {
    use std::{
        hint::black_box,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread,
    };

    use http_body_util::BodyExt as _;
    use prost::Message as _;

    use super::*;

    #[inline(never)]
    fn busy_function(stop: &AtomicBool) {
        let mut sum = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            for number in 0..1000 {
                sum = black_box(sum.wrapping_mul(31) ^ number);
            }
        }
    }

    #[tokio::test]
    async fn a_profile_names_the_busy_function_and_only_one_runs_at_a_time() {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = stop.clone();
            move || busy_function(&stop)
        });
        let query = Some("debug=1&seconds=1");
        let (one, other) = tokio::join!(answer("/profile", query), answer("/profile", query));
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        assert_eq!((one.status(), other.status()), (StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR));
        assert_eq!(one.headers()["content-type"], "application/octet-stream");
        let body = one.into_body().collect().await.unwrap().to_bytes();
        let profile = format::Profile::decode(&*body).unwrap();
        let named = profile.string_table.iter().any(|text| text.contains("busy_function"));
        assert!(named && !profile.sample.is_empty(), "{:?}", profile.string_table);
    }

    #[tokio::test]
    async fn paths_and_status_codes_match_go() {
        for (path, status) in [("", 302), ("/", 200), ("/cmdline", 404), ("/heap", 404), ("/profile/", 404)] {
            assert_eq!(answer(path, None).await.status().as_u16(), status, "{path}");
        }
    }

    #[test]
    fn the_query_sets_the_duration_within_limits() {
        for (query, expected) in [
            (None, 30),
            (Some("seconds=5"), 5),
            (Some("debug=1&seconds=7"), 7),
            (Some("seconds=0"), 30),
            (Some("seconds=-1"), 30),
            (Some("seconds=x"), 30),
            (Some("seconds=100000"), 600),
        ] {
            assert_eq!(seconds(query).as_secs(), expected, "{query:?}");
        }
    }
}
