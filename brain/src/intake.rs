//! Applies the batches of the sources to the cluster. Removals that the [`Guard`] holds are not applied.

use std::{collections::BTreeSet, sync::Arc};

use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::ServiceKey;
use tokio::{
    sync::Notify,
    time::{self, Instant},
};

use crate::guard::Guard;
use crate::{
    batch::{Batch, Origin, Pushed},
    metrics::Troubles,
};
use localnet_cluster::{
    Cluster,
    objects::{Event, Kind, Object},
};

/// The label of held removals in [`Troubles`].
const OF: &str = "removals";
/// The label of awaited sources in [`Troubles`].
const AWAITED: &str = "sources";

/// Applies batches, and reports the held removals and the awaited sources.
#[derive(Debug)]
pub(crate) struct Intake {
    /// One guard for each source.
    guards: Vec<Guard>,
    troubles: Troubles,
    /// The sources and kinds whose held removals have been logged.
    logged: BTreeSet<(usize, Kind)>,
    /// The sources that the first state waits for, as last reported.
    awaited: Vec<Arc<str>>,
}

impl Intake {
    pub(crate) fn new(cluster: &Cluster, troubles: Troubles) -> Self {
        let options = cluster.options();
        let guards = (0..options.sources.len().max(1)).map(|_| Guard::new(options.shrink_hold)).collect();
        Self { guards, troubles, logged: BTreeSet::new(), awaited: Vec::new() }
    }

