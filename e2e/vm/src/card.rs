//! The guest's network cards, as programs in the guest use them.

use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context as _, ensure};

/// QEMU's own network on each wire: the card has an address in it, and everything else is behind the gateway.
const ADDRESS: &str = "10.0.2.15/24";
const GATEWAY: &str = "10.0.2.2";

/// In a guest with a [`crate::Network`]: gives a card to a network namespace of the guest, or leaves it in the first one, and makes it the
/// way to these IPv4 addresses.
///
/// # Errors
/// There is no such card or namespace.
pub fn connect(card: usize, namespace: Option<&str>, to: &[IpAddr]) -> anyhow::Result<()> {
    let name = format!("eth{card}");
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
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {} {}", arguments.join(" "), output.status, said.trim());
    Ok(())
}
