//! `--dry-run`: prints the plan. It does not access the kernel.

use std::{
    io::{self, Write as _},
    net::IpAddr,
};

use localnet_client::{
    Mode, Synced,
    incremental::{Listener, PortEndpoint},
    vips::Config,
};
use localnet_proto::{Family, Node, Revision, Service, ServiceKey};

use crate::desired::Desired;

/// A listener that prints the plan of each state.
#[derive(Debug)]
pub struct DryRun {
    desired: Desired,
    printed: bool,
}

impl DryRun {
    /// A dry run with this configuration.
    pub fn new(config: Config) -> Self {
        Self { desired: Desired::new(config), printed: true }
    }

    /// Sets the addresses of the node's interfaces.
    pub fn with_addresses(mut self, addresses: Vec<IpAddr>) -> Self {
        self.desired.set_local_addresses(addresses);
        self
    }

    /// Forwards packets that connection tracking calls invalid.
    pub fn forwarding_invalid(mut self) -> Self {
        self.desired.forward_invalid();
        self
    }

    /// Answers NodePorts on 127.0.0.1, too.
    pub fn with_localhost_node_ports(mut self) -> Self {
        self.desired.answer_on_localhost();
        self
    }

    /// Prints nothing at a commit, for callers that use [`Self::text`].
    pub fn silent(mut self) -> Self {
        self.printed = false;
        self
    }

    /// The tables of both families, as `iptables-restore --noflush` and `ip6tables-restore --noflush` read them. Comments name
    /// what is skipped.
    pub fn text(&self) -> String {
        let skipped = self.desired.skipped();
        let comments = skipped.iter().map(|skipped| format!("# {skipped}\n"));
        let listings = Family::BOTH.into_iter().map(|family| format!("# {family}\n{}", self.desired.listing(family)));
        comments.chain(listings).collect()
    }
}

impl Listener for DryRun {
    fn name(&self) -> &'static str {
        "iptables"
    }

    fn mode(&self) -> Option<Mode> {
        Some(Mode::Iptables)
    }

    fn set_node(&mut self, node: &Node) {
        self.desired.set_node(node);
    }

    fn set_service(&mut self, service: &Service) {
        self.desired.set_service(service);
    }

    fn delete_service(&mut self, key: &ServiceKey) {
        self.desired.delete_service(key);
    }

    fn set_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint) {
        self.desired.set_endpoint(service, endpoint);
    }

    fn delete_endpoint(&mut self, service: &ServiceKey, endpoint: &PortEndpoint) {
        self.desired.delete_endpoint(service, endpoint);
    }

    fn reset(&mut self) {
        self.desired.reset();
    }

    async fn commit(&mut self, _: Revision) -> anyhow::Result<Synced> {
        self.desired.settle();
        if self.printed {
            let mut out = io::stdout().lock();
            out.write_all(self.text().as_bytes())?;
            out.flush()?;
        }
        Ok(Synced { skipped: self.desired.skipped(), ..Synced::default() })
    }

    async fn cleanup(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
