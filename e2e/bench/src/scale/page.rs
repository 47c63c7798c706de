//! Renders `docs/scale.md`. Pure.

use super::{Run, kubelet::TERMINATION};
use crate::{
    cluster::Size,
    figures::Memory,
    machine::Machine,
    number_text::{memory, or_dash, ratio, time},
    report::{page::machine, tables::Table},
    statistics::Times,
};

/// The page. The first run is the one that the others are compared with.
pub(super) fn page(size: Size, per_second: f64, of: &Machine, runs: &[Run]) -> String {
    let Size { services, endpoints, .. } = size;
    let mut page = format!(
        "# Scale\n\n\
         This page shows how long after a change of a Deployment packets reach its new pods, with localnet and with \
         kube-proxy, in a cluster of {services} Services with {endpoints} endpoints each. To measure this, run `make \
         bench-scale` as root. The command writes this page. `make bench-scale QUICK=1` only checks that the benchmark \
         works, and writes to `target/bench`. [Performance](PERFORMANCE.md) describes the contestants, and compares \
         them at several sizes, without controllers.\n\n\
         ## What is measured\n\n\
         A real etcd, kube-apiserver and kube-controller-manager manage {services} Deployments with {endpoints} \
         replicas each, and their Services. The real controllers create and delete the pods, and write the \
         EndpointSlices. They have more workers than by default, so that they delay the contestants less. Only the \
         kubelet is fake: it reports each new pod as ready at once, at a new address, and deletes a terminating pod \
         after {} s. All pods are on another node than the contestant. One process answers at all addresses of pods, and \
         its answer contains the address that the connection reached.\n\n\
         Each contestant gets a new control plane with the same objects. The benchmark then restarts one Deployment \
         after the other, about {per_second} per second, as `kubectl rollout restart` does. So each restart replaces {endpoints} endpoints, in \
         several steps. During a restart, a pod on the contestant's node connects to the Service again and again. All \
         times of a new pod end when the first connection reaches this pod:\n\n\
         - “Event” begins when the API server announces the new endpoint to the benchmark in an EndpointSlice. It is the \
         contestant's own share.\n\
         - “Status” begins when the kubelet sends the status of the ready pod. It also includes the API server and the \
         EndpointSlice controller.\n\
         - “Timestamp” begins at the time in the annotation `endpoints.kubernetes.io/last-change-trigger-time` of the \
         EndpointSlice, like Kubernetes' own measure of network programming latency. The controller takes this time from \
         the pod's condition `Ready`, which has whole seconds. So “timestamp” includes up to 1 s before the \
         pod was ready.\n\n\
         The contestant sends each connection to a random endpoint. With 10 endpoints, a new pod is reached after about 10 \
         connections of less than 0.1 ms each, and one new pod of 100 only after 44. The pause between two connections is \
         1/200 of the time since the EndpointSlice event, so that the connections take little processor time from a slow \
         contestant. These pauses lengthen a time by about 5 %, and one time of 100 by up to 25 %.\n\n",
        TERMINATION.as_secs(),
    );
    page += &machine(of, runs.iter().map(|run| run.others_percent));
    page += "\nThe control plane, the benchmark and the contestant share these processors. Compare a time only with other \
             times on this page.\n";
    page += &section(
        "From a ready pod to the first connection",
        "n is the number of new pods. “Not reached” is the number of further new pods that no connection reached within \
         one minute after the last restart.",
        &latencies(runs),
    );
    page += &section(
        "Connections during the restarts",
        "Each of these Services always has endpoints. A connection fails if it is refused or is not answered within 1 s. \
         It is stale if it goes to a pod that was deleted before the connection was opened; in a real cluster, such a \
         connection fails, too.",
        &connections(runs),
    );
    page += &section(
        "Costs",
        "“Start” is the time from the start of the contestant until every Service answers, with its CPU time. “CPU” is \
         the processor use during the restarts, in percent of one processor: that of the contestant beside that of the \
         control plane and the benchmark. “Slices” is the number of EndpointSlices that the controller changed per \
         second. Memory is resident memory after the restarts, with its peak.",
        &costs(runs),
    );
    page
}

fn section(title: &str, note: &str, table: &Table) -> String {
    format!("\n## {title}\n\n{note}\n\n{}", table.markdown())
}

fn latencies(runs: &[Run]) -> Table {
    let quantiles = |times: &Option<Times>| {
        let text = |times: &Times| format!("{} / {} / {}", time(times.p50), time(times.p99), time(times.max));
        or_dash(times.as_ref().map(text))
    };
    let head = [
        "contestant",
        "event p50 / p99 / max",
        "status p50 / p99 / max",
        "timestamp p50 / p99 / max",
        "n",
        "not reached",
        "event p50, relative to the first row",
    ];
    let rows = runs.iter().map(|run| {
        let both = run.event.zip(runs.first().and_then(|first| first.event));
        let mut row = vec![run.contestant.clone()];
        row.extend([&run.event, &run.status, &run.timestamp].map(quantiles));
        row.push(run.event.map_or(0, |times| times.n).to_string());
        row.push(run.not_reached.to_string());
        row.push(or_dash(both.map(|(theirs, ours)| ratio(theirs.p50, ours.p50))));
        row
    });
    Table::new("", "", &head).with(rows)
}

fn connections(runs: &[Run]) -> Table {
    let row = |run: &Run| {
        let counts = [run.connections, run.failed, run.stale].map(|count| count.to_string());
        [run.contestant.clone()].into_iter().chain(counts).collect()
    };
    Table::new("", "", &["contestant", "connections", "failed", "stale"]).with(runs.iter().map(row))
}

fn costs(runs: &[Run]) -> Table {
    let process = |(name, one): (&String, &Memory)| format!("{name} {} ({})", memory(one.resident), memory(one.peak));
    let row = |run: &Run| {
        vec![
            run.contestant.clone(),
            format!("{} ({})", time(run.start.took), time(run.start.cpu)),
            run.restarts.to_string(),
            format!("{:.1} per second", run.slices_per_second),
            format!("{:.0} % beside {:.0} %", run.cpu, run.surroundings),
            run.memory.iter().map(process).collect::<Vec<_>>().join(", "),
        ]
    };
    let head = ["contestant", "start (CPU)", "restarts", "slices", "CPU", "memory (peak)"];
    Table::new("", "", &head).with(runs.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestants_are_compared_with_the_first_one() {
        let machine = Machine {
            date: "today".to_owned(),
            revision: "abc".to_owned(),
            processors: 2,
            processor: "P".to_owned(),
            memory_gib: 1.0,
            kernel: "6".to_owned(),
            versions: vec![],
        };
        let run = |contestant: &str, millis: f64| {
            let event = Some(Times { n: 20, p50: millis, p99: 2.0 * millis, max: 3.0 * millis });
            Run { contestant: contestant.to_owned(), event, not_reached: 1, stale: 7, ..Run::default() }
        };
        let runs = [run("ours", 10.0), run("theirs", 1_000.0)];
        let page = page(Size::new(20, 10), 1.0, &machine, &runs);
        for row in [
            "| ours | 10.0 ms / 20.0 ms / 30.0 ms | – | – | 20 | 1 | × 1.0 |\n",
            "| theirs | 1.00 s / 2.00 s / 3.00 s | – | – | 20 | 1 | × 100 |\n",
            "| theirs | 0 | 0 | 7 |\n",
        ] {
            assert!(page.contains(row), "{row}{page}");
        }
    }
}
