//! A backend with one deliberate fault, or none. The kit's checks must find each fault.
//!
//! ```text
//! broken --fault FAULT --api unix:///… [--dump FILE] [--rules]
//! ```
//!
//! It reads `localnetv1`. With a fault whose name begins with `v1-`, it reads `localnet.v1`. With `--dump`, the backend writes the applied state to a file. With `--rules`, it serves ClusterIPs with the nf_tables tables
//! `broken`. It always sends reports. `broken --faults` prints the faults (`FAULTS`). `none` and `v1-none` are
//! correct backends.

mod rules;
mod v1;

use std::{env, fs, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use localnet_conformance::dump::Dump;
use localnet_proto::{
    Change, Revision, Service, Snapshot, Update,
    decode::Assembler,
    encode,
    wire::{
        BackendReport, FamilyReport, IpFamily, NextFilter, backends_client::BackendsClient,
        endpoints_client::EndpointsClient,
    },
};
use tokio::{net::UnixStream, signal::unix::SignalKind};
use tonic::transport::{Channel, Endpoint, Uri};
use v1::V1;

/// The delay before a retry, and the interval between checks of its own rules.
const PAUSE: Duration = Duration::from_millis(20);

/// The faults.
const FAULTS: &[&str] = &[
    "none",
    // The stream.
    "keeps-deleted",
    "ignores-removed",
    "applies-cut",
    "merges-endpoints",
    "forgets-the-token",
    "rounds-the-instance",
    "forgets-the-instance",
    "dies-on-unknown-items",
    "keeps-old-vips",
    "leaks-connections",
    // The stream of localnet.v1.
    "v1-none",
    "v1-forgets-the-token",
    "v1-applies-cut",
    "v1-needs-no-commit",
    "v1-ignores-the-sum",
    "v1-ignores-the-base",
    "v1-ignores-replace",
    "v1-counts-removed-endpoints",
    // Its life.
    "ends-without-a-brain",
    "ends-with-an-error",
    "token-before-apply",
    "reports-before-apply",
    "liar",
    "flushes-at-start",
    "flushes-at-end",
    "flushes-at-each-change",
    "ignores-a-flush",
    "leaves-a-table",
    // Packets.
    "one-endpoint",
    "no-affinity",
    "no-weights",
    "no-hash",
    "hash-without-ports",
    "no-masquerade",
    "drops-instead-of-rejecting",
    "one-family",
    "leaves-udp-flows",
];

struct Broken {
    fault: String,
    socket: PathBuf,
    dump: Option<PathBuf>,
    rules: bool,
    state: Snapshot,
    v1: V1,
    leaked: Vec<Channel>,
}

impl Broken {
    fn of(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let (mut fault, mut api, mut dump, mut rules) = (None, None, None, false);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--fault" => fault = arguments.next().filter(|fault| FAULTS.contains(&fault.as_str())),
                "--api" => api = arguments.next(),
                "--dump" => dump = arguments.next().map(PathBuf::from),
                "--rules" => rules = true,
                _ => return None,
            }
        }
        let socket = PathBuf::from(api?.trim_start_matches("unix://"));
        Some(Self {
            fault: fault?,
            socket,
            dump,
            rules,
            state: Snapshot::default(),
            v1: V1::default(),
            leaked: Vec::new(),
        })
    }

    fn is(&self, fault: &str) -> bool {
        self.fault == fault
    }

    async fn connect(&mut self) -> anyhow::Result<Channel> {
        let socket = self.socket.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connect).await?;
        if self.is("leaks-connections") {
            self.leaked.push(channel.clone());
        }
        Ok(channel)
    }

    /// One answer of `Next`, possibly incomplete, and whether it ended with OK.
    async fn next(&self, channel: Channel) -> anyhow::Result<(Assembler, bool)> {
        let mut have = if self.is("forgets-the-token") { Revision::default() } else { self.state.revision };
        if self.is("rounds-the-instance") {
            // As a JavaScript Number, which has 53 bits.
            have.instance &= !0x7ff;
        }
        let request: NextFilter = encode::next_filter(have, true);
        let mut items = EndpointsClient::new(channel).next(request).await?.into_inner();
        let mut assembler = Assembler::default();
        loop {
            match items.message().await {
                Ok(Some(item)) => {
                    let is_known = item.next.is_some() || item.node.is_some() || item.endpoints.is_some();
                    if self.is("dies-on-unknown-items") && !is_known && item.removed.is_none() {
                        std::process::exit(1);
                    }
                    assembler.push(item)?;
                }
                Ok(None) => return Ok((assembler, true)),
                Err(_) => return Ok((assembler, false)),
            }
        }
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        let channel = self.connect().await?;
        let update = if self.fault.starts_with("v1-") {
            self.v1.next(channel.clone(), &self.fault).await?
        } else {
            let (assembler, ok) = self.next(channel.clone()).await?;
            if !ok && !self.is("applies-cut") {
                anyhow::bail!("the stream was cut");
            }
            let mut update = assembler.finish()?;
            self.spoil(&mut update);
            update
        };
        let mut state = self.state.clone();
        state.apply(update);
        if self.is("forgets-the-instance") && state.revision.rev <= self.state.revision.rev {
            // Treats a revision that is not higher as older.
            self.state.revision = state.revision;
            return Ok(());
        }
        if self.is("token-before-apply") {
            self.state = state.clone();
        }
        if self.is("reports-before-apply") {
            self.report(channel.clone(), state.revision).await?;
        }
        if !self.is("liar")
            && let Err(error) = self.apply(&state)
        {
            // The reader of localnet.v1 has the new state already. Without a token, it gets the state again.
            self.v1 = V1::default();
            return Err(error);
        }
        self.state = state;
        self.report(channel, self.state.revision).await
    }

    async fn report(&self, channel: Channel, revision: Revision) -> anyhow::Result<()> {
        if self.fault.starts_with("v1-") {
            v1::report(channel, revision).await
        } else {
            report(channel, revision).await
        }
    }

    /// Falsifies the received update according to the fault.
    fn spoil(&self, update: &mut Update) {
        if self.is("keeps-deleted")
            && let Update::Full(full) = update
        {
            let services = full.services.values().cloned().map(Change::Service);
            let changes = std::iter::once(Change::Node(full.node.clone())).chain(services).collect();
            *update = Update::Delta { revision: full.revision, changes };
        }
        if let Update::Delta { changes, .. } = update {
            if self.is("ignores-removed") {
                changes.retain(|change| !matches!(change, Change::Removed(_)));
            }
            changes.iter_mut().for_each(|change| self.merge(change));
        }
    }

    fn merge(&self, change: &mut Change) {
        if let Change::Service(service) = change
            && let Some(before) = self.state.services.get(&service.key)
        {
            let mut merged = Service::clone(service);
            if self.is("merges-endpoints") {
                merged.endpoints.extend(before.endpoints.iter().cloned());
                merged.endpoints.sort();
                merged.endpoints.dedup();
            }
            if self.is("keeps-old-vips") {
                merged.cluster_ips.extend(&before.cluster_ips);
                merged.cluster_ips.sort();
                merged.cluster_ips.dedup();
            }
            *service = Arc::new(merged);
        }
    }

    fn apply(&self, state: &Snapshot) -> anyhow::Result<()> {
        if self.rules {
            rules::write(state, &self.fault)?;
        }
        let Some(path) = &self.dump else { return Ok(()) };
        let dump = Dump::of(state);
        let Revision { instance, rev } = dump.revision;
        let lines: String = dump.lines.iter().map(|line| format!("{line}\n")).collect();
        let new = path.with_extension("new");
        fs::write(&new, format!("rev {instance} {rev}\n{lines}")).context("writing the dump")?;
        fs::rename(new, path).context("writing the dump")
    }
}

