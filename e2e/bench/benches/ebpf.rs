//! Measures how long the ebpf backend takes to program the kernel, from a state in memory, in a separate cgroup and BPF file system.
//!
//! ```text
//! cargo bench -p localnet-bench --bench ebpf            # as root; FIGURES=file: also writes the figures there
//! ```

use std::{
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_ebpf::{EbpfBackend, host::Host};
use localnet_instructions::{config, replacement, state};
use localnet_lab::Sandbox;
use localnet_proto::{Changes, Snapshot};

const SERVICES: u32 = 10_000;
const ROUNDS: usize = 5;
const CHANGES: u32 = 2_000;

fn main() -> anyhow::Result<()> {
    let state = state(SERVICES);
    let rounds = (0..ROUNDS).map(|_| Sandbox::run(|_| measure(&state))).collect::<anyhow::Result<Vec<_>>>()?;
    let of = |step: usize| median(rounds.iter().map(|round| round[step]).collect());
    let (attach, load, change) = (of(0), of(1), of(2));
    println!(
        "{SERVICES} Services of three endpoints, medians: programs attached {attach:.1} ms, all Services loaded {load:.1} ms"
    );
    println!("one endpoint replaced: median {:.1} µs", change * 1e3);
    if let Some(path) = env::var_os("FIGURES") {
        let figures = serde_json::json!({ "attach": attach, "load": load, "change": change });
        fs::write(&path, figures.to_string()).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// How long, in ms, the backend takes to attach the programs, to load all Services, and to replace one endpoint.
fn measure(state: &Snapshot) -> anyhow::Result<[f64; 3]> {
    let mut backend = EbpfBackend::new(config(), Host::open(Path::new(Sandbox::BPFFS), Path::new(Sandbox::CGROUP))?);
    let mut apply = |state: &Snapshot, changes: &Changes| -> anyhow::Result<Duration> {
        let started = Instant::now();
        backend.apply(state, changes)?.whole()?;
        Ok(started.elapsed())
    };
    let empty = Snapshot { node: state.node.clone(), ..Snapshot::default() };
    let attach = apply(&empty, &Changes::everything())?;
    let load = apply(state, &Changes::everything())?;
    let mut state = state.clone();
    let mut changes = Vec::new();
    for (change, key) in (1..=CHANGES).zip(state.services.keys().cloned().collect::<Vec<_>>()) {
        if let Some(service) = state.services.get_mut(&key) {
            let mut other = service.as_ref().clone();
            other.endpoints[0].address = replacement(change).into();
            *service = other.into();
        }
        changes.push(millis(apply(&state, &Changes { services: [key].into(), ..Changes::default() })?));
    }
    Ok([millis(attach), millis(load), median(changes)])
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
