//! Verifies every Case on a kernel with IPVS: real packets get the verdicts in `flows.yaml`. The tests of connections and of
//! repairs are in the same program, so that one guest is enough.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod connections;
mod contract;
mod planned;
mod repair;
mod schedulers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

use localnet_ipvs::{Host, IpvsBackend, LinuxBackend as _, Options};
use localnet_lab::flow::{Expect, Source};
use localnet_lab::{Case, Flow, Flows, Network, Sender, Servers, probe_flows};
use localnet_linux::{ipvs, sysctl::Settings};
use localnet_proto::Changes;
use localnet_vm::on_ipvs;
use planned::{config, desired};

/// The Case with the verdicts that are specific to IPVS (`docs/backends/ipvs.md`). First, all ports of a VIP's address are local,
/// so packets to other ports are rejected. Second, a packet from the node to a VIP has that VIP's address as its source, so it
/// has to be masqueraded. Third, IPVS takes every packet to a VIP, so an endpoint with the VIP's own address and port gets none.
fn as_ipvs_shows_it(mut case: Case) -> anyhow::Result<Case> {
    let mut plan = desired(&case.flows);
    plan.update(&case.read_state()?, &Changes::everything());
    let addresses: BTreeSet<IpAddr> = plan.wanted_addresses().collect();
    // Fourth, NodePorts never answer on loopback addresses.
    let is_left = |flow: &Flow| !(case.flows.node.localhost && flow.to.ip().is_loopback());
    case.flows.flows.retain(is_left);
    for flow in &mut case.flows.flows {
        let has_server = plan.servers().wants(&ipvs::Frontend::new(flow.protocol, flow.to));
        let is_endpoint = matches!(&flow.expect, Expect::Answers { by, .. } if by.contains(&flow.to));
        match &mut flow.expect {
            expect @ (Expect::Untouched | Expect::Drop) if addresses.contains(&flow.to.ip()) && !has_server => {
                *expect = Expect::Reject;
            }
            expect @ Expect::Answers { .. } if is_endpoint && has_server => *expect = Expect::Drop,
            Expect::Answers { source: source @ Some(Source::Kept), .. } if flow.from == Sender::Node => {
                *source = Some(Source::Masqueraded);
            }
            _ => {}
        }
    }
    Ok(case)
}

/// Verifies every `PARTS`-th Case from `part` on. Building a network in the guest is slow, so Cases share one. They are
/// programmed one after the other, and each starts with the live state of the previous one, as after a restart.
fn packets_match_the_flows(part: usize) {
    let mut groups: BTreeMap<Vec<IpAddr>, Vec<Case>> = BTreeMap::new();
    for dir in case_dirs().into_iter().skip(part).step_by(PARTS) {
        let case = as_ipvs_shows_it(Case::load(&dir).unwrap()).unwrap();
        groups.entry(case.flows.node.addresses.clone()).or_default().push(case);
    }
    let wrong: Vec<String> = groups.values().flat_map(|cases| wrong_cases(cases).unwrap()).collect();
    assert!(wrong.is_empty(), "{} Cases are wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}

fn case_dirs() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(localnet_lab::case::folder()).unwrap();
    let mut dirs: Vec<_> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    dirs.sort();
    dirs
}

/// The failures of these Cases. The node has the same addresses in all of them.
fn wrong_cases(cases: &[Case]) -> anyhow::Result<Vec<String>> {
    let mut all = Flows { node: cases[0].flows.node.clone(), ..Flows::default() };
    let mut endpoints = BTreeSet::new();
    for case in cases {
        all.flows.extend(case.flows.flows.iter().cloned());
        endpoints.extend(case.endpoints()?);
    }
    let network = Network::build(all.topology(&endpoints))?;
    let _servers = Servers::start(&network, endpoints)?;
    let began = Instant::now();
    let mut wrong = Vec::new();
    for case in cases {
        let checked = network.node().run(|| program(case)).and_then(|()| probe(&network, &case.flows.flows));
        wrong.extend(checked.err().map(|error| format!("{}: {error:#}", case.name)));
        println!("{:.1?}: {}", began.elapsed(), case.name);
    }
    Ok(wrong)
}

/// Makes the kernel of this thread's network namespace hold the state of the Case.
fn program(case: &Case) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let host = Host::open()?;
        ipvs::apply_settings(&Settings::default(), false).into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut backend = IpvsBackend::new(config(&case.flows), Options::default(), host);
        backend.set_local_addresses(case.flows.local_addresses());
        backend.apply(&case.read_state()?, &Changes::everything()).await?.whole()?;
        // The backend reads exactly what it wrote.
        anyhow::ensure!(backend.is_undisturbed().await?, "the live state of IPVS differs from the applied state");
        Ok(())
    })
}

/// How many groups of flows are probed in parallel. A probe mostly waits.
const AT_A_TIME: usize = 4;

fn probe(network: &Network, flows: &[Flow]) -> anyhow::Result<()> {
    let results: Vec<_> = std::thread::scope(|scope| {
        let chunks = flows.chunks(flows.len().div_ceil(AT_A_TIME).max(1));
        let probes: Vec<_> = chunks.map(|flows| scope.spawn(|| probe_flows(network, flows))).collect();
        probes.into_iter().map(|probe| probe.join().unwrap()).collect()
    });
    let wrong: Vec<_> = results.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The number of tests that share the Cases. A test may run for minutes in the guest, because an emulated CPU on a busy machine
/// is slow.
const PARTS: usize = 4;

macro_rules! parts {
    ($($name:ident: $part:expr),+) => {
        mod packets_match_the_flows {
            $(
                #[test]
                fn $name() {
                    super::on_ipvs(|| super::packets_match_the_flows($part));
                }
            )+
        }

        #[test]
        fn every_case_is_in_a_part() {
            assert_eq!([$($part),+], std::array::from_fn::<usize, PARTS, _>(|part| part));
        }
    };
}

parts! {
    part_1: 0, part_2: 1, part_3: 2, part_4: 3
}
