//! Tests a backend whose configuration changes while it runs.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{fs, path::PathBuf, time::Duration};

use clap::Parser;
use localnet_client::{
    Backend, Changes, Options, Report, Revision, Snapshot, Source, SourceError, Synced, program,
    vips::flags::ConfigArgs,
};
use localnet_config::Mode;
use localnet_proto::Update;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// A source with a single state.
#[derive(Clone)]
struct Still;

impl Source for Still {
    async fn next(&self, have: Revision, _: bool) -> Result<Update, SourceError> {
        let revision = Revision { instance: 7, rev: 1 };
        if have == revision {
            std::future::pending::<()>().await;
        }
        Ok(Update::Full(Snapshot { revision, ..Snapshot::default() }))
    }

    async fn report(&self, _: &Report) -> Result<(), SourceError> {
        Ok(())
    }

    fn describe(&self) -> String {
        "a test".to_owned()
    }
}

/// Reports its configuration at each sync.
struct Reporter {
    bit: u8,
    syncs: mpsc::UnboundedSender<(u8, bool)>,
}

impl Backend for Reporter {
    fn name(&self) -> &'static str {
        "teller"
    }

    async fn sync(&mut self, _: &Snapshot, changes: &Changes) -> anyhow::Result<Synced> {
        self.syncs.send((self.bit, *changes == Changes::everything())).unwrap();
        Ok(Synced::default())
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    config: ConfigArgs,
}

fn write(file: &PathBuf, lines: &str) {
    let new = file.with_extension("new");
    let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n";
    fs::write(&new, format!("{header}{lines}\n")).unwrap();
    fs::rename(new, file).unwrap();
}

#[tokio::test]
async fn a_backend_restarts_when_its_part_of_the_configuration_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    write(&file, "nftables: {masqueradeBit: 1}");
    let arguments = Arguments::parse_from(["backend", "--config", file.to_str().unwrap()]);
    let (current, _following) = arguments.config.begin(Mode::Nftables).unwrap().unwrap().follow();
    let (syncs, mut reported) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let mut opened = 0;
    let program = program::run(
        current,
        |config| arguments.config.config(config),
        async |config| {
            opened += 1;
            Ok((
                Reporter { bit: arguments.config.config(config).masquerade_bit, syncs: syncs.clone() },
                Options::default(),
            ))
        },
        Still,
        async { _ = stopped.await },
    );
    let test = async {
        let mut next = async || timeout(Duration::from_secs(60), reported.recv()).await.unwrap();
        assert_eq!(next().await, Some((1, true)));
        write(&file, "nftables: {masqueradeBit: 2}");
        assert_eq!(next().await, Some((2, true)), "a full sync, because the kernel is unknown");
        // An invalid file, and then one whose changes do not concern this backend.
        write(&file, "nftables: {masqueradeBit: 99}");
        write(&file, "nftables: {masqueradeBit: 2}\nenableProfiling: true");
        write(&file, "nftables: {masqueradeBit: 3}\nenableProfiling: true");
        assert_eq!(next().await, Some((3, true)));
        stop.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(program, test);
    ended.unwrap();
    assert_eq!(opened, 3);
}

/// For instance, this kernel may not have a configured scheduler. The node must stay programmed nevertheless.
#[tokio::test]
async fn an_unusable_configuration_keeps_the_previous_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    write(&file, "nftables: {masqueradeBit: 1}");
    let arguments = Arguments::parse_from(["backend", "--config", file.to_str().unwrap()]);
    let (current, _following) = arguments.config.begin(Mode::Nftables).unwrap().unwrap().follow();
    let (syncs, mut reported) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let program = program::run(
        current,
        |config| arguments.config.config(config),
        async |config| match arguments.config.config(config).masquerade_bit {
            2 => anyhow::bail!("not that one"),
            bit => Ok((Reporter { bit, syncs: syncs.clone() }, Options::default())),
        },
        Still,
        async { _ = stopped.await },
    );
    let test = async {
        let mut next = async || timeout(Duration::from_secs(60), reported.recv()).await.unwrap();
        assert_eq!(next().await, Some((1, true)));
        write(&file, "nftables: {masqueradeBit: 2}");
        assert_eq!(next().await, Some((1, true)), "a full sync, because the backend restarted");
        write(&file, "nftables: {masqueradeBit: 3}");
        assert_eq!(next().await, Some((3, true)));
        stop.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(program, test);
    ended.unwrap();
}

#[tokio::test]
async fn a_backend_that_cannot_be_opened_is_an_error() {
    let arguments = Arguments::parse_from(["backend"]);
    let (current, _following) = arguments.config.begin(Mode::Nftables).unwrap().unwrap().follow();
    let open = async |_: &localnet_config::Config| anyhow::bail!("no kernel here");
    let ended = program::run::<_, Reporter, _>(current, |_| (), open, Still, std::future::pending()).await;
    assert_eq!(ended.unwrap_err().to_string(), "no kernel here");
}

#[test]
fn a_dry_run_removes_and_sets_nothing() {
    for (flag, is_set) in [("--cleanup", true), ("--init-only", true), ("--cleanup=false", false)] {
        let config = Arguments::parse_from(["backend", flag]).config;
        assert!(config.to_do(false).is_ok());
        let error = config.to_do(true).err().map(|error| error.to_string());
        let expected = format!("--dry-run changes nothing, but {flag} does; remove one of the two flags");
        assert_eq!(error, is_set.then_some(expected), "{flag}");
    }
}

#[test]
fn the_loop_is_configured_by_flags_first() {
    use localnet_client::args::ClientArgs;
    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        client: ClientArgs,
        #[command(flatten)]
        config: ConfigArgs,
    }
    for (flags, min_interval, max_backoff) in [
        (&[][..], 0, 10_000),
        (&["--iptables-min-sync-period=2s", "--iptables-sync-period=40s"], 2_000, 10_000),
        // A value that equals kube-proxy's default counts if it is given explicitly.
        (&["--iptables-min-sync-period=1s", "--iptables-sync-period=3s"], 1_000, 3_000),
        (&["--iptables-min-sync-period=2s", "--min-sync-interval=7"], 7, 10_000),
        (&["--min-sync-interval=0", "--iptables-min-sync-period=2s"], 0, 10_000),
    ] {
        let arguments = Arguments::parse_from([&["backend"], flags].concat());
        let running = arguments.config.begin(Mode::Nftables).unwrap().unwrap();
        let options = arguments.client.configured_options(running.config());
        let millis = [options.min_interval, options.max_backoff].map(|duration| duration.as_millis());
        assert_eq!(millis, [min_interval, max_backoff], "{flags:?}");
    }
}
