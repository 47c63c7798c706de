//! Changes and states as `ipvsadm -R` reads them and `ipvsadm -S -n` prints them.

use std::net::Ipv4Addr;

use super::server::full_prefix;
use super::{
    Change, Destination, DestinationState, Family, Flags, Forwarding, Frontend, Protocol, ServerState, VirtualServer,
};

/// Input of `ipvsadm -R` that makes the same changes.
pub fn script(changes: &[Change]) -> String {
    changes.iter().fold(String::new(), |mut text, change| {
        match change {
            Change::AddServer(server) => push(&mut text, &["-A", &server_words(server)]),
            Change::UpdateServer(server) => push(&mut text, &["-E", &server_words(server)]),
            Change::DeleteServer(frontend) => push(&mut text, &["-D", &frontend_words(frontend)]),
            Change::AddDestination(frontend, destination) => {
                push(&mut text, &["-a", &frontend_words(frontend), &destination_words(destination)]);
            }
            Change::UpdateDestination(frontend, destination) => {
                push(&mut text, &["-e", &frontend_words(frontend), &destination_words(destination)]);
            }
            Change::DeleteDestination(frontend, address) => {
                push(&mut text, &["-d", &frontend_words(frontend), &format!("-r {address}")]);
            }
        }
        text
    })
}

/// What `ipvsadm -S -n` prints of these, in the order in which they are given. Thresholds are there as well: ipvsadm reads
/// them, but leaves them out when it prints.
pub fn listing(servers: &[ServerState]) -> String {
    servers.iter().fold(String::new(), |mut text, state| {
        push(&mut text, &["-A", &server_words(&state.server)]);
        for DestinationState { destination, .. } in &state.destinations {
            push(&mut text, &["-a", &frontend_words(&state.server.frontend), &destination_words(destination)]);
        }
        text
    })
}

fn push(text: &mut String, words: &[&str]) {
    text.push_str(&words.join(" "));
    text.push('\n');
}

fn frontend_words(frontend: &Frontend) -> String {
    let option = match frontend.protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
        Protocol::Sctp => "--sctp-service",
    };
    format!("{option} {}", frontend.address)
}

fn server_words(server: &VirtualServer) -> String {
    let mut words = format!("{} -s {}", frontend_words(&server.frontend), server.scheduler);
    if let Some(persistence) = server.persistence {
        words += &format!(" -p {}", persistence.timeout);
        let family = Family::of(&server.frontend.address.ip());
        if persistence.prefix_len != full_prefix(family) {
            words += &match family {
                Family::V4 => format!(" -M {}", Ipv4Addr::from(super::encode::mask(persistence.prefix_len))),
                Family::V6 => format!(" -M {}", persistence.prefix_len),
            };
        }
    }
    if server.flags.has(Flags::ONE_PACKET) {
        words += " -o";
    }
    let names = flag_names(server);
    if !names.is_empty() {
        words += &format!(" -b {}", names.join(","));
    }
    words
}

/// Schedulers of the kernel name their flags.
fn flag_names(server: &VirtualServer) -> Vec<&'static str> {
    let names = match server.scheduler.as_str() {
        "sh" => ["sh-fallback", "sh-port", "flag-3"],
        "mh" => ["mh-fallback", "mh-port", "flag-3"],
        _ => ["flag-1", "flag-2", "flag-3"],
    };
    let flags = [Flags::SCHEDULER_1, Flags::SCHEDULER_2, Flags::SCHEDULER_3];
    flags.into_iter().zip(names).filter(|(flag, _)| server.flags.has(*flag)).map(|(_, name)| name).collect()
}

fn destination_words(destination: &Destination) -> String {
    let Destination { address, weight, forwarding, upper_threshold, lower_threshold } = *destination;
    let forwarding = match forwarding {
        Forwarding::MASQUERADE => "-m",
        Forwarding::TUNNEL => "-i",
        // Local ones too: whether it is here is the kernel's to see.
        _ => "-g",
    };
    let mut words = format!("-r {address} {forwarding} -w {weight}");
    for (option, threshold) in [("-x", upper_threshold), ("-y", lower_threshold)] {
        if threshold > 0 {
            words += &format!(" {option} {threshold}");
        }
    }
    words
}
