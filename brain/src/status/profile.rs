//! `/debug/pprof`: where the process spends its time, on the paths of Go's pprof and in its format, so that `go tool pprof
//! http://NODE:10249/debug/pprof/profile`, and whatever else collects profiles of kube-proxy, works.
//!
//! A timer interrupts whichever thread runs, and its stack is noted down. To unwind a stack from a signal's handler cannot be made
//! safe whatever the thread was doing; what is known to be unsafe to interrupt is passed over. So this is done only where
//! `enableProfiling` says so, and only while somebody asks.

mod format;

use std::{collections::BTreeMap, time::Duration};

use http::{HeaderValue, StatusCode, header};
use pprof::{ProfilerGuard, ProfilerGuardBuilder};
use prost::Message as _;
use tokio::{task::spawn_blocking, time::sleep};

use self::format::Place;
use super::TEXT;
use crate::health::answer::{self, Answer};

/// Samples in a second of processor time, as Go takes them.
const RATE: i32 = 100;
/// How long a profile takes if nothing is said, and at most: what is seen is kept until its end.
const SECONDS: u64 = 30;
const MOST_SECONDS: u64 = 600;
/// Stacks that end in one of these are passed over: they hold locks that unwinding needs.
const UNSAFE: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

const INDEX: &str = "\
<html>
<head><title>/debug/pprof/</title></head>
<body>
<h1>/debug/pprof/</h1>
<ul>
<li><a href=\"profile\">profile</a>: where processor time goes; <code>seconds</code> says for how long, <code>go tool pprof</code> shows it</li>
</ul>
</body>
</html>
";

/// The answer to a path that follows `/debug/pprof`.
pub(super) async fn answer(path: &str, query: Option<&str>) -> Answer {
    match path {
        "" => moved(),
        "/" => answer::unsniffed("text/html; charset=utf-8", INDEX),
        "/profile" => profile(seconds(query)).await,
        // Go has more of them, such as its garbage collector's. kube-proxy's has no `cmdline` either, though its index names it.
        _ => failed(StatusCode::NOT_FOUND, "Unknown profile\n".to_owned()),
    }
}

fn seconds(query: Option<&str>) -> Duration {
    let said = query.into_iter().flat_map(|query| query.split('&')).find_map(|part| part.strip_prefix("seconds="));
    let seconds = said.and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0).unwrap_or(SECONDS);
    Duration::from_secs(seconds.min(MOST_SECONDS))
}

async fn profile(lasting: Duration) -> Answer {
    let broken = |error: &dyn std::fmt::Display| {
        failed(StatusCode::INTERNAL_SERVER_ERROR, format!("Could not enable CPU profiling: {error}\n"))
    };
    let running = match ProfilerGuardBuilder::default().frequency(RATE).blocklist(&UNSAFE).build() {
        Ok(running) => running,
        Err(error) => return broken(&error),
    };
    // Whoever hangs up ends it.
    sleep(lasting).await;
    // Names of functions are read from the program's file.
    match spawn_blocking(move || made(&running, lasting)).await {
        Ok(Ok(bytes)) => {
            let mut answer = answer::unsniffed("application/octet-stream", bytes);
            let named = HeaderValue::from_static("attachment; filename=\"profile\"");
            answer.headers_mut().insert(header::CONTENT_DISPOSITION, named);
            answer
        }
        Ok(Err(error)) => broken(&error),
        Err(error) => broken(&error),
    }
}

fn made(running: &ProfilerGuard<'_>, took: Duration) -> pprof::Result<Vec<u8>> {
    let report = running.report().build()?;
    let mut stacks: BTreeMap<Vec<Place>, i64> = BTreeMap::new();
    for (frames, count) in &report.data {
        let symbols = frames.frames.iter().flatten();
        let place = symbols.map(|symbol| Place {
            function: symbol.name(),
            file: symbol.filename().into_owned(),
            line: symbol.lineno(),
        });
        *stacks.entry(place.collect()).or_default() += i64::try_from(*count).unwrap_or(i64::MAX);
    }
    Ok(format::profile(&stacks, RATE.into(), report.timing.start_time, took).encode_to_vec())
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

    use super::*;

    #[inline(never)]
    fn spend_time_in_here(until: &AtomicBool) {
        let mut sum = 0_u64;
        while !until.load(Ordering::Relaxed) {
            for number in 0..1000 {
                sum = black_box(sum.wrapping_mul(31) ^ number);
            }
        }
    }

    #[tokio::test]
    async fn a_profile_names_where_time_is_spent_and_one_is_made_at_a_time() {
        let until = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let until = until.clone();
            move || spend_time_in_here(&until)
        });
        let query = Some("debug=1&seconds=1");
        let (one, other) = tokio::join!(answer("/profile", query), answer("/profile", query));
        until.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        assert_eq!((one.status(), other.status()), (StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR));
        assert_eq!(one.headers()["content-type"], "application/octet-stream");
        let body = one.into_body().collect().await.unwrap().to_bytes();
        let profile = format::Profile::decode(&*body).unwrap();
        let named = profile.string_table.iter().any(|text| text.contains("spend_time_in_here"));
        assert!(named && !profile.sample.is_empty(), "{:?}", profile.string_table);
    }

    #[tokio::test]
    async fn pages_are_those_of_go() {
        for (path, status) in [("", 302), ("/", 200), ("/cmdline", 404), ("/heap", 404), ("/profile/", 404)] {
            assert_eq!(answer(path, None).await.status().as_u16(), status, "{path}");
        }
    }

    #[test]
    fn it_takes_as_long_as_is_said() {
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
