//! [`Inspector`]: lists the planned and the live elements of the maps for the command `localnet`. The notation is that of `--dry-run`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use localnet_client::{
    inspect::{Inspect, Listing, Place},
    vips::Config,
};
use localnet_linux::addresses::NodeAddresses;
use localnet_proto::{Changes, Snapshot};

use crate::{
    desired::Desired,
    host::{self, BPFFS, Host},
    kernel::Content,
};

/// The table of all places.
pub const TABLE: &str = "bpf";
/// The place of the attached programs.
pub const PROGRAMS: &str = "programs";

/// Reads the maps that are pinned in the usual BPF file system, and attaches nothing.
#[derive(Debug)]
pub struct Inspector {
    desired: Desired,
    bpffs: PathBuf,
}

impl Inspector {
    /// Opens the kernel of this network namespace. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the addresses of the node cannot be read.
    pub async fn open(config: Config) -> anyhow::Result<Self> {
        let mut desired = Desired::new(config);
        desired.vips.set_local_addresses(NodeAddresses::default().list().await?);
        Ok(Self { desired, bpffs: PathBuf::from(BPFFS) })
    }
}

impl Inspect for Inspector {
    fn planned(&mut self, state: &Snapshot) -> Listing {
        self.desired.update(state, &Changes::everything());
        listing(&self.desired.content(), host::NAMES.map(str::to_owned).to_vec())
    }

    async fn live(&mut self) -> anyhow::Result<Listing> {
        live(&self.bpffs).context("cannot read the maps of localnet-ebpf")
    }
}

fn live(bpffs: &Path) -> anyhow::Result<Listing> {
    Ok(listing(&Host::pinned(bpffs)?, Host::attached(bpffs)?))
}

/// Lists the elements of each map, and the programs.
pub fn listing(content: &Content, mut programs: Vec<String>) -> Listing {
    programs.sort_unstable();
    let places = content.lines().into_iter().chain([(PROGRAMS, programs)]);
    places.map(|(name, lines)| (Place { table: TABLE.to_owned(), name: name.to_owned() }, lines)).collect()
}

#[cfg(test)]
mod tests {
    use localnet_client::{Diagnostic, program::Planner as _};

    use super::*;
    use crate::testing::FakeKernel;

    const STATE: &str = "node: {name: n, addresses: [192.168.0.2]}
services:
- {service: shop/web, type: ClusterIP, clusterIPs: [172.30.0.1], clientIpAffinity: 60, ports: [{name: http, protocol: TCP, port: 80}],
   endpoints: [{address: 10.180.0.1, ports: [{name: http, port: 8080}], scopes: {internal: true}},
               {address: 10.180.0.2, ports: [{name: http, port: 8080}], scopes: {internal: true}}]}
- {service: shop/empty, type: ClusterIP, clusterIPs: [172.30.0.2], ports: [{name: dns, protocol: UDP, port: 53}], endpoints: []}
";

    /// The lines of the plan are those of `--dry-run`, and those of maps with this content.
    #[test]
    fn planned_and_live_lists_have_the_lines_of_a_dry_run() {
        let state: Snapshot = serde_saphyr::from_str(STATE).unwrap();
        let mut inspector = Inspector { desired: Desired::new(Config::default()), bpffs: PathBuf::new() };
        let planned = inspector.planned(&state);
        let mut kernel = FakeKernel::default();
        inspector.desired.adopt(Content::default());
        inspector.desired.changes().iter().for_each(|change| kernel.change(change));
        assert_eq!(
            listing(&kernel.content, host::NAMES.iter().rev().map(|name| (*name).to_owned()).collect()),
            planned
        );
        let lines: Vec<_> = planned
            .iter()
            .filter(|(place, _)| place.name != PROGRAMS)
            .flat_map(|(place, lines)| lines.iter().map(|line| format!("{} {}: {line}", place.table, place.name)))
            .collect();
        let port = lines[0].split_whitespace().nth(3).unwrap();
        let expected = [
            format!("bpf endpoints: endpoint {port} internal 0: 10.180.0.1:8080"),
            format!("bpf endpoints: endpoint {port} internal 1: 10.180.0.2:8080"),
            format!("bpf members: member {port} internal: 10.180.0.1:8080"),
            format!("bpf members: member {port} internal: 10.180.0.2:8080"),
            "bpf vips: vip 172.30.0.1 other ports: reject".to_owned(),
            format!("bpf vips: vip 172.30.0.1:80/tcp: {port} internal, 2 endpoints, affinity 60 s"),
            "bpf vips: vip 172.30.0.2 other ports: reject".to_owned(),
            "bpf vips: vip 172.30.0.2:53/udp: reject".to_owned(),
        ];
        assert_eq!(lines, expected);
        let (text, skipped): (String, Vec<Diagnostic>) =
            Desired::new(Config::default()).plan(&state, &Changes::everything()).unwrap();
        let mut of_dry_run: Vec<_> = text.lines().collect();
        of_dry_run.sort_unstable();
        let mut of_lists: Vec<_> = lines.iter().map(|line| line.split_once(": ").unwrap().1).collect();
        of_lists.sort_unstable();
        assert_eq!((of_lists, skipped.len()), (of_dry_run, 0));
    }
}
