//! The backend's flags, and the program that they control.

use std::{
    fs,
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
};

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use localnet_client::{
    args::{self, ClientArgs},
    program,
    served::print,
    telemetry::{self, LogFormat},
    vips::flags::ConfigArgs,
};
use localnet_config::{Config, Mode};

use crate::{Kernel, Options, WinBackend, dry_run::DryRun, hcn::contract, served};

/// `localnet-win`
#[derive(Debug, Parser)]
#[command(
    name = "localnet-win",
    version,
    about = "Program Services into Windows' Host Networking Service",
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    flags: ConfigArgs,
    /// Print the load balancers and endpoints for the current state and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Append the log to this file; a Windows service cannot log elsewhere
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Remove the load balancers and endpoints with identifiers of localnet
    Cleanup {
        #[command(flatten)]
        flags: Box<ConfigArgs>,
        /// Remove all load balancers of this host, including those of other programs, as kube-proxy does at its start
        #[arg(long)]
        everything: bool,
    },
    /// Test whether this HNS behaves as localnet-win requires, with temporary load balancers for documentation addresses
    Check(Box<ConfigArgs>),
    /// Print the VIPs in the load balancers of HNS, one line for each address and port
    Dump,
}

impl Arguments {
    /// Whether the configuration requests a Windows service.
    ///
    /// # Errors
    /// Returns an error if the flags or the file are invalid.
    pub fn wants_service(&self) -> anyhow::Result<bool> {
        if self.command.is_some() {
            return Ok(false);
        }
        Ok(self.flags.begin(Mode::Kernelspace)?.is_some_and(|running| running.config().windows.run_as_service))
    }
}

/// Returns the options of a configuration. `environment` is the value of `KUBE_NETWORK`, which names the network if nothing
/// else does.
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

/// Runs the program until `shutdown`, with the kernel that `open` returns. Requires a tokio runtime.
///
/// # Errors
/// Returns an error if the flags or the configuration are invalid, HNS is unusable, or with `--once` anything fails.
pub async fn run<K: Kernel>(
    arguments: Arguments,
    mut open: impl FnMut() -> anyhow::Result<K>,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let Arguments { command, client, flags, dry_run, log_file } = arguments;
    match command {
        Some(Command::Cleanup { flags, everything }) => {
            flags.only("cleanup")?;
            telemetry::init(LogFormat::Text, "info")?;
            let Some(running) = flags.begin(Mode::Kernelspace)? else { return Ok(()) };
            return backend(&flags, running.config(), open()?).remove_all(everything);
        }
        Some(Command::Check(flags)) => {
            flags.only("check")?;
            telemetry::init(LogFormat::Text, "info")?;
            let Some(running) = flags.begin(Mode::Kernelspace)? else { return Ok(()) };
            return check(&configured(running.config()), &mut open()?);
        }
        Some(Command::Dump) => return print(&served::read(&mut open()?)?),
        None => {}
    }
    let to_do = flags.to_do(dry_run)?;
    let Some(running) = flags.begin(Mode::Kernelspace)? else { return Ok(()) };
    let config = running.config();
    if to_do.init_only {
        bail!("--init-only: Windows has no settings that need more privileges; remove the flag");
    }
    if to_do.cleanup {
        telemetry::init(LogFormat::Text, "info")?;
        return backend(&flags, config, open()?).remove_all(false);
    }
    match log_file {
        Some(path) => {
            let file = fs::File::options().append(true).create(true).open(&path);
            client.start_log_file(config, file.with_context(|| format!("opening --log-file {}", path.display()))?)?;
        }
        None => client.start_log(config)?,
    }
    running.log_warnings();
    ConfigArgs::warn_of_other_mode(config, Mode::Kernelspace);
    let source = client.source()?;
    if dry_run {
        let options = localnet_client::Options { once: true, dry_run: true, ..client.options() };
        return args::run(DryRun::new(backend(&flags, config, open()?)), source, options).await;
    }
    let open = async |config: &Config| Ok((backend(&flags, config, open()?), client.configured_options(config)));
    let concerns = |config: &Config| (flags.concerns(config), configured(config));
    program::follow(*running, concerns, open, source, shutdown).await
}

fn backend<K: Kernel>(args: &ConfigArgs, config: &Config, kernel: K) -> WinBackend<K> {
    let vips = args.config(config);
    WinBackend::new(vips, configured(config), kernel)
}

/// Runs the test suite on this HNS and prints the observations.
fn check(options: &Options, kernel: &mut impl Kernel) -> anyhow::Result<()> {
    let network = options.network.as_deref().context("name a network for test endpoints with --network-name")?;
    let seen = contract::check(kernel, network).context("this HNS does not behave as localnet-win requires")?;
    let mut out = io::stdout().lock();
    for one in seen {
        writeln!(out, "{}: {}", if one.is_so { "yes" } else { "no " }, one.what)?;
    }
    writeln!(out, "This HNS behaves as localnet-win requires.")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hcn::{Kind, fake::FakeHcn};

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

    /// None of these commands reaches HNS.
    #[tokio::test]
    async fn contradicting_flags_are_refused() {
        for (flags, expected) in [
            (&["--init-only"][..], "--init-only: Windows has no settings that need more privileges; remove the flag"),
            (&["--init-only", "--dry-run"], "--dry-run changes nothing, but --init-only does"),
            (&["--cleanup", "--dry-run"], "--dry-run changes nothing, but --cleanup does"),
            (&["--cleanup", "--init-only"], "--cleanup: cannot be combined with --init-only"),
            (&["cleanup", "--cleanup"], "--cleanup: the command cleanup does not do that"),
            (&["cleanup", "--init-only"], "--init-only: the command cleanup does not do that"),
            (&["check", "--init-only"], "--init-only: the command check does not do that"),
            (&["check", "--write-config-to", "/nowhere"], "--write-config-to: the command check does not do that"),
            (&["--proxy-mode", "nftables"], "mode"),
        ] {
            let arguments = Arguments::try_parse_from([&["localnet-win"], flags].concat()).unwrap();
            let open = || -> anyhow::Result<FakeHcn> { panic!("{flags:?} opened HNS") };
            let error = run(arguments, open, std::future::pending()).await.unwrap_err();
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
        let error = check(&Options { network: None, ..options }, &mut fake).unwrap_err().to_string();
        assert!(error.contains("--network-name"), "{error}");
        for (arguments, expected) in [
            (&["--config", file][..], true),
            (&["check", "--config", file], false),
            (&[], false),
            (&["--windows-service"], true),
        ] {
            let parsed = Arguments::parse_from([&["localnet-win"], arguments].concat());
            assert_eq!(parsed.wants_service().unwrap(), expected, "{arguments:?}");
        }
    }
}
