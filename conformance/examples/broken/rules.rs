//! Serves ClusterIPs with nf_tables, in minimal form: each state rewrites the tables `ip broken` and `ip6 broken`.

use std::{
    fmt::Write as _,
    io::Write as _,
    iter,
    net::{IpAddr, SocketAddr},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use localnet_proto::{HashBy, Port, Protocol, Service, Snapshot};

/// How long a backend that removes everything before it writes has no rules.
const GAP: Duration = Duration::from_millis(300);
const FAMILIES: [&str; 2] = ["ip", "ip6"];

/// Programs the state into the kernel, with the fault.
pub(super) fn write(state: &Snapshot, fault: &str) -> anyhow::Result<()> {
    if fault == "flushes-at-each-change" {
        remove();
        thread::sleep(GAP);
    }
    let mut text = String::new();
    for (number, family) in FAMILIES.into_iter().enumerate() {
        if fault == "one-family" && family == "ip6" {
            break;
        }
        _ = writeln!(text, "table {family} broken\ndelete table {family} broken");
        text += &table(state, fault, family, number == 1);
    }
    if fault == "leaves-a-table" {
        text += "table ip broken-left { chain nothing { } }\n";
    }
    nft(&text)?;
    if fault != "leaves-udp-flows" {
        end_udp_flows(state);
    }
    Ok(())
}

fn table(state: &Snapshot, fault: &str, family: &str, v6: bool) -> String {
    let (mut translate, mut refuse, mut hairpins) = (String::new(), String::new(), String::new());
    for service in state.services.values() {
        for vip in service.cluster_ips.iter().filter(|vip| vip.is_ipv6() == v6) {
            for port in &service.ports {
                let to = format!("{family} daddr {vip} {} dport {}", port.protocol.as_lowercase(), port.port);
                let endpoints = endpoints(service, port, v6);
                if endpoints.is_empty() {
                    let with = if port.protocol == Protocol::Tcp { "reject with tcp reset" } else { "reject" };
                    let verdict = if fault == "drops-instead-of-rejecting" { "drop" } else { with };
                    _ = writeln!(refuse, "  {to} {verdict}");
                }
                let hashed = hashed(service, family, fault);
                choose(&to, &slots(&endpoints, service, fault), hashed.as_deref(), fault, &mut translate);
                for endpoint in endpoints {
                    let ip = endpoint.ip();
                    _ = writeln!(hairpins, "  ct status dnat {family} saddr {ip} {family} daddr {ip} masquerade");
                }
            }
        }
    }
    if fault == "no-masquerade" {
        hairpins.clear();
    }
    let mut text =
        format!("table {family} broken {{\n chain services {{\n{translate} }}\n chain unserved {{\n{refuse} }}\n");
    for (name, kind) in [("prerouting", "dstnat"), ("output", "-100")] {
        _ = writeln!(text, " chain nat-{name} {{ type nat hook {name} priority {kind}; jump services; }}");
    }
    for name in ["input", "forward", "output"] {
        _ = writeln!(text, " chain filter-{name} {{ type filter hook {name} priority 0; jump unserved; }}");
    }
    _ = writeln!(text, " chain post {{ type nat hook postrouting priority srcnat;\n{hairpins} }}\n}}");
    text
}

/// What chooses an endpoint by a hash, in nft's words; `None` if the choice is random.
fn hashed(service: &Service, family: &str, fault: &str) -> Option<String> {
    let sticks = service.client_ip_affinity.is_some() && fault != "no-affinity";
    match service.hash.filter(|_| fault != "no-hash") {
        Some(HashBy::Connection) if fault != "hash-without-ports" => Some(format!("{family} saddr . th sport")),
        Some(_) => Some(format!("{family} saddr")),
        None => sticks.then(|| format!("{family} saddr")),
    }
}

/// The endpoints, each as often as its weight requires.
fn slots(endpoints: &[SocketAddr], service: &Service, fault: &str) -> Vec<SocketAddr> {
    let weight = |of: &SocketAddr| {
        let weight = service.endpoints.iter().find(|one| one.address == of.ip()).and_then(|one| one.weight);
        weight.filter(|_| fault != "no-weights").map_or(1, |weight| weight.get() as usize)
    };
    endpoints.iter().flat_map(|endpoint| iter::repeat_n(*endpoint, weight(endpoint))).collect()
}

fn choose(to: &str, endpoints: &[SocketAddr], hashed: Option<&str>, fault: &str, text: &mut String) {
    let count = if fault == "one-endpoint" { endpoints.len().min(1) } else { endpoints.len() };
    for (index, endpoint) in endpoints.iter().take(count).enumerate() {
        let left = count - index;
        let chosen = match (left, hashed) {
            (1, _) => String::new(),
            (_, Some(key)) => format!("jhash {key} mod {count} seed 0x1 {index}"),
            (_, None) => format!("numgen random mod {left} 0"),
        };
        _ = writeln!(text, "  {to} {chosen} dnat to {endpoint}");
    }
}

fn endpoints(service: &Service, port: &Port, v6: bool) -> Vec<SocketAddr> {
    let serving = service.endpoints.iter().filter(|one| one.scopes.internal && one.address.is_ipv6() == v6);
    serving.filter_map(|one| Some(SocketAddr::new(one.address, one.port(&port.name)?))).collect()
}

fn nft(text: &str) -> anyhow::Result<()> {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().context("starting nft")?;
    nft.stdin.take().context("nft's input")?.write_all(text.as_bytes()).context("writing to nft")?;
    anyhow::ensure!(nft.wait().context("waiting for nft")?.success(), "nft refuses {text}");
    Ok(())
}

/// Whether the rules exist.
pub(super) fn are_there() -> bool {
    let mut list = Command::new("nft");
    list.args(["list", "table", "ip", "broken"]).stdout(Stdio::null()).stderr(Stdio::null());
    list.status().is_ok_and(|ended| ended.success())
}

/// Removes the tables. Missing ones are not an error.
pub(super) fn remove() {
    for family in FAMILIES {
        let mut delete = Command::new("nft");
        delete.args(["delete", "table", family, "broken"]).stderr(Stdio::null());
        _ = delete.status();
    }
}

/// Deletes UDP flows to endpoints that no longer serve.
fn end_udp_flows(state: &Snapshot) {
    let serving: Vec<IpAddr> =
        state.services.values().flat_map(|service| &service.endpoints).map(|one| one.address).collect();
    let listed = Command::new("conntrack").args(["-L", "-p", "udp"]).stderr(Stdio::null()).output();
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for line in text.lines() {
        // The second `src` is that of the replies.
        let source = line.split(' ').filter_map(|word| word.strip_prefix("src=")).nth(1);
        if source.is_some_and(|source| source.parse().is_ok_and(|ip| !serving.contains(&ip))) {
            let source = source.unwrap_or_default();
            let mut delete = Command::new("conntrack");
            delete.args(["-D", "-p", "udp", "--reply-src", source]).stdout(Stdio::null()).stderr(Stdio::null());
            _ = delete.status();
        }
    }
}
