//! [`WithOutside`]: the eBPF backend, and in the same process the nft backend, which serves clients outside the cgroup. Both apply the
//! same state, and the brain gets one report.

use localnet_client::{Backend, Counts, Diagnostic, Mode, Synced, vips::Effective};
use localnet_proto::{Changes, Snapshot};
use tokio::{select, sync::watch};

/// A backend, and possibly a second one that serves the clients that the first one cannot serve.
#[derive(Debug)]
pub struct WithOutside<I, O> {
    inside: I,
    outside: Option<O>,
    counts: Option<watch::Receiver<Counts>>,
}

impl<I: Backend, O: Backend> WithOutside<I, O> {
    /// Must be called in a tokio runtime.
    pub fn new(inside: I, outside: Option<O>) -> Self {
        let counts = match (inside.counts(), outside.as_ref().and_then(Backend::counts)) {
            (Some(inside), Some(outside)) => Some(sum(inside, outside)),
            (inside, outside) => inside.or(outside),
        };
        Self { inside, outside, counts }
    }
}

/// The counters of both backends, until one of them is dropped. Only the nft backend has rules, and checks flows.
fn sum(mut inside: watch::Receiver<Counts>, mut outside: watch::Receiver<Counts>) -> watch::Receiver<Counts> {
    let both = |inside: &watch::Receiver<Counts>, outside: &watch::Receiver<Counts>| {
        let mut counts = outside.borrow().clone();
        counts.repairs += inside.borrow().repairs;
        counts
    };
    let (sender, receiver) = watch::channel(both(&inside, &outside));
    tokio::spawn(async move {
        while let Ok(()) = select! { changed = inside.changed() => changed, changed = outside.changed() => changed } {
            sender.send_replace(both(&inside, &outside));
        }
    });
    receiver
}

impl<I: Backend, O: Backend> Backend for WithOutside<I, O> {
    fn name(&self) -> &'static str {
        self.inside.name()
    }

    fn mode(&self) -> Option<Mode> {
        self.inside.mode().or_else(|| self.outside.as_ref()?.mode())
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        let mut warnings = self.inside.warnings();
        add(&mut warnings, self.outside.iter().flat_map(Backend::warnings));
        warnings
    }

    fn counts(&self) -> Option<watch::Receiver<Counts>> {
        self.counts.clone()
    }

    fn configuration(&self) -> Option<Effective> {
        self.inside.configuration()
    }

    /// Applies the state outside first: until the programs know a Service, the rules serve its clients on this node, too.
    async fn sync(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        let Some(outside) = &mut self.outside else { return self.inside.sync(state, changes).await };
        // An error of one backend must not keep the state from the other one.
        let outside = outside.sync(state, changes).await;
        let mut synced = self.inside.sync(state, changes).await?;
        let Synced { failed, skipped, refused, full } = outside?;
        synced.failed.extend(failed);
        add(&mut synced.skipped, skipped);
        synced.refused.extend(refused);
        add(&mut synced.full, full);
        Ok(synced)
    }

    fn retry_refused(&mut self) {
        self.inside.retry_refused();
        if let Some(outside) = &mut self.outside {
            outside.retry_refused();
        }
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        let inside = self.inside.cleanup().await;
        if let Some(outside) = &mut self.outside {
            outside.cleanup().await?;
        }
        inside
    }

    async fn disturbed(&mut self) {
        let Some(outside) = &mut self.outside else { return self.inside.disturbed().await };
        select! {
            () = self.inside.disturbed() => {}
            () = outside.disturbed() => {}
        }
    }
}

/// Appends what the list does not contain yet.
fn add<T: PartialEq>(list: &mut Vec<T>, more: impl IntoIterator<Item = T>) {
    for one in more {
        if !list.contains(&one) {
            list.push(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use localnet_proto::Family;

    use super::*;

    /// A backend that fails on request, and counts its syncs.
    struct Fake {
        name: &'static str,
        fails: bool,
        synced: Arc<Mutex<Vec<&'static str>>>,
        counts: watch::Sender<Counts>,
    }

    impl Backend for Fake {
        fn name(&self) -> &'static str {
            self.name
        }

        fn counts(&self) -> Option<watch::Receiver<Counts>> {
            Some(self.counts.subscribe())
        }

        async fn sync(&mut self, _: &Snapshot, _: &Changes) -> anyhow::Result<Synced> {
            self.synced.lock().unwrap().push(self.name);
            anyhow::ensure!(!self.fails, "{} fails", self.name);
            Ok(Synced { full: Family::BOTH.into(), ..Synced::default() })
        }

        async fn cleanup(&mut self) -> anyhow::Result<()> {
            Ok(())
        }
    }

    fn backend(fails: [bool; 2]) -> (WithOutside<Fake, Fake>, Arc<Mutex<Vec<&'static str>>>) {
        let synced = Arc::<Mutex<Vec<_>>>::default();
        let fake = |name, fails| Fake { name, fails, synced: synced.clone(), counts: watch::Sender::default() };
        (WithOutside::new(fake("inside", fails[0]), Some(fake("outside", fails[1]))), synced)
    }

    #[tokio::test]
    async fn both_backends_get_each_state_although_one_fails() {
        for (fails, error) in
            [([false, false], None), ([true, false], Some("inside fails")), ([false, true], Some("outside fails"))]
        {
            let (mut both, synced) = backend(fails);
            let result = both.sync(&Snapshot::default(), &Changes::everything()).await;
            assert_eq!(result.as_ref().err().map(ToString::to_string).as_deref(), error);
            assert!(result.is_err() || result.is_ok_and(|synced| synced.full == Family::BOTH), "each family once");
            assert_eq!(*synced.lock().unwrap(), ["outside", "inside"]);
        }
    }

    #[tokio::test]
    async fn the_repairs_of_both_backends_are_counted() {
        let (both, _) = backend([false, false]);
        let mut counts = both.counts().unwrap();
        both.inside.counts.send_modify(|counts| counts.repairs = 2);
        both.outside.as_ref().unwrap().counts.send_modify(|counts| counts.repairs = 3);
        counts.wait_for(|counts| counts.repairs == 5).await.unwrap();
    }
}
