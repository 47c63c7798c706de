//! The folders of `e2e/cases`. Each is one scenario that every layer of tests reads.
//!
//! | file | content | written by |
//! |---|---|---|
//! | `cluster.yaml` | Services, EndpointSlices, Nodes | hand |
//! | `flows.yaml` | which packets go where, see [`crate::flow`] | hand |
//! | `state.yaml` | the expected state of the node | `UPDATE_EXPECT=1`, then reviewed |
//! | `nft.txt` … | the expected plan of a backend | `UPDATE_EXPECT=1`, then reviewed |
//! | `between-nodes.yaml` | the packets of two programmed nodes, and the configuration of the other node; most Cases have none | hand |
//! | `other-state.yaml` | the expected state of the other node | `UPDATE_EXPECT=1`, then reviewed |
//!
//! The lab reads the flows. Of the cluster it reads only the addresses of endpoints, so that servers run at all of them,
//! including those that a backend must not choose.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use localnet_core::Protocol;
use serde::{Deserialize, de::DeserializeOwned};

use crate::flow::Flows;
use crate::serve::Endpoint;
use crate::topology::{NODE, Place, Pod};

/// A scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The name of the folder.
    pub name: String,
    /// The folder.
    pub dir: PathBuf,
    /// The expectations about packets.
    pub flows: Flows,
    /// The expectations if the other node is programmed, too.
    pub between_nodes: Option<Flows>,
}

/// All Cases, sorted by name.
///
/// # Panics
/// Panics if a Case cannot be read, because then every test that reads Cases must fail.
pub fn cases() -> Vec<Case> {
    read_cases(&folder()).unwrap_or_else(|error| panic!("{error:#}"))
}

/// The folder of all Cases: if the program is installed as `bin/PROGRAM`, `share/localnet/cases`; otherwise, that in the repository.
pub fn folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let installed = program.ancestors().nth(2).map(|installation| installation.join("share/localnet/cases"));
    installed.filter(|folder| folder.is_dir()).unwrap_or_else(|| {
        // A released program contains no path of the machine that built it.
        let repository =
            if cfg!(debug_assertions) { Path::new(env!("CARGO_MANIFEST_DIR")) } else { Path::new("e2e/lab") };
        repository.with_file_name("cases")
    })
}

impl Case {
    /// Reads the Case in `dir`.
    ///
    /// # Errors
    /// Returns an error if `flows.yaml` cannot be read or is invalid.
    pub fn load(dir: &Path) -> anyhow::Result<Self> {
        let name =
            dir.file_name().and_then(|name| name.to_str()).ok_or_else(|| anyhow!("{} has no name", dir.display()))?;
        let flows = |path: PathBuf| {
            read(&path).and_then(|text| Flows::parse(&text)).with_context(|| format!("reading {}", path.display()))
        };
        let between = dir.join("between-nodes.yaml");
        let between_nodes = if between.exists() { Some(flows(between)?) } else { None };
        Ok(Self { name: name.to_owned(), dir: dir.to_owned(), flows: flows(dir.join("flows.yaml"))?, between_nodes })
    }

    /// The same Case for the other node, with the packets between nodes; `None` if the Case has none.
    pub fn on_other_node(&self) -> Option<Self> {
        let flows = Flows { place: Place::Remote, ..self.between_nodes.clone()? };
        Some(Self { flows, ..self.clone() })
    }

    /// The path of the Kubernetes objects.
    pub fn cluster(&self) -> PathBuf {
        self.dir.join("cluster.yaml")
    }

    /// The path of the expected state of the node.
    pub fn state(&self) -> PathBuf {
        self.dir.join(match self.flows.place {
            Place::Local => "state.yaml",
            Place::Remote => "other-state.yaml",
        })
    }

    /// Reads [`Self::state`] into a type for states.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or does not contain a state.
    pub fn read_state<State: DeserializeOwned>(&self) -> anyhow::Result<State> {
        let path = self.state();
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
    }

    /// The path of the expected plan of the nft backend.
    pub fn nft(&self) -> PathBuf {
        self.dir.join("nft.txt")
    }

    /// The path of another file of the Case, such as the expected plan of another backend.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The endpoints at which servers have to run: [`Self::slice_endpoints`], and those that the flows name.
    ///
    /// # Errors
    /// Returns an error if `cluster.yaml` cannot be read or is invalid.
    pub fn endpoints(&self) -> anyhow::Result<BTreeSet<Endpoint>> {
        let mut endpoints = self.slice_endpoints()?;
        endpoints.extend(self.flows.endpoints());
        Ok(endpoints)
    }

