//! The parts of a brain that follow kube-proxy's configuration while it runs: which of the node's addresses count, and where
//! it tells how the node is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
};

use localnet_config::{Config, Family, IpFamilyPolicy, Node, NodePortAddresses};
use localnet_config_file::Current;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    Brain,
    events::{Events, Happened},
    feed::Feed,
    health::{
        self, HealthzAddress, Servers,
        clock::Clock,
        node_ports,
        port::{Listening, Port, Status},
    },
    localize::NodeIps,
    serve::Reports,
    status,
};

/// Which of the node's addresses count.
pub fn node_ips(said: &Config) -> NodeIps {
    let single_stack = said.ip_family_policy == Some(IpFamilyPolicy::SingleStack);
    NodeIps { first: said.node_ip_override.clone(), single_stack }
}

/// Where to tell how the node is. As in kube-proxy, a state may wait for two sync periods to be applied.
pub fn health(said: &Config) -> health::Options {
    health::Options {
        healthz: HealthzAddress(said.healthz_bind_address),
        node_port_addresses: match &said.node_port_addresses {
            NodePortAddresses::All => node_ports::NodePortAddresses::default(),
            NodePortAddresses::Primary => node_ports::NodePortAddresses::primary(),
            NodePortAddresses::Cidrs(cidrs) => node_ports::NodePortAddresses::within(cidrs.clone()),
        },
        timeout: 2 * said.sync_period,
    }
}

/// The parts that follow the configuration.
#[derive(Debug)]
pub struct Configured {
    current: Current,
    node_ips: watch::Sender<NodeIps>,
    feed: Feed,
    events: Events,
    reports: Reports,
    options: health::Options,
    servers: Option<Servers>,
    metrics_at: SocketAddr,
    status: Option<status::Server>,
    /// Whether someone has chosen a configuration, so that it matters whether it fits the node.
    chosen: bool,
    complaints: Vec<String>,
}

impl Configured {
    /// Starts the servers that tell how the node is. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// With `bindAddressHardFail` health or metrics cannot be told where they are to be.
    pub fn start(
        current: Current,
        chosen: bool,
        node_ips: watch::Sender<NodeIps>,
        brain: &Brain,
        reports: &Reports,
    ) -> anyhow::Result<Self> {
        let said = current.now();
        let (feed, events) = (brain.feed(), brain.events().clone());
        events.tell(Happened::Starting);
        let options = health(&said);
        if said.bind_address_hard_fail {
            health::check(options.healthz)?;
            status::check(said.metrics_bind_address)?;
        }
        let servers = Some(health::start(&options, feed, reports, Clock::System));
        let metrics_at = said.metrics_bind_address;
        let status = Some(status::start(metrics_at, current.clone(), feed, reports));
        let (feed, reports) = (feed.clone(), reports.clone());
        let complaints = Vec::new();
        Ok(Self { current, node_ips, feed, events, reports, options, servers, metrics_at, status, chosen, complaints })
    }

