//! What kube-proxy leaves behind, and its removal: only when somebody asks for it.

use anyhow::{Context as _, bail};
use localnet_linux::nft::{Family, Socket, Table, Transaction};
use tracing::info;

/// The table of kube-proxy's mode nftables, in both families.
const TABLE: &str = "kube-proxy";
/// The tables that programs of iptables share, and a chain that kube-proxy's mode iptables, and nobody else, has in each.
const SHARED: [(&str, &str); 3] =
    [("nat", "KUBE-SERVICES"), ("filter", "KUBE-FORWARD"), ("mangle", "KUBE-PROXY-CANARY")];

/// Removes the tables `ip kube-proxy` and `ip6 kube-proxy`. Our own stay.
///
/// # Errors
/// nf_tables cannot be used; or there are chains of kube-proxy's mode iptables, which only the tools that made them can remove.
pub fn remove() -> anyhow::Result<()> {
    let mut socket = Socket::open()?;
    let mut transaction = Transaction::new();
    for family in Family::ALL {
        let table = Table::new(family, TABLE);
        if socket.has_table(&table)? {
            info!(table = %format_args!("{} {TABLE}", family.as_str()), "removing");
            transaction.delete_table(&table);
        }
    }
    if !transaction.is_empty() {
        socket.commit(&transaction).context("remove the tables ip kube-proxy and ip6 kube-proxy")?;
    }
    for family in Family::ALL {
        for (table, chain) in SHARED {
            let found = socket.table(&Table::new(family, table))?;
            if found.is_some_and(|found| found.chain(chain).is_some()) {
                let family = family.as_str();
                bail!(
                    "{chain} of table {family} {table} is left of kube-proxy's mode iptables, and maybe more: run `localnet-iptables cleanup`, which removes it with the tools that made it"
                );
            }
        }
    }
    Ok(())
}