    /// Every endpoint in an EndpointSlice that is a pod or uses the node's network, eligible or not.
    ///
    /// # Errors
    /// Returns an error if `cluster.yaml` cannot be read or is invalid.
    pub fn slice_endpoints(&self) -> anyhow::Result<BTreeSet<Endpoint>> {
        let path = self.cluster();
        let objects = read(&path).and_then(|text| Ok(serde_saphyr::from_multiple(&text)?));
        let objects: Vec<Object> = objects.with_context(|| format!("reading {}", path.display()))?;
        Ok(objects.iter().flat_map(Object::lab_endpoints).collect())
    }
}

/// The Cases in a folder, sorted by name.
///
/// # Errors
/// Returns an error if the folder or one of the Cases cannot be read.
pub fn read_cases(root: &Path) -> anyhow::Result<Vec<Case>> {
    let entries = std::fs::read_dir(root).with_context(|| format!("listing {}", root.display()))?;
    let mut dirs = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("listing {}", root.display()))?.path();
        if path.is_dir() {
            dirs.push(path);
        }
    }
    dirs.sort();
    dirs.iter().map(|dir| Case::load(dir)).collect()
}

fn read(path: &Path) -> anyhow::Result<String> {
    Ok(std::fs::read_to_string(path)?)
}

/// The part of a Kubernetes object that locates endpoints.
#[derive(Debug, Deserialize)]
struct Object {
    kind: String,
    #[serde(default)]
    endpoints: Vec<SliceEndpoint>,
    #[serde(default)]
    ports: Vec<SlicePort>,
    #[serde(default)]
    items: Vec<Object>,
}

#[derive(Debug, Deserialize)]
struct SliceEndpoint {
    #[serde(default)]
    addresses: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct SlicePort {
    port: Option<u16>,
    protocol: Option<Protocol>,
}

impl Object {
    fn lab_endpoints(&self) -> Vec<Endpoint> {
        let mut endpoints: Vec<_> = self.items.iter().flat_map(Self::lab_endpoints).collect();
        if self.kind != "EndpointSlice" {
            return endpoints;
        }
        let addresses = self.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        for address in addresses.filter_map(|address| written_address(address)) {
            if Pod::at(address).is_none() && !NODE.contains(&address) {
                continue;
            }
            for port in &self.ports {
                let Some(number) = port.port.filter(|number| *number != 0) else { continue };
                let protocol = port.protocol.unwrap_or(Protocol::Tcp);
                endpoints.push(Endpoint { protocol, address: SocketAddr::new(address, number) });
            }
        }
        endpoints
    }
}

/// The address in the text, in each notation that Kubernetes accepts: with leading zeros, or an IPv4 address in IPv6 notation.
fn written_address(text: &str) -> Option<IpAddr> {
    let without_zeros = |octet: &str| match octet.trim_start_matches('0') {
        "" => "0".to_owned(),
        digits => digits.to_owned(),
    };
    let canonical = if text.contains(':') {
        text.to_owned()
    } else {
        text.split('.').map(without_zeros).collect::<Vec<_>>().join(".")
    };
    canonical.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_run_at_every_pod_endpoint_of_every_slice() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("cluster.yaml"),
            "\
kind: Service
spec: {ports: [{port: 80}]}
---
kind: EndpointSlice
addressType: IPv4
endpoints:
- addresses: [10.180.0.1]
  conditions: {ready: false}
- addresses: [192.0.2.1]
- addresses: [nonsense]
- addresses: [010.180.000.002]
- addresses: ['::ffff:192.168.0.2']
ports: [{name: a, port: 80}, {name: b, port: 53, protocol: UDP}, {name: c}]
---
kind: List
items:
- kind: EndpointSlice
  endpoints: [{addresses: ['fd00:10:180:1::2']}]
  ports: [{port: 9, protocol: SCTP}]
",
        )
        .unwrap();
        let flow = "{from: client, proto: tcp, to: 1.2.3.5, port: 80, outcome: untouched}";
        std::fs::write(dir.path().join("flows.yaml"), format!("flows: [{flow}]")).unwrap();
        let named: Vec<_> =
            Case::load(dir.path()).unwrap().endpoints().unwrap().iter().map(ToString::to_string).collect();
        let expected = [
            "tcp 1.2.3.5:80",
            "tcp 10.180.0.1:80",
            "tcp 10.180.0.2:80",
            "tcp 192.168.0.2:80",
            "udp 10.180.0.1:53",
            "udp 10.180.0.2:53",
            "udp 192.168.0.2:53",
            "sctp [fd00:10:180:1::2]:9",
        ];
        assert_eq!(named, expected);
    }

    #[test]
    fn the_error_for_an_invalid_case_names_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let case = dir.path().join("odd");
        std::fs::create_dir(&case).unwrap();
        std::fs::write(case.join("flows.yaml"), "flows:\n- {from: client, to: there}\n").unwrap();
        let error = format!("{:#}", read_cases(dir.path()).unwrap_err());
        assert!(error.contains("odd/flows.yaml") && error.contains("line 2"), "{error}");
    }
}
