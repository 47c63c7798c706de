//! A control plane with all objects. For each size, it is filled once: the first object of each kind through the API, and the
//! others as copies in etcd. Every contestant then gets a new control plane with this data, so that the conditions are the same
//! for all.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use localnet_controlplane::{ControlPlane, NewNode, Options, binary};
use localnet_lab::topology::{NODE as NODE_ADDRESSES, POD_CIDRS};
use serde_json::{Value, json};

use crate::{
    api::{self, Kind},
    cluster::{NAMESPACE, NODE, OTHER_NODE, SERVICE_CIDRS, Size},
    etcd::{self, Entry, like},
    machine::version,
    print_progress,
};

/// Disable the API server's own limits, which are not to be measured.
const ARGUMENTS: [&str; 4] = [
    "--enable-priority-and-fairness=false",
    "--max-requests-inflight=0",
    "--max-mutating-requests-inflight=0",
    "--request-timeout=10m",
];

/// The options of a control plane. It starts with `data`, or empty, in the namespace of `place`, or in the caller's.
pub(crate) fn options(place: Option<(PathBuf, IpAddr)>, data: Option<PathBuf>) -> Options {
    let mut options = Options {
        service_cidrs: SERVICE_CIDRS.map(str::to_owned).to_vec(),
        apiserver_arguments: ARGUMENTS.map(str::to_owned).to_vec(),
        controllers: false,
        // The memory of the control plane is not measured, and collecting garbage takes CPU time from the contestants.
        gogc: 2_000,
        data,
        ..Options::default()
    };
    if let Some((netns, address)) = place {
        options.netns = Some(netns);
        options.bind_address = address;
    }
    options
}

/// The data of an etcd with all objects of this size, from the cache if possible.
pub(crate) async fn filled(size: Size, cache: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("{size}-{:016x}", digest(size.services().chain(size.slices()))?);
    cached(cache, &name, options(None, None), async |plane| fill(plane, size).await).await
}

/// The data of an etcd that `fill` has filled, from the cache if possible. The control plane has the two Nodes and the namespace.
pub(crate) async fn cached(
    cache: &Path,
    name: &str,
    options: Options,
    fill: impl AsyncFnOnce(&ControlPlane) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let folder = cache.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    print_progress(&format!("filling a control plane for {}", folder.display()));
    let new = cache.join("new");
    fs::create_dir_all(cache).with_context(|| format!("creating {}", cache.display()))?;
    if new.exists() {
        fs::remove_dir_all(&new).with_context(|| format!("removing {}", new.display()))?;
    }
    let plane = ControlPlane::start(options).await?;
    let objects = plane.objects(NAMESPACE);
    objects.ensure_namespace().await?;
    let labels = [("topology.kubernetes.io/zone", "zone-a")];
    let node = NewNode { name: NODE, addresses: &NODE_ADDRESSES, labels: &labels, pod_cidrs: &POD_CIDRS };
    objects.ensure_node(node).await?;
    objects.ensure_node(NewNode { name: OTHER_NODE, labels: &labels, ..NewNode::default() }).await?;
    fill(&plane).await?;
    plane.save(&new)?;
    fs::rename(&new, &folder).with_context(|| format!("renaming {}", new.display()))?;
    Ok(folder)
}

/// Writes all objects of a size.
async fn fill(plane: &ControlPlane, size: Size) -> anyhow::Result<()> {
    let client = plane.client();
    api::create(&client, Kind::Services, first_and_probe(size.services, size.services())).await?;
    api::create(&client, Kind::EndpointSlices, first_and_probe(size.services * size.parts(), size.slices())).await?;
    let service = api::get(&client, &Kind::Services.item(&size.name(0))).await?;
    let slice = api::get(&client, &Kind::EndpointSlices.item(&size.slice(0, None).name)).await?;
    let address = api::get(&client, &format!("/apis/networking.k8s.io/v1/ipaddresses/{}", size.vip(0).ip())).await?;
    let services = size.services().zip(0..size.services).skip(1).flat_map(|(body, number)| {
        let (name, ip) = (size.name(number), size.vip(number).ip());
        let used = json!({ "metadata": { "name": ip }, "spec": { "parentRef": { "name": name } } });
        [
            (format!("/registry/services/specs/{NAMESPACE}/{name}"), like(&service, &body, number)),
            (format!("/registry/ipaddresses/{ip}"), like(&address, &used, number)),
        ]
    });
    let slices = size.slices().zip(0..size.services * size.parts()).skip(1).map(|(body, number)| {
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        (format!("/registry/endpointslices/{NAMESPACE}/{name}"), like(&slice, &body, number))
    });
    etcd::put(plane.etcd(), services.chain(slices).map(|(key, object)| Entry { key, object })).await?;
    // Verify that the API server accepts the copies as its own.
    let last = size.services - 1;
    let found = api::get(&client, &Kind::Services.item(&size.name(last))).await.context("reading a copy")?;
    let expected = size.vip(last).ip().to_string();
    anyhow::ensure!(found["spec"]["clusterIP"] == expected.as_str(), "a copy is {found}");
    Ok(())
}

/// The objects of the first Service and of the probe.
fn first_and_probe(count: u32, bodies: impl Iterator<Item = Value>) -> impl Iterator<Item = Value> {
    bodies.step_by(count as usize)
}

/// A hash of the objects to write and of the programs that write them.
pub(crate) fn digest(bodies: impl Iterator<Item = Value>) -> anyhow::Result<u64> {
    let mut hasher = DefaultHasher::new();
    for program in ["etcd", "kube-apiserver"] {
        version(&binary(program)?)?.hash(&mut hasher);
    }
    ARGUMENTS.hash(&mut hasher);
    bodies.for_each(|body| body.to_string().hash(&mut hasher));
    Ok(hasher.finish())
}
