//! The ports of a Service. Each port has a unique name, by which endpoints refer to it.

use std::collections::BTreeSet;

use localnet_core::Code;
use localnet_proto::{Port, Protocol};

use super::{Lost, Skips};
use crate::objects::{Parsed, ServiceObject, ServicePort};

/// The field that contains a NodePort, as in [`Lost`].
pub const NODE_PORTS: &str = "spec.ports[].nodePort";

/// The ports that can be served, sorted by name. The verdicts for ports without endpoints are set later.
pub(super) fn ports(object: &ServiceObject, lost: &[Lost], skips: &mut Skips<'_>) -> Vec<Port> {
    let mut ports: Vec<Port> = Vec::new();
    let (mut names, mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (position, port) in object.ports.iter().enumerate() {
        let mut skip = |code, field: &str, problem: String, remedy: &str| {
            skips.service(code, format!("spec.ports[{position}]{field}"), problem, remedy);
        };
        let protocol = match &port.protocol {
            Parsed::Good(protocol) => *protocol,
            Parsed::Bad(text) => {
                skip(Code::ProtocolInvalid, ".protocol", format!("{text:?} is not a protocol"), "use TCP, UDP or SCTP");
                continue;
            }
        };
        let Some(number) = port_number(port.port) else {
            skip(Code::PortInvalid, ".port", format!("{} is not a port", port.port), "use a number from 1 to 65535");
            continue;
        };
        if names.contains(&port.name) {
            let problem = format!("the name {:?} is used twice", port.name);
            skip(Code::PortTwice, ".name", problem, "give each port its own name");
            continue;
        }
        if !numbers.insert((protocol, number)) {
            let problem = format!("{number}/{protocol} is used twice");
            skip(Code::PortTwice, ".port", problem, "give each port its own number");
            continue;
        }
        names.insert(port.name.clone());
        let mut node_port = node_port(port, protocol, lost, &mut skip);
        if let Some(number) = node_port
            && !node_ports.insert((protocol, number))
        {
            let problem = format!("{number}/{protocol} is used twice");
            skip(Code::PortTwice, ".nodePort", problem, "give each port its own nodePort");
            node_port = None;
        }
        ports.push(Port { name: port.name.clone(), protocol, port: number, node_port, ..Port::default() });
    }
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    ports
}

fn port_number(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|number| *number != 0)
}

fn node_port(
    port: &ServicePort,
    protocol: Protocol,
    lost: &[Lost],
    skip: &mut impl FnMut(Code, &str, String, &str),
) -> Option<u16> {
    let number = port_number(port.node_port);
    if number.is_none() && port.node_port != 0 {
        let problem = format!("{} is not a port", port.node_port);
        skip(Code::PortInvalid, ".nodePort", problem, "use a number from 1 to 65535");
    }
    let number = number?;
    let taken = lost.iter().find(|lost| {
        let (address, of, port) = lost.front;
        lost.field == NODE_PORTS && address.is_unspecified() && (of, port) == (protocol, number)
    });
    let Some(taken) = taken else { return Some(number) };
    let problem = format!("{number}/{protocol} belongs to {}", taken.to);
    skip(Code::AddressTaken, ".nodePort", problem, "give one of the two Services another nodePort");
    None
}
