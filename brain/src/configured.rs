//! The parts of a brain that follow changes to kube-proxy's configuration at run time: the choice of the node's
//! addresses, the health servers and the metrics server.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use futures::future::OptionFuture;
use localnet_config::{Config, IpFamilyPolicy, Node};
use localnet_config_file::Current;
use localnet_core::{Diagnostic, Family, Severity};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    events::{Events, NodeEvent},
    feed::Feed,
    health::{
        self, Inputs,
        port::{self, Listening, Port, Servers, Status},
    },
    platform,
    reports::Reports,
    status,
};
use localnet_cluster::localize::NodeIps;

/// The configured choice of the node's addresses.
pub fn node_ips(config: &Config) -> NodeIps {
    let single_stack = config.ip_family_policy == Some(IpFamilyPolicy::SingleStack);
    NodeIps { first: config.node_ip_override.clone(), single_stack }
}

/// The options of the health servers. As in kube-proxy, a backend may take two sync periods to apply a revision.
pub fn health(config: &Config) -> health::Options {
    health::Options {
        healthz: config.healthz_bind_address,
        node_port_addresses: config.node_port_addresses.clone(),
        timeout: 2 * config.sync_period,
    }
}

/// The parts that follow the configuration.
pub struct Configured {
    current: Current,
    node_ips: watch::Sender<NodeIps>,
    feed: Feed,
    events: Events,
    reports: Reports,
    options: health::Options,
    servers: Option<Servers>,
    metrics_at: SocketAddr,
    status: Option<Servers>,
    /// Whether there is a configuration file. If there is none, contradictions between the configuration and the node are
    /// not reported.
    chosen: bool,
    complaints: Vec<Diagnostic>,
}

impl Configured {
    /// Starts the health servers and the metrics server. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Returns an error if `bindAddressHardFail` is set and a server cannot listen on its address.
    pub fn start(
        current: Current,
        chosen: bool,
        node_ips: watch::Sender<NodeIps>,
        (feed, events): (&Feed, &Events),
        reports: &Reports,
    ) -> anyhow::Result<Self> {
        let config = current.now();
        events.post(NodeEvent::Starting);
        let options = health(&config);
        if config.bind_address_hard_fail {
            port::check(options.healthz, "health checks")?;
            port::check(Some(config.metrics_bind_address), "metrics")?;
        }
        let inputs = Inputs::new(&options, feed, reports, health::machine_clock());
        let servers = Some(health::start(&options, &inputs));
        let metrics_at = config.metrics_bind_address;
        let status = Some(status::start(metrics_at, current.clone(), feed, reports));
        let (feed, events, reports) = (feed.clone(), events.clone(), reports.clone());
        let complaints = Vec::new();
        Ok(Self { current, node_ips, feed, events, reports, options, servers, metrics_at, status, chosen, complaints })
    }

    /// Follows the configuration. Resolves when the configuration cannot be used on this node, or when a server has crashed.
    pub async fn failed(&mut self) -> anyhow::Error {
        let mut facts = self.feed.health_facts();
        let (mut failing_health, mut failing_metrics) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let mut ports = self.servers.as_ref().map(Servers::status);
            let mut metrics = self.status.as_ref().map(Servers::status);
            self.post_failures(ports.as_mut(), &mut failing_health, |error| NodeEvent::HealthcheckFailed { error });
            self.post_failures(metrics.as_mut(), &mut failing_metrics, |error| NodeEvent::MetricServerFailed { error });
            if let Err(error) = self.check() {
                return error;
            }
            tokio::select! {
                config = self.current.changed() => self.apply(&config).await,
                Ok(()) = facts.changed() => {}
                Some(Ok(())) = OptionFuture::from(ports.as_mut().map(watch::Receiver::changed)) => {}
                Some(Ok(())) = OptionFuture::from(metrics.as_mut().map(watch::Receiver::changed)) => {}
                Some(error) = OptionFuture::from(self.servers.as_mut().map(Servers::failed)) => return error,
                Some(error) = OptionFuture::from(self.status.as_mut().map(Servers::failed)) => return error,
            }
        }
    }

    /// Posts one event about each port that cannot be opened. If the port belongs to no Service, `of_node` creates the
    /// event.
    fn post_failures(
        &self,
        ports: Option<&mut watch::Receiver<Status>>,
        failing: &mut BTreeSet<Port>,
        of_node: fn(String) -> NodeEvent,
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
                self.events.post(match port.service.clone() {
                    Some(service) => NodeEvent::ServiceHealthcheckFailed { service, port: port.address.port(), error },
                    None => of_node(error),
                });
            }
        }
        *failing = now.into_keys().cloned().collect();
    }

    async fn apply(&mut self, config: &Config) {
        let node_ips = node_ips(config);
        self.node_ips.send_if_modified(|now| std::mem::replace(now, node_ips.clone()) != node_ips);
        let options = health(config);
        if options != self.options {
            info!("restarting the health servers with the new configuration");
            // Close the old ports first: the new servers may use the same ones.
            if let Some(servers) = self.servers.take() {
                servers.stop().await;
            }
            let inputs = Inputs::new(&options, &self.feed, &self.reports, health::machine_clock());
            self.servers = Some(health::start(&options, &inputs));
            self.options = options;
        }
        if config.metrics_bind_address != self.metrics_at {
            self.metrics_at = config.metrics_bind_address;
            if let Some(status) = self.status.take() {
                status.stop().await;
            }
            self.status = Some(status::start(self.metrics_at, self.current.clone(), &self.feed, &self.reports));
        }
    }

    /// Compares the configuration with the node, and logs new contradictions.
    ///
    /// # Errors
    /// Returns an error if the configuration cannot work on this node.
    fn check(&mut self) -> anyhow::Result<()> {
        let facts = self.feed.health_facts();
        let facts = facts.borrow();
        let Some((node, primary)) = facts.node.as_ref().and_then(|node| Some((node, node.primary?))) else {
            return Ok(());
        };
        if !self.chosen {
            return Ok(());
        }
        let of = |family| node.addresses.iter().any(|address| Family::of(*address) == family);
        let node = Node {
            primary,
            dual_stack: platform::has_ipv6(),
            has_both: Family::BOTH.into_iter().all(of),
            pod_cidrs: &node.pod_cidrs,
        };
        let config = self.current.now();
        let complaints = config.complaints(&node);
        for complaint in &complaints {
            if complaint.severity == Severity::Error {
                anyhow::bail!("the configuration does not fit this node: {complaint}");
            }
            if !self.complaints.contains(complaint) {
                warn!("the configuration may be incomplete or incorrect: {complaint}");
            }
        }
        self.complaints = complaints;
        Ok(())
    }
}
