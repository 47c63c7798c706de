//! Determines from the evidence what is wrong with a port of a Service, the likeliest cause first. Pure.
//!
//! Causes are ranked by layer: first the cluster, then what the backend has applied, then what the kernel holds, then what other
//! programs do to packets. A certain cause (an error) ranks before a possible cause (a warning). Causes at the ClusterIP rank
//! before causes at other addresses.

mod cluster;
mod node;

use localnet_core::{Code, Diagnostic, Subject};

use crate::{
    diagnostics::{of_source, usual},
    evidence::Evidence,
};

/// The causes found so far, each with the rank of its address and the rank of its layer. Smaller ranks come first.
type Ranking = Vec<(usize, u32, Diagnostic)>;

/// Returns the causes, the likeliest first.
pub fn rank(evidence: &Evidence) -> Vec<Diagnostic> {
    let mut ranking = Ranking::new();
    if let Some(no_state) = &evidence.no_state {
        let problem = format!("the brain sends no state: {no_state}");
        ranking.push((0, 1, usual(Code::BrainUnreachable, Subject::Program, problem)));
    }
    let after = evidence.fronts.len();
    // If the state sends packets to endpoints at every address of the Service, problems of the brain's source rank after the
    // causes on the node. Otherwise they rank first.
    let arrives = evidence.is_served && after > 0 && evidence.fronts.iter().all(|front| front.outcome == "endpoints");
    let (front, layer) = if arrives { (after, 29) } else { (0, 0) };
    evidence.status.iter().flat_map(of_source).for_each(|cause| ranking.push((front, layer, cause)));
    cluster::of_service(evidence, &mut ranking);
    for (number, front) in evidence.fronts.iter().enumerate() {
        match front.outcome {
            "endpoints" => node::of_front(evidence, number, front, &mut ranking),
            _ => ranking.push((number, 20, cluster::of_outcome(evidence, front))),
        }
    }
    node::of_routes(evidence, &mut ranking);
    let findings = evidence.why.iter().flat_map(|why| &why.findings).filter(|_| evidence.is_served);
    findings.for_each(|finding| ranking.push((after, 30, finding.clone())));
    ranking.sort_by_key(|(front, layer, cause)| (cause.severity, *front, *layer));
    let mut causes: Vec<Diagnostic> = Vec::new();
    for (.., cause) in ranking {
        // If several addresses have the same cause, it is listed once.
        if !causes.iter().any(|other| other.code == cause.code && other.problem == cause.problem) {
            causes.push(cause);
        }
    }
    causes
}

#[cfg(test)]
mod tests;
