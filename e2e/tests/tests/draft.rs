//! The libraries in other languages read the draft `localnet.v1`: their examples print each change of a brain that reads a file. They
//! also report to the brain.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use localnet_client::grpc;
use localnet_e2e::{await_condition, dns::Process, program};
use localnet_proto::wire::BackendReport;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Writes the Service `shop/web` with an endpoint `10.1.0.N` for each of `pods`. With ranges, only these sources may reach its load
/// balancer IP.
fn write(folder: &Path, ranges: &str, pods: impl IntoIterator<Item = u8>) {
    let endpoints: String = pods.into_iter().map(|pod| format!("- {{addresses: [10.1.0.{pod}]}}\n")).collect();
    let text = format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: node-a}}}}\n\
         ---\n\
         apiVersion: v1\nkind: Service\n\
         metadata: {{name: web, namespace: shop}}\n\
         spec: {{type: LoadBalancer, clusterIP: 10.96.0.1, loadBalancerSourceRanges: [{ranges}], ports: [{{port: 80}}]}}\n\
         status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.1}}]}}}}\n\
         ---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: '', port: 8080}}]\nendpoints:\n{endpoints}"
    );
    fs::write(folder.join("new"), text).unwrap();
    fs::rename(folder.join("new"), folder.join("cluster.yaml")).unwrap();
}

fn start_brain(folder: &Path) -> Process {
    let (source, api) = (format!("file:{}", folder.join("cluster.yaml").display()), api(folder));
    // Without `--shadow`, the brain opens ports of the machine.
    let flags = ["--source", &source, "--node-name", "node-a", "--draft-v1", "--shadow", "--listen", &api];
    Process::start(&program("localnet-brain").unwrap(), &flags, &folder.join("brain.log")).unwrap()
}

fn api(folder: &Path) -> String {
    format!("unix://{}", folder.join("brain.sock").display())
}

/// A program. Dropping it kills it.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both calls fail only if the program has exited.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// An example that prints changes.
struct Example {
    _program: Killed,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _program: Killed(child), lines }
    }

    /// The lines up to the end of the next state.
    fn state(&mut self) -> Vec<String> {
        let mut state = Vec::new();
        while !state.last().is_some_and(|line: &String| line.starts_with("state ")) {
            state.push(self.lines.next().expect("the example runs").unwrap());
        }
        state
    }
}

/// Verifies what an example prints. It lists no capabilities.
fn follows(command: impl FnOnce(&str) -> Command) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "", [1, 2, 3]);
    let brain = start_brain(folder);
    await_condition("the socket of the brain", || folder.join("brain.sock").exists()).unwrap();
    let mut example = Example::start(command(&api(folder)));
    let endpoint = |verb: &str, pod: u8| format!("{verb} shop/web 10.1.0.{pod}:8080");
    let service = |withheld| format!("set shop/web, withheld: {withheld}");
    let state = |number: u8| format!("state {number}");
    let all = [1, 2, 3].map(|pod| endpoint("set", pod));
    assert_eq!(example.state(), [&["node node-a".to_owned(), service(false)], &all[..], &[state(1)]].concat());

    write(folder, "", [1, 3, 4]);
    assert_eq!(example.state(), [endpoint("set", 4), endpoint("delete", 2), state(2)]);

    // The Service needs a capability, so the example gets no endpoints, and needs no code for that.
    write(folder, "192.0.2.0/24", [1, 3, 4]);
    let gone = [1, 3, 4].map(|pod| endpoint("delete", pod));
    assert_eq!(example.state(), [&[service(true)], &gone[..], &[state(3)]].concat());

    write(folder, "", [1, 3, 4]);
    let back = [1, 3, 4].map(|pod| endpoint("set", pod));
    assert_eq!(example.state(), [&[service(false)], &back[..], &[state(4)]].concat());

    // The token of the old brain is unknown to the new one. The example gets the full state, and prints only what differs.
    drop(brain);
    write(folder, "", [1, 4, 5]);
    let _brain = start_brain(folder);
    assert_eq!(example.state(), [endpoint("set", 5), endpoint("delete", 3), state(1)]);
}

