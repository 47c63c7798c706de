//! Measures new TCP connections: through the first, the middle and the last VIP, and directly to an endpoint.

use std::{net::SocketAddr, time::Duration};

use crate::{figures::Connect, packets::time_to_connect, site::Site, statistics::median};

/// The median of `connections` direct connections in microseconds, before the node is programmed.
pub(super) fn bare(site: &Site, connections: usize) -> anyhow::Result<f64> {
    let [bare] = medians(site, [site.size.direct()], connections)?;
    Ok(bare)
}

/// The median time to connect to each of four destinations, over `connections` connections. The destinations take turns, so that
/// other activity on the machine affects them equally.
pub(super) fn measure(site: &Site, bare_us: f64, connections: usize) -> anyhow::Result<Connect> {
    let size = site.size;
    let targets = [size.direct(), size.vip(0), size.vip(size.services / 2), size.vip(size.services - 1)];
    let [direct_us, first_us, middle_us, last_us] = medians(site, targets, connections)?;
    Ok(Connect { n: connections, bare_us, direct_us, first_us, middle_us, last_us })
}

fn medians<const N: usize>(site: &Site, targets: [SocketAddr; N], connections: usize) -> anyhow::Result<[f64; N]> {
    let times = site.inside(|| {
        let mut times = targets.map(|_| Vec::with_capacity(connections));
        for _ in 0..connections {
            for (times, to) in times.iter_mut().zip(targets) {
                times.push(time_to_connect(to)?);
            }
        }
        Ok(times)
    })?;
    let micros = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64() * 1e6;
    Ok(times.map(|times| micros(median(times))))
}
