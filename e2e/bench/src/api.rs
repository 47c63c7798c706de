//! Writes to the API server, either many objects at once or at a rate.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Client, ResourceExt,
    api::{ListParams, WatchEvent, WatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{
    sync::Semaphore,
    time::{MissedTickBehavior, interval},
};

use crate::cluster::{NAMESPACE, Probe, Size, Slice};

/// The number of concurrent requests. On two processors, more do not make an API server faster.
const PARALLEL: usize = 64;

/// The version of the newest object, from which [`watch_from`] continues.
pub(crate) async fn newest_version<K>(objects: &kube::Api<K>) -> anyhow::Result<String>
where
    K: Clone + Debug + DeserializeOwned,
{
    let first = objects.list(&ListParams::default().limit(1)).await.context("listing one object")?;
    first.metadata.resource_version.context("a list has no version")
}

/// Calls `changed` with each object that is created or changed after a version. Does not list the older objects, which may be
/// many. Ends only with an error.
pub(crate) async fn watch_from<K>(
    objects: &kube::Api<K>,
    mut version: String,
    mut changed: impl FnMut(K),
) -> anyhow::Result<()>
where
    K: Clone + Debug + DeserializeOwned + ResourceExt,
{
    loop {
        let params = WatchParams::default().timeout(290);
        let mut events = std::pin::pin!(objects.watch(&params, &version).await.context("watching objects")?);
        while let Some(event) = events.next().await {
            match event.context("watching objects")? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    version = object.resource_version().unwrap_or_default();
                    changed(object);
                }
                WatchEvent::Deleted(object) => version = object.resource_version().unwrap_or_default(),
                WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => anyhow::bail!("watching objects: {status:?}"),
            }
        }
    }
}

/// A kind of objects to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Services,
    EndpointSlices,
    Deployments,
}

impl Kind {
    fn path(self, namespace: &str) -> String {
        match self {
            Self::Services => format!("/api/v1/namespaces/{namespace}/services"),
            Self::EndpointSlices => format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"),
            Self::Deployments => format!("/apis/apps/v1/namespaces/{namespace}/deployments"),
        }
    }

    /// The path of an object.
    pub(crate) fn item(self, name: &str) -> String {
        format!("{}/{name}", self.path(NAMESPACE))
    }
}

/// Creates the objects.
pub(crate) async fn create(client: &Client, kind: Kind, bodies: impl Iterator<Item = Value>) -> anyhow::Result<()> {
    let requests = bodies.map(|body| {
        let namespace = body.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or(NAMESPACE);
        let request = Request::post(kind.path(namespace))
            .header("Content-Type", "application/json")
            .body(body.to_string().into());
        async { anyhow::Ok(client.request_text(request?).await?) }
    });
    stream::iter(requests).buffer_unordered(PARALLEL).try_for_each(|_| async { Ok(()) }).await?;
    Ok(())
}

/// Reads an object from the API server.
pub(crate) async fn get(client: &Client, path: &str) -> anyhow::Result<Value> {
    client.request(Request::get(path).body(Vec::new())?).await.with_context(|| format!("reading {path}"))
}

/// Replaces a slice.
pub(crate) async fn replace(client: &Client, slice: &Slice) -> anyhow::Result<()> {
    let request = Request::put(Kind::EndpointSlices.item(&slice.name))
        .header("Content-Type", "application/json")
        .body(slice.body.to_string().into())?;
    client.request_text(request).await.with_context(|| format!("replacing EndpointSlice {}", slice.name))?;
    Ok(())
}

/// Deletes these objects one by one, because `deletecollection` takes an API server several times as long. Returns once the last
/// one is deleted.
pub(crate) async fn delete(client: &Client, kind: Kind, bodies: impl Iterator<Item = Value>) -> anyhow::Result<()> {
    let path = kind.path(NAMESPACE);
    let requests = bodies.map(|body| {
        let name = body.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let request = Request::delete(format!("{path}/{name}")).body(Vec::new());
        async { anyhow::Ok(client.request_text(request?).await?) }
    });
    let mut deleted = stream::iter(requests).buffer_unordered(PARALLEL);
    while let Some(deleted) = deleted.next().await {
        deleted.with_context(|| format!("deleting {kind:?}"))?;
    }
    Ok(())
}

/// The result of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    /// The number of changes that the API server acknowledged.
    pub(crate) changes: usize,
    pub(crate) took: Duration,
}

/// Replaces one endpoint of another Service, at a rate per second. Skips changes that the API server cannot accept in time.
pub(crate) async fn load(client: Client, size: Size, rate: u32, length: Duration, first: u32) -> anyhow::Result<Load> {
    const TICK: Duration = Duration::from_millis(5);
    let started = Instant::now();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let free = Arc::new(Semaphore::new(PARALLEL));
    let done = Arc::new(AtomicUsize::new(0));
    let mut number = 0;
    while started.elapsed() < length {
        ticks.tick().await;
        let due = (started.elapsed().min(length).as_secs_f64() * f64::from(rate)) as u32;
        while number < due {
            let change = first + number;
            number += 1;
            let Ok(permit) = Arc::clone(&free).try_acquire_owned() else { continue };
            // This stride visits all Services, with large distances in between.
            let service = (u64::from(change) * 7_919 % u64::from(size.services)) as u32;
            let (client, done) = (client.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                if replace(&client, &size.slice(service, Some(change))).await.is_ok() {
                    done.fetch_add(1, Ordering::Relaxed);
                }
                drop(permit);
            });
        }
    }
    _ = free.acquire_many(PARALLEL as u32).await;
    Ok(Load { changes: done.load(Ordering::Relaxed), took: started.elapsed() })
}

/// Watches only the probe's slice, and calls `tell` when an event contains one of the probe's endpoints.
pub(crate) async fn watch_probe(client: Client, mut tell: impl FnMut(Instant, Probe)) -> anyhow::Result<()> {
    let slices = kube::Api::<EndpointSlice>::namespaced(client, NAMESPACE);
    let config = watcher::Config::default().fields(&Probe::field_selector());
    let mut events = std::pin::pin!(watcher::watcher(slices, config).applied_objects());
    while let Some(slice) = events.next().await {
        let (at, slice) = (Instant::now(), slice.context("watching the probe's slice")?);
        let addresses = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses);
        for probe in [Probe::Open, Probe::Closed] {
            if addresses.clone().any(|address| *address == probe.address().to_string()) {
                tell(at, probe);
            }
        }
    }
    Ok(())
}
