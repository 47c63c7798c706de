//! The examples in other languages pass the levels that they claim, and are as short as documented.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use localnet_conformance::{Level, Options, claims::Claim};
use localnet_controlplane::binary;

use crate::{all_levels, levels, passes, program};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn example(path: &str) -> String {
    let path = root().join(path);
    let lines = fs::read_to_string(&path).unwrap().lines().count();
    assert!(lines <= 200, "{} has {lines} lines", path.display());
    path.display().to_string()
}

/// The claims of a proxy in user space.
const PROXIES: [Claim; 8] =
    [Claim::Tcp, Claim::Udp, Claim::Ipv4, Claim::Ipv6, Claim::ClusterIp, Claim::Answers, Claim::Reject, Claim::Outside];

/// One check of each kind, for programs that start slowly. `localnet-conformance` without `--only` runs all checks.
///
/// Python and Node.js need seconds of a processor before they run the program, and other tests use the processors, too.
fn each_kind(options: Options) -> Options {
    let few = [
        "wire/another-brain",
        "wire/keeps-the-sum",
        "wire/no-commit",
        "wire/wrong-",
        "wire/connection-lost",
        "wire/cut-",
        "wire/endpoint-removed",
        "wire/service-",
        "wire/unknown-",
        "state/policy-internal",
        "state/terminating",
        "life/brain-unavailable-and-back",
        "life/exits-on-signal",
        "life/killed-and-restarted",
        "life/starts-without-a-brain",
        "packets/cluster-ip",
        "packets/dual-stack",
        "packets/no-endpoints-reject",
        "packets/udp",
    ];
    let patience = Duration::from_secs(60);
    Options { only: few.map(str::to_owned).into(), patience, ..options }
}

#[test]
fn python_proxies_tcp_and_udp() {
    let script = example("examples/python/proxy.py");
    let python = localnet_e2e::python().unwrap();
    let backend = format!("{} {script} --api {{api}} --dump {{dump}}", python.display());
    passes(&each_kind(Options { claims: PROXIES.into_iter().collect(), ..Options::of(backend) }));
}

#[test]
fn the_python_example_follows_localnet_v1_incrementally() {
    let script = example("examples/python/dump_v1.py");
    let python = localnet_e2e::python().unwrap();
    let backend = format!("{} {script} --api {{api}} --dump {{dump}}", python.display());
    passes(&each_kind(levels(backend, &[Level::Wire, Level::State, Level::Life])));
}

/// The path of a built example.
fn built(name: &str) -> String {
    let cache = std::env::var_os("LOCALNET_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from);
    let program = cache.join("examples").join(name);
    assert!(program.exists(), "{} is not built: run `make examples`", program.display());
    program.display().to_string()
}

#[test]
fn the_go_example_follows_the_state_incrementally() {
    example("examples/go/incremental/main.go");
    let backend = format!("{} --api {{api}} --dump {{dump}}", built("bin/go-incremental"));
    passes(&levels(backend, &[Level::Wire, Level::State, Level::Life]));
}

#[test]
fn the_go_example_follows_localnet_v1_incrementally() {
    example("examples/go/incremental-v1/main.go");
    let backend = format!("{} --api {{api}} --dump {{dump}}", built("bin/go-incremental-v1"));
    let outcomes = passes(&levels(backend, &[Level::Wire, Level::State, Level::Life]));
    assert!(outcomes.count() >= 200, "{}", outcomes.table(true));
}

#[test]
fn go_proxies_tcp_and_udp() {
    example("examples/go/main.go");
    let backend = format!("{} --api {{api}}", built("bin/go-proxy"));
    passes(&Options { claims: PROXIES.into_iter().collect(), ..all_levels(backend) });
}

#[test]
fn node_js_proxies_tcp() {
    example("examples/node/backend.js");
    let backend = format!("node {} {{api}} {{dump}}", built("node/backend.js"));
    let claims = PROXIES.into_iter().filter(|claim| *claim != Claim::Udp).collect();
    passes(&each_kind(Options { claims, ..Options::of(backend) }));
}

#[test]
fn the_page_about_a_first_backend_contains_the_whole_program() {
    let read = |path| fs::read_to_string(root().join(path)).unwrap();
    let page = read("docs/first-backend.md");
    let parts: Vec<_> = page.split("```js\n").skip(1).map(|rest| rest.split("```\n").next().unwrap()).collect();
    assert_eq!(parts.join("\n"), read("examples/node/backend.js"));
}

#[test]
fn shell_holds_the_state() {
    let script = example("examples/shell/dump.sh");
    let grpcurl = binary("grpcurl").unwrap();
    let backend = format!("env GRPCURL={} {script} {{api}} {{dump}}", grpcurl.display());
    passes(&each_kind(levels(backend, &[Level::Wire, Level::State, Level::Life])));
}

#[test]
fn the_rust_example_follows_the_state_incrementally() {
    example("client/examples/incremental.rs");
    let backend = format!("{} --api {{api}} --dump {{dump}}", program("incremental"));
    passes(&levels(backend, &[Level::Wire, Level::State, Level::Life]));
}
