//! Measures how long `localnet replay` needs for a trace of a million changes, and how much memory the brain's history needs for a change.
//!
//! ```text
//! cargo build --release -p localnet
//! cargo bench -p localnet-bench --bench replay      # FIGURES=file: also writes the figures there; QUICK=1: a hundredth of the changes
//! ```
//!
//! Each change replaces one endpoint of one of 10,000 Services, as an update of its EndpointSlice does.

use std::{
    env,
    fs::{self, File},
    io::{BufWriter, Write as _},
    net::Ipv4Addr,
    path::Path,
    process::Command,
    sync::Arc,
    time::Instant,
};

use anyhow::{Context as _, ensure};
use localnet_brain::feed::Feed;
use localnet_cluster::{
    localize::{ChangedObject, Localized, ObjectChanges},
    objects::Kind,
};
use localnet_proto::{
    Digest, Endpoint, EndpointPort, Port, Scopes, Service, ServiceKey, encode,
    history::{Entry, FullState, entry::Event},
    trace,
};
use prost::Message as _;
use serde_json::{Value, json};

const SERVICES: u32 = 10_000;
const CHANGES: u32 = 1_000_000;
/// The history in memory keeps more changes than this.
const BATCH: u32 = 5_000;

fn main() -> anyhow::Result<()> {
    let is_quick = env::var_os("QUICK").is_some_and(|quick| !quick.is_empty());
    let changes = if is_quick { CHANGES / 100 } else { CHANGES };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("trace");
    let mut figures = Vec::new();
    for endpoints in [3, 10] {
        let recorded = record(&path, endpoints, changes).context("recording")?;
        let took = replay(&path, changes)?;
        figures.push(json!({
            "services": SERVICES, "endpoints": endpoints, "changes": changes, "took": took,
            "trace_bytes": fs::metadata(&path)?.len(), "recorded_bytes": recorded,
        }));
    }
    let figures = Value::from(figures);
    println!("{figures}");
    if let Some(file) = env::var_os("FIGURES") {
        fs::write(&file, figures.to_string()).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// Writes a trace, as `localnet record` does. Returns the bytes that the history needs in memory for one change.
fn record(path: &Path, endpoints: u32, changes: u32) -> anyhow::Result<f64> {
    let feed = Feed::new(1);
    let services = (0..SERVICES).map(|number| service(number, endpoints, None)).collect();
    feed.publish(Localized { services, ..Localized::default() });
    let mut file = BufWriter::new(File::create(path)?);
    trace::begin(&mut file)?;
    let state = feed.state().snapshot().context("the state is encoded here")?;
    let part = FullState { items: encode::state_items(&state), continues: false, digest: Digest::of(&state).0 };
    trace::append(&mut file, &Entry { time_millis: 0, event: Some(Event::State(part)) })?;
    let mut last = state.revision.rev;
    for change in 1..=changes {
        // A prime number, so that the changes visit all Services in turn.
        let number = change % SERVICES * 7919 % SERVICES;
        let object = ChangedObject {
            kind: Kind::Slice,
            namespace: "bench".into(),
            name: format!("service-{number:05}-x7k2p").into(),
            version: (51_000_000 + 37 * u64::from(change)).try_into().ok(),
            deleted: false,
        };
        let services = [service(number, endpoints, Some(change))].into_iter().collect();
        let changes_of_objects = ObjectChanges { objects: vec![object], ..ObjectChanges::default() };
        feed.publish(Localized { services, changes: changes_of_objects, ..Localized::default() });
        if !change.is_multiple_of(BATCH) && change != changes {
            continue;
        }
        for entry in feed.history().entries() {
            let entry = Entry::decode(entry)?;
            let Some(Event::Change(of)) = &entry.event else { continue };
            if of.rev > last {
                ensure!(of.rev == last + 1 && !of.whole, "the history does not have the change after revision {last}");
                last = of.rev;
                trace::append(&mut file, &entry)?;
            }
        }
    }
    file.flush()?;
    let kept = feed.history().entries().count();
    Ok(feed.history().bytes() as f64 / kept as f64)
}

/// Replays a trace. Returns the time in milliseconds.
fn replay(path: &Path, changes: u32) -> anyhow::Result<f64> {
    let program = env::current_exe()?;
    let program = program.ancestors().nth(2).context("this program is in target/release/deps")?.join("localnet");
    let began = Instant::now();
    let output = Command::new(&program).arg("replay").arg(path).args(["--dry-run", "--speed", "max"]).output();
    let took = began.elapsed().as_secs_f64() * 1e3;
    let output = output.with_context(|| format!("running {}; build it with --release", program.display()))?;
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let states = format!("{0} entries with {0} states", changes + 1);
    ensure!(output.status.success() && text.contains(&states), "localnet replay: {text}{error}");
    Ok(took)
}

/// A Service whose first endpoint was replaced by a change.
fn service(number: u32, endpoints: u32, change: Option<u32>) -> (ServiceKey, Option<Arc<Service>>) {
    let key = ServiceKey::new("bench", format!("service-{number:05}"));
    let mut service = Service::new(key.clone(), vec![Ipv4Addr::from_bits(0xac10_0100 + number).into()]);
    service.ports.push(Port { name: "http".into(), port: 80, ..Port::default() });
    let usual = (0..endpoints).map(|slot| Ipv4Addr::from_bits(0x0a40_0000 + number * endpoints + slot));
    // Endpoints are sorted by address.
    let replaced = change.map(|change| Ipv4Addr::from_bits(0x0a50_0000 + change % (1 << 20)));
    let addresses = usual.skip(usize::from(change.is_some())).chain(replaced);
    let endpoint = |address: Ipv4Addr| Endpoint {
        address: address.into(),
        ports: vec![EndpointPort { name: "http".into(), port: 8080 }],
        local: false,
        hostname: None,
        scopes: Scopes { internal: true, external: true, short_circuit: true, established: true },
        weight: None,
    };
    service.endpoints = addresses.map(endpoint).collect();
    (key, Some(Arc::new(service)))
}
