//! Changes and states in the syntax of `ipvsadm`.

use std::net::Ipv4Addr;

use localnet_core::{Family, Protocol};

use super::server::full_prefix;
use super::{Change, Destination, DestinationState, Flags, Forwarding, Frontend, ServerState, VirtualServer};

/// Renders changes as input for `ipvsadm -R`.
pub fn script(changes: &[Change]) -> String {
    changes.iter().fold(String::new(), |mut text, change| {
        match change {
            Change::AddServer(server) => push(&mut text, &["-A", &server_options(server)]),
            Change::UpdateServer(server) => push(&mut text, &["-E", &server_options(server)]),
            Change::DeleteServer(frontend) => push(&mut text, &["-D", &frontend_options(frontend)]),
            Change::AddDestination(frontend, destination) => {
                push(&mut text, &["-a", &frontend_options(frontend), &destination_options(destination)]);
            }
            Change::UpdateDestination(frontend, destination) => {
                push(&mut text, &["-e", &frontend_options(frontend), &destination_options(destination)]);
            }
            Change::DeleteDestination(frontend, address) => {
                push(&mut text, &["-d", &frontend_options(frontend), &format!("-r {address}")]);
            }
        }
        text
    })
}

/// Renders virtual servers as `ipvsadm -S -n` prints them, in the given order. Also renders the thresholds, which ipvsadm
/// reads but does not print.
pub fn listing(servers: &[ServerState]) -> String {
    servers.iter().fold(String::new(), |mut text, state| {
        push(&mut text, &["-A", &server_options(&state.server)]);
        for DestinationState { destination, .. } in &state.destinations {
            push(&mut text, &["-a", &frontend_options(&state.server.frontend), &destination_options(destination)]);
        }
        text
    })
}

fn push(text: &mut String, options: &[&str]) {
    text.push_str(&options.join(" "));
    text.push('\n');
}

fn frontend_options(frontend: &Frontend) -> String {
    let option = match frontend.protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
        Protocol::Sctp => "--sctp-service",
    };
    format!("{option} {}", frontend.address)
}

fn server_options(server: &VirtualServer) -> String {
    let mut options = format!("{} -s {}", frontend_options(&server.frontend), server.scheduler);
    if let Some(persistence) = server.persistence {
        options += &format!(" -p {}", persistence.timeout);
        let family = Family::of(server.frontend.address.ip());
        if persistence.prefix_len != full_prefix(family) {
            options += &match family {
                Family::V4 => format!(" -M {}", Ipv4Addr::from(super::encode::mask(persistence.prefix_len))),
                Family::V6 => format!(" -M {}", persistence.prefix_len),
            };
        }
    }
    if server.flags.has(Flags::ONE_PACKET) {
        options += " -o";
    }
    let names = flag_names(server);
    if !names.is_empty() {
        options += &format!(" -b {}", names.join(","));
    }
    options
}

/// The names of the scheduler's flags that are set. `ipvsadm` has special names only for the flags of `sh` and `mh`.
fn flag_names(server: &VirtualServer) -> Vec<&'static str> {
    let names = match server.scheduler.as_str() {
        "sh" => ["sh-fallback", "sh-port", "flag-3"],
        "mh" => ["mh-fallback", "mh-port", "flag-3"],
        _ => ["flag-1", "flag-2", "flag-3"],
    };
    let flags = [Flags::SCHEDULER_1, Flags::SCHEDULER_2, Flags::SCHEDULER_3];
    flags.into_iter().zip(names).filter(|(flag, _)| server.flags.has(*flag)).map(|(_, name)| name).collect()
}

fn destination_options(destination: &Destination) -> String {
    let Destination { address, weight, forwarding, upper_threshold, lower_threshold } = *destination;
    let forwarding = match forwarding {
        Forwarding::MASQUERADE => "-m",
        Forwarding::TUNNEL => "-i",
        // Also for local destinations, because the kernel detects that they are local.
        _ => "-g",
    };
    let mut options = format!("-r {address} {forwarding} -w {weight}");
    for (option, threshold) in [("-x", upper_threshold), ("-y", lower_threshold)] {
        if threshold > 0 {
            options += &format!(" {option} {threshold}");
        }
    }
    options
}
