//! The metrics `process_…`, which all client libraries of Prometheus export.

use procfs::{
    WithCurrentSystemInfo as _,
    process::{LimitValue, Process},
};

use super::page::Page;

/// Adds the metrics of this process, as far as `/proc` has them.
pub(super) fn add(page: &mut Page) {
    let Ok(process) = Process::myself() else { return };
    let ticks = procfs::ticks_per_second() as f64;
    if let Ok(stat) = process.stat() {
        let used = (stat.utime + stat.stime) as f64 / ticks;
        let help = "User and system CPU time that the process has used, in seconds.";
        page.counter("process_cpu_seconds_total", help, &[], used);
        let (resident, virtual_) = (stat.rss_bytes().get() as f64, stat.vsize as f64);
        page.gauge("process_resident_memory_bytes", "Resident memory of the process, in bytes.", &[], resident);
        page.gauge("process_virtual_memory_bytes", "Virtual memory of the process, in bytes.", &[], virtual_);
        page.gauge("process_threads", "Number of threads of the process.", &[], stat.num_threads as f64);
        if let Ok(booted) = procfs::boot_time_secs() {
            let started = booted as f64 + stat.starttime as f64 / ticks;
            let help = "Unix time at which the process started, in seconds.";
            page.gauge("process_start_time_seconds", help, &[], started);
        }
    }
    if let Ok(open) = process.fd_count() {
        page.gauge("process_open_fds", "Number of open file descriptors of the process.", &[], open as f64);
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        page.gauge("process_max_fds", "Maximum number of open file descriptors of the process.", &[], most as f64);
    }
}
