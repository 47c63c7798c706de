//! Changes that are too large for one commit: after each portion, each VIP has either its old or its new content.

use localnet_linux::nft::ElementKey;
use localnet_linux_backend::elements;
use proptest::prelude::*;

use super::{any_state::any_state, *};

/// The elements of a VIP, by set.
type Programmed = BTreeMap<(nft::Name, ElementKey), Element>;

/// What packets of a family are matched against: the VIPs of each table that they enter.
fn met(kernel: &FakeKernel, family: Family) -> Vec<BTreeMap<VipKey, Programmed>> {
    let of_family = kernel.tables.iter().filter(|(name, _)| name.family == family);
    let entered = of_family.filter(|(_, table)| table.chains.values().any(|chain| chain.hook.is_some()));
    let vips = |sets: &BTreeMap<nft::Name, (_, BTreeMap<ElementKey, Element>)>| {
        let mut vips: BTreeMap<VipKey, Programmed> = BTreeMap::new();
        for (name, (_, elements)) in sets {
            for (key, element) in elements {
                let length = if family == Family::V4 { 12 } else { 24 };
                let vip = key.start().as_bytes().get(..length).map(Tuple::from_bytes);
                // Skips ClusterIPs and hairpins, which have other keys.
                if let Some(vip) = vip.and_then(|vip| elements::read_vip(&vip)) {
                    vips.entry(vip).or_default().insert((name.clone(), key.clone()), element.clone());
                }
            }
        }
        vips
    };
    entered.map(|(_, table)| vips(&table.sets)).collect()
}

/// Applies the transactions since `before` one by one. After each, every VIP has its old or its new content, never
/// returns to the old one, and packets enter exactly one table.
fn check_on_the_way(before: &FakeKernel, after: &FakeKernel) {
    let mut kernel = before.clone();
    let ends = Family::BOTH.map(|family| met(after, family).remove(0));
    for transaction in &after.log[before.log.len()..] {
        let starts = Family::BOTH.map(|family| met(&kernel, family).pop());
        kernel.apply(transaction).unwrap();
        for (family, (start, end)) in Family::BOTH.into_iter().zip(starts.iter().zip(&ends)) {
            let now = met(&kernel, family);
            assert!(now.len() <= 1 && now.len() >= usize::from(start.is_some()), "packets enter {} tables", now.len());
            let Some(now) = now.first() else { continue };
            let start = start.clone().unwrap_or_default();
            for vip in start.keys().chain(now.keys()).chain(end.keys()) {
                let [was, is, will] = [&start, now, end].map(|vips| vips.get(vip));
                assert!(is == was || is == will, "{vip:?}: {was:?}, {is:?}, {will:?}");
            }
        }
    }
    assert_eq!(kernel.tables, after.tables);
}

fn apply(backend: &mut NftBackend<FakeKernel>, state: &Snapshot, changes: &Changes) -> usize {
    let before = backend.kernel.clone();
    backend.apply(state, changes).unwrap().whole().unwrap();
    check_on_the_way(&before, &backend.kernel);
    assert!(!backend.kernel.tables.keys().any(|table| *table.name == *plan::SUBSTITUTE));
    backend.kernel.log.len() - before.log.len()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_vip_always_has_its_old_or_its_new_content(history in proptest::collection::vec((any_state(), any::<bool>()), 1..5), portion in 1..40_usize) {
        let mut backend = backend();
        let mut before = Snapshot::default();
        let mut changes = Changes::everything();
        for (state, restart) in &history {
            if *restart {
                backend = restarted(&backend);
                changes = Changes::everything();
            }
            backend.limits = Limits { entered: portion, filled: portion };
            changes.merge(difference(&before, state));
            apply(&mut backend, state, &changes);
            changes = Changes::default();
            before = state.clone();
        }
    }
}

fn many(count: u8) -> Snapshot {
    state((0..count).map(|i| service(&format!("s{i}"), &format!("172.30.0.{i}"), &["10.180.1.2", "10.180.1.4"])))
}

