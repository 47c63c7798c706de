//! Counts the instructions of each step of a change, and compares them with `instructions.tsv`.
//!
//! ```text
//! make instructions                  # UPDATE_EXPECT=1: writes the file
//! ```
//!
//! The cluster has 1,000 Services with three endpoints each. "one" changes one endpoint, 100 times; "all" processes the whole cluster. A change
//! of more than 3 % in either direction is an error, so that the file tells what each step costs. Times on a shared machine vary by tens of
//! percent, counts by less than one. Callgrind, a tool of Valgrind, counts them; it does not see what the kernel does.

use std::{collections::BTreeMap, env, fs, hint::black_box, path::Path, process::Command};

use anyhow::{Context as _, bail, ensure};
use localnet_brain::feed::Feed;
use localnet_cluster::objects::{Event, Object};
use localnet_instructions::{config, replacement, slice};
use localnet_lab::{Network, Topology};
use localnet_linux::nft::{Socket, Transaction};
use localnet_nft::{desired::Desired, portions::Limits};
use localnet_proto::{Changes, Family, Revision, encode};

const SERVICES: u32 = 1_000;
const CHANGES: u32 = 100;
/// Percent.
const TOLERANCE: f64 = 3.0;

/// Otherwise the C library copies and compares memory with what the processor of the machine has.
const SAME_ON_ALL_PROCESSORS: &str = "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-SSE4_2,-SSSE3,-BMI2:\
    glibc.cpu.x86_non_temporal_threshold=0x4000000";

const STEPS: [(&str, fn()); 9] = [
    ("localize one", localize_one),
    ("localize all", localize_all),
    ("publish one", publish_one),
    ("publish all", publish_all),
    ("encode all", encode_all),
    ("full state of a reader", full_state),
    ("plan one", plan_one),
    ("plan all", plan_all),
    ("netlink batch of all", batch_all),
];

fn main() -> anyhow::Result<()> {
    if let Ok(step) = env::var("STEP") {
        let (_, run) =
            STEPS.iter().find(|(name, _)| *name == step).with_context(|| format!("STEP={step}: no such step"))?;
        run();
        return Ok(());
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.tsv");
    let committed = fs::read_to_string(&file).unwrap_or_default();
    let committed = read(&committed)?;
    // The netlink batch needs a kernel without tables.
    let network = Network::build(Topology::default())?;
    let (mut text, mut changed) = (String::new(), Vec::new());
    println!("{:<24}{:>16}{:>16}{:>10}", "STEP", "COMMITTED", "NOW", "CHANGE");
    for (step, _) in STEPS {
        let now = network.node().run(|| count(step))?;
        text += &format!("{step}\t{now}\n");
        let before = committed.get(step).copied();
        let change = before.map_or(f64::INFINITY, |before| (now as f64 / before as f64 - 1.0) * 100.0);
        println!("{step:<24}{:>16}{now:>16}{change:>+9.2}%", before.unwrap_or_default());
        if change.abs() > TOLERANCE {
            changed.push(step);
        }
    }
    if env::var_os("UPDATE_EXPECT").is_some_and(|value| !value.is_empty()) {
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    } else if !changed.is_empty() {
        bail!(
            "the instructions of these steps changed by more than {TOLERANCE} %: {}. Make a slower step faster again; otherwise run \
             `make instructions UPDATE_EXPECT=1`, and give the reason in the commit message",
            changed.join(", ")
        );
    }
    Ok(())
}

fn read(text: &str) -> anyhow::Result<BTreeMap<&str, u64>> {
    let entry = |line| -> anyhow::Result<_> {
        let (step, count) = str::split_once(line, '\t').context("no tab")?;
        Ok((step, count.parse()?))
    };
    text.lines().map(|line| entry(line).with_context(|| format!("instructions.tsv: line {line:?}"))).collect()
}

/// Runs a step under Valgrind.
fn count(step: &str) -> anyhow::Result<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--collect-atstart=no",
        "--toggle-collect=*measured*",
    ]);
    let output = valgrind
        .arg(env::current_exe()?)
        .env("STEP", step)
        // A fixed threshold: otherwise the layout of the heap decides whether a large vector is copied when it grows.
        .env("MALLOC_MMAP_THRESHOLD_", "8192")
        .env("GLIBC_TUNABLES", SAME_ON_ALL_PROCESSORS)
        .output()
        .context("starting valgrind (Debian package valgrind)")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{step}: {stderr}");
    let collected =
        stderr.lines().find_map(|line| line.split_once("Collected : ")).with_context(|| format!("{step}: {stderr}"))?;
    let count = collected.1.trim().parse()?;
    ensure!(count > 0, "{step}: callgrind did not find the function `measured`");
    Ok(count)
}

