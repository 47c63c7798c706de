//! Compares localnet-ipvs with kube-proxy's ipvs mode: programming all virtual servers from a cold start, and the change of one
//! endpoint.
//!
//! ```text
//!   this machine: etcd, kube-apiserver with all objects ◀── a guest's card ── guest: network of namespaces, contestant, client
//! ```
//!
//! Each contestant has its own API server and guest, even if this machine's kernel has IPVS. An emulated processor is many times
//! slower than a real one, so the results are only for comparison.

mod inside;
mod report;

use std::{
    env,
    ffi::OsString,
    fs,
    io::Write as _,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use localnet_controlplane::ControlPlane;
use localnet_lab::{Network, Topology};
use localnet_vm::Guest;
use tokio::runtime::Runtime;

use crate::{
    cluster::Size,
    contestants::{Contestant, WITH_IPVS},
    machine::Machine,
    options::Options,
    plane, print_progress,
};
use inside::{Figures, Task};

/// The address of the API server, in a namespace without any other program.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(100, 64, 0, 1));
/// kube-proxy starts a program for each element of an ipset.
const LIMIT: Duration = Duration::from_secs(7200);
/// The resources of a guest.
const GUEST: localnet_vm::Options = localnet_vm::Options { memory_mib: 2048, cpus: 1, network: None };
/// The environment variable with the task for the program in the guest.
const TASK: &str = "LOCALNET_BENCH_TASK";

/// Measures both contestants, and writes the figures into the page.
pub(crate) fn measure(options: &Options, page: &Path) -> anyhow::Result<()> {
    if let Ok(task) = env::var(TASK) {
        let figures = inside::measure(&serde_json::from_str(&task).context("reading a task")?)?;
        // The caller reads the last line of the output.
        return Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&figures)?)?);
    }
    let machine = Machine::of_this()?;
    let runtime = Runtime::new()?;
    let mut texts = Vec::new();
    for size in sizes(options) {
        let data = runtime.block_on(plane::filled(size, &options.cache))?;
        let mut runs = Vec::new();
        let mut place = String::new();
        for (number, contestant) in WITH_IPVS.iter().enumerate() {
            if !options.includes(contestant.name) {
                continue;
            }
            print_progress(&format!("{} at {size}", contestant.name));
            let (figures, kernel) = of(&runtime, (number, contestant), size, options.quick, &data)
                .with_context(|| format!("measuring {}", contestant.name))?;
            print_progress(&serde_json::to_string(&figures)?);
            runs.push((contestant.name, figures));
            place = kernel;
        }
        texts.push(report::text(size, &runs, &machine, &place));
    }
    let text = texts.join("\n");
    print_progress(&text);
    let old = fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let new = report::put(&old, &text).with_context(|| format!("writing into {}", page.display()))?;
    fs::write(page, new).with_context(|| format!("writing {}", page.display()))
}

/// The requested sizes, or 1,000 and 10,000 virtual servers. An emulated kube-proxy may not finish the latter.
fn sizes(options: &Options) -> Vec<Size> {
    let usual = |services: &u32| Size::new(*services, 3);
    match (options.size.as_slice(), options.quick) {
        ([], false) => [1_000, 10_000].iter().map(usual).collect(),
        ([], true) => vec![usual(&1_000)],
        (requested, _) => requested.to_vec(),
    }
}

/// The figures of one contestant, and a description of the kernel.
fn of(
    runtime: &Runtime,
    (number, contestant): (usize, &Contestant),
    size: Size,
    quick: bool,
    data: &Path,
) -> anyhow::Result<(Figures, String)> {
    let network = Network::build(Topology::default())?;
    network.node().ip([format!("address add {ADDRESS}/32 dev lo")])?;
    let options = plane::options(Some((network.node().path(), ADDRESS)), Some(data.to_owned()));
    let plane = runtime.block_on(ControlPlane::start(options))?;
    let task = Task {
        contestant: number,
        services: size.services,
        endpoints: size.endpoints,
        quick,
        admin: plane.kubeconfig().to_owned(),
        kube_proxy: plane.kube_proxy_kubeconfig().to_owned(),
        server: ADDRESS,
    };
    let outside = localnet_vm::Network { namespace: network.node().path(), nics: 2 };
    let guest = Guest::boot(&localnet_vm::Options { network: Some(outside), ..GUEST })?;
    let mut command = Command::new(env::current_exe().context("finding this program")?);
    command.args(env::args_os().skip(1)).env(TASK, OsString::from(serde_json::to_string(&task)?));
    let output = guest.run(&command, LIMIT).with_context(|| format!("{} in the guest", contestant.name))?;
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "in the guest: {printed}{errors}");
    let last = printed.lines().last().context("the guest printed nothing")?;
    let kernel = guest.run(Command::new("uname").arg("-r"), Duration::from_secs(60))?;
    let kernel = String::from_utf8_lossy(&kernel.stdout).trim().to_owned();
    let processor = if guest.accelerator() == "tcg" { "an emulated processor" } else { "a processor shared by KVM" };
    let place = format!("a guest with Linux {kernel} and {processor}");
    Ok((serde_json::from_str(last).with_context(|| format!("reading {last}"))?, place))
}
