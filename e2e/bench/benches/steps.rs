//! Measures each step of a change by itself: reduce and localize, publish, encode, plan, and the netlink batch.
//!
//! ```text
//! cargo bench -p localnet-bench           # as root; -- --quick: short; -- plan: only these
//! ```
//!
//! The cluster has 10,000 Services with three endpoints each. "one" changes one endpoint; "all" processes the whole cluster.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use criterion::{BatchSize, Criterion};
use localnet_brain::feed::Feed;
use localnet_cluster::{
    localize::Localized,
    objects::{Event, Object},
};
use localnet_instructions::{config, replacement, slice};
use localnet_lab::{Network, Topology};
use localnet_linux::nft::{Socket, Table, Transaction};
use localnet_nft::{desired::Desired, portions::Limits};
use localnet_proto::{Changes, Family, Revision, ServiceKey, encode};

const SERVICES: u32 = 10_000;

fn main() -> anyhow::Result<()> {
    let mut criterion = criterion();
    localize(&mut criterion);
    publish(&mut criterion);
    encode(&mut criterion);
    plan(&mut criterion);
    // The kernel's part needs a network namespace of its own.
    Network::build(Topology::default())?.node().run(|| batch(&mut self::criterion()))?;
    criterion.final_summary();
    Ok(())
}

fn criterion() -> Criterion {
    Criterion::default().sample_size(10).configure_from_args()
}

fn localize(criterion: &mut Criterion) {
    let (services, slices) = localnet_instructions::objects(SERVICES);
    let mut changed = 0;
    let mut cluster = localnet_instructions::cluster(&services, &slices);
    cluster.localize();
    criterion.bench_function("localize one", |bencher| {
        bencher.iter(|| {
            changed += 1;
            cluster.handle(Event::Apply(Object::Slice(slice(changed % SERVICES, changed).into())));
            cluster.localize()
        });
    });
    criterion.bench_function("localize all", |bencher| {
        let setup = || localnet_instructions::cluster(&services, &slices);
        bencher.iter_batched(setup, |mut cluster| cluster.localize(), BatchSize::PerIteration);
    });
}

fn publish(criterion: &mut Criterion) {
    let (services, slices) = localnet_instructions::objects(SERVICES);
    let mut cluster = localnet_instructions::cluster(&services, &slices);
    let feed = Feed::new(1);
    let all = cluster.localize().unwrap_or_default();
    feed.publish(all.clone());
    let mut changed = 0;
    criterion.bench_function("publish one", |bencher| {
        let setup = || {
            changed += 1;
            cluster.handle(Event::Apply(Object::Slice(slice(changed % SERVICES, changed).into())));
            cluster.localize().unwrap_or_default()
        };
        bencher.iter_batched(setup, |localized: Localized| feed.publish(localized), BatchSize::SmallInput);
    });
    criterion.bench_function("publish all", |bencher| {
        let setup = || (Feed::new(1), all.clone());
        bencher.iter_batched(setup, |(feed, all)| feed.publish(all), BatchSize::PerIteration);
    });
}

fn encode(criterion: &mut Criterion) {
    let state = localnet_instructions::state(SERVICES);
    let mut services = state.services.values().cycle();
    criterion.bench_function("encode one", |bencher| {
        bencher.iter(|| services.next().map(|service| encode::service_bytes(service)));
    });
    let feed = localnet_instructions::feed(SERVICES);
    let full = || feed.state().answer(Revision::default(), false).items.map(|item| item.len()).sum::<usize>();
    full();
    criterion.bench_function("full state of a reader", |bencher| bencher.iter(full));
}

fn plan(criterion: &mut Criterion) {
    let state = localnet_instructions::state(SERVICES);
    criterion.bench_function("plan all", |bencher| {
        let setup = || Desired::new(config());
        let plan = |mut desired: Desired| {
            desired.update(&state, &Changes::everything());
            desired
        };
        bencher.iter_batched(setup, plan, BatchSize::PerIteration);
    });
    let mut desired = Desired::new(config());
    desired.update(&state, &Changes::everything());
    Family::BOTH.into_iter().for_each(|family| desired.commit(family));
    let state = RefCell::new(state);
    let keys: Vec<ServiceKey> = state.borrow().services.keys().cloned().collect();
    let mut changed = 0;
    criterion.bench_function("plan one", |bencher| {
        let setup = || {
            changed += 1;
            let key = &keys[changed as usize % keys.len()];
            if let Some(service) = state.borrow_mut().services.get_mut(key) {
                let mut other = service.as_ref().clone();
                other.endpoints[0].address = replacement(changed).into();
                *service = other.into();
            }
            Changes { services: [key.clone()].into(), ..Changes::default() }
        };
        let plan = |changes| {
            desired.update(&state.borrow(), &changes);
            let mut transactions = Vec::new();
            for table in desired.tables().values_mut() {
                let portions = table.changes(Limits::default());
                transactions.extend((0..portions.count()).map(|index| table.transaction(&portions, index)));
            }
            Family::BOTH.into_iter().for_each(|family| desired.commit(family));
            transactions
        };
        bencher.iter_batched(setup, plan, BatchSize::PerIteration);
    });
}

/// Encodes everything as one batch, and lets the kernel commit it.
fn batch(criterion: &mut Criterion) -> anyhow::Result<()> {
    let mut desired = Desired::new(config());
    desired.update(&localnet_instructions::state(SERVICES), &Changes::everything());
    let (mut everything, mut nothing) = (Transaction::new(), Transaction::new());
    for content in desired.content() {
        everything.add_content(content);
    }
    for family in [Family::V4, Family::V6] {
        nothing.delete_table(&Table::new(family, "localnet"));
    }
    let mut socket = Socket::open()?;
    criterion.bench_function("netlink batch of all", |bencher| {
        bencher.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for _ in 0..rounds {
                let started = Instant::now();
                socket.commit(&everything).expect("the kernel takes the plan");
                took += started.elapsed();
                socket.commit(&nothing).expect("the tables exist");
            }
            took
        });
    });
    Ok(())
}