/// Callgrind counts only within functions of this name.
#[inline(never)]
fn measured<T>(step: impl FnOnce() -> T) -> T {
    black_box(step())
}

fn changed(change: u32) -> Event {
    Event::Apply(Object::Slice(slice(change % SERVICES, change).into()))
}

fn localize_one() {
    let (services, slices) = localnet_instructions::objects(SERVICES);
    let mut cluster = localnet_instructions::cluster(&services, &slices);
    cluster.localize();
    let changes: Vec<Event> = (1..=CHANGES).map(changed).collect();
    measured(|| {
        for change in changes {
            cluster.handle(change);
            black_box(cluster.localize());
        }
    });
}

fn localize_all() {
    let (services, slices) = localnet_instructions::objects(SERVICES);
    let mut cluster = localnet_instructions::cluster(&services, &slices);
    measured(|| cluster.localize());
}

fn publish_one() {
    let (services, slices) = localnet_instructions::objects(SERVICES);
    let mut cluster = localnet_instructions::cluster(&services, &slices);
    let feed = Feed::new(1);
    feed.publish(cluster.localize().unwrap_or_default());
    for change in 1..=CHANGES {
        cluster.handle(changed(change));
        let localized = cluster.localize().unwrap_or_default();
        measured(|| feed.publish(localized));
    }
}

fn publish_all() {
    let (services, slices) = localnet_instructions::objects(SERVICES);
    let localized = localnet_instructions::cluster(&services, &slices).localize().unwrap_or_default();
    let feed = Feed::new(1);
    measured(|| feed.publish(localized));
}

fn encode_all() {
    let state = localnet_instructions::state(SERVICES);
    measured(|| {
        for service in state.services.values() {
            black_box(encode::service_bytes(service));
        }
    });
}

fn full_state() {
    let feed = localnet_instructions::feed(SERVICES);
    measured(|| feed.state().answer(Revision::default(), false).items.map(|item| item.len()).sum::<usize>());
}

fn plan_one() {
    let mut state = localnet_instructions::state(SERVICES);
    let mut desired = planned(SERVICES);
    let keys: Vec<_> = state.services.keys().take(CHANGES as usize).cloned().collect();
    for (change, key) in (1..).zip(keys) {
        if let Some(service) = state.services.get_mut(&key) {
            let mut other = service.as_ref().clone();
            other.endpoints[0].address = replacement(change).into();
            *service = other.into();
        }
        let changes = Changes { services: [key].into(), ..Changes::default() };
        measured(|| {
            desired.update(&state, &changes);
            for table in desired.tables().values_mut() {
                let portions = table.changes(Limits::default());
                for index in 0..portions.count() {
                    black_box(table.transaction(&portions, index));
                }
            }
            Family::BOTH.into_iter().for_each(|family| desired.commit(family));
        });
    }
}

fn plan_all() {
    let state = localnet_instructions::state(SERVICES);
    let mut desired = Desired::new(config());
    measured(|| desired.update(&state, &Changes::everything()));
}

fn batch_all() {
    let mut everything = Transaction::new();
    for content in planned(SERVICES).content() {
        everything.add_content(content);
    }
    let mut socket = Socket::open().expect("the node has netlink sockets");
    measured(|| socket.commit(&everything).expect("the kernel takes the plan"));
}

fn planned(services: u32) -> Desired {
    let mut desired = Desired::new(config());
    desired.update(&localnet_instructions::state(services), &Changes::everything());
    Family::BOTH.into_iter().for_each(|family| desired.commit(family));
    desired
}
