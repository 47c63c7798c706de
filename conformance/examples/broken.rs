//! A backend that is broken on purpose, in one way or not at all: what the checks have to find.
//!
//! ```text
//! broken none|keeps-deleted|applies-cut|ignores-removed|forgets-the-token|ends-without-a-brain|merges-endpoints API DUMP
//! ```

use std::{env, fs, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use localnet_conformance::dump::Dump;
use localnet_proto::{
    Change, Revision, Service, Snapshot, Update,
    decode::Assembler,
    encode,
    wire::{NextFilter, endpoints_client::EndpointsClient},
};
use tokio::{net::UnixStream, signal::unix::SignalKind};
use tonic::transport::{Endpoint, Uri};

struct Broken {
    fault: String,
    socket: PathBuf,
    dump: PathBuf,
    state: Snapshot,
}

impl Broken {
    fn is(&self, fault: &str) -> bool {
        self.fault == fault
    }

    /// One answer of `Next`, as far as it came, and whether it ended with OK.
    async fn next(&self) -> anyhow::Result<(Assembler, bool)> {
        let socket = self.socket.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connect).await?;
        let have = if self.is("forgets-the-token") { Revision::default() } else { self.state.revision };
        let request: NextFilter = encode::next_filter(have, true);
        let mut items = EndpointsClient::new(channel).next(request).await?.into_inner();
        let mut assembler = Assembler::default();
        loop {
            match items.message().await {
                Ok(Some(item)) => assembler.push(item)?,
                Ok(None) => return Ok((assembler, true)),
                Err(_) => return Ok((assembler, false)),
            }
        }
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        let (assembler, ok) = self.next().await?;
        if !ok && !self.is("applies-cut") {
            anyhow::bail!("the stream was cut");
        }
        let mut update = assembler.finish()?;
        if self.is("keeps-deleted")
            && let Update::Full(full) = update
        {
            let services = full.services.into_values().map(Change::Service);
            let changes = std::iter::once(Change::Node(full.node)).chain(services).collect();
            update = Update::Delta { revision: full.revision, changes };
        }
        if let Update::Delta { changes, .. } = &mut update {
            if self.is("ignores-removed") {
                changes.retain(|change| !matches!(change, Change::Removed(_)));
            }
            if self.is("merges-endpoints") {
                changes.iter_mut().for_each(|change| self.merge(change));
            }
        }
        self.state.apply(update);
        let dump = Dump::of(&self.state);
        let Revision { instance, rev } = dump.revision;
        let lines: String = dump.lines.iter().map(|line| format!("{line}\n")).collect();
        let new = self.dump.with_extension("new");
        fs::write(&new, format!("rev {instance} {rev}\n{lines}")).context("writing the dump")?;
        fs::rename(new, &self.dump).context("writing the dump")
    }

    fn merge(&self, change: &mut Change) {
        if let Change::Service(service) = change
            && let Some(before) = self.state.services.get(&service.key)
        {
            let mut merged = Service::clone(service);
            merged.endpoints.extend(before.endpoints.iter().cloned());
            merged.endpoints.sort();
            merged.endpoints.dedup();
            *service = Arc::new(merged);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [fault, api, dump] = &arguments[..] else { return ExitCode::from(2) };
    let socket = PathBuf::from(api.trim_start_matches("unix://"));
    let mut broken = Broken { fault: fault.clone(), socket, dump: dump.into(), state: Snapshot::default() };
    let Ok(mut terminated) = tokio::signal::unix::signal(SignalKind::terminate()) else { return ExitCode::FAILURE };
    loop {
        let stepped = tokio::select! {
            _ = terminated.recv() => return ExitCode::SUCCESS,
            stepped = broken.step() => stepped,
        };
        if let Err(error) = stepped {
            eprintln!("{error:#}");
            if broken.is("ends-without-a-brain") {
                return ExitCode::FAILURE;
            }
            tokio::select! {
                _ = terminated.recv() => return ExitCode::SUCCESS,
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
            }
        }
    }
}
