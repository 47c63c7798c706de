//! The metrics `process_…`, which all client libraries of Prometheus export.

use procfs::{WithCurrentSystemInfo as _, process::Process};
use prometheus::proto::MetricFamily;

use crate::metrics::families::{counter, gauge};

/// The metrics of this process, as far as `/proc` has them.
pub(super) fn families() -> Vec<MetricFamily> {
    let Ok(process) = Process::myself() else { return Vec::new() };
    let mut families = Vec::new();
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second() as f64;
        families.push(counter(
            "process_cpu_seconds_total",
            "User and system CPU time that the process has used, in seconds.",
            vec![(vec![], (stat.utime + stat.stime) as f64 / ticks)],
        ));
        families.push(gauge(
            "process_resident_memory_bytes",
            "Resident memory of the process, in bytes.",
            vec![(vec![], stat.rss_bytes().get() as f64)],
        ));
        families.push(gauge(
            "process_virtual_memory_bytes",
            "Virtual memory of the process, in bytes.",
            vec![(vec![], stat.vsize as f64)],
        ));
        families.push(gauge(
            "process_threads",
            "Number of threads of the process.",
            vec![(vec![], stat.num_threads as f64)],
        ));
        if let Ok(booted) = procfs::boot_time_secs() {
            families.push(gauge(
                "process_start_time_seconds",
                "Unix time at which the process started, in seconds.",
                vec![(vec![], booted as f64 + stat.starttime as f64 / ticks)],
            ));
        }
    }
    if let Ok(open) = process.fd_count() {
        families.push(gauge(
            "process_open_fds",
            "Number of open file descriptors of the process.",
            vec![(vec![], open as f64)],
        ));
    }
    if let Ok(limits) = process.limits()
        && let procfs::process::LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        families.push(gauge(
            "process_max_fds",
            "Maximum number of open file descriptors of the process.",
            vec![(vec![], most as f64)],
        ));
    }
    families
}
