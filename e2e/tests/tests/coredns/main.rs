//! The DNS server of `examples/dns` answers like CoreDNS' plugin `kubernetes`, which reads the same API server. `make dns` builds
//! e2e/kubernetes/modules/coredns and runs this test.
//!
//! The [`cluster`] has Services of all kinds. Every name of the cluster, and names that do not exist, are asked for with all types of
//! records. `docs/dns.md` numbers the [`differences`].

mod cluster;
mod differences;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use hickory_server::proto::rr::RecordType;
use localnet_controlplane::{ControlPlane, Options};
use localnet_e2e::{
    await_condition,
    dns::{Client, Example, Process, free_address},
};

const KINDS: [RecordType; 10] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::PTR,
    RecordType::CNAME,
    RecordType::TXT,
    RecordType::MX,
    RecordType::NS,
    RecordType::SOA,
    RecordType::HTTPS,
];

/// The program of e2e/kubernetes/modules/coredns.
fn coredns() -> anyhow::Result<PathBuf> {
    let cache = env::var_os("LOCALNET_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache"));
    let path = cache.join("kubernetes/bin/coredns");
    anyhow::ensure!(path.is_file(), "{} is missing: run e2e/kubernetes/build.sh", path.display());
    Ok(path)
}

/// Starts CoreDNS with the option `pods` of kubeadm's `Corefile`.
fn start_coredns(folder: &Path, kubeconfig: &Path) -> anyhow::Result<(Process, Client)> {
    let address = free_address()?;
    let file = format!(
        ".:{} {{\n bind 127.0.0.1\n errors\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n  kubeconfig {}\n  pods insecure\n }}\n}}\n",
        address.port(),
        kubeconfig.display()
    );
    let corefile = folder.join("Corefile");
    fs::write(&corefile, file)?;
    let arguments = ["-conf", &corefile.display().to_string()];
    let process = Process::start(&coredns()?, &arguments, &folder.join("coredns.log"))?;
    await_condition("CoreDNS", || Client::connect(address).is_ok())?;
    Ok((process, Client::connect(address)?))
}

/// The logs of the brain and of the DNS servers.
fn logs(folder: &Path) -> String {
    let read = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
    ["brain.log", "dns.log", "coredns.log"].map(read).concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_coredns() -> anyhow::Result<()> {
    let plane = ControlPlane::start(Options::default()).await?;
    let folder = tempfile::tempdir()?;
    let mut names = cluster::create(&plane).await?;
    let kubeconfig = plane.kubeconfig().display().to_string();
    // The brain has the permissions that it has in a cluster.
    let source = format!("kube:{}", plane.kube_proxy_kubeconfig().display());
    let example = Example::start(folder.path(), &["--source", &source])?;
    let (_coredns, mut theirs) = start_coredns(folder.path(), Path::new(&kubeconfig))?;
    let mut ours = Client::connect(example.address)?;
    let (mut questions, mut counts) = (0, BTreeMap::new());
    let mut unexplained = Vec::new();
    for round in 0..2 {
        let marker = cluster::mark(&plane, round).await?;
        for client in [&mut ours, &mut theirs] {
            await_condition("the marker", || {
                client.ask(&marker, RecordType::A).is_ok_and(|reply| !reply.answers.is_empty())
            })
            .with_context(|| logs(folder.path()))?;
        }
        for name in &names {
            for kind in KINDS {
                questions += 1;
                let (our, their) = (ours.ask(name, kind)?, theirs.ask(name, kind)?);
                if our == their {
                    *counts
                        .entry(format!("{:?}, {}", our.code, if our.answers.is_empty() { "empty" } else { "records" }))
                        .or_insert(0) += 1;
                    continue;
                }
                match differences::number(name, kind, &our, &their, &mut theirs)? {
                    Some(number) => *counts.entry(format!("difference {number}")).or_insert(0) += 1,
                    None => unexplained.push(format!("{kind} {name}\n  ours   {our:?}\n  theirs {their:?}")),
                }
            }
        }
        if round == 0 {
            names.extend(cluster::change(&plane).await?);
        }
    }
    println!("{questions} questions: {counts:?}");
    let some: Vec<_> = unexplained.iter().take(20).map(String::as_str).collect();
    anyhow::ensure!(unexplained.is_empty(), "{} answers differ:\n{}", unexplained.len(), some.join("\n"));
    anyhow::ensure!(questions >= 5000, "only {questions} questions");
    // Each kind of answer was compared, and each difference exists.
    let kinds = ["NoError, records", "NoError, empty", "NXDomain, empty"];
    let differences = (1..=6).map(|number| format!("difference {number}"));
    for expected in kinds.into_iter().map(str::to_owned).chain(differences) {
        anyhow::ensure!(counts.contains_key(&expected), "no answer is of the kind {expected:?}: {counts:?}");
    }
    Ok(())
}
