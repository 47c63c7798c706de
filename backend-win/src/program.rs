//! `localnet-win` as a [`BackendProgram`]: its flags, its help and its commands.

use std::{
    fs,
    io::{self, Write as _},
    marker::PhantomData,
    net::SocketAddr,
    path::PathBuf,
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use localnet_client::{
    Mode,
    args::ClientArgs,
    program::{Arguments, BackendProgram},
    served::Served,
    telemetry::{self, LogFormat},
    vips::flags::ConfigArgs,
};
use localnet_config::Config;

use crate::{Kernel, Machine, Options, Recording, WinBackend, dry_run::DryRun, hcn::contract, served};

/// `localnet-win`.
#[derive(Args)]
pub struct Win<K: Machine> {
    /// Append the log to this file; a Windows service cannot log elsewhere
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    #[arg(skip)]
    kernel: PhantomData<fn() -> K>,
}

/// The flags of the command `cleanup`.
#[derive(Args, Default)]
pub struct CleanupArgs {
    /// Remove all load balancers of this host, including those of other programs, as kube-proxy does at its start
    #[arg(long)]
    everything: bool,
}

/// The commands that only this program has.
#[derive(Subcommand)]
pub enum Command {
    /// Test whether this HNS behaves as localnet-win requires; creates temporary load balancers for documentation addresses
    Check(Box<ConfigArgs>),
    /// Print everything that HNS holds, as JSON, for `localnet --hns` on another machine; changes nothing
    Inspect(Box<ConfigArgs>),
}

impl<K: Machine + 'static> BackendProgram for Win<K> {
    const NAME: &'static str = "win";
    const PROGRAM: &'static str = "localnet-win";
    const MODE: Mode = Mode::Kernelspace;
    const ABOUT: &'static str = "Program Services into Windows' Host Networking Service";
    const DRY_RUN: &'static str = "Print the load balancers and endpoints for the current state and change nothing";
    const CLEANUP: &'static str = "Remove the load balancers and endpoints with identifiers of localnet";

    type Cleanup = CleanupArgs;
    type Command = Command;
    type Backend = WinBackend<K>;
    type Planner = DryRun<K>;

    async fn open(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<WinBackend<K>> {
        backend(flags, config)
    }

    async fn planner(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<DryRun<K>> {
        Ok(DryRun::new(backend(flags, config)?))
    }

    async fn dump(&self) -> anyhow::Result<Served> {
        Ok(served::read(&mut K::open()?)?)
    }

    async fn cleanup(&self, flags: &ConfigArgs, config: &Config, more: CleanupArgs) -> anyhow::Result<()> {
        backend::<K>(flags, config)?.remove_all(more.everything)
    }

    fn init(&self, _: &Config) -> anyhow::Result<()> {
        bail!("--init-only: Windows has no settings that need more privileges; remove the flag");
    }

    fn command(command: Command) -> anyhow::Result<()> {
        let (name, flags) = match &command {
            Command::Check(flags) => ("check", flags),
            Command::Inspect(flags) => ("inspect", flags),
        };
        flags.only(name)?;
        telemetry::init(LogFormat::Text, "info", None)?;
        let Some(running) = flags.begin(Self::MODE)? else { return Ok(()) };
        let (options, mut kernel) = (configured(running.config()), K::open()?);
        match command {
            Command::Check(_) => check(&options, &mut kernel),
            Command::Inspect(_) => {
                let text = Recording::of(&mut kernel, options).context("failed to record HNS")?.text();
                io::stdout().lock().write_all(text.as_bytes()).context("failed to write to standard output")
            }
        }
    }

    fn start_log(&self, client: &ClientArgs, config: &Config) -> anyhow::Result<()> {
        let open = |path: &PathBuf| {
            let file = fs::File::options().append(true).create(true).open(path);
            file.with_context(|| format!("failed to open --log-file {}", path.display()))
        };
        client.start_log(config, self.log_file.as_ref().map(open).transpose()?)
    }
}

fn backend<K: Machine>(flags: &ConfigArgs, config: &Config) -> anyhow::Result<WinBackend<K>> {
    Ok(WinBackend::new(flags.config(config), configured(config), K::open()?))
}

/// Whether the configuration requests a Windows service.
///
/// # Errors
/// Returns an error if the flags or the file are invalid.
pub fn wants_service<K: Machine + 'static>(arguments: &Arguments<Win<K>>) -> anyhow::Result<bool> {
    if arguments.command.is_some() {
        return Ok(false);
    }
    Ok(arguments.flags.begin(Mode::Kernelspace)?.is_some_and(|running| running.config().windows.run_as_service))
}

/// Returns the options of a configuration. `environment` is the value of `KUBE_NETWORK`. It names the network if neither
/// the flags nor the configuration do.
pub fn options(config: &Config, environment: Option<String>) -> Options {
    let winkernel = config.winkernel.clone();
    let defaults = Options::default();
    Options {
        network: winkernel.network_name.or(environment).filter(|name| !name.is_empty()),
        source_vip: winkernel.source_vip,
        dsr: winkernel.enable_dsr,
        forward_health_check_vip: winkernel.forward_health_check_vip,
        root_endpoint: winkernel.root_hns_endpoint_name.unwrap_or(defaults.root_endpoint),
        health_port: config.healthz_bind_address.as_ref().map_or(defaults.health_port, SocketAddr::port),
    }
}

fn configured(config: &Config) -> Options {
    options(config, std::env::var("KUBE_NETWORK").ok())
}

/// Runs the test suite on this HNS and prints the observations.
fn check(options: &Options, kernel: &mut impl Kernel) -> anyhow::Result<()> {
    let network = options
        .network
        .as_deref()
        .context("the test needs a network for its endpoints: choose one with --network-name")?;
    let seen = contract::check(kernel, network).context("the test cannot begin")?;
    let mut out = io::stdout().lock();
    for one in seen.observations {
        let evidence = if one.evidence.is_empty() { String::new() } else { format!(" ({})", one.evidence) };
        writeln!(out, "{}: {}{evidence}", if one.is_so { "yes" } else { "no " }, one.question.behaviour)?;
    }
    for violation in &seen.violations {
        writeln!(out, "violation: {violation:#}")?;
    }
    if !seen.violations.is_empty() {
        bail!("this HNS does not behave as localnet-win requires: report the violations above");
    }
    writeln!(out, "This HNS behaves as localnet-win requires.")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use localnet_client::program::execute;

    use super::*;
    use crate::{
        hcn::{Failure, Kind},
        testing::FakeHcn,
    };

    type Arguments = localnet_client::program::Arguments<Win<FakeHcn>>;

    fn options_of(flags: &[&str]) -> Options {
        let arguments = Arguments::try_parse_from([&["localnet-win"], flags].concat()).unwrap();
        let running = arguments.flags.begin(Mode::Kernelspace).unwrap().unwrap();
        options(running.config(), Some("from-environment".to_owned()))
    }

    #[test]
    fn kube_proxys_flags_set_options() {
        let defaults = Options { network: Some("from-environment".to_owned()), ..Options::default() };
        for (flags, expected) in [
            (&[][..], defaults.clone()),
            (&["--network-name", "cbr1"], Options { network: Some("cbr1".to_owned()), ..defaults.clone() }),
            (&["--source-vip", "10.1.2.3", "--enable-dsr"], {
                Options { source_vip: Some("10.1.2.3".parse().unwrap()), dsr: true, ..defaults.clone() }
            }),
            (
                &[
                    "--forward-healthcheck-vip",
                    "--root-hnsendpoint-name",
                    "gw",
                    "--healthz-bind-address",
                    "0.0.0.0:9999",
                ],
                {
                    Options {
                        forward_health_check_vip: true,
                        root_endpoint: "gw".to_owned(),
                        health_port: 9999,
                        ..defaults.clone()
                    }
                },
            ),
        ] {
            assert_eq!(options_of(flags), expected, "{flags:?}");
        }
    }

    /// None of these commands reaches HNS, which the fake does not open.
    #[tokio::test]
    async fn contradicting_flags_are_refused() {
        for (flags, expected) in [
            (&["--init-only"][..], "--init-only: Windows has no settings that need more privileges; remove the flag"),
            (&["--init-only", "--dry-run"], "--dry-run changes nothing, but --init-only does"),
            (&["--cleanup", "--dry-run"], "--dry-run changes nothing, but --cleanup does"),
            (&["--cleanup", "--init-only"], "--cleanup: cannot be combined with --init-only"),
            (&["cleanup", "--cleanup"], "--cleanup: does not apply to the command cleanup"),
            (&["cleanup", "--init-only"], "--init-only: does not apply to the command cleanup"),
            (&["check", "--init-only"], "--init-only: does not apply to the command check"),
            (&["check", "--write-config-to", "/nowhere"], "--write-config-to: does not apply to the command check"),
            (&["--proxy-mode", "nftables"], "mode"),
        ] {
            let arguments = Arguments::try_parse_from([&["localnet-win"], flags].concat()).unwrap();
            let error = execute(arguments, std::future::pending()).await.unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(expected), "{flags:?}: {error}");
        }
    }

    #[tokio::test]
    async fn the_check_runs_on_the_named_network() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nwinkernel: {networkName: cbr0}\nwindows: {runAsService: true}\n";
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let options = options(
            Arguments::parse_from(["localnet-win", "--config", file])
                .flags
                .begin(Mode::Kernelspace)
                .unwrap()
                .unwrap()
                .config(),
            None,
        );
        let mut fake = FakeHcn::with_network("cbr0", "L2Bridge", &[], &[]);
        check(&options, &mut fake).unwrap();
        assert_eq!(fake.documents(Kind::LoadBalancer).count(), 0);
        let error = check(&Options { network: None, ..options.clone() }, &mut fake).unwrap_err().to_string();
        assert!(error.contains("--network-name"), "{error}");
        fake.fail("HcnDeleteLoadBalancer", 99, Failure::new("HcnDeleteLoadBalancer", 0x8000_4005, ""));
        let error = check(&options, &mut fake).unwrap_err().to_string();
        assert!(error.contains("report the violations above"), "{error}");
        for (arguments, expected) in [
            (&["--config", file][..], true),
            (&["check", "--config", file], false),
            (&[], false),
            (&["--windows-service"], true),
        ] {
            let parsed = Arguments::parse_from([&["localnet-win"], arguments].concat());
            assert_eq!(wants_service(&parsed).unwrap(), expected, "{arguments:?}");
        }
    }
}
