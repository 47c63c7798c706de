//! Records the stacks of the running threads.
//!
//! A timer signal interrupts the running threads, and the handler records their stacks. Unwinding in a signal handler
//! cannot be made safe in every situation, so the handler skips stacks in code that is known to be unsafe. Because some
//! risk remains, profiling needs `enableProfiling`, and runs only during a request.

use std::{collections::BTreeMap, time::Duration};

use pprof::{ProfilerGuard, ProfilerGuardBuilder};
use prost::Message as _;
use tokio::{task::spawn_blocking, time::sleep};

use super::format::{self, Place};

/// Samples per second of CPU time, as in Go.
const RATE: i32 = 100;
/// A stack is skipped if its innermost frame is in one of these libraries, which may hold locks that unwinding needs.
const UNSAFE: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// The encoded profile of this time. Only one profile can be recorded at a time.
pub(super) async fn profile(duration: Duration) -> Result<Vec<u8>, String> {
    let text = |error: pprof::Error| error.to_string();
    let running = ProfilerGuardBuilder::default().frequency(RATE).blocklist(&UNSAFE).build().map_err(text)?;
    // A client that disconnects drops this future, which stops the profiler.
    sleep(duration).await;
    // Symbol names are read from the program's file, and this read blocks.
    let encoded = spawn_blocking(move || encoded(&running, duration)).await;
    encoded.map_err(|error| error.to_string())?.map_err(text)
}

fn encoded(running: &ProfilerGuard<'_>, took: Duration) -> pprof::Result<Vec<u8>> {
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
