//! The metrics `process_…`, which all client libraries of Prometheus export.

use procfs::{
    WithCurrentSystemInfo as _,
    process::{LimitValue, Process},
};
use prometheus::proto::MetricFamily;

use crate::metrics::families::{counter, gauge};

/// The metrics of this process, as far as `/proc` has them.
pub(super) fn families() -> Vec<MetricFamily> {
    let Ok(process) = Process::myself() else { return Vec::new() };
    let ticks = procfs::ticks_per_second() as f64;
    let stat = process.stat().ok();
    let used = stat.as_ref().map(|stat| (stat.utime + stat.stime) as f64 / ticks);
    let started = stat.as_ref().zip(procfs::boot_time_secs().ok());
    let limits = process.limits().ok().map(|limits| limits.max_open_files.soft_limit);
    let gauges = [
        (
            "process_resident_memory_bytes",
            "Resident memory of the process, in bytes.",
            stat.as_ref().map(|stat| stat.rss_bytes().get() as f64),
        ),
        (
            "process_virtual_memory_bytes",
            "Virtual memory of the process, in bytes.",
            stat.as_ref().map(|stat| stat.vsize as f64),
        ),
        ("process_threads", "Number of threads of the process.", stat.as_ref().map(|stat| stat.num_threads as f64)),
        (
            "process_start_time_seconds",
            "Unix time at which the process started, in seconds.",
            started.map(|(stat, booted)| booted as f64 + stat.starttime as f64 / ticks),
        ),
        (
            "process_open_fds",
            "Number of open file descriptors of the process.",
            process.fd_count().ok().map(|open| open as f64),
        ),
        (
            "process_max_fds",
            "Maximum number of open file descriptors of the process.",
            limits.and_then(|most| if let LimitValue::Value(most) = most { Some(most as f64) } else { None }),
        ),
    ];
    let help = "User and system CPU time that the process has used, in seconds.";
    let used = used.map(|used| counter("process_cpu_seconds_total", help, vec![(vec![], used)]));
    let gauges = gauges.into_iter().filter_map(|(name, help, value)| Some(gauge(name, help, vec![(vec![], value?)])));
    used.into_iter().chain(gauges).collect()
}
