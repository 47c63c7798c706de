//! `--dry-run`: prints the plan. It does not access the kernel.

use std::fmt::Write as _;

use localnet_client::{Diagnostic, program::Planner};
use localnet_linux::{ipvs, nft};
use localnet_proto::{Changes, Snapshot};

use crate::{
    desired::Desired,
    plan::{INTERFACE, server::Plan},
};

impl Desired {
    /// Plans `state` and returns the virtual servers as `ipvsadm -R` reads them, the addresses of the interface as
    /// `ip -batch` reads them, and the tables in nft's notation. Comments list what is skipped.
    pub fn text(&mut self, state: &Snapshot, changes: &Changes) -> String {
        self.update(state, changes);
        let mut text = String::new();
        for skipped in self.skipped() {
            _ = writeln!(text, "# {skipped}");
        }
        text += "# virtual servers: ipvsadm -R\n";
        let changes: Vec<_> = self.servers().wanted().flat_map(Plan::changes).collect();
        text += &ipvs::script(&changes);
        _ = writeln!(text, "# addresses: ip -batch -\nlink add {INTERFACE} type dummy");
        for address in self.wanted_addresses() {
            let (len, nodad) = if address.is_ipv4() { (32, "") } else { (128, " nodad") };
            _ = writeln!(text, "address add {address}/{len} dev {INTERFACE}{nodad}");
        }
        text += "# tables\n";
        let tables: Vec<String> = self.content().iter().map(nft::listing).collect();
        text + &tables.join("\n")
    }
}

impl Planner for Desired {
    fn plan(&mut self, state: &Snapshot, changes: &Changes) -> anyhow::Result<(String, Vec<Diagnostic>)> {
        Ok((self.text(state, changes), self.skipped()))
    }
}
