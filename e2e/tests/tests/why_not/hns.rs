//! `--why-not` names the causes of the faults of `e2e/faults` with the Windows backend.
//!
//! The backend runs in this process, on the HNS of its unit tests. `localnet` reads this HNS from a file, with the text that
//! `localnet-win inspect` prints.

use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, ensure};
use localnet_client::{grpc::Brain, vips::Config};
use localnet_e2e::{
    Backend, await_condition,
    faults::{FAULTS, asked, is_first, most_are_right},
    scenario::{self, CommandRun, Scenario},
};
use localnet_win::{
    Kernel, Options, Recording, WinBackend,
    hcn::{Failure, Guid, Hcn, Kind},
    testing::FakeHcn,
};
use serde_json::Value;
use tokio::{runtime, sync::oneshot};

/// The pods of the node.
const PODS: [&str; 3] = ["10.180.0.1", "10.180.0.2", "10.180.0.3"];

/// An HNS that the backend and the test share.
#[derive(Clone, Debug)]
struct Hns(Arc<Mutex<FakeHcn>>);

impl Hns {
    fn lock(&self) -> MutexGuard<'_, FakeHcn> {
        self.0.lock().unwrap()
    }
}

impl Hcn for Hns {
    fn version(&mut self) -> Result<String, Failure> {
        self.lock().version()
    }

    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, Failure> {
        self.lock().enumerate(kind, query)
    }

    fn properties(&mut self, kind: Kind, id: Guid) -> Result<String, Failure> {
        self.lock().properties(kind, id)
    }

    fn create_endpoint(&mut self, network: Guid, id: Guid, settings: &str) -> Result<String, Failure> {
        self.lock().create_endpoint(network, id, settings)
    }

    fn create_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure> {
        self.lock().create_load_balancer(id, settings)
    }

    fn modify_load_balancer(&mut self, id: Guid, settings: &str) -> Result<String, Failure> {
        self.lock().modify_load_balancer(id, settings)
    }

    fn delete_endpoint(&mut self, id: Guid) -> Result<(), Failure> {
        self.lock().delete_endpoint(id)
    }

    fn delete_load_balancer(&mut self, id: Guid) -> Result<(), Failure> {
        self.lock().delete_load_balancer(id)
    }
}

impl Kernel for Hns {
    fn interfaces(&mut self) -> anyhow::Result<BTreeMap<IpAddr, String>> {
        self.lock().interfaces()
    }
}

/// The backend in a thread. It ends when this value is dropped.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Running {
    fn start(api: &str, hns: Hns) -> anyhow::Result<Self> {
        let api = api.parse()?;
        let (stop, stopped) = oneshot::channel();
        let serve = async move {
            let backend = WinBackend::new(Config::default(), options(), hns);
            let shutdown = async { _ = stopped.await };
            localnet_client::run(backend, Brain::new(api, None)?, localnet_client::Options::default(), shutdown).await
        };
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { stop: Some(stop), thread: Some(thread::spawn(move || runtime.block_on(serve))) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        _ = self.thread.take().map(JoinHandle::join);
    }
}

fn options() -> Options {
    Options { network: Some("pods".to_owned()), ..Options::default() }
}

/// A Windows node, with a brain on a Linux machine.
struct Node {
    scenario: Scenario,
    hns: Hns,
    backend: Option<Running>,
}

impl Node {
    fn build(folder: &Path, steps: &[String]) -> anyhow::Result<Self> {
        let hns = Hns(Arc::new(Mutex::new(FakeHcn::with_network("pods", "L2Bridge", &[], &PODS))));
        let mut node = Self { scenario: Scenario::build_on(Backend::Nft, folder, &[])?, hns, backend: None };
        for step in steps {
            node.step(step).with_context(|| format!("step {step:?}"))?;
        }
        Ok(node)
    }

    fn step(&mut self, step: &str) -> anyhow::Result<()> {
        match step.split(' ').collect::<Vec<_>>()[..] {
            ["backend"] => {
                self.backend = Some(Running::start(&self.scenario.programs.api(), self.hns.clone())?);
                self.scenario.await_applied()
            }
            ["failing", "backend"] => {
                self.backend = Some(Running::start(&self.scenario.programs.api(), self.hns.clone())?);
                let error =
                    || Some(!self.scenario.status()?["backends"][0]["families"][0]["error"].as_str()?.is_empty());
                await_condition("the backend's error", || error() == Some(true))
            }
            ["kill", "backend"] => {
                self.backend = None;
                Ok(())
            }
            ["hns", "delete", of, text] => {
                let mut hns = self.hns.lock();
                let count = hns.objects.len();
                let is_it = |kind: Kind, document: &Value| kind == named(of) && document.to_string().contains(text);
                hns.objects.retain(|(kind, _), document| !is_it(*kind, document));
                ensure!(hns.objects.len() < count, "HNS has no such object");
                Ok(())
            }
            ["hns", "replace", of, text, old, ref new @ ..] => {
                let mut hns = self.hns.lock();
                let found = hns.objects.iter_mut().map(|((kind, _), document)| (*kind, document));
                let found: Vec<_> = found
                    .filter(|(kind, document)| *kind == named(of) && document.to_string().contains(text))
                    .map(|(_, document)| document)
                    .collect();
                ensure!(!found.is_empty(), "HNS has no such object");
                for document in found {
                    let text = document.to_string();
                    ensure!(text.contains(old), "{text}");
                    *document = serde_json::from_str(&text.replace(old, new.first().unwrap_or(&"")))?;
                }
                Ok(())
            }
            ["hns", "add", of, id, document] => {
                let document = serde_json::from_str(document)?;
                self.hns.lock().objects.insert((named(of), id.parse()?), document);
                Ok(())
            }
            _ => self.scenario.step(step),
        }
    }

