//! The DNS server of `examples/dns` answers like CoreDNS' plugin `kubernetes`, which reads the same API server.
//!
//! The [`cluster`] has Services of all kinds. Every name of the cluster, and names that do not exist, are asked for with the types of
//! records that are [`SPECIFIED`], and with `QUESTIONS=all` also with [`OTHERS`]. `docs/dns.md` numbers the [`differences`].

mod cluster;
mod differences;

use std::{
    collections::BTreeMap,
    env, fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use hickory_server::proto::rr::RecordType;
use localnet_controlplane::{ControlPlane, Options};
use localnet_e2e::{
    await_condition,
    dns::{Client, Example, Process, free_address},
};

/// The types of the specification's records about Services and Pods.
const SPECIFIED: [RecordType; 4] = [RecordType::A, RecordType::AAAA, RecordType::SRV, RecordType::PTR];
/// Other types, for which clients and resolvers ask.
const OTHERS: [RecordType; 6] =
    [RecordType::CNAME, RecordType::TXT, RecordType::MX, RecordType::NS, RecordType::SOA, RecordType::HTTPS];

/// How the answers of the two servers compare: the number of answers of each kind.
#[derive(Default)]
struct Tally {
    same: BTreeMap<String, u32>,
    different: BTreeMap<String, u32>,
}

impl Tally {
    fn asked(&self) -> u32 {
        self.same.values().chain(self.different.values()).sum()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asked, same) = (self.asked(), self.same.values().sum::<u32>());
        let share = 100.0 * f64::from(same) / f64::from(asked);
        write!(f, "{asked} questions, {same} answers are the same ({share:.2} %): {:?} {:?}", self.same, self.different)
    }
}

/// The program of e2e/kubernetes/modules/coredns, which `make cluster` builds, too.
fn coredns() -> anyhow::Result<PathBuf> {
    let cache = env::var_os("LOCALNET_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache"));
    let path = cache.join("kubernetes/bin/coredns");
    anyhow::ensure!(path.is_file(), "{} is missing: run `make dns`, which builds it", path.display());
    Ok(path)
}

/// Starts CoreDNS with the option `pods` of kubeadm's `Corefile`.
fn start_coredns(program: &Path, folder: &Path, kubeconfig: &Path) -> anyhow::Result<(Process, Client)> {
    let address = free_address()?;
    let file = format!(
        ".:{} {{\n bind 127.0.0.1\n errors\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n  kubeconfig {}\n  pods insecure\n }}\n}}\n",
        address.port(),
        kubeconfig.display()
    );
    let corefile = folder.join("Corefile");
    fs::write(&corefile, file)?;
    let arguments = ["-conf", &corefile.display().to_string()];
    let process = Process::start(program, &arguments, &folder.join("coredns.log"))?;
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
    let coredns = coredns()?;
    let plane = ControlPlane::start(Options::default()).await?;
    let folder = tempfile::tempdir()?;
    let mut names = cluster::create(&plane).await?;
    let kubeconfig = plane.kubeconfig().display().to_string();
    // The brain has the permissions that it has in a cluster.
    let source = format!("kube:{}", plane.kube_proxy_kubeconfig().display());
    let example = Example::start(folder.path(), &["--source", &source])?;
    let (_coredns, mut theirs) = start_coredns(&coredns, folder.path(), Path::new(&kubeconfig))?;
    let mut ours = Client::connect(example.address)?;
    let is_all = env::var("QUESTIONS").is_ok_and(|which| which == "all");
    let kinds = SPECIFIED.into_iter().chain(OTHERS.into_iter().filter(|_| is_all));
    let (mut all, mut specified, mut unexplained) = (Tally::default(), Tally::default(), Vec::new());
    for round in 0..2 {
        let marker = cluster::mark(&plane, round).await?;
        for client in [&mut ours, &mut theirs] {
            await_condition("the marker", || {
                client.ask(&marker, RecordType::A).is_ok_and(|reply| !reply.answers.is_empty())
            })
            .with_context(|| logs(folder.path()))?;
        }
        for (name, kind) in names.iter().flat_map(|name| kinds.clone().map(move |kind| (name, kind))) {
            let (our, their) = (ours.ask(name, kind)?, theirs.ask(name, kind)?);
            let is_same = our == their;
            let result = if is_same {
                format!("{:?}, {}", our.code, if our.answers.is_empty() { "empty" } else { "records" })
            } else if let Some(number) = differences::number(name, kind, &our, &their, &mut theirs)? {
                format!("difference {number}")
            } else {
                unexplained.push(format!("{kind} {name}\n  ours   {our:?}\n  theirs {their:?}"));
                "unknown difference".to_owned()
            };
            let is_specified = SPECIFIED.contains(&kind) && (kind == RecordType::PTR || !name.ends_with(".arpa."));
            for tally in [&mut all].into_iter().chain(is_specified.then_some(&mut specified)) {
                let results = if is_same { &mut tally.same } else { &mut tally.different };
                *results.entry(result.clone()).or_default() += 1;
            }
        }
        if round == 0 {
            names.extend(cluster::change(&plane).await?);
        }
    }
    println!("all: {all}");
    println!("A, AAAA, SRV and PTR of the cluster domain, and PTR of addresses: {specified}");
    let some: Vec<_> = unexplained.iter().take(20).map(String::as_str).collect();
    anyhow::ensure!(unexplained.is_empty(), "{} answers differ:\n{}", unexplained.len(), some.join("\n"));
    anyhow::ensure!(all.asked() >= 5000, "only {} questions", all.asked());
    // Each kind of answer was compared, and each difference exists.
    let kinds = ["NoError, records", "NoError, empty", "NXDomain, empty"];
    let differences = (1..=6).map(|number| format!("difference {number}"));
    for expected in kinds.into_iter().map(str::to_owned).chain(differences) {
        let exists = all.same.contains_key(&expected) || all.different.contains_key(&expected);
        anyhow::ensure!(exists, "no answer is of the kind {expected:?}: {all}");
    }
    Ok(())
}