/// Changes the tables to those of a version whose base chains have another priority.
fn redeclare(backend: &mut NftBackend<FakeKernel>) {
    let tables = backend.kernel.tables.values_mut();
    let hooks = tables.flat_map(|table| table.chains.values_mut()).filter_map(|chain| chain.hook.as_mut());
    hooks.for_each(|hook| hook.priority -= 1);
}

/// The elements of each service: three for its VIP, and one for its ClusterIP.
const EACH: usize = 4;

#[test]
fn a_large_table_is_replaced_through_a_temporary_one() {
    let mut backend = backend();
    backend.limits = Limits { entered: 10 * EACH, filled: 10 * EACH };
    let state = many(100);
    assert_eq!(apply(&mut backend, &state, &Changes::everything()), 10 + 1, "ten portions, and IPv6");
    redeclare(&mut backend);
    let mut next = restarted(&backend);
    next.limits = backend.limits;
    assert_eq!(apply(&mut next, &state, &Changes::everything()), 10 + 10 + 1, "the substitute, the table, and IPv6");
    assert_eq!(normal(&next.kernel), planned(&next));
}

/// Regression: a first load needed memory for all elements twice.
#[test]
fn a_first_load_is_split_and_a_table_in_use_changes_at_once() {
    let mut backend = backend();
    backend.limits = Limits { entered: 200 * EACH, filled: 10 * EACH };
    let state = many(100);
    assert_eq!(apply(&mut backend, &state, &Changes::everything()), 10 + 1, "ten portions, and IPv6");
    let sent = |transaction: &Transaction| -> usize {
        let elements = transaction.changes().iter().filter_map(|change| match change {
            Change::AddElements(_, _, elements) => Some(elements.len()),
            _ => None,
        });
        elements.sum()
    };
    // The element of `sizes` belongs to no VIP.
    assert!(backend.kernel.log.iter().all(|transaction| sent(transaction) <= 10 * EACH + 1));
    redeclare(&mut backend);
    let mut next = restarted(&backend);
    next.limits = backend.limits;
    assert_eq!(apply(&mut next, &state, &Changes::everything()), 1 + 1, "each family at once");
    let renamed = self::state(
        (0..100).map(|i| service(&format!("r{i}"), &format!("172.30.0.{i}"), &["10.180.1.2", "10.180.1.4"])),
    );
    assert_eq!(apply(&mut next, &renamed, &difference(&state, &renamed)), 1, "all names at once");
    assert_eq!(normal(&next.kernel), planned(&next));
}

/// The retry completed the table itself while packets also entered the substitute. If the kernel then refused to delete the substitute,
/// packets met outdated rules until the next change.
#[test]
fn the_next_start_finishes_an_interrupted_replacement() {
    let mut backend = backend();
    backend.limits = Limits { entered: 10 * EACH, filled: 10 * EACH };
    let state = many(100);
    apply(&mut backend, &state, &Changes::everything());
    redeclare(&mut backend);
    let mut left_substitutes = 0;
    for transactions in 0..20 {
        let mut broken = restarted(&backend);
        broken.limits = backend.limits;
        broken.kernel.denied_after = Some(transactions);
        assert!(broken.apply(&state, &Changes::everything()).is_err() || transactions > 19);
        broken.kernel.denied_after = None;
        let substitute = plan::substitute(Family::V4);
        left_substitutes += usize::from(broken.kernel.tables.contains_key(&substitute));
        // The process is killed at this point.
        for limit in [10 * EACH, usize::MAX] {
            let mut next = restarted(&broken);
            next.limits = Limits { entered: limit, filled: limit };
            apply(&mut next, &state, &Changes::everything());
            assert_eq!(normal(&next.kernel), planned(&next), "{transactions}");
        }
    }
    assert!(left_substitutes > 10, "{left_substitutes}");
}
