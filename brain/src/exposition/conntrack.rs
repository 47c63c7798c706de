//! Metrics of connection tracking. While the table of connection tracking is full, the kernel drops new connections,
//! whichever backend is in use.

use super::page::Page;

/// Adds the metrics of the brain's network namespace. Adds nothing if the kernel does not track connections there.
pub(super) fn add(page: &mut Page, read: impl Fn(&str) -> Option<String>) {
    let number = |name: &str| -> Option<f64> {
        read(&format!("/proc/sys/net/netfilter/nf_conntrack_{name}"))?.trim().parse().ok()
    };
    if let Some(count) = number("count") {
        let help = "Connections that the kernel tracks in the brain's network namespace.";
        page.gauge("localnet_conntrack_entries", help, &[], count);
    }
    if let Some(most) = number("max") {
        let help = "Limit for the connections that the kernel tracks in the brain's network namespace.";
        page.gauge("localnet_conntrack_entries_limit", help, &[], most);
    }
    if let Some(dropped) = read("/proc/net/stat/nf_conntrack").as_deref().and_then(dropped) {
        let help = "Packets that the kernel dropped because it could not track another connection.";
        page.counter("localnet_conntrack_dropped_packets_total", help, &[], dropped as f64);
    }
}

/// The sum of the column `drop` over all processors. In this column, the kernel counts packets that it dropped because the
/// table was full or memory was short.
fn dropped(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let place = lines.next()?.split_whitespace().position(|column| column == "drop")?;
    lines.map(|line| u64::from_str_radix(line.split_whitespace().nth(place)?, 16).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_summed_over_all_processors() {
        let text = "entries  clashres found new drop early_drop\n0000 0 0 0 0000000a 1\n0000 0 0 0 00000010 2\n";
        assert_eq!(dropped(text), Some(26));
        assert_eq!(dropped("entries found\n0 0\n"), None);
        assert_eq!(dropped(""), None);
    }
}
