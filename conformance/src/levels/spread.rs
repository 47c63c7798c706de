//! Checks of the level `life`: to which endpoint each connection goes, by weights and by a hash.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use localnet_proto::{Endpoint, HashBy, Protocol, Service};

use super::{
    fixture::{Life, PODS, web},
    states::state,
    traffic::{answered, at, lab},
};
use crate::{claims::Claim, outcome::Verdict};

/// How many connections test weights, and how many of them an endpoint may get more or less than its share. By Hoeffding's inequality, a
/// backend that chooses at random exceeds this with a probability below 10⁻¹³, and one that ignores the weights 3:1 keeps it with a
/// probability below 10⁻⁹.
const CONNECTIONS: usize = 600;
const TOLERANCE: usize = 98;
/// How many connections test hashing. A backend that chose one of two endpoints at random would pass with a probability of 2⁻³¹.
const HASHED: usize = 32;

/// An endpoint of weight 3 gets three times as many connections as one of weight 1.
pub(super) fn weights(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let needed = [Claim::Tcp, Claim::Ipv4, Claim::ClusterIp, Claim::Answers, Claim::Weights];
    let lab = match lab(life, &needed) {
        Ok(lab) => lab,
        Err(verdict) => return Ok(verdict),
    };
    let client = life.client(lab);
    life.start()?;
    let mut weighed = web(1, 2);
    // IPVS has weights only with some schedulers.
    weighed.ipvs_scheduler = Some("wrr".into());
    weighed.endpoints[0].weight = Endpoint::weighing(3);
    life.bench.apply(&state([weighed]))?;
    life.eventually(|_| answered(client, Protocol::Tcp, at(1)).map(drop))?;
    let mut counts: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        *counts.entry(answered(client, Protocol::Tcp, at(1))?).or_default() += 1;
    }
    let heavy = counts.iter().filter(|(by, _)| by.ip().to_string() == PODS[0]).map(|(_, count)| count).sum::<usize>();
    let right = heavy.abs_diff(CONNECTIONS * 3 / 4) < TOLERANCE;
    anyhow::ensure!(right, "of {CONNECTIONS} connections to endpoints with the weights 3 and 1, these got {counts:?}");
    Ok(Verdict::Passed)
}

/// With a hash of the client's address, all its connections reach the same endpoint. It moves only while this endpoint is removed. With a
/// hash of the address and port, the connections of one client reach all endpoints.
pub(super) fn hash(life: &mut Life<'_>) -> anyhow::Result<Verdict> {
    let needed = [Claim::Tcp, Claim::Ipv4, Claim::ClusterIp, Claim::Answers, Claim::Hash];
    let lab = match lab(life, &needed) {
        Ok(lab) => lab,
        Err(verdict) => return Ok(verdict),
    };
    let client = life.client(lab);
    let hashed = |by, without: Option<IpAddr>| {
        let mut service = Service { hash: Some(by), ..web(1, 2) };
        service.endpoints.retain(|endpoint| Some(endpoint.address) != without);
        state([service])
    };
    let met = || (0..HASHED).map(|_| answered(client, Protocol::Tcp, at(1))).collect::<anyhow::Result<BTreeSet<_>>>();
    life.start()?;
    life.bench.apply(&hashed(HashBy::Source, None))?;
    life.eventually(|_| answered(client, Protocol::Tcp, at(1)).map(drop))?;
    let first = met()?;
    anyhow::ensure!(first.len() == 1, "one client reached several endpoints: {first:?}");
    for pod in PODS {
        let gone: IpAddr = pod.parse()?;
        life.bench.apply(&hashed(HashBy::Source, Some(gone)))?;
        life.eventually(|_| {
            let now = met()?;
            let moves = first.iter().any(|by| by.ip() == gone);
            let right = if moves { now.is_disjoint(&first) } else { now == first };
            anyhow::ensure!(right && now.len() == 1, "without {gone}, the client of {first:?} reached {now:?}");
            Ok(())
        })?;
        life.bench.apply(&hashed(HashBy::Source, None))?;
        life.eventually(|_| {
            let now = met()?;
            anyhow::ensure!(now == first, "after {gone} was away, the client of {first:?} reached {now:?}");
            Ok(())
        })?;
    }
    life.bench.apply(&hashed(HashBy::Connection, None))?;
    life.eventually(|_| {
        let now = met()?;
        anyhow::ensure!(now.len() == PODS.len(), "{HASHED} ports of a client reached only {now:?}");
        Ok(())
    })?;
    Ok(Verdict::Passed)
}