    /// Follows the configuration. Ends only when it cannot be used on this node, or a part has crashed.
    pub async fn failed(&mut self) -> anyhow::Error {
        let mut facts = self.feed.health_facts();
        let (mut failing, mut untold) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let mut ports = self.servers.as_ref().map(Servers::status);
            let mut metrics = self.status.as_ref().map(status::Server::status);
            self.tell_failures(ports.as_mut(), &mut failing, |error| Happened::HealthcheckFailed { error });
            self.tell_failures(metrics.as_mut(), &mut untold, |error| Happened::MetricServerFailed { error });
            if let Err(error) = self.look() {
                return error;
            }
            tokio::select! {
                said = self.current.changed() => self.apply(&said).await,
                changed = facts.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
                () = changed(ports.as_mut()) => {}
                () = changed(metrics.as_mut()) => {}
                error = failed(self.servers.as_mut().map(Servers::failed)) => return error,
                error = failed(self.status.as_mut().map(status::Server::failed)) => return error,
            }
        }
    }

    /// Posts an event about each port that cannot be opened, once; `of_node` is the event for one that is no Service's.
    fn tell_failures(
        &self,
        ports: Option<&mut watch::Receiver<Status>>,
        failing: &mut BTreeSet<Port>,
        of_node: fn(String) -> Happened,
    ) {
        let Some(ports) = ports else { return };
        let ports = ports.borrow_and_update();
        let failed = |listening: &Listening| match listening {
            Listening::At(_) => None,
            Listening::Failed { error, .. } => Some(error.clone()),
        };
        let now: BTreeMap<_, _> =
            ports.iter().filter_map(|(port, listening)| Some((port, failed(listening)?))).collect();
        for (port, error) in &now {
            if !failing.contains(*port) {
                let error = error.clone();
                self.events.tell(match port.service.clone() {
                    Some(service) => Happened::ServiceHealthcheckFailed { service, port: port.address.port(), error },
                    None => of_node(error),
                });
            }
        }
        *failing = now.into_keys().cloned().collect();
    }

    async fn apply(&mut self, said: &Config) {
        let node_ips = node_ips(said);
        self.node_ips.send_if_modified(|now| std::mem::replace(now, node_ips.clone()) != node_ips);
        let options = health(said);
        if options != self.options {
            info!("health checks are answered as newly configured");
            // What it listened on may be wanted again.
            if let Some(servers) = self.servers.take() {
                servers.stop().await;
            }
            self.servers = Some(health::start(&options, &self.feed, &self.reports, Clock::System));
            self.options = options;
        }
        if said.metrics_bind_address != self.metrics_at {
            self.metrics_at = said.metrics_bind_address;
            if let Some(status) = self.status.take() {
                status.stop().await;
            }
            self.status = Some(status::start(self.metrics_at, self.current.clone(), &self.feed, &self.reports));
        }
    }

    /// Whether the configuration fits what is known of the node.
    fn look(&mut self) -> anyhow::Result<()> {
        let facts = self.feed.health_facts();
        let facts = facts.borrow();
        let Some((node, primary)) = facts.node.as_ref().and_then(|node| Some((node, node.primary?))) else {
            return Ok(());
        };
        if !self.chosen {
            return Ok(());
        }
        let of = |family| node.addresses.iter().any(|address| localnet_proto::Family::of(*address) == family);
        let node = Node {
            primary: match primary {
                localnet_proto::Family::V4 => Family::V4,
                localnet_proto::Family::V6 => Family::V6,
            },
            dual_stack: has_ipv6(),
            has_both: localnet_proto::Family::BOTH.into_iter().all(of),
            pod_cidrs: &node.pod_cidrs,
        };
        let said = self.current.now();
        let complaints = said.complaints(&node);
        for complaint in &complaints {
            if complaint.fatal {
                anyhow::bail!("the configuration does not fit this node: {}", complaint.text);
            }
            if !self.complaints.contains(&complaint.text) {
                warn!("the configuration may be incomplete or incorrect: {}", complaint.text);
            }
        }
        self.complaints = complaints.into_iter().map(|complaint| complaint.text).collect();
        Ok(())
    }
}

/// Resolves when a part fails; never if there is none.
async fn failed(part: Option<impl Future<Output = anyhow::Error>>) -> anyhow::Error {
    match part {
        Some(failing) => failing.await,
        None => std::future::pending().await,
    }
}

/// Resolves when a port is opened or fails; never without servers.
async fn changed(ports: Option<&mut watch::Receiver<Status>>) {
    let told = match ports {
        Some(ports) => ports.changed().await.is_ok(),
        None => false,
    };
    if !told {
        std::future::pending::<()>().await;
    }
}

/// Whether this machine has IPv6, as kube-proxy finds out.
fn has_ipv6() -> bool {
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    fs::exists("/proc/net/if_inet6").unwrap_or(false) && disabled.is_ok_and(|text| text.trim() == "0")
}
