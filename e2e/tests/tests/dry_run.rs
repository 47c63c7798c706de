//! Everyone who may read the state can print the desired rules, without privileges and without touching the kernel.

use std::process::Command;

use localnet_e2e::{Programs, await_condition, program};
use localnet_lab::{Network, Topology, topology::CLUSTER_CIDRS};

#[test]
fn a_dry_run_needs_no_privilege() -> anyhow::Result<()> {
    let network = Network::build(Topology::default())?;
    let programs = Programs::new()?;
    let examples = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let _brain = programs.start_brain(network.node(), examples)?;
    let socket = programs.path().join("brain.sock");
    await_condition("the brain's socket", || socket.exists())?;

    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]).arg(program("localnet-nft")?);
    command.args(["--once", "--dry-run", "--api", &programs.api(), "--cluster-cidr", &CLUSTER_CIDRS.join(",")]);
    let plan = network.node().output(&mut command)?;
    for word in ["table ip localnet", "172.30.0.10 . tcp . 80", "10.180.0.1"] {
        anyhow::ensure!(plan.contains(word), "{word:?} is missing:\n{plan}");
    }
    let rules = network.node().output(Command::new("nft").args(["list", "ruleset"]))?;
    anyhow::ensure!(rules.is_empty(), "the kernel holds rules:\n{rules}");
    // nft accepts the output.
    network.node().output_with_input(Command::new("nft").args(["-f", "-"]), &plan)?;
    Ok(())
}
