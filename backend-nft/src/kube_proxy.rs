//! Removes the tables that kube-proxy left behind. The backend does this only at the operator's request.

use anyhow::{Context as _, bail};
use localnet_linux::nft::{Socket, Table, Transaction, family_name};
use localnet_proto::Family;
use tracing::info;

/// The table of kube-proxy's mode nftables, in both families.
const TABLE: &str = "kube-proxy";
/// The tables that the iptables tools share, each with a chain that only kube-proxy's mode iptables creates there.
const SHARED: [(&str, &str); 3] =
    [("nat", "KUBE-SERVICES"), ("filter", "KUBE-FORWARD"), ("mangle", "KUBE-PROXY-CANARY")];

/// Removes the tables `ip kube-proxy` and `ip6 kube-proxy`, but not localnet's own.
///
/// # Errors
/// Returns an error if nf_tables cannot be used, or if chains of kube-proxy's mode iptables exist. Only the iptables
/// tools can remove these chains.
pub fn remove() -> anyhow::Result<()> {
    let mut socket = Socket::open()?;
    let mut transaction = Transaction::new();
    for family in Family::BOTH {
        let table = Table::new(family, TABLE);
        if socket.has_table(&table)? {
            info!(table = %format_args!("{} {TABLE}", family_name(family)), "removing kube-proxy's table");
            transaction.delete_table(&table);
        }
    }
    if !transaction.is_empty() {
        socket.commit(&transaction).context("failed to remove the tables ip kube-proxy and ip6 kube-proxy")?;
    }
    for family in Family::BOTH {
        for (table, chain) in SHARED {
            let found = socket.table(&Table::new(family, table))?;
            if found.is_some_and(|found| found.chain(chain).is_some()) {
                let family = family_name(family);
                bail!(
                    "kube-proxy's iptables mode left the chain {chain} in the table {family} {table}, and perhaps other chains: run `localnet-iptables cleanup`, which removes them with the tools that created them"
                );
            }
        }
    }
    Ok(())
}
