//! Measures the way from a folder of YAML to the kernel, with the programs as shipped, in a separate namespace.
//!
//! ```text
//! make bench                             # as root; or: SERVICES=1000 cargo bench -p localnet-e2e
//! ```
//!
//! The programs' logs are shown together with an outside observation: the kernel's notification of each commit. For comparison,
//! the same run also measures parsing the same YAML alone, and `nft -f` of the plan that the backend prints.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_e2e::{Programs, await_condition, program};
use localnet_lab::{Network, Topology};

const ENDPOINTS: usize = 3;
const FILES: usize = 100;
const CHANGES: usize = 50;

fn main() -> anyhow::Result<()> {
    let services: usize = env::var("SERVICES").map_or(Ok(10_000), |text| text.parse()).context("reading SERVICES")?;
    let network = Network::build(Topology::default())?;
    let programs = Programs::new()?;
    let folder = programs.path().join("services");
    fs::create_dir(&folder)?;
    for file in 0..FILES {
        write(&folder, services, file, 0)?;
    }
    println!("{services} services × {ENDPOINTS} endpoints in {FILES} YAML files");

    let started = Instant::now();
    let brain = programs.start_brain(network.node(), &format!("file:{}", folder.display()))?;
    await_condition("the brain has a state", || programs.log("localnet-brain").contains("first complete state"))?;
    println!("{:<52} {:>10.1} ms", "brain: start → state served", millis(started.elapsed()));
    let started = Instant::now();
    let backend = programs.start_nft(network.node())?;
    await_condition("the backend has applied it", || applied(&programs).len() == 1)?;
    println!("{:<52} {:>10.1} ms", "nft: start → all rules in the kernel", millis(started.elapsed()));
    let first = applied(&programs)[0];
    println!("{:<52} {:>10.1} ms", "  of it: state in memory → acknowledged", millis(first));
    for (name, process) in [("brain", brain.id()), ("nft backend", backend.id())] {
        println!("{:<52} {:>10.1} MiB", format!("{name}: resident memory"), resident(process)?);
    }

    let peer = load_as_text(&network, &programs)?;
    println!("{:<52} {:>10.1} ms  ×{:.1}", "peer: nft -f of the same tables", millis(peer), ratio(peer, first));

    let mut whole = Vec::new();
    for change in 1..=CHANGES {
        let since = Instant::now();
        write(&folder, services, change % FILES, change)?;
        await_condition("a change is applied", || applied(&programs).len() == change + 1)?;
        whole.push(since.elapsed());
    }
    whole.sort_unstable();
    let mut commits = applied(&programs)[1..].to_vec();
    commits.sort_unstable();
    let (half, last) = (CHANGES / 2, CHANGES * 99 / 100);
    println!("one endpoint changed ({CHANGES} times):              p50 / p99");
    let row = |what: &str, times: &[Duration]| {
        println!("{what:<52} {:>10.3} / {:.3} ms", millis(times[half]), millis(times[last]));
    };
    row("  file renamed → applied (all files are read again)", &whole);
    row("  state in memory → acknowledged", &commits);
    Ok(())
}

/// Writes one file of Services. The first Service has an endpoint that identifies the change.
fn write(folder: &Path, services: usize, file: usize, change: usize) -> anyhow::Result<()> {
    let mut text = String::new();
    for number in (0..services).filter(|number| number % FILES == file) {
        let (high, low) = (number / 250, number % 250 + 1);
        write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: svc-{number}, namespace: bench}}\nspec:\n  \
             type: ClusterIP\n  clusterIP: 172.30.{high}.{low}\n  ports: [{{name: http, port: 80, targetPort: 8080}}]\n\
             ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: svc-{number}-1\n  \
             namespace: bench\n  labels: {{kubernetes.io/service-name: svc-{number}}}\naddressType: IPv4\n\
             ports: [{{name: http, port: 8080}}]\nendpoints:\n"
        )?;
        for endpoint in 0..ENDPOINTS {
            let changed = if endpoint == 0 && number == file { 100 + change % 100 } else { endpoint };
            writeln!(text, "- {{addresses: [10.{}.{high}.{low}], nodeName: node-b}}", 64 + changed)?;
        }
    }
    let (new, path) = (folder.join("new"), folder.join(format!("services-{file}.yaml")));
    fs::write(&new, text)?;
    Ok(fs::rename(new, path)?)
}

/// The duration of each sync of the backend, from its log.
fn applied(programs: &Programs) -> Vec<Duration> {
    let log = programs.log("localnet-nft");
    let lines = log.lines().filter(|line| line.contains(" applied revision="));
    lines.filter_map(|line| parse(line.rsplit_once("took_ms=")?.1)).collect()
}

/// Parses a duration from the log, in milliseconds.
fn parse(text: &str) -> Option<Duration> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_secs_f64(number / 1000.0))
}

/// Loads the backend's tables into another namespace with nft.
fn load_as_text(network: &Network, programs: &Programs) -> anyhow::Result<Duration> {
    let cluster = localnet_lab::topology::CLUSTER_CIDRS.join(",");
    let mut dry_run = Command::new(program("localnet-nft")?);
    dry_run.args(["--dry-run", "--api", &programs.api(), "--cluster-cidr", &cluster]).env("RUST_LOG", "error");
    let text = network.node().output(&mut dry_run)?;
    let path = programs.path().join("plan.nft");
    fs::write(&path, text)?;
    let started = Instant::now();
    network.client().output(Command::new("nft").arg("-f").arg(path))?;
    Ok(started.elapsed())
}

/// The resident memory of a process, in MiB.
fn resident(process: u32) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS is missing")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes / 1024.0)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn ratio(peer: Duration, ours: Duration) -> f64 {
    peer.as_secs_f64() / ours.as_secs_f64()
}
