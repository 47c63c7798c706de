//! The guest's network interfaces, for programs that run in the guest.

use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context as _, ensure};

/// QEMU's built-in network, the same on each wire: the address of the interface, and the gateway to everything else.
const ADDRESS: &str = "10.0.2.15/24";
const GATEWAY: &str = "10.0.2.2";

/// Configures an interface of a guest with a [`crate::Network`]: moves it to a network namespace of the guest, or leaves it in the
/// initial one, and routes these IPv4 addresses through it.
///
/// # Errors
/// Returns an error if there is no such interface or namespace.
pub fn connect(nic: usize, namespace: Option<&str>, to: &[IpAddr]) -> anyhow::Result<()> {
    let name = format!("eth{nic}");
    run("modprobe", &["virtio_net"])?;
    let mut ip: Vec<&str> = Vec::new();
    if let Some(namespace) = namespace {
        run("ip", &["link", "set", &name, "netns", namespace])?;
        ip.extend(["-n", namespace]);
    }
    run("ip", &[&ip[..], &["address", "add", ADDRESS, "dev", &name]].concat())?;
    run("ip", &[&ip[..], &["link", "set", &name, "up"]].concat())?;
    for address in to {
        let address = address.to_string();
        run("ip", &[&ip[..], &["route", "add", &address, "via", GATEWAY, "dev", &name]].concat())?;
    }
    Ok(())
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("running {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {} {}", arguments.join(" "), output.status, errors.trim());
    Ok(())
}