#[test]
fn the_go_library_follows_a_brain() {
    let cache = std::env::var_os("LOCALNET_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from);
    let example = cache.join("examples/bin/go-changes");
    assert!(example.exists(), "{} is not built: run `make examples`", example.display());
    follows(|api| {
        let mut command = Command::new(example);
        command.args(["--api", api]);
        command
    });
}

#[test]
fn the_python_library_follows_a_brain() {
    follows(|api| {
        let mut command = Command::new(localnet_e2e::python().unwrap());
        command.arg(root().join("examples/python/changes.py")).args(["--api", api]);
        command
    });
}

/// Backends that do nothing, and list no capabilities.
const REPORTER_IN_GO: &str = r#"
package main

import (
	"context"
	"flag"
	"log"

	"localnet.dev/go/client/v1"
)

func main() {
	var flags client.Flags
	flags.Register(flag.CommandLine)
	flag.Parse()
	brain, err := flags.Dial()
	if err != nil {
		log.Fatal(err)
	}
	apply := func(context.Context, *client.State, *client.Changes) error { return nil }
	log.Fatal(client.Run(context.Background(), brain, apply, flags.Options("reporter")))
}
"#;
const REPORTER_IN_PYTHON: &str = r#"
import argparse, asyncio
from localnet_client.v1 import Flags, run

async def apply(state, changes):
    pass

async def main():
    parser = argparse.ArgumentParser()
    Flags.register(parser)
    flags = Flags(parser.parse_args())
    async with flags.dial() as brain:
        await run(brain, apply, flags.options("reporter"))

asyncio.run(main())
"#;

/// Verifies that the brain accepts the reports of a backend: what it has applied, and the Service that the brain withholds from it.
fn reports(command: impl FnOnce(&str) -> Command) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "192.0.2.0/24", [1]);
    let _brain = start_brain(folder);
    await_condition("the socket of the brain", || folder.join("brain.sock").exists()).unwrap();
    let _backend = Killed(command(&api(folder)).stdin(Stdio::null()).spawn().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let last = || {
        runtime.block_on(async {
            let brain = grpc::Brain::new(api(folder).parse()?, None)?;
            let received = brain.status().await?.backends.into_iter().find_map(|received| received.report);
            anyhow::Ok(received)
        })
    };
    let of = |report: &BackendReport| {
        let applied: Vec<_> = report.families.iter().map(|family| family.applied_rev).collect();
        let skipped = report.skipped.iter().map(|part| {
            let service = part.service.as_ref().map(|key| format!("{}/{}", key.namespace, key.name));
            (service.unwrap_or_default(), part.code.clone())
        });
        (report.backend.clone(), report.rev, applied, skipped.collect::<Vec<_>>())
    };
    let await_report = |rev: u64, skipped: &[(&str, &str)]| {
        let skipped = skipped.iter().map(|(service, code)| ((*service).to_owned(), (*code).to_owned()));
        let expected = ("reporter".to_owned(), rev, vec![rev, rev], skipped.collect::<Vec<_>>());
        let arrives = await_condition("the report", || last().ok().flatten().is_some_and(|last| of(&last) == expected));
        arrives.unwrap_or_else(|error| panic!("{error:#}: {:?}", last()));
    };
    await_report(1, &[("shop/web", "service-withheld")]);
    write(folder, "", [1, 2]);
    await_report(2, &[]);
}

#[test]
fn the_brain_accepts_the_reports_of_the_go_library() {
    let folder = tempfile::tempdir().unwrap();
    let (source, backend) = (folder.path().join("main.go"), folder.path().join("reporter"));
    fs::write(&source, REPORTER_IN_GO).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-buildvcs=false", "-o"]).args([&backend, &source]);
    assert!(build.current_dir(root().join("examples/go")).status().unwrap().success());
    reports(|api| {
        let mut command = Command::new(backend);
        command.args(["--api", api]);
        command
    });
}

#[test]
fn the_brain_accepts_the_reports_of_the_python_library() {
    reports(|api| {
        let mut command = Command::new(localnet_e2e::python().unwrap());
        command.args(["-c", REPORTER_IN_PYTHON, "--api", api]);
        command
    });
}

#[test]
fn the_page_contains_the_whole_examples() {
    let read = |path| fs::read_to_string(root().join(path)).unwrap();
    let page = read("docs/reading-v1.md");
    for (language, example) in [("go", "examples/go/changes/main.go"), ("python", "examples/python/changes.py")] {
        let block = format!("```{language}\n{}```\n", read(example));
        assert!(page.contains(&block), "docs/reading-v1.md lacks the text of {example}");
    }
}