    /// Resolves when [`Self::act`] is due.
    pub(crate) async fn due(&self) {
        match self.guards.iter().filter_map(Guard::due).min() {
            Some(due) => time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Requests the lists that are due. Applies the removals that the guards no longer hold.
    pub(crate) fn act(&mut self, cluster: &mut Cluster, now: Instant) {
        for (source, guard) in self.guards.iter_mut().enumerate() {
            for (kind, key) in guard.act(now) {
                cluster.handle_from(source, delete(kind, key));
            }
        }
        self.report(cluster);
    }

    /// Applies a batch to the cluster.
    pub(crate) fn take(&mut self, cluster: &mut Cluster, batch: Batch, now: Instant) {
        let source = match &batch.origin {
            Origin::Pushed(pushed) => self.source(cluster, &pushed.source),
            _ => batch.source,
        };
        match batch.origin {
            Origin::Pushed(Pushed { is_list: true, .. }) => {
                self.release(cluster, source, &batch.events);
                self.reread(cluster, source, batch.events, now);
            }
            Origin::Changes | Origin::Pushed(_) => {
                batch.events.into_iter().for_each(|event| self.apply(cluster, source, event));
            }
            Origin::Reread => self.reread(cluster, source, batch.events, now),
            Origin::ApiServer { relist, unreadable } => {
                for event in batch.events {
                    match event {
                        Event::Replace { kind, objects }
                            if Guard::watches(kind) && cluster.has_listed(source, kind) =>
                        {
                            self.list(cluster, source, (kind, objects), &unreadable, &relist, now);
                        }
                        event => self.apply(cluster, source, event),
                    }
                }
            }
        }
        self.report(cluster);
        self.report_awaited(cluster);
    }

    /// The number of the source with this name, which may be new.
    fn source(&mut self, cluster: &mut Cluster, name: &Arc<str>) -> usize {
        let source = cluster.source(name);
        let hold = cluster.options().shrink_hold;
        while self.guards.len() <= source {
            self.guards.push(Guard::new(hold));
        }
        source
    }

    /// Applies an event. If its object is held, stops holding it: a reported change overrides the guard.
    fn apply(&mut self, cluster: &mut Cluster, source: usize, event: Event) {
        let guard = &mut self.guards[source];
        match &event {
            Event::Apply(object) => _ = guard.forget(object.kind(), object.namespace(), object.name()),
            Event::Delete { kind, namespace, name } => _ = guard.forget(*kind, namespace, name),
            Event::Replace { kind, .. } => guard.release(*kind),
        }
        cluster.handle_from(source, event);
    }

    /// Applies a list from an API server that has already listed this kind.
    fn list(
        &mut self,
        cluster: &mut Cluster,
        source: usize,
        (kind, objects): (Kind, Vec<Object>),
        unreadable: &[ServiceKey],
        relist: &Arc<Notify>,
        now: Instant,
    ) {
        let missing = cluster.missing(source, kind, &objects).into_iter().filter(|key| !unreadable.contains(key));
        let missing: BTreeSet<ServiceKey> = missing.collect();
        let lack = cluster.lack(source, kind, &missing, objects.iter());
        for key in self.guards[source].judge(kind, missing, lack, Some(relist), now) {
            cluster.handle_from(source, delete(kind, key));
        }
        for object in objects {
            cluster.handle_from(source, Event::Apply(object));
        }
    }

    /// Applies the held removals if a pushed list lacks further objects. Pushers that send lists with ever new names could otherwise
    /// exceed their limits, which do not count held objects.
    fn release(&mut self, cluster: &mut Cluster, source: usize, events: &[Event]) {
        let guard = &mut self.guards[source];
        let held = [Kind::Service, Kind::Slice].map(|kind| (kind, guard.held(kind)));
        let is_held = |kind: Kind, key: &ServiceKey| held.iter().any(|(of, keys)| *of == kind && keys.contains(key));
        let lacks_more = events.iter().any(|event| match event {
            Event::Delete { kind, namespace, name } => {
                !is_held(*kind, &ServiceKey::new(Arc::clone(namespace), Arc::clone(name)))
            }
            _ => false,
        });
        if lacks_more {
            for (kind, keys) in held {
                guard.release(kind);
                keys.into_iter().for_each(|key| cluster.handle_from(source, delete(kind, key)));
            }
        }
    }

    /// Applies the changes of files. The guard judges their removals together with the removals that it already holds.
    fn reread(&mut self, cluster: &mut Cluster, source: usize, events: Vec<Event>, now: Instant) {
        let guard = &mut self.guards[source];
        let mut others = Vec::new();
        let mut missing = [Kind::Service, Kind::Slice].map(|kind| (kind, guard.held(kind)));
        for event in events {
            match event {
                Event::Delete { kind, namespace, name } => {
                    match missing.iter_mut().find(|(guarded, _)| *guarded == kind) {
                        Some((_, missing)) => _ = missing.insert(ServiceKey { namespace, name }),
                        None => cluster.handle_from(source, Event::Delete { kind, namespace, name }),
                    }
                }
                Event::Apply(object) => others.push(object),
                replace @ Event::Replace { .. } => cluster.handle_from(source, replace),
            }
        }
        for (kind, mut missing) in missing {
            for object in others.iter().filter(|object| object.kind() == kind) {
                missing.remove(&object.key());
            }
            let lack = cluster.lack(source, kind, &missing, others.iter());
            for key in guard.judge(kind, missing, lack, None, now) {
                cluster.handle_from(source, delete(kind, key));
            }
        }
        for object in others {
            cluster.handle_from(source, Event::Apply(object));
        }
    }

    /// Reports the held removals. Logs them once for each source and kind, and lists them in [`Troubles`] until they are no
    /// longer held.
    fn report(&mut self, cluster: &Cluster) {
        let was = !self.logged.is_empty();
        let mut problems = Vec::new();
        for (kind, of) in [(Kind::Service, "services"), (Kind::Slice, "endpointslices.discovery.k8s.io")] {
            let (mut count, mut ended) = (0, false);
            for (source, guard) in self.guards.iter().enumerate() {
                match guard.describe(kind) {
                    Some((objects, problem)) => {
                        count += objects;
                        // A single source has no name.
                        let problem = match cluster.options().sources.get(source) {
                            Some(name) if self.guards.len() > 1 => format!("{name}: {problem}"),
                            _ => problem,
                        };
                        if self.logged.insert((source, kind)) {
                            tracing::warn!("{problem}");
                        }
                        problems.push(problem);
                    }
                    None if self.logged.remove(&(source, kind)) => {
                        ended = true;
                        tracing::info!(of, "the shrink guard no longer holds any objects");
                    }
                    None => {}
                }
            }
            if count > 0 || ended {
                self.troubles.held(of, count);
            }
        }
        if !problems.is_empty() {
            self.troubles.is(OF, Diagnostic::new(Code::RemovalsHeld, Subject::Program, problems.join("; ")));
        } else if was {
            self.troubles.is_over(OF);
        }
    }

    /// Reports the sources that the first state waits for after another source is complete.
    fn report_awaited(&mut self, cluster: &Cluster) {
        if self.guards.len() == 1 || (cluster.is_synced() && self.awaited.is_empty()) {
            return;
        }
        let awaited = cluster.awaited();
        if awaited.len() == self.guards.len() || awaited == self.awaited {
            return;
        }
        if awaited.is_empty() {
            self.troubles.is_over(AWAITED);
            tracing::info!("all sources have listed their objects");
            if !cluster.has_node() {
                let node_name = &cluster.options().node_name;
                tracing::warn!(
                    node_name,
                    "no source has the Node of this name, so its addresses and zone are unknown; add the Node, or correct --node-name"
                );
            }
        } else {
            let problem = format!("the first state waits for the first lists of {}", awaited.join(", "));
            tracing::info!("{problem}");
            self.troubles.is(AWAITED, Diagnostic::new(Code::SourceAwaited, Subject::Program, problem));
        }
        self.awaited = awaited;
    }
}

fn delete(kind: Kind, ServiceKey { namespace, name }: ServiceKey) -> Event {
    Event::Delete { kind, namespace, name }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use localnet_cluster::{
        Options, SHRINK_HOLD,
        testing::{endpoint, service, slice},
    };

    fn services(count: usize) -> Vec<Object> {
        let named = |number| {
            let mut service = service("10.96.0.1", &[(80, "TCP")]);
            service.name = format!("web-{number}").into();
            Object::Service(service)
        };
        (0..count).map(named).collect()
    }

    /// EndpointSlices with ten endpoints each, for one Service each.
    fn slices(count: usize, names: &str) -> Vec<Object> {
        let named = |number| {
            let endpoints = (0..10).map(|host| endpoint(&format!("10.1.{number}.{host}"))).collect();
            let mut slice = slice(&format!("{names}-{number}"), &[("", 80)], endpoints);
            slice.service = Some(format!("web-{number}").into());
            Object::Slice(slice)
        };
        (0..count).map(named).collect()
    }

    struct World {
        /// The source of the next lists.
        source: usize,
        cluster: Cluster,
        intake: Intake,
        troubles: Troubles,
        relist: Arc<Notify>,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            Self::of(&[])
        }

        fn of(sources: &[&str]) -> Self {
            let sources = sources.iter().map(|name| Arc::from(*name)).collect();
            let cluster = Cluster::new(Options { sources, ..Options::of_node("node-1") });
            let troubles = Troubles::default();
            let intake = Intake::new(&cluster, troubles.clone());
            Self { source: 0, cluster, intake, troubles, relist: Arc::default(), now: Instant::now() }
        }

        fn due(&self) -> Option<Instant> {
            self.intake.guards.iter().filter_map(Guard::due).min()
        }

        fn list(&mut self, kind: Kind, objects: Vec<Object>) {
            self.list_with(kind, objects, Vec::new());
        }

        fn list_with(&mut self, kind: Kind, objects: Vec<Object>, unreadable: Vec<ServiceKey>) {
            let origin = Origin::ApiServer { relist: Arc::clone(&self.relist), unreadable };
            self.take(vec![Event::Replace { kind, objects }], origin);
        }

        fn take(&mut self, events: Vec<Event>, origin: Origin) {
            let batch = Batch { source: self.source, events, since: self.now, origin };
            self.intake.take(&mut self.cluster, batch, self.now);
        }

        /// Advances the time to the next action, and performs it.
        fn wait(&mut self) {
            self.now = self.due().unwrap();
            self.intake.act(&mut self.cluster, self.now);
        }

        fn count(&self, kind: Kind) -> usize {
            self.cluster.missing(self.source, kind, &[]).len()
        }

        fn trouble(&self) -> Option<String> {
            self.troubles.all().remove(OF).map(|trouble| trouble.diagnostic.problem)
        }
    }

    /// Regression: an empty list of the API server removed all of 1,200 Services, and empty later pages removed 700 of them.
    /// kube-proxy accepts both lists.
    #[test]
    fn a_suddenly_empty_list_removes_nothing_until_later_lists_confirm_it() {
        for left in [0, 500] {
            let mut world = World::new();
            world.list(Kind::Service, services(1200));
            let start = world.now;
            world.list(Kind::Service, services(left));
            assert_eq!(world.count(Kind::Service), 1200);
            let problem = world.trouble().unwrap();
            assert!(
                problem.starts_with(&format!("{} of 1200 Services are suddenly missing", 1200 - left)),
                "{problem}"
            );
            assert!(problem.contains("default/web-") && problem.contains("300 s (--shrink-hold)"), "{problem}");

            while world.now < start + SHRINK_HOLD {
                world.wait();
                // The requested list lacks the same objects.
                if world.now < start + SHRINK_HOLD {
                    world.list(Kind::Service, services(left));
                }
                assert_eq!(world.count(Kind::Service), 1200);
            }
            world.list(Kind::Service, services(left));
            assert_eq!((world.count(Kind::Service), world.trouble()), (left, None));
        }
    }

    #[test]
    fn new_objects_and_watched_deletions_take_effect_despite_a_suspicious_list() {
        let mut world = World::new();
        world.list(Kind::Service, services(50));
        let mut new = service("10.96.0.2", &[(80, "TCP")]);
        new.name = "new".into();
        world.list(Kind::Service, vec![Object::Service(new)]);
        assert_eq!(world.count(Kind::Service), 51);
        world.take(vec![delete(Kind::Service, ServiceKey::new("default", "web-1"))], Origin::Changes);
        assert_eq!(world.count(Kind::Service), 50);
        // A complete list ends the suspicion.
        world.list(Kind::Service, services(50));
        assert_eq!((world.count(Kind::Service), world.trouble()), (50, None));
        assert_eq!(world.due(), None);
        let all = (0..50).map(|number| delete(Kind::Service, ServiceKey::new("default", &*format!("web-{number}"))));
        let (relist, unreadable) = (Arc::default(), Vec::new());
        world.take(all.collect(), Origin::ApiServer { relist, unreadable });
        assert_eq!((world.count(Kind::Service), world.trouble()), (0, None));
    }

    #[test]
    fn an_unreadable_object_of_a_list_is_kept_unchanged() {
        let mut world = World::new();
        world.list(Kind::Service, services(3));
        world.list_with(Kind::Service, services(1), vec![ServiceKey::new("default", "web-2")]);
        assert_eq!(world.cluster.missing(0, Kind::Service, &services(1)), [ServiceKey::new("default", "web-2")]);
    }

    #[test]
    fn the_loss_counts_endpoints_instead_of_slices() {
        let mut world = World::new();
        world.list(Kind::Service, services(5));
        world.list(Kind::Slice, slices(5, "a"));
        // The slices have other names, and as many endpoints.
        world.list(Kind::Slice, slices(5, "b"));
        assert_eq!((world.count(Kind::Slice), world.trouble()), (5, None));
        world.list(Kind::Slice, slices(3, "b"));
        assert_eq!((world.count(Kind::Slice), world.trouble()), (3, None));
        world.list(Kind::Slice, slices(1, "b"));
        assert_eq!(world.count(Kind::Slice), 3);
        let problem = world.trouble().unwrap();
        assert!(problem.starts_with("20 of 30 endpoints are suddenly missing"), "{problem}");
        // Endpoints whose Services were removed are no loss.
        world.list(Kind::Service, services(0));
        world.list(Kind::Slice, slices(0, "b"));
        assert_eq!((world.count(Kind::Slice), world.trouble()), (0, None));
    }

    #[test]
    fn a_single_service_may_lose_all_of_its_endpoints() {
        let mut world = World::new();
        world.list(Kind::Service, services(1));
        let mut many = slices(5, "a");
        for object in &mut many {
            let Object::Slice(slice) = object else { continue };
            slice.service = Some("web-0".into());
        }
        world.list(Kind::Slice, many);
        world.list(Kind::Slice, Vec::new());
        assert_eq!((world.count(Kind::Slice), world.trouble()), (0, None));
    }

    /// Regression: a file that was truncated after a document removed 150 of 200 Services, and an emptied folder removed all.
    #[test]
    fn files_that_suddenly_lack_objects_remove_them_after_the_hold_time() {
        let mut world = World::new();
        world.take(vec![Event::Replace { kind: Kind::Service, objects: services(200) }], Origin::Reread);
        let gone = |from: usize, to: usize| -> Vec<Event> {
            (from..to)
                .map(|number| delete(Kind::Service, ServiceKey::new("default", &*format!("web-{number}"))))
                .collect()
        };
        world.take(gone(50, 200), Origin::Reread);
        assert_eq!(world.count(Kind::Service), 200);
        assert!(world.trouble().unwrap().contains("(--shrink-hold) and then removes them"));
        // The file is complete again.
        world.take(services(200).into_iter().map(Event::Apply).collect(), Origin::Reread);
        assert_eq!((world.count(Kind::Service), world.trouble()), (200, None));
        assert_eq!(world.due(), None);

        // Several small losses in sequence are not suspicious.
        world.take(gone(110, 200), Origin::Reread);
        assert_eq!(world.count(Kind::Service), 110);
        let start = world.now;
        world.take(gone(20, 110), Origin::Reread);
        world.now += Duration::from_secs(10);
        world.take(gone(0, 20), Origin::Reread);
        assert_eq!(world.count(Kind::Service), 110);
        world.wait();
        assert_eq!((world.now - start, world.count(Kind::Service), world.trouble()), (SHRINK_HOLD, 0, None));
    }

    #[test]
    fn the_guard_judges_each_source_by_its_own_objects() {
        let mut world = World::of(&["kube", "file:extra"]);
        world.list(Kind::Service, services(1000));
        world.source = 1;
        let extra = |number| {
            let mut service = service("10.96.0.2", &[(80, "TCP")]);
            service.name = format!("extra-{number}").into();
            Object::Service(service)
        };
        world.take(vec![Event::Replace { kind: Kind::Service, objects: (0..25).map(extra).collect() }], Origin::Reread);
        let gone = (0..25).map(|number| delete(Kind::Service, extra(number).key()));
        world.take(gone.collect(), Origin::Reread);
        assert_eq!(world.count(Kind::Service), 25);
        let problem = world.trouble().unwrap();
        assert!(problem.starts_with("file:extra: 25 of 25 Services are suddenly missing"), "{problem}");
        world.wait();
        assert_eq!((world.count(Kind::Service), world.trouble()), (0, None));
        world.source = 0;
        assert_eq!(world.count(Kind::Service), 1000);
    }

    #[test]
    fn an_awaited_source_is_a_trouble_until_it_has_listed_every_kind() {
        let mut world = World::of(&["kube", "file:extra"]);
        let awaited =
            |world: &World| world.troubles.all().remove(AWAITED).map(|trouble| trouble.diagnostic.to_string());
        world.list(Kind::Service, services(1));
        assert_eq!(awaited(&world), None, "no source is complete");
        world.source = 1;
        world.take(Kind::ALL.map(|kind| Event::Replace { kind, objects: Vec::new() }).into(), Origin::Reread);
        assert_eq!(awaited(&world).as_deref(), Some("the first state waits for the first lists of kube"));
        world.source = 0;
        for kind in Kind::ALL {
            assert!(awaited(&world).is_some());
            world.list(kind, Vec::new());
        }
        assert_eq!((awaited(&world), world.cluster.is_synced()), (None, true));
    }

    #[test]
    fn the_list_of_a_program_is_judged_but_its_changes_are_not() {
        let mut world = World::of(&["kube", "push:mesh"]);
        world.source = 1;
        let pushed = |is_list| Origin::Pushed(Pushed { source: "push:mesh".into(), is_list, published: None });
        let all = |count| vec![Event::Replace { kind: Kind::Service, objects: services(count) }];
        let deletes =
            || (1..50).map(|number| delete(Kind::Service, ServiceKey::new("default", format!("web-{number}"))));
        world.take(all(50), pushed(false));
        world.take(deletes().collect(), pushed(true));
        assert_eq!(world.count(Kind::Service), 50);
        let problem = world.trouble().unwrap();
        assert!(problem.starts_with("push:mesh: 49 of 50 Services are suddenly missing"), "{problem}");
        // A complete list that is no list of a new stream takes effect at once: a `clear`, or a narrower grant.
        world.take(all(1), pushed(false));
        assert_eq!((world.count(Kind::Service), world.trouble(), world.due()), (1, None, None));
        world.take(all(50), pushed(false));
        world.take(deletes().collect(), pushed(false));
        assert_eq!((world.count(Kind::Service), world.trouble()), (1, None));
    }
    /// Regression: each list with new names added as many objects as the grant allows, until the first hold time was over.
    #[test]
    fn lists_with_new_names_keep_at_most_two_lists() {
        let mut world = World::of(&["kube", "push:mesh"]);
        world.source = 1;
        let pushed = |is_list| Origin::Pushed(Pushed { source: "push:mesh".into(), is_list, published: None });
        let named = |round: usize| {
            // Each list is shorter, so that it is suspicious.
            services(60 - 5 * round).into_iter().map(move |object| {
                let Object::Service(mut service) = object else { return object };
                service.name = format!("{}-{round}", service.name).into();
                Object::Service(service)
            })
        };
        let gone = |round| named(round).map(|object| delete(Kind::Service, object.key()));
        world.take(vec![Event::Replace { kind: Kind::Service, objects: named(0).collect() }], pushed(false));
        for round in 0..5 {
            // A list that lacks the same objects again does not end the hold time.
            world.take(gone(round).chain(named(round + 1).map(Event::Apply)).collect(), pushed(true));
            world.take(named(round + 1).map(Event::Apply).collect(), pushed(true));
            assert_eq!(world.count(Kind::Service), 115 - 10 * round, "round {round}");
        }
    }
}
