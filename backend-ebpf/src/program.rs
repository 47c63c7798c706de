//! `localnet-ebpf` as a [`BackendProgram`]: its flags, its help and its commands.

use std::{convert::Infallible, path::PathBuf};

use clap::Args;
use localnet_client::{Mode, program::BackendProgram, served::Served, vips::flags::ConfigArgs};
use localnet_config::Config;
use localnet_linux::{addresses::NodeAddresses, setup};

use crate::{EbpfBackend, LiveBackend, desired::Desired, host::Host, live};

/// `localnet-ebpf`.
#[derive(Args)]
pub struct Ebpf {
    /// Folder of cgroup v2 whose processes use the programs; the mount point of cgroup v2 stands for all processes
    #[arg(long, value_name = "PATH", default_value = "/sys/fs/cgroup")]
    cgroup: PathBuf,
    /// Mount point of the BPF file system that keeps programs and maps across restarts
    #[arg(long, value_name = "PATH", default_value = "/sys/fs/bpf")]
    bpffs: PathBuf,
}

impl BackendProgram for Ebpf {
    const NAME: &'static str = "ebpf";
    const PROGRAM: &'static str = "localnet-ebpf";
    const MODE: Mode = Mode::Nftables;
    const ABOUT: &'static str = "Translate Services with eBPF when processes of this node connect; run it beside localnet-nft, which serves other hosts";
    const DRY_RUN: &'static str =
        "Print the elements of the eBPF maps for the current state and change nothing; needs no privileges";
    const CLEANUP: &'static str = "Detach the eBPF programs and delete their maps";

    type Cleanup = ();
    type Command = Infallible;
    type Backend = LiveBackend;
    type Planner = Desired;

    async fn open(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<LiveBackend> {
        let host = Host::open(&self.bpffs, &self.cgroup)?;
        let backend = live::open(EbpfBackend::new(flags.config(config), host)).await?;
        if flags.kube_proxy.configures_node() {
            setup::start(&config.linux);
        }
        Ok(backend)
    }

    async fn planner(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<Desired> {
        let mut desired = Desired::new(flags.config(config));
        desired.vips.set_local_addresses(NodeAddresses::default().list().await?);
        Ok(desired)
    }

    async fn dump(&self) -> anyhow::Result<Served> {
        Ok(Host::pinned(&self.bpffs)?.served())
    }

    async fn cleanup(&self, _: &ConfigArgs, _: &Config, (): ()) -> anyhow::Result<()> {
        Host::remove_pins(&self.bpffs)
    }

    fn init(config: &Config) -> anyhow::Result<()> {
        setup::init(config, Self::MODE)
    }

    fn command(command: Infallible) -> anyhow::Result<()> {
        match command {}
    }
}
