//! `localnet-ebpf` as a [`BackendProgram`]: its flags, its help and its commands.

use std::{convert::Infallible, path::PathBuf};

use clap::Args;
use localnet_client::{Mode, program::BackendProgram, served::Served, vips::flags::ConfigArgs};
use localnet_config::Config;
use localnet_linux::{addresses::NodeAddresses, setup};
use localnet_nft::{Nft, program::CleanupArgs};

use crate::{
    EbpfBackend, LiveBackend,
    desired::Desired,
    host::{BPFFS, Host},
    live,
    outside::WithOutside,
};

/// `localnet-ebpf`.
#[derive(Args)]
pub struct Ebpf {
    /// Folder of cgroup v2 whose processes use the programs; the mount point of cgroup v2 stands for all processes
    #[arg(long, value_name = "PATH", default_value = "/sys/fs/cgroup")]
    cgroup: PathBuf,
    /// Mount point of the BPF file system that keeps programs and maps across restarts
    #[arg(long, value_name = "PATH", default_value = BPFFS)]
    bpffs: PathBuf,
    /// Also program the tables of localnet-nft, which serve other hosts. Without this flag, run localnet-nft beside this program
    #[arg(long)]
    nft: bool,
}

impl BackendProgram for Ebpf {
    const NAME: &'static str = "ebpf";
    const PROGRAM: &'static str = "localnet-ebpf";
    const MODE: Mode = Mode::Nftables;
    const ABOUT: &'static str =
        "Translate Services with eBPF when processes of this node connect; with --nft, serve other hosts, too";
    const DRY_RUN: &'static str =
        "Print the elements of the eBPF maps for the current state and change nothing; needs no privileges";
    const CLEANUP: &'static str = "Detach the eBPF programs and delete their maps";

    type Cleanup = ();
    type Command = Infallible;
    type Backend = WithOutside<LiveBackend, localnet_nft::LiveBackend>;
    type Planner = Desired;

    async fn open(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<Self::Backend> {
        let host = Host::open(&self.bpffs, &self.cgroup)?;
        let inside = live::open(EbpfBackend::new(flags.config(config), host)).await?;
        let outside = if self.nft { Some(Nft::default().open(flags, config).await?) } else { None };
        // The nft backend configures the node itself.
        if outside.is_none() && flags.kube_proxy.configures_node() {
            setup::start(&config.linux);
        }
        Ok(WithOutside::new(inside, outside))
    }

    async fn planner(&self, flags: &ConfigArgs, config: &Config) -> anyhow::Result<Desired> {
        let mut desired = Desired::new(flags.config(config));
        desired.vips.set_local_addresses(NodeAddresses::default().list().await?);
        Ok(desired)
    }

    async fn dump(&self) -> anyhow::Result<Served> {
        Ok(Host::pinned(&self.bpffs)?.served())
    }

    async fn cleanup(&self, flags: &ConfigArgs, config: &Config, (): ()) -> anyhow::Result<()> {
        Host::remove_pins(&self.bpffs)?;
        if self.nft {
            Nft::default().cleanup(flags, config, CleanupArgs::default()).await?;
        }
        Ok(())
    }

    fn init(&self, config: &Config) -> anyhow::Result<()> {
        setup::init(config, Self::MODE)
    }

    fn command(command: Infallible) -> anyhow::Result<()> {
        match command {}
    }
}