    /// Runs `localnet` with the file that `localnet-win inspect` prints on this node.
    fn localnet(&self, arguments: &[&str]) -> anyhow::Result<CommandRun> {
        let file = self.scenario.programs.path().join("hns.json");
        fs::write(&file, Recording::of(&mut self.hns.clone(), options())?.text())?;
        self.scenario.localnet(&[arguments, &["--hns", file.to_str().context("a path of UTF-8")?]].concat())
    }
}

fn named(kind: &str) -> Kind {
    match kind {
        "network" => Kind::Network,
        "endpoint" => Kind::Endpoint,
        "balancer" => Kind::LoadBalancer,
        _ => panic!("{kind} is no kind of object of HNS"),
    }
}

#[test]
fn the_right_cause_ranks_first_with_win() {
    let mut folders = Vec::new();
    for folder in scenario::all().unwrap() {
        let fault = scenario::read(&folder).unwrap();
        if fault.is_with("win") && !fault.changes_node() {
            folders.push(folder);
        }
    }
    assert!(folders.len() >= FAULTS, "only {} faults", folders.len());
    let of_hns = folders
        .iter()
        .filter(|folder| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("hns-")));
    assert!(of_hns.count() >= 12, "{folders:?}");
    most_are_right(&folders, |folder| {
        let fault = scenario::read(folder)?;
        is_first(&fault, &Node::build(folder, &fault.steps)?.localnet(&asked(&fault))?)
    })
    .unwrap();
}

/// All commands that read a kernel read HNS, and `top` gives the reason why it has nothing to read.
#[test]
fn the_commands_read_hns_from_a_file() {
    let steps = ["backend", "kill backend"].map(str::to_owned);
    let mut node = Node::build(&scenario::named("hns-balancer-deleted"), &steps).unwrap();
    let run = |node: &Node, words: &str| node.localnet(&words.split(' ').collect::<Vec<_>>()).unwrap();
    let equal = run(&node, "diff");
    assert_eq!(equal.code, 0, "{equal:?}");
    assert!(equal.out.starts_with("the kernel matches the plan (3 elements or rules compared)\n"), "{equal:?}");
    let doctor = run(&node, "doctor");
    assert!(doctor.out.contains("the kernel matches the backend's plan (3 lines)"), "{doctor:?}");
    // The settings of the machine where localnet runs are not those of the node.
    assert!(!doctor.out.contains("forward") && !doctor.out.contains("tracking"), "{doctor:?}");
    let line = "172.30.0.41:80/tcp: to 10.180.0.1:8080, remote 10.180.1.1:8080";
    let explained = run(&node, "explain --from pod --to shop/web:http");
    assert_eq!(explained.code, 0, "{explained:?}");
    let kernel = explained
        .out
        .split("kernel\n")
        .nth(1)
        .unwrap()
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let expected = [
        "held HNS networks pods".to_owned(),
        format!("held HNS load balancers {line}"),
        "held HNS endpoints 10.180.1.1: remote, 02-11-0a-b4-01-01".to_owned(),
    ];
    assert_eq!(kernel.take(3).collect::<Vec<_>>(), expected, "{explained:?}");

    node.step("hns delete balancer 172.30.0.41").unwrap();
    let differs = run(&node, "diff");
    assert_eq!(differs.code, 1, "{differs:?}");
    assert!(differs.out.starts_with(&format!("HNS load balancers\n  + {line}\n")), "{differs:?}");
    let doctor = run(&node, "doctor");
    assert_eq!(doctor.code, 1, "{doctor:?}");
    assert!(
        doctor.out.contains("1 lines of the kernel differ from the backend's plan, the first in HNS load balancers"),
        "{doctor:?}"
    );
    let explained = run(&node, "explain --from pod --to shop/web:http");
    assert_eq!(explained.code, 1, "{explained:?}");

    // An archive contains both lists.
    let archive = node.scenario.programs.path().join("sysdump.tar");
    let archive = archive.to_str().unwrap();
    let dumped = run(&node, &format!("sysdump --output {archive}"));
    assert_eq!(dumped.code, 0, "{dumped:?}");
    let again = node.scenario.localnet(&["--state", archive, "diff"]).unwrap();
    assert_eq!((again.code, &again.out), (1, &differs.out), "{again:?}");

    let without = node.scenario.localnet(&["explain", "--why-not", "shop/web:http"]).unwrap();
    assert!(without.out.contains("run localnet-win inspect there, and pass its output with --hns"), "{without:?}");
    let top = node.scenario.localnet(&["top", "--count", "1"]).unwrap();
    assert_eq!(top.code, 3, "{top:?}");
    assert!(top.error.contains("HNS counts neither connections nor packets"), "{top:?}");
    let wrong = node.scenario.localnet(&["diff", "--hns", "/dev/null"]).unwrap();
    assert!(
        wrong.code == 3 && wrong.error.contains("--hns /dev/null: not the output of localnet-win inspect"),
        "{wrong:?}"
    );
}
