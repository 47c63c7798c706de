//! Applies the batches of a source to the cluster. Removals that the [`Guard`] holds are not applied.

use std::{collections::BTreeSet, sync::Arc};

use localnet_core::{Code, Diagnostic, Subject};
use localnet_proto::ServiceKey;
use tokio::{
    sync::Notify,
    time::{self, Instant},
};

use crate::guard::Guard;
use crate::{
    batch::{Batch, Origin},
    metrics::Troubles,
};
use localnet_cluster::{
    Cluster,
    objects::{Event, Kind, Object},
};

/// The label of held removals in [`Troubles`].
const OF: &str = "removals";

/// Applies batches, and reports the held removals.
#[derive(Debug)]
pub(crate) struct Intake {
    guard: Guard,
    troubles: Troubles,
    /// The kinds whose held removals have been logged.
    logged: BTreeSet<Kind>,
}

impl Intake {
    pub(crate) fn new(cluster: &Cluster, troubles: Troubles) -> Self {
        Self { guard: Guard::new(cluster.options().shrink_hold), troubles, logged: BTreeSet::new() }
    }

    /// Resolves when [`Self::act`] is due.
    pub(crate) async fn due(&self) {
        match self.guard.due() {
            Some(due) => time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Requests the lists that are due. Returns the removals that the guard no longer holds.
    pub(crate) fn act(&mut self, now: Instant) -> Vec<Event> {
        let released = self.guard.act(now).into_iter().map(|(kind, key)| delete(kind, key)).collect();
        self.report();
        released
    }

    /// Applies a batch to the cluster.
    pub(crate) fn take(&mut self, cluster: &mut Cluster, batch: Batch, now: Instant) {
        match batch.origin {
            Origin::Changes => {
                for event in batch.events {
                    self.forget(&event);
                    cluster.handle(event);
                }
            }
            Origin::Reread => self.reread(cluster, batch.events, now),
            Origin::ApiServer { relist, unreadable } => {
                for event in batch.events {
                    match event {
                        Event::Replace { kind, objects } if Guard::watches(kind) && cluster.has_listed(kind) => {
                            self.list(cluster, (kind, objects), &unreadable, &relist, now);
                        }
                        event => {
                            self.forget(&event);
                            cluster.handle(event);
                        }
                    }
                }
            }
        }
        self.report();
    }

    /// If the object of an event is held, stops holding it: a reported change overrides the guard.
    fn forget(&mut self, event: &Event) {
        match event {
            Event::Apply(object) => _ = self.guard.forget(object.kind(), object.namespace(), object.name()),
            Event::Delete { kind, namespace, name } => _ = self.guard.forget(*kind, namespace, name),
            Event::Replace { .. } => {}
        }
    }

    /// Applies a list from an API server that has already listed this kind.
    fn list(
        &mut self,
        cluster: &mut Cluster,
        (kind, objects): (Kind, Vec<Object>),
        unreadable: &[ServiceKey],
        relist: &Arc<Notify>,
        now: Instant,
    ) {
        let missing = cluster.missing(kind, &objects).into_iter().filter(|key| !unreadable.contains(key));
        let missing: BTreeSet<ServiceKey> = missing.collect();
        let lack = cluster.lack(kind, &missing, objects.iter());
        for key in self.guard.judge(kind, missing, lack, Some(relist), now) {
            cluster.handle(delete(kind, key));
        }
        for object in objects {
            cluster.handle(Event::Apply(object));
        }
    }

    /// Applies the changes of files. The guard judges their removals together with the removals that it already holds.
    fn reread(&mut self, cluster: &mut Cluster, events: Vec<Event>, now: Instant) {
        let mut others = Vec::new();
        let mut missing = [Kind::Service, Kind::Slice].map(|kind| (kind, self.guard.held(kind)));
        for event in events {
            match event {
                Event::Delete { kind, namespace, name } => {
                    match missing.iter_mut().find(|(guarded, _)| *guarded == kind) {
                        Some((_, missing)) => _ = missing.insert(ServiceKey { namespace, name }),
                        None => cluster.handle(Event::Delete { kind, namespace, name }),
                    }
                }
                Event::Apply(object) => others.push(object),
                replace @ Event::Replace { .. } => cluster.handle(replace),
            }
        }
        for (kind, mut missing) in missing {
            for object in others.iter().filter(|object| object.kind() == kind) {
                missing.remove(&ServiceKey::new(object.namespace(), object.name()));
            }
            let lack = cluster.lack(kind, &missing, others.iter());
            for key in self.guard.judge(kind, missing, lack, None, now) {
                cluster.handle(delete(kind, key));
            }
        }
        for object in others {
            cluster.handle(Event::Apply(object));
        }
    }

    /// Reports the held removals. Logs them once for each kind, and lists them in [`Troubles`] until they are no longer held.
    fn report(&mut self) {
        let was = !self.logged.is_empty();
        let mut problems = Vec::new();
        for (kind, of) in [(Kind::Service, "services"), (Kind::Slice, "endpointslices.discovery.k8s.io")] {
            let held = self.guard.describe(kind);
            if held.is_some() || self.logged.contains(&kind) {
                self.troubles.held(of, held.as_ref().map_or(0, |(objects, _)| *objects));
            }
            match held {
                Some((_, problem)) => {
                    if self.logged.insert(kind) {
                        tracing::warn!("{problem}");
                    }
                    problems.push(problem);
                }
                None if self.logged.remove(&kind) => {
                    tracing::info!(of, "the shrink guard no longer holds any objects");
                }
                None => {}
            }
        }
        if !problems.is_empty() {
            self.troubles.is(OF, Diagnostic::new(Code::RemovalsHeld, Subject::Program, problems.join("; ")));
        } else if was {
            self.troubles.is_over(OF);
        }
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
        cluster: Cluster,
        intake: Intake,
        troubles: Troubles,
        relist: Arc<Notify>,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let (cluster, troubles) = (Cluster::new(Options::of_node("node-1")), Troubles::default());
            let intake = Intake::new(&cluster, troubles.clone());
            Self { cluster, intake, troubles, relist: Arc::default(), now: Instant::now() }
        }

        fn list(&mut self, kind: Kind, objects: Vec<Object>) {
            self.list_with(kind, objects, Vec::new());
        }

        fn list_with(&mut self, kind: Kind, objects: Vec<Object>, unreadable: Vec<ServiceKey>) {
            let origin = Origin::ApiServer { relist: Arc::clone(&self.relist), unreadable };
            self.take(vec![Event::Replace { kind, objects }], origin);
        }

        fn take(&mut self, events: Vec<Event>, origin: Origin) {
            let batch = Batch { events, since: self.now, origin };
            self.intake.take(&mut self.cluster, batch, self.now);
        }

        /// Advances the time to the next action, and performs it.
        fn wait(&mut self) {
            self.now = self.intake.guard.due().unwrap();
            let events = self.intake.act(self.now);
            self.take(events, Origin::Changes);
        }

        fn count(&self, kind: Kind) -> usize {
            self.cluster.missing(kind, &[]).len()
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
        assert_eq!(world.intake.guard.due(), None);
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
        assert_eq!(world.cluster.missing(Kind::Service, &services(1)), [ServiceKey::new("default", "web-2")]);
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
        assert_eq!(world.intake.guard.due(), None);

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
}