/// Restores rules that another program removed, in an endless loop.
async fn repair(rules: bool, fault: String, state: Snapshot) -> anyhow::Result<()> {
    let repairs =
        rules && state.revision != Revision::default() && !["ignores-a-flush", "liar"].contains(&fault.as_str());
    loop {
        tokio::time::sleep(PAUSE).await;
        if repairs && !rules::are_there() {
            rules::write(&state, &fault)?;
        }
    }
}

async fn report(channel: Channel, revision: Revision) -> anyhow::Result<()> {
    let family =
        |family: IpFamily| FamilyReport { family: family.into(), applied_rev: revision.rev, ..FamilyReport::default() };
    let families = vec![family(IpFamily::IPv4), family(IpFamily::IPv6)];
    let report = BackendReport {
        backend: "broken".to_owned(),
        instance_id: revision.instance,
        rev: revision.rev,
        families,
        ..BackendReport::default()
    };
    BackendsClient::new(channel).report(report).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if env::args().nth(1).is_some_and(|first| first == "--faults") {
        println!("{}", FAULTS.join("\n"));
        return ExitCode::SUCCESS;
    }
    let Some(mut broken) = Broken::of(env::args().skip(1)) else { return ExitCode::from(2) };
    let Ok(mut terminated) = tokio::signal::unix::signal(SignalKind::terminate()) else { return ExitCode::FAILURE };
    if broken.is("flushes-at-start") {
        rules::remove();
    }
    loop {
        let repair = repair(broken.rules, broken.fault.clone(), broken.state.clone());
        let stepped = tokio::select! {
            _ = terminated.recv() => return end(&broken),
            stepped = broken.step() => stepped,
            repaired = repair => repaired,
        };
        if let Err(error) = stepped {
            eprintln!("{error:#}");
            if broken.is("ends-without-a-brain") {
                return ExitCode::FAILURE;
            }
            tokio::select! {
                _ = terminated.recv() => return end(&broken),
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

fn end(broken: &Broken) -> ExitCode {
    if broken.is("flushes-at-end") {
        rules::remove();
    }
    if broken.is("ends-with-an-error") { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
