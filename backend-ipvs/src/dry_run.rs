//! `--dry-run`: prints the plan. It does not access the kernel.

use std::{fmt::Write as _, net::IpAddr};

use localnet_client::{Diagnostic, program::Planner, vips::Config};
use localnet_linux::{
    ipvs::{self, Change, Destination},
    nft,
};
use localnet_proto::{Changes, Snapshot};

use crate::{Options, desired::Desired, plan::INTERFACE};

/// Plans states.
#[derive(Debug)]
pub struct DryRun {
    desired: Desired,
}

impl DryRun {
    /// A dry run with this configuration and these options.
    pub fn new(config: Config, options: Options) -> Self {
        Self { desired: Desired::new(config, options) }
    }

    /// Sets the addresses of the node's interfaces, without those of VIPs.
    pub fn with_addresses(mut self, addresses: Vec<IpAddr>) -> Self {
        self.desired.set_local_addresses(addresses);
        self
    }

    /// The desired addresses of the interface.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.desired.wanted_addresses()
    }

    /// Whether the virtual server is desired.
    pub fn has_server(&self, frontend: &ipvs::Frontend) -> bool {
        self.desired.servers().wants(frontend)
    }

    /// The virtual servers as `ipvsadm -R` reads them, the addresses of the interface as `ip -batch` reads them, and the tables
    /// in nft's notation. Comments name what is skipped.
    pub fn text(&mut self, state: &Snapshot, changes: &Changes) -> String {
        self.desired.update(state, changes);
        let mut text = String::new();
        for skipped in self.desired.skipped() {
            _ = writeln!(text, "# {skipped}");
        }
        text += "# virtual servers: ipvsadm -R\n";
        for plan in self.desired.servers().wanted() {
            let frontend = plan.server.frontend;
            let destinations = plan.destinations.iter();
            let add = |address| Change::AddDestination(frontend, Destination::masqueraded(address, 1));
            let changes: Vec<_> =
                [Change::AddServer(plan.server.clone())].into_iter().chain(destinations.copied().map(add)).collect();
            text += &ipvs::script(&changes);
        }
        _ = writeln!(text, "# addresses: ip -batch -\nlink add {INTERFACE} type dummy");
        for address in self.desired.wanted_addresses() {
            let (len, nodad) = if address.is_ipv4() { (32, "") } else { (128, " nodad") };
            _ = writeln!(text, "address add {address}/{len} dev {INTERFACE}{nodad}");
        }
        text += "# tables\n";
        let tables: Vec<String> = self.desired.content().iter().map(nft::listing).collect();
        text + &tables.join("\n")
    }
}

impl Planner for DryRun {
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)> {
        Ok((self.text(state, changes), self.desired.skipped()))
    }
}
