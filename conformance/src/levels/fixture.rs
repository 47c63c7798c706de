//! What the checks of the level `life` share: the backend and its brain, and a network with pods.

use std::{collections::BTreeSet, time::Instant};

use anyhow::Context as _;
use localnet_lab::{
    Endpoint, Flow, Flows, Namespace, Network, Protocol, Sender, Servers, Topology, check::probe_flows,
};
use localnet_proto::{Service, Snapshot};

use super::{
    bench::Bench,
    states::{endpoint, service, state},
};
use crate::{claims::Claim, outcome::Verdict};

/// The addresses of the pods.
pub(super) const PODS: [&str; 2] = ["10.180.0.1", "10.180.0.2"];

/// A network with two pods that answer.
pub(super) struct PodNetwork {
    pub(super) network: Network,
    _servers: Servers,
}

impl PodNetwork {
    /// Creates the network; `None` if the kit does not run as root.
    pub(super) fn build() -> anyhow::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let network = Network::build(Topology::with_pods(PODS)?)?;
        let endpoints: BTreeSet<Endpoint> = PODS
            .iter()
            .flat_map(|pod| [Protocol::Tcp, Protocol::Udp].map(|protocol| (pod, protocol)))
            .map(|(pod, protocol)| Ok(Endpoint { protocol, address: format!("{pod}:8080").parse()? }))
            .collect::<anyhow::Result<_>>()?;
        let servers = Servers::start(&network, endpoints)?;
        Ok(Some(Self { network, _servers: servers }))
    }
}

/// The backend and brain of a check, with the pods if the kit runs as root.
pub(super) struct Life<'a> {
    pub(super) bench: Bench<'a>,
    pub(super) lab: Option<&'a PodNetwork>,
}

/// The state of these checks: one service with the first `pods` of [`PODS`] as its endpoints.
pub(super) fn serving(pods: usize) -> Snapshot {
    state([web(1, pods)])
}

/// The service with this number, and the first `pods` of [`PODS`] as its endpoints.
pub(super) fn web(number: u16, pods: usize) -> Service {
    let addresses = PODS.iter().take(pods).filter_map(|pod| pod.parse().ok());
    let endpoints = addresses.map(|address| endpoint(address, "http", 8080)).collect();
    Service { endpoints, ..service(number, 0) }
}

impl<'a> Life<'a> {
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        self.bench.start_brain()?;
        self.bench.start_backend()
    }

    /// The network, if the backend makes all the claims in `needed`.
    pub(super) fn claimed(&self, needed: &[Claim]) -> Option<&'a PodNetwork> {
        let claims = &self.bench.options.claims;
        self.lab.filter(|_| needed.iter().all(|claim| claims.has(*claim)))
    }

    /// Whether the backend serves clients outside of the node.
    pub(super) fn serves_outside(&self) -> bool {
        self.bench.options.claims.has(Claim::Outside)
    }

    /// A client of the Services, outside of the node if the backend serves such clients.
    pub(super) fn client(&self, lab: &'a PodNetwork) -> &'a Namespace {
        if self.serves_outside() { lab.network.client() } else { lab.network.node() }
    }

    pub(super) fn claims_packets(&self, pods: usize) -> Option<&'a PodNetwork> {
        let outcome = if pods == 0 { Claim::Reject } else { Claim::Answers };
        self.claimed(&[Claim::Tcp, Claim::Ipv4, Claim::ClusterIp, outcome])
    }

    /// If the backend claims packets, sends packets to check that the backend serves a state with `pods` endpoints.
    pub(super) fn packets(&mut self, pods: usize) -> anyhow::Result<()> {
        let Some(lab) = self.claims_packets(pods) else { return Ok(()) };
        let from = if self.serves_outside() { Sender::Client(None) } else { Sender::Node };
        probe_flows(&lab.network, &[flow(from, pods)?])?;
        self.bench.shown = true;
        Ok(())
    }

    /// Waits until packets show that the backend serves a state with `pods` endpoints.
    pub(super) fn await_packets(&mut self, pods: usize) -> anyhow::Result<()> {
        self.eventually(|life| life.packets(pods))
    }

    pub(super) fn eventually(&mut self, so: impl Fn(&mut Self) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let deadline = Instant::now() + self.bench.options.patience;
        loop {
            match so(self) {
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }

    /// The output of `--listing`; empty without that command.
    pub(super) fn listing(&self) -> anyhow::Result<Vec<String>> {
        let Some(listing) = &self.bench.options.listing else { return Ok(Vec::new()) };
        self.bench.command.with_text(listing).output_lines(self.bench.namespace()).context("--listing")
    }

    /// Checks that packets and the kernel still show a state with `pods` endpoints, and that the listing is still `written`.
    pub(super) fn is_unchanged(&mut self, pods: usize, written: &[String]) -> anyhow::Result<()> {
        self.packets(pods)?;
        if self.bench.options.read_back.is_some() {
            self.bench.await_kernel_state(&serving(pods))?;
        }
        let now = self.listing()?;
        self.bench.shown |= self.bench.options.listing.is_some();
        anyhow::ensure!(now == written, "the listing was {written:#?}, and is now {now:#?}");
        Ok(())
    }

    /// The reason why the state cannot be checked while the backend does not run; `None` if the state can be checked.
    pub(super) fn cannot_observe(&self) -> Option<Verdict> {
        let options = &self.bench.options;
        let sees = self.claims_packets(2).is_some() || options.listing.is_some() || options.read_back.is_some();
        let reason = "neither packets, nor --listing, nor --read-back show the state";
        (!sees).then(|| Verdict::NotClaimed(reason.to_owned()))
    }
}

fn flow(from: Sender, pods: usize) -> anyhow::Result<Flow> {
    let to = format!("from: {from}, proto: tcp, to: 172.30.0.1, port: 80");
    let answers: Vec<String> = PODS.iter().take(pods).map(|pod| format!("{pod}:8080")).collect();
    let expected = if pods == 0 { "outcome: reject".to_owned() } else { format!("answers: [{}]", answers.join(", ")) };
    Flows::parse(&format!("flows: [{{{to}, {expected}}}]"))?.flows.pop().context("a flow")
}

pub(super) fn command(life: &Life<'_>, text: &str) -> anyhow::Result<()> {
    life.bench.command.with_text(text).run(life.bench.namespace(), &[], life.bench.options.patience)
}
